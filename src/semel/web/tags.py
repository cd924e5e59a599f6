"""Policies on endpoints: a tag, found through the application's own router.

So a policy stands where its endpoint is written. Routers are asked by what they offer, without
importing the frameworks they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from semel.core.frozen import frozen
from semel.core.policy import Policy
from semel.errors import ConfigurationError
from semel.log import log

F = TypeVar("F")

TAG: Final = "__semel_policy__"
OPT: Final = "semel"
"""Under which name Litestar's ``opt`` holds a policy."""

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


def any_tags() -> bool:
    """Whether any endpoint of this process is tagged."""
    return bool(_tags)


@frozen
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
    if routes is None:
        _warn_once()
        return None
    return _find(routes, scope, "")


def find_flask_tag(app: Any, environ: Mapping[str, Any]) -> Tagged | None:
    """The same for Flask, given as the application or as its ``wsgi_app``."""
    if not _tags:
        return None
    flask: Any = getattr(app, "__self__", app)
    if not (hasattr(flask, "url_map") and hasattr(flask, "view_functions")):
        _warn_once()
        return None
    try:
        rule, _ = flask.url_map.bind_to_environ(environ).match(return_rule=True)
    except Exception:
        return None  # no route, another method, a redirect: Flask answers that itself
    return tagged_view(flask, rule, environ["REQUEST_METHOD"])


def tagged_view(flask: Any, rule: Any, method: str) -> Tagged | None:
    """The tag of the view that Flask has for a rule."""
    view = flask.view_functions.get(rule.endpoint)
    policy = policy_of(getattr(view, "view_class", view), method)
    return Tagged(policy, f"{method} {rule.rule}") if policy is not None else None


def _warn_once() -> None:
    """A tag that nobody finds would leave its endpoint under the default policy in silence."""
    if not _warned:
        _warned.append(True)
        log.warning(
            "semel: an endpoint is tagged by guard.route(), but this application has no router "
            "semel can read: name the route in Guard(routes=[...]) instead"
        )


_warned: list[bool] = []


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
        inner = below(route)
        if inner:
            return _find(inner, {**scope, **child}, path)
        policy = policy_of(getattr(route, "endpoint", None), scope["method"])
        return Tagged(policy, f"{scope['method']} {path}") if policy is not None else None
    return None


def below(route: Any) -> Iterable[Any] | None:
    """The routes inside one: of a mounted application, or of a router that FastAPI included."""
    included = getattr(route, "effective_candidates", None)
    if included is not None:
        candidates: Iterable[Any] = included()
        return candidates
    if hasattr(route, "endpoint"):
        return None
    return getattr(route, "routes", None) or _routes_of(getattr(route, "app", None))


def policy_of(endpoint: Any, method: str) -> Policy | None:
    """On the function, below a `partial`, on the class, or on the class's method."""
    endpoint = getattr(endpoint, "func", endpoint)
    policy: Policy | None = getattr(endpoint, TAG, None)
    if policy is None and isinstance(endpoint, type):
        policy = getattr(getattr(endpoint, method.lower(), None), TAG, None)
    return policy
