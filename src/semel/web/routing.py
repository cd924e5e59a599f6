"""Which policy a request falls under: a tag on its endpoint, a listed route, or the default.

Tags are found through the application's own router, so a policy stands where the endpoint is
written; listed routes serve applications that have no router semel can read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from semel.core.policy import Policy
from semel.errors import ConfigurationError

F = TypeVar("F")

TAG: Final = "__semel_policy__"

_CONVERTORS: Final = {
    "str": r"[^/]+",
    "path": r".*",
    "int": r"[0-9]+",
    "float": r"[0-9]+(?:\.[0-9]+)?",
    "uuid": r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}",
}
_PARAMETER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-z]+))?\}")


@dataclass(frozen=True, slots=True)
class Route:
    """A policy by method (``"*"`` for any) and path, in Starlette's syntax."""

    method: str
    path: str
    policy: Policy
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigurationError(f"the path of a route must start with '/': {self.path!r}")
        if not isinstance(self.policy, Policy):
            raise ConfigurationError(f"{self.method} {self.path} needs a policy: semel.ietf() …")
        object.__setattr__(self, "method", self.method.upper())
        object.__setattr__(self, "_pattern", _compile(self.path))

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"

    def matches(self, method: str, path: str) -> bool:
        return self.method in ("*", method) and self._pattern.fullmatch(path) is not None


def _compile(path: str) -> re.Pattern[str]:
    pattern, at = "", 0
    for found in _PARAMETER.finditer(path):
        convertor = _CONVERTORS.get(found[2] or "str")
        if convertor is None:
            known = ", ".join(_CONVERTORS)
            raise ConfigurationError(f"{path!r}: {found[2]!r} is not one of {known}")
        pattern += re.escape(path[at : found.start()]) + f"(?:{convertor})"
        at = found.end()
    rest = path[at:]
    if "{" in rest or "}" in rest:
        raise ConfigurationError(f"{path!r}: unbalanced braces")
    # Starlette ends its patterns with "$", which lets "/pay%0A" through to the route "/pay".
    return re.compile(pattern + re.escape(rest) + r"\n?", re.DOTALL)


def listed(routes: Sequence[Route], method: str, path: str) -> Route | None:
    """The first listed route that fits; ``path`` is percent-encoded."""
    if not routes:
        return None
    decoded = unquote(path)
    return next((route for route in routes if route.matches(method, decoded)), None)


# ── tags ──────────────────────────────────────────────────────────────────────────────────────────


_tags: list[Policy] = []
"""Every policy that tags an endpoint of this process; without any, no router need be asked."""


def tag(policy: Policy) -> Callable[[F], F]:
    """A decorator that only remembers ``policy`` on the endpoint."""
    if not isinstance(policy, Policy):
        raise ConfigurationError("guard.route() takes a policy: semel.ietf(), semel.payments() …")

    def remember(endpoint: F) -> F:
        setattr(endpoint, TAG, policy)
        _tags.append(policy)
        return endpoint

    return remember


@dataclass(frozen=True, slots=True)
class Tagged:
    """A policy found on an endpoint, and the name of its route."""

    policy: Policy
    label: str


def find_tag(app: Any, scope: Mapping[str, Any]) -> Tagged | None:
    """Ask the application's router which endpoint will answer, and look for a tag on it."""
    if not _tags:
        return None
    # What is guarded comes first: in a mounted application ``scope["app"]`` is the outer one.
    routes = _routes_of(app)
    if routes is None:
        routes = _routes_of(scope.get("app"))
    return _find(routes, scope, "") if routes else None


def _routes_of(app: Any) -> Iterable[Any] | None:
    """Middleware keeps what it wraps in ``.app``; somewhere inside is the one with routes."""
    for _ in range(32):
        routes: Any = getattr(app, "routes", None)
        if routes is not None:
            return routes if hasattr(routes, "__iter__") else None
        app = getattr(app, "app", None)
        if app is None:
            return None
    return None


def _find(routes: Iterable[Any], scope: Mapping[str, Any], prefix: str) -> Tagged | None:
    for given in routes:
        route = getattr(given, "starlette_route", None) or given
        matches = getattr(route, "matches", None)
        if matches is None:
            continue
        match, child = matches(dict(scope))  # a copy: FastAPI leaves notes in the scope it is shown
        if match.name != "FULL":
            continue
        path = prefix + (getattr(route, "path", "") or "")
        inner = _below(route)
        if inner:
            return _find(inner, {**scope, **child}, path)
        policy = _tag_of(getattr(route, "endpoint", None), scope["method"])
        return Tagged(policy, f"{scope['method']} {path}") if policy is not None else None
    return None


def _below(route: Any) -> Iterable[Any] | None:
    """The routes inside one: of a mounted application, or of a router that FastAPI included."""
    included = getattr(route, "effective_candidates", None)
    if included is not None:
        candidates: Iterable[Any] = included()
        return candidates
    if hasattr(route, "endpoint"):
        return None
    return getattr(route, "routes", None) or _routes_of(getattr(route, "app", None))


def _tag_of(endpoint: Any, method: str) -> Policy | None:
    """On the function, below a `partial`, on the class, or on the class's method."""
    endpoint = getattr(endpoint, "func", endpoint)
    policy: Policy | None = getattr(endpoint, TAG, None)
    if policy is None and isinstance(endpoint, type):
        policy = getattr(getattr(endpoint, method.lower(), None), TAG, None)
    return policy
