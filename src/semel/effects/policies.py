"""The policy of a record, found again from where its key was used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.core.model import Case, Origin
from semel.core.policy import Policy
from semel.core.reconciling import Doubt
from semel.core.settling import ONCE, in_doubt
from semel.errors import ConfigurationError
from semel.web.desk import Desk, FindTag
from semel.web.routing import pretended
from semel.web.tags import any_tags, find_flask_tag, find_tag

if TYPE_CHECKING:
    from semel.core.model import Micros
    from semel.effects.registry import ProbeFunction
    from semel.guard import Guard


class Policies:
    """Asks a guard's routes, and the application's router, as a request's way in does.

    ``app`` is the application, guarded or not; without it the tags on endpoints are not found.
    ``root`` is the prefix that it is mounted under, where a proxy or a server adds one.
    """

    def __init__(self, guard: Guard, app: Any = None, root: str = "") -> None:
        self.guard = guard
        self._root = root.rstrip("/")
        self._blind = app is None
        self._desk = Desk(guard, *_router(app))

    def at(self, origin: Origin) -> Policy:
        """The policy of the route a key was used at; a function done `once` has the guard's."""
        if origin.method == ONCE:
            return self.guard.policy
        return self._desk.policy_at(*pretended(origin.method, origin.path, self._root))

    def of(self, case: Case) -> Policy:
        return self.at(case.origin)

    def probe(self, name: str | None, policy: Policy) -> ProbeFunction | None:
        """Who can be asked: the one registered for the call or function, or else the route's."""
        named = None if name is None else self.guard.registry.probes.get(name)
        return policy.probe if named is None else named

    def doubt(self, case: Case, now: Micros) -> Doubt:
        """All that is needed to ask about a record.

        ConfigurationError where a probe may be on an endpoint that nobody showed us: the record
        must not be given up for that.
        """
        policy, name = self.at(case.origin), in_doubt(case)
        probe = self.probe(name, policy)
        if probe is None and self._blind and any_tags():
            raise ConfigurationError(
                "endpoints are tagged by guard.route(), and their probes are found through the "
                "application: name it with --app, or app="
            )
        return Doubt(case, now, name, policy, probe)


def _router(app: Any) -> tuple[Any, FindTag]:
    """The application whose router is asked, and how: Flask's and Django's are inside what wraps
    them."""
    inner = app
    for _ in range(32):
        if hasattr(inner, "_middleware_chain"):  # a handler of Django's
            from semel.web.django.routes import find_django_tag

            return inner, find_django_tag
        if hasattr(getattr(inner, "__self__", inner), "url_map"):
            return inner, find_flask_tag
        inner = getattr(inner, "app", None)
    return app, find_tag
