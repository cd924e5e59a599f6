"""What is the same for every request of one route, worked out when its first one comes."""

from __future__ import annotations

from semel.core.policy import Policy
from semel.core.terms import Terms


class Plan:
    """A route by its name, its policy, and the terms under which it makes records now."""

    __slots__ = ("application", "enrolled", "label", "policy", "terms")

    def __init__(self, label: str, policy: Policy, terms: Terms) -> None:
        self.label = label
        self.policy = policy
        self.terms = terms
        self.application = terms.application
        self.enrolled = False
        """This process has compared the route's settings with what the store remembers."""
