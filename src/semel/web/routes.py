"""Which policy holds for a request: that of a listed route, or a tag that a router leads to."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from semel.core.frozen import derived, frozen, value
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.request.keys import canonical_path
from semel.core.request.path_pattern import path_pattern
from semel.errors import ConfigurationError
from semel.log import log
from semel.web import tags
from semel.web.tags import Tagged, tagged


@frozen
class Route:
    """A policy by method (``"*"`` for any) and path, in Starlette's syntax."""

    method: str
    path: str
    policy: Policy
    _pattern: re.Pattern[str] = derived()

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not isinstance(self.path, str):
            raise ConfigurationError(
                f"a route is a method, a path and a policy: semel.Route('POST', '/payments', "
                f"semel.ietf()), not {self.method!r}, {self.path!r}"
            )
        if self.method.startswith("/"):
            raise ConfigurationError(
                f"the method of a route comes first: semel.Route('POST', {self.method!r}, …)"
            )
        if not self.path.startswith("/"):
            raise ConfigurationError(f"the path of a route must start with '/': {self.path!r}")
        if not isinstance(self.policy, Policy):
            raise ConfigurationError(f"{self.method} {self.path} needs a policy: semel.ietf() …")
        object.__setattr__(self, "method", self.method.upper())
        refuses = self.policy.safe_methods == "refuse" and self.method in SAFE_METHODS
        named = not self.policy.methods or self.method in self.policy.methods  # or exempt
        if not (named or refuses or self.method == "*"):
            raise ConfigurationError(
                f"{self.label}: the policy leaves {self.method} out and would do nothing; name it "
                f"in its methods=, as in methods={{{self.method!r}}}"
            )
        object.__setattr__(self, "_pattern", path_pattern(self.path))

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"

    def matches(self, method: str, path: str) -> bool:
        return self.method in ("*", method) and self._pattern.fullmatch(path) is not None


@value
class Place:
    """Where a request goes: the full path, and what of it an application sees that is mounted."""

    path: str
    below: str
    root: str = ""


def place(root: bytes, below: bytes) -> Place:
    """From the decoded octets of the mount prefix and of the path below it."""
    # As in `canonical_path`: Werkzeug looks at what is below, and takes slashes in front as one.
    below = b"/" + below.lstrip(b"/") if below else b""
    path = canonical_path(root + below)
    if not root:
        return Place(path, path)
    return Place(path, canonical_path(below), canonical_path(root))


def without_slash(place: Place) -> Place:
    """The same for a route that is served with and without a slash at its end."""
    return Place(place.path.rstrip("/") or "/", place.below.rstrip("/") or "/", place.root)


def slashes_merged(place: Place) -> Place:
    """The same for a router that takes no notice of a slash more, at the end or within."""
    return Place(merged(place.path), merged(place.below), place.root)


def merged(path: str) -> str:
    """A path with one slash wherever it has several, and none at its end."""
    return re.sub("/{2,}", "/", "/" + path.strip("/"))


def listed(routes: Sequence[Route], method: str, place: Place) -> Route | None:
    """The first listed route that fits the path, with or without the mount prefix.

    A prefix often comes from a proxy's settings, which those who list routes do not think of; a
    route that silently fitted nothing would leave its endpoint under the default policy.
    """
    if not routes:
        return None
    paths = {unquote(place.path), unquote(place.below)}
    return next((r for r in routes if any(r.matches(method, path) for path in paths)), None)


def beneath(path: str, root: str) -> str:
    """What of a path is below a mount prefix; servers may have left that out already."""
    return path[len(root) :] if (path + "/").startswith(root + "/") else path


# ── routers ───────────────────────────────────────────────────────────────────────────────────────
#
# They are read by the attributes they have, without importing their frameworks.

OPT: Final = "semel"
"""The name of a policy in Litestar's ``opt``."""
ROUTERS_OWN: Final = frozenset({307, 308, 404, 405})
"""Statuses that a router answers where it has no endpoint, or redirects to one."""

_warned: list[bool] = []


