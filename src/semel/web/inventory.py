"""The routes of an application, and what each of them says about keys.

``inventory(app)`` needs no running server and no store: it reads routers, as `tags` does for one
request. Each framework has a reader that yields its routes; what is said of them is found once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

from semel.core.frozen import frozen, replace
from semel.core.policy import SAFE_METHODS, Policy
from semel.web.late_commits import late_commits
from semel.web.layers import layers, packages_of
from semel.web.routing import Place, listed
from semel.web.tags import (
    TAG,
    below,
    handler_in,
    litestar_policy,
    path_of,
    policy_of,
    rule_path,
)

if TYPE_CHECKING:
    from semel.guard import Guard

Said = Literal["tag", "listed", "default", "none"]


@frozen
class Listed:
    """One method of one route.

    ``said``: by a tag on the endpoint, in ``Guard(routes=…)``, not at all so that the guard's
    default holds, or there is no guard around it.
    """

    method: str
    path: str
    policy: Policy | None
    said: Said
    late: tuple[str, ...] = ()
    """FastAPI's dependencies that commit after the answer was kept."""

    @property
    def coverage(self) -> Literal["enforces", "accepts", "ignores"]:
        """What becomes of a key that is sent to it, or left out."""
        if self.policy is None or self.method not in self.policy.methods:
            return "ignores"
        return "enforces" if self.policy.required else "accepts"


@frozen
class Entry:
    """What a router tells of one method of a route, and the guard that stands before it."""

    method: str
    path: str
    endpoint: Any
    guard: Guard | None
    policy: Policy | None = None
    """Said in another way than by a tag on the endpoint."""
    base: str = ""
    """What of the path comes before the guard: what it guards is mounted there."""
    late: tuple[str, ...] = ()
    """FastAPI's dependencies that commit after the answer was kept."""
    every: bool = False
    """The endpoint is sent any method, as a plain function of Django's; nobody said this one."""

    @property
    def label(self) -> str:
        """What the guard calls it: `find_tag` of a request says the same."""
        return f"{self.method} {self.path.removeprefix(self.base)}"


@frozen
class _Spot:
    """Where a reader is: below which path, and behind which guard, if any."""

    path: str = ""
    guard: Guard | None = None
    base: str = ""

    def below(self, path: str) -> _Spot:
        return _Spot(self.path + path, self.guard, self.base)

    def behind(self, guard: Guard | None) -> _Spot:
        """Of several guards, the outermost one guards."""
        return self if self.guard or guard is None else _Spot(self.path, guard, self.path)

    def entry(self, method: str, path: str, endpoint: Any, policy: Policy | None = None) -> Entry:
        return Entry(method, self.path + path, endpoint, self.guard, policy, self.base)


def entries(app: Any) -> Iterator[Entry]:
    """What the routers of ``app`` tell."""
    return _entries(app, _Spot())


def inventory(app: Any, guard: Guard | None = None) -> list[Listed]:
    """Every route of ``app`` by method, in the order of its router; HEAD and OPTIONS left out.

    ``guard``: one that is known to stand around it, out of its own sight.
    """
    return [_listed(entry) for entry in _entries(app, _Spot(guard=guard))]


def _listed(entry: Entry) -> Listed:
    method, path, guard = entry.method, entry.path, entry.guard
    if guard is None or method in SAFE_METHODS:
        return Listed(method, path, None, "none")
    sample = _sample(path)
    route = listed(guard.routes, method, Place(sample, sample))
    if route is not None:
        return Listed(method, path, route.policy, "listed", entry.late)
    policy = entry.policy or policy_of(entry.endpoint, method)
    if policy is not None:
        return Listed(method, path, policy, "tag", entry.late)
    return Listed(method, path, guard.policy, "default", entry.late)


