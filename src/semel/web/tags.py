"""Policies on endpoints: tags, found through the application's own router.

So a policy stands where its endpoint is written. Routers are read by the attributes they have,
without importing their frameworks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from semel.core.frozen import frozen
from semel.core.policy import Policy
from semel.errors import ConfigurationError
from semel.log import log
from semel.web.routes import beneath, merged

F = TypeVar("F")

TAG: Final = "__semel_policy__"
_TELLS: Final = "__semel_tells__"
"""On an endpoint that reports when it is entered."""
OPT: Final = "semel"
"""The name of a policy in Litestar's ``opt``."""

_NINJA_HOOK: Final = "_ninja_contribute_to_operation"
"""Django Ninja (read in 1.7) calls these functions when it makes an operation of an endpoint."""
NINJA: Final = (
    "semel cannot guard operations of Django Ninja, which authenticate by themselves: a key would "
    "be claimed, and its answer repeated, before that. Call guard.once in the operation instead"
)

_tags: set[bool] = set()
"""Not empty once an endpoint of this process is tagged; until then no router is asked."""


def tag(policy: Policy, *, tells: bool = False) -> Callable[[F], F]:
    """A decorator that puts ``policy`` on an endpoint.

    ``tells``: the endpoint reports when it is entered (`policy_in_force.enforced`); else it claims
    by itself.
    """

    def remember(endpoint: F) -> F:
        setattr(endpoint, TAG, policy)
        setattr(endpoint, _TELLS, tells)
        setattr(endpoint, _NINJA_HOOK, [refuse_ninja])
        _tags.add(True)
        return endpoint

    def refuse_ninja(operation: Any) -> None:
        raise ConfigurationError(NINJA)

    return remember


def any_tags() -> bool:
    """Whether any endpoint of this process is tagged."""
    return bool(_tags)


@frozen
class Tagged:
    """A policy found on an endpoint, and the name of its route."""

    policy: Policy
    label: str
    tells: bool = False
    """The endpoint tells when it is entered."""


def find_tag(app: Any, scope: Mapping[str, Any]) -> Tagged | None:
    """The tag of the endpoint that will answer, found through the application's router."""
    routes = None
    if "litestar" in sys.modules:
        routes = _routes_of(app)
        inside = routes is None or litestar_of(app) is not None
        handler = litestar_handler(app, scope) if inside else None
        if handler is not None:
            return _litestar_tag(handler, scope)
    if not _tags:
        return None
    routes = routes or _all_routes(app, scope)
    if routes is None:
        _warn_once()
        return None
    route, path = _find(routes, scope, "")
    answers = getattr(route, "endpoint", None) or getattr(route, "app", None)
    return _tagged(answers, scope["method"], path)


def _tagged(endpoint: Any, method: str, path: str) -> Tagged | None:
    policy = policy_of(endpoint, method)
    return None if policy is None else Tagged(policy, f"{method} {path}", tells(endpoint, method))


def tells(endpoint: Any, method: str) -> bool:
    """Whether an endpoint reports when it is entered."""
    return bool(getattr(tag_holder(endpoint, method), _TELLS, False))


def find_route(app: Any, scope: Mapping[str, Any]) -> Any:
    """The route of Starlette or FastAPI that will answer, if any."""
    return _find(_all_routes(app, scope) or (), scope, "")[0]


def _all_routes(app: Any, scope: Mapping[str, Any]) -> Iterable[Any] | None:
    # What is guarded comes first: in a mounted application ``scope["app"]`` is the outer one.
    routes = _routes_of(app)
    return _routes_of(scope.get("app")) if routes is None else routes


def every_route(app: Any) -> Iterator[Any]:
    """All routes of Starlette or FastAPI, with those that are mounted or included."""
    waiting = list(_routes_of(app) or ())
    while waiting:
        given = waiting.pop(0)
        route = getattr(given, "starlette_route", None) or given
        yield route
        waiting[:0] = below(route) or ()