def layers(app: Any) -> Iterator[Any]:
    """The application and what it wraps, from the outside in: middleware has it in ``.app``.

    A bound method, such as Flask's ``wsgi_app``, stands for its application.
    """
    for _ in range(32):  # somebody may wrap himself
        if app is None:
            return
        layer: Any = getattr(app, "__self__", app)
        yield layer
        app = getattr(layer, "app", None)


def find_tag(app: Any, scope: Mapping[str, Any]) -> Tagged | None:
    """The tag of the endpoint that will answer, found through the application's router."""
    method, routes = scope["method"], None
    if "litestar" in sys.modules:
        routes = _routes_of(app)
        inside = routes is None or litestar_of(app) is not None
        handler = litestar_handler(app, scope) if inside else None
        if handler is not None:
            path = scope.get("path_template") or min(handler.paths, default="")
            return tagged(handler.fn, method, path, handler.opt.get(OPT))
    if not tags.in_use:
        return None
    routes = routes or _all_routes(app, scope)
    if routes is None:
        _warn_once()
        return None
    route, path = _find(routes, scope, "")
    return tagged(getattr(route, "endpoint", None) or getattr(route, "app", None), method, path)


def _warn_once() -> None:
    """Warn once of tags that cannot be found: their endpoints are under the default policy."""
    if not _warned:
        _warned.append(True)
        log.warning(
            "semel: an endpoint is tagged by guard.route(), but this application has no router "
            "semel can read: name the route in Guard(routes=[...]) instead"
        )


# --- Starlette and FastAPI


def find_route(app: Any, scope: Mapping[str, Any]) -> Any:
    """The route of Starlette or FastAPI that will answer, if any."""
    return _find(_all_routes(app, scope) or (), scope, "")[0]


def _all_routes(app: Any, scope: Mapping[str, Any]) -> Iterable[Any] | None:
    # What is guarded comes first: in a mounted application ``scope["app"]`` is the outer one.
    routes = _routes_of(app)
    return _routes_of(scope.get("app")) if routes is None else routes


def _routes_of(app: Any) -> Iterable[Any] | None:
    """The routes of the first layer that has any."""
    for layer in layers(app):
        routes: Any = getattr(layer, "routes", None)
        if routes is not None:
            return routes if hasattr(routes, "__iter__") else None
    return None


def _find(routes: Iterable[Any], scope: Mapping[str, Any], prefix: str) -> tuple[Any, str]:
    """The route that will answer, and its whole path."""
    for given in routes:
        route = getattr(given, "starlette_route", None) or given
        matches = getattr(route, "matches", None)
        if matches is None:
            continue
        match, child = matches(dict(scope))  # a copy: FastAPI leaves notes in the scope it is shown
        if match.name != "FULL":
            continue
        path = prefix + path_of(route)
        inner = below(route)
        return _find(inner, {**scope, **child}, path) if inner else (route, path)
    return None, prefix


def every_route(app: Any) -> Iterator[Any]:
    """All routes of Starlette or FastAPI, with those that are mounted or included."""
    waiting = list(_routes_of(app) or ())
    while waiting:
        given = waiting.pop(0)
        route = getattr(given, "starlette_route", None) or given
        yield route
        waiting[:0] = below(route) or ()


def path_of(route: Any) -> str:
    """The path of a route; of a route for a host, the host's name."""
    path: str = getattr(route, "path", "") or getattr(route, "host", "") or ""
    return path


def below(route: Any) -> Iterable[Any] | None:
    """The routes inside a route: of a mounted application, or of an included router."""
    included = getattr(route, "effective_candidates", None)
    if included is not None:
        candidates: Iterable[Any] = included()
        return candidates
    if hasattr(route, "endpoint"):
        return None
    return getattr(route, "routes", None) or _routes_of(getattr(route, "app", None))


