"""The routes that a process knows by name, with their policies; others' records it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from semel.core.policy import Policy
from semel.core.terms import EVERY_ROUTE, Terms
from semel.core.upkeep import Known
from semel.log import log
from semel.web.inventory import Entry, entries
from semel.web.tags import policy_of

if TYPE_CHECKING:
    from semel.guard import Guard

ONCE_ROUTE = "once {}"
"""The route of a function done `once` under a policy of its own, by its name."""


class KnownRoutes:
    """Of one application: the guard's own policy, its listed routes, and the tags on endpoints.

    ``app`` is the application, guarded or not; without it the tags are not found, and the records
    of those endpoints are nobody's here.
    """

    def __init__(self, guard: Guard, app: Any = None) -> None:
        self._guard = guard
        self._policies = {EVERY_ROUTE: guard.policy, **dict(_tagged(guard, app))}
        # Of several that are listed alike the first one holds.
        self._policies |= {route.label: route.policy for route in reversed(guard.routes)}

    def known(self) -> Known:
        """For a store, to list what is known and nothing else."""
        functions = map(ONCE_ROUTE.format, self._guard.registry.probes)
        return Known(self._guard.name, (*self._policies, *functions))

    def policies(self) -> dict[str, Policy]:
        """All that have a policy, by their names."""
        return self._policies

    def knows(self, terms: Terms | None) -> bool:
        return self.known().covers(terms)

    def knows_route(self, application: str, route: str) -> bool:
        known = self.known()
        return application == known.application and route in known.routes

    def policy(self, terms: Terms | None) -> Policy | None:
        """That of a record's route now; None where there is no such route here.

        What it was promised is in its own terms; this says who can be asked, and how it is run.
        """
        if terms is None or terms.application != self._guard.name:
            return None
        return self._policies.get(terms.route)


def _tagged(guard: Guard, app: Any) -> Iterator[tuple[str, Policy]]:
    """Of two endpoints that go by one name neither is known: the wrong one might be asked."""
    found: dict[str, Policy] = {}
    twice: set[str] = set()
    for entry in () if app is None else entries(app):
        policy = entry.policy or policy_of(entry.endpoint, entry.method)
        if policy is None or entry.guard not in (guard, None):
            continue
        for label in _labels(entry, policy):
            if found.setdefault(label, policy) is not policy:
                twice.add(label)
    for label in sorted(twice):
        log.warning("semel: two endpoints are called %s: their records are left alone", label)
    return iter([(at, guard.bind(found[at])) for at in found if at not in twice])


def _labels(entry: Entry, policy: Policy) -> list[str]:
    """A route may answer every method; the policy says which take part."""
    if entry.method != "*":
        return [entry.label]
    return [entry.label.replace("*", method, 1) for method in sorted(policy.methods)]