ROUTERS_OWN: Final = frozenset({307, 308, 404, 405})
"""Statuses that a router answers where it has no endpoint, or redirects to one."""


def router_answered(scope: Mapping[str, Any], root: str) -> bool:
    """Whether a router of Starlette or Litestar has found no endpoint, and answered by itself.

    Both note in the scope that they were asked, and the endpoint that they have found. Something
    may have run where that is missing, where the scope is of something mounted (``root`` was its
    prefix before), or where the application has a handler for just this: then it is False.
    """
    if "litestar_app" in scope:
        return "route_handler" not in scope and not _litestar_handles(scope["litestar_app"])
    router: Any = scope.get("router")
    if router is None or scope.get("root_path", "") != root or _starlette_handles(router, scope):
        return False
    # Found, but for another method?
    return "endpoint" not in scope or _find(getattr(router, "routes", ()), scope, "")[0] is None


def _starlette_handles(router: Any, scope: Mapping[str, Any]) -> bool:
    """Whether the application has its own handler for a missing endpoint; it may act."""
    if getattr(router, "default", None) != getattr(router, "not_found", None):
        return True
    _, by_status = scope.get("starlette.exception_handlers", ({}, {}))
    return 404 in by_status or 405 in by_status


def _litestar_handles(app: Any) -> bool:
    names = {getattr(each, "__name__", each) for each in getattr(app, "exception_handlers", ())}
    return not names.isdisjoint({404, 405, "NotFoundException", "MethodNotAllowedException"})


def flask_router_answered(environ: Mapping[str, Any]) -> bool:
    """Whether Flask has found no view, and answered by itself."""
    request: Any = environ.get("werkzeug.request")
    error = getattr(request, "routing_exception", None)
    return error is not None and not _handled(error)


def _handled(error: Any) -> bool:
    """Whether the application has a handler for just this error, which may have acted.

    A handler for all errors only gives them their form.
    """
    flask: Any = sys.modules.get("flask")
    if flask is None or not flask.has_app_context():
        return True
    spec: Mapping[Any, Mapping[Any, Any]] = flask.current_app.error_handler_spec
    return any(handlers.get(error.code) for handlers in spec.values())


def find_flask_tag(app: Any, environ: Mapping[str, Any]) -> Tagged | None:
    """`find_tag` for Flask, given as the application or as its ``wsgi_app``."""
    if not _tags:
        return None
    flask = _flask_of(app)
    if flask is None:
        _warn_once()
        return None
    rule = _flask_rule(flask, environ)
    return None if rule is None else tagged_view(flask, rule, environ["REQUEST_METHOD"])


def _flask_rule(flask: Any, environ: Mapping[str, Any]) -> Any:
    """The rule that fits, found by Flask itself, with its settings for hosts."""
    try:
        request = flask.request_class(environ, populate_request=False)
        rule, _ = flask.create_url_adapter(request).match(return_rule=True)
    except Exception:
        return None  # no route, another method, a redirect: Flask answers that itself
    return rule


def flask_ignores_slash(app: Any, environ: Mapping[str, Any]) -> bool:
    """Whether Flask takes the path for the same without the slash at its end."""
    flask = _flask_of(app)
    rule = None if flask is None else _flask_rule(flask, environ)
    return rule is not None and not rule.strict_slashes


def _flask_of(app: Any) -> Any:
    """Given as it is, as its ``wsgi_app``, or below what wraps that, such as ``ProxyFix``."""
    for _ in range(32):
        flask: Any = getattr(app, "__self__", app)
        if hasattr(flask, "url_map") and hasattr(flask, "view_functions"):
            return flask
        app = getattr(app, "app", None)
        if app is None:
            return None
    return None


def tagged_view(flask: Any, rule: Any, method: str) -> Tagged | None:
    """The tag of the view that Flask has for a rule: on what it calls, or on the class behind."""
    view = flask.view_functions.get(rule.endpoint)
    path = rule_path(rule)
    return _tagged(view, method, path) or _tagged(getattr(view, "view_class", None), method, path)