def router_answered(scope: Mapping[str, Any], root: str) -> bool:
    """Whether a router of Starlette or Litestar has found no endpoint, and answered by itself.

    Both note in the scope that they were asked, and the endpoint that they have found. Something
    may have run where that is missing, where the scope is of something mounted (``root`` was its
    prefix before), or where the application has a handler for just this: then it is False.
    """
    if "litestar_app" in scope:
        handlers = getattr(scope["litestar_app"], "exception_handlers", ())
        names = {getattr(each, "__name__", each) for each in handlers}
        own = names & {404, 405, "NotFoundException", "MethodNotAllowedException"}
        return "route_handler" not in scope and not own
    router: Any = scope.get("router")
    if router is None or scope.get("root_path", "") != root:
        return False
    _, by_status = scope.get("starlette.exception_handlers", ({}, {}))
    plain = getattr(router, "default", None) == getattr(router, "not_found", None)
    if not plain or 404 in by_status or 405 in by_status:
        return False
    # Found, but for another method?
    return "endpoint" not in scope or _find(getattr(router, "routes", ()), scope, "")[0] is None


# --- Litestar


def litestar_of(app: Any) -> Any:
    """The application of Litestar that is inside; None if there is none."""
    return next((layer for layer in layers(app) if hasattr(layer, "asgi_router")), None)


def litestar_handler(app: Any, scope: Mapping[str, Any]) -> Any:
    """The handler of Litestar that will answer; None without Litestar, or without a handler.

    Behind the router, the scope names it. Outside, the router is asked.
    """
    handler = scope.get("route_handler")
    if handler is not None:
        return handler if hasattr(handler, "fn") else None
    litestar = litestar_of(app)
    if litestar is None:
        return None
    path = merged(beneath(scope["path"], scope.get("root_path", "")))
    try:
        return litestar.asgi_router.handle_routing(path=path, method=scope["method"])[1]
    except Exception:
        return None  # no route, another method: Litestar answers that itself


def handler_in(entry: Any) -> Any:
    """Litestar 2 keeps a handler beside the model of its arguments."""
    return entry[0] if hasattr(entry, "__getitem__") else entry


# --- Flask


def find_flask_tag(app: Any, environ: Mapping[str, Any]) -> Tagged | None:
    """`find_tag` for Flask, given as the application or as its ``wsgi_app``."""
    if not tags.in_use:
        return None
    flask = _flask_of(app)
    if flask is None:
        _warn_once()
        return None
    rule = _flask_rule(flask, environ)
    return None if rule is None else tagged_view(flask, rule, environ["REQUEST_METHOD"])


def tagged_view(flask: Any, rule: Any, method: str) -> Tagged | None:
    """The tag of the view that Flask has for a rule: on what it calls, or on the class behind."""
    view = flask.view_functions.get(rule.endpoint)
    path = rule_path(rule)
    return tagged(view, method, path) or tagged(getattr(view, "view_class", None), method, path)


def rule_path(rule: Any) -> str:
    """The path of a rule of Flask, after its host or subdomain, if it has one."""
    return f"{rule.host or rule.subdomain or ''}{rule.rule}"


def flask_ignores_slash(app: Any, environ: Mapping[str, Any]) -> bool:
    """Whether Flask takes the path for the same without the slash at its end."""
    flask = _flask_of(app)
    rule = None if flask is None else _flask_rule(flask, environ)
    return rule is not None and not rule.strict_slashes


def _flask_of(app: Any) -> Any:
    """Given as it is, as its ``wsgi_app``, or below what wraps that, such as ``ProxyFix``."""
    for layer in layers(app):
        if hasattr(layer, "url_map") and hasattr(layer, "view_functions"):
            return layer
    return None


def _flask_rule(flask: Any, environ: Mapping[str, Any]) -> Any:
    """The rule that fits, found by Flask itself, with its settings for hosts."""
    try:
        request = flask.request_class(environ, populate_request=False)
        rule, _ = flask.create_url_adapter(request).match(return_rule=True)
    except Exception:
        return None  # no route, another method, a redirect: Flask answers that itself
    return rule


def flask_router_answered(environ: Mapping[str, Any]) -> bool:
    """Whether Flask has found no view, and answered by itself.

    False where the application has a handler for just this error: it may have acted. A handler for
    all errors only gives them their form.
    """
    flask: Any = sys.modules.get("flask")
    error = getattr(environ.get("werkzeug.request"), "routing_exception", None)
    if error is None or flask is None or not flask.has_app_context():
        return False
    spec: Mapping[Any, Mapping[Any, Any]] = flask.current_app.error_handler_spec
    return not any(handlers.get(error.code) for handlers in spec.values())