_PARAMETER: Final = re.compile(r"[{<](?:(?P<first>\w+):)?(?P<second>\w+)(?::(?P<third>\w+))?[}>]")
_SAMPLES: Final = {
    "int": "730291",
    "float": "730291.5",
    "uuid": "8e03978e-40d5-43e8-bc93-6894a57f9324",
    "path": "q7vz/x2kd",
}
_SAMPLE: Final = "q7vz"
"""Values that nobody lists a route for: what is said of one value is not said of all."""


def _sample(path: str) -> str:
    """A path that the route would answer, to be compared with listed ones."""

    def value(found: re.Match[str]) -> str:
        return next((_SAMPLES[kind] for kind in found.groups() if kind in _SAMPLES), _SAMPLE)

    return _PARAMETER.sub(value, path)


# ── readers ───────────────────────────────────────────────────────────────────────────────────────

Reader = Callable[[Any, "_Spot"], Iterable[Entry]]


def _entries(app: Any, at: _Spot) -> Iterator[Entry]:
    """Look below whatever wraps the application for the one that has routes."""
    for _ in range(32):
        bound = getattr(app, "__self__", None)
        if hasattr(
            bound, "url_map"
        ):  # Flask's own ``wsgi_app``: what that is wrapped in is not met
            yield from _flask(bound, at.behind(_extension_of(bound)))
            return
        app = app if bound is None else bound
        at = at.behind(_guard_of(app))
        reader = _reader_of(app)
        if reader is not None:
            yield from reader(app, at)
            return
        mounts = _named(app, "mounts")  # Werkzeug's dispatcher
        for mount, mounted in mounts.items():
            yield from _whole(mounted, at.below(mount))
        app = getattr(app, "app", None)
        if mounts:
            yield from _whole(app, at)
        if mounts or app is None:
            return


def _whole(app: Any, at: _Spot) -> Iterator[Entry]:
    """The routes of what answers below a path, all of it where they cannot be read."""
    found = list(_entries(app, at))
    yield from found or [at.behind(_guard_of(app)).entry("*", "/{path:path}", app)]


def _guard_of(app: Any) -> Guard | None:
    """On a middleware of ours, or among those that an application is told to put around itself."""
    from semel.guard import Guard

    entries = (*_sequence(app, "user_middleware"), *_sequence(app, "middleware"))
    told = (getattr(entry, "kwargs", {}).get("guard") for entry in entries)
    ours = app if "semel" in packages_of(app) else None
    guards = (getattr(ours, "guard", None), *told, *_around_flask(app))
    return next((guard for guard in guards if isinstance(guard, Guard)), None)


def _around_flask(app: Any) -> Iterator[Guard | None]:
    """Those that its ``wsgi_app`` is wrapped in, outermost first, then that of an extension."""
    for layer in layers(getattr(app, "wsgi_app", None)):
        if layer is not app:
            yield getattr(layer, "guard", None)
    yield _extension_of(app)


def _extension_of(app: Any) -> Guard | None:
    return getattr(_named(app, "extensions").get("semel"), "guard", None)


def _named(app: Any, name: str) -> dict[str, Any]:
    found: Any = getattr(app, name, None)
    return found if hasattr(found, "items") else {}


def _guard_below(app: Any) -> Guard | None:
    """Among the middlewares of a single route."""
    return next((guard for layer in layers(app) if (guard := _guard_of(layer))), None)


def _sequence(app: Any, name: str) -> Iterable[Any]:
    found: Any = getattr(app, name, ())
    return found if type(found) in (list, tuple) else ()


def _reader_of(app: Any) -> Reader | None:
    if hasattr(app, "asgi_router") and hasattr(app, "route_handler_method_map"):
        return _litestar
    if hasattr(app, "url_map") and hasattr(app, "wsgi_app"):
        return _flask_wrapped
    if hasattr(app, "_middleware_chain"):
        return _django
    routes = getattr(app, "routes", None)
    return _starlette if hasattr(routes, "__iter__") else None