def _warn_once() -> None:
    """Warn once of tags that cannot be found: their endpoints are under the default policy."""
    if not _warned:
        _warned.append(True)
        log.warning(
            "semel: an endpoint is tagged by guard.route(), but this application has no router "
            "semel can read: name the route in Guard(routes=[...]) instead"
        )


_warned: list[bool] = []


def _routes_of(app: Any) -> Iterable[Any] | None:
    """The routes of the application inside: middleware keeps what it wraps in ``.app``."""
    for _ in range(32):
        routes: Any = getattr(app, "routes", None)
        if routes is not None:
            return routes if hasattr(routes, "__iter__") else None
        app = getattr(app, "app", None)
        if app is None:
            return None
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


def path_of(route: Any) -> str:
    """The path of a route; of a route for a host, the host's name."""
    path: str = getattr(route, "path", "") or getattr(route, "host", "") or ""
    return path


def rule_path(rule: Any) -> str:
    """The path of a rule of Flask, after its host or subdomain, if it has one."""
    place = rule.host or rule.subdomain or ""
    return f"{place}{rule.rule}"


def below(route: Any) -> Iterable[Any] | None:
    """The routes inside a route: of a mounted application, or of an included router."""
    included = getattr(route, "effective_candidates", None)
    if included is not None:
        candidates: Iterable[Any] = included()
        return candidates
    if hasattr(route, "endpoint"):
        return None
    return getattr(route, "routes", None) or _routes_of(getattr(route, "app", None))


def policy_of(endpoint: Any, method: str) -> Policy | None:
    """The policy that an endpoint is tagged with."""
    policy: Policy | None = getattr(tag_holder(endpoint, method), TAG, None)
    return policy


def tag_holder(endpoint: Any, method: str) -> Any:
    """What carries the tag: the function, also below a `partial`, the class, or its method."""
    endpoint = getattr(endpoint, "func", endpoint)
    if isinstance(endpoint, type) and not hasattr(endpoint, TAG):
        return getattr(endpoint, method.lower(), None)
    return endpoint


# ── Litestar ──────────────────────────────────────────────────────────────────────────────────────


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
    below = beneath(scope["path"], scope.get("root_path", ""))
    try:
        return litestar.asgi_router.handle_routing(path=merged(below), method=scope["method"])[1]
    except Exception:
        return None  # no route, another method: Litestar answers that itself


def litestar_of(app: Any) -> Any:
    """The application of Litestar that is inside; None if there is none."""
    for _ in range(32):
        if app is None or hasattr(app, "asgi_router"):
            return app
        app = getattr(app, "app", None)
    return None


def litestar_handlers(app: Any) -> Iterator[Any]:
    """All handlers of a Litestar application."""
    for route in app.routes:
        handlers: Mapping[str, Any] = getattr(route, "route_handler_map", None) or {}
        yield from map(handler_in, handlers.values())


def handler_in(entry: Any) -> Any:
    """Litestar 2 keeps a handler beside the model of its arguments."""
    return entry[0] if hasattr(entry, "__getitem__") else entry


def _litestar_tag(handler: Any, scope: Mapping[str, Any]) -> Tagged | None:
    method = scope["method"]
    policy = litestar_policy(handler, method)
    label = scope.get("path_template") or min(handler.paths, default="")
    if policy is None:
        return None
    return Tagged(policy, f"{method} {label}", tells(handler.fn, method))


def litestar_policy(handler: Any, method: str) -> Policy | None:
    """On the function, or in ``opt`` of the handler, its controller, router or application."""
    policy: Policy | None = policy_of(handler.fn, method) or handler.opt.get(OPT)
    return policy


# --- what an application is wrapped in, and whose it is


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


def packages_of(it: object) -> set[str]:
    """The packages of its class and of all base classes: a subclass may be in any package."""
    return {kind.__module__.partition(".")[0] for kind in type(it).__mro__}