def _starlette(app: Any, at: _Spot) -> Iterator[Entry]:
    """Starlette and FastAPI."""
    yield from _routes(app.routes, at)
    last = getattr(getattr(app, "router", app), "default", None)
    if last is not None and getattr(last, "__name__", "") != "not_found":
        yield from _whole(last, at)  # what answers where no route does


def _routes(routes: Iterable[Any], at: _Spot) -> Iterator[Entry]:
    for given in routes:
        route = getattr(given, "starlette_route", None) or given
        path = path_of(route)
        inner = below(route)
        endpoint = getattr(route, "endpoint", None)
        if hasattr(route, "effective_candidates"):
            yield from _routes(inner or (), at)  # whose paths have its prefix already
        elif endpoint is None:
            yield from _mounted(route, at.below(path))
        elif hasattr(route, "path_regex") and not _is_websocket(route):
            own = _guard_below(getattr(route, "app", None))
            spot = at if at.guard or own is None else _Spot(at.path, own, at.base)
            late = tuple(late_commits(getattr(route, "dependant", None)))
            for method in _methods(getattr(route, "methods", None), endpoint):
                yield replace(spot.entry(method, path, endpoint), late=late)


def _mounted(route: Any, at: _Spot) -> Iterator[Entry]:
    app = getattr(route, "app", None)
    found = list(_entries(app, at))
    if found or app is None or hasattr(app, "lookup_path"):  # static files change nothing
        yield from found
    elif not getattr(route, "routes", None):
        yield at.behind(_guard_of(app)).entry("*", "/{path:path}", app)


def _is_websocket(route: Any) -> bool:
    return "WebSocket" in type(route).__name__


def _methods(methods: Iterable[str] | None, endpoint: Any) -> list[str]:
    """Of a class that answers by its methods those that it has."""
    if methods is None and isinstance(endpoint, type):
        methods = [name for name in _VERBS if hasattr(endpoint, name.lower())]
    return sorted(set(methods or ("*",)) - {"HEAD", "OPTIONS"})


_VERBS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "QUERY")


def _litestar(app: Any, at: _Spot) -> Iterator[Entry]:
    for route in app.routes:
        handlers: dict[str, Any] = getattr(route, "route_handler_map", None) or {}
        for method in _methods(handlers, None) if handlers else ():
            handler = handler_in(handlers[method])
            yield at.entry(method, route.path, handler.fn, litestar_policy(handler, method))
        if hasattr(route, "route_handler") and not handlers and not _is_websocket(route):
            yield from _mounted_asgi(route, at)


def _mounted_asgi(route: Any, at: _Spot) -> Iterator[Entry]:
    handler, path = route.route_handler, route.path.rstrip("/")
    if getattr(handler, "is_static", False):
        return
    if getattr(handler, "is_mount", False):
        yield from _whole(handler.fn, at.below(path))
    else:
        yield at.entry("*", path, handler.fn)


def _flask_wrapped(app: Any, at: _Spot) -> Iterator[Entry]:
    """Flask, and what is dispatched to before it is asked, which no extension of it guards."""
    wrapped = app.wsgi_app
    around = _Spot(at.path) if at.guard in _around_flask(app) else at
    for _ in range(32):
        around = around.behind(getattr(wrapped, "guard", None))
        for mount, mounted in _named(wrapped, "mounts").items():
            yield from _whole(mounted, around.below(mount))
        wrapped = getattr(wrapped, "app", None)
    yield from _flask(app, at)


def _flask(app: Any, at: _Spot) -> Iterator[Entry]:
    for rule in app.url_map.iter_rules():
        view = app.view_functions.get(rule.endpoint)
        endpoint = view if hasattr(view, TAG) else getattr(view, "view_class", view)
        for method in _methods(rule.methods, endpoint):
            yield at.entry(method, rule_path(rule), endpoint)


def _django(app: Any, at: _Spot) -> Iterator[Entry]:
    """Of the whole project: a handler of Django's has no routes of its own."""
    from semel.web.django.routes import routes

    yield from routes(at.guard, at.path)
