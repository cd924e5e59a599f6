"""The routes of an application, and the policy of each.

``inventory(app)`` needs no running server and no store: it reads routers, as `routes` does for one
request. Each framework has a reader that yields its routes; policies are found the same way for
all of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from semel.core.frozen import frozen, replace
from semel.core.operations.maintenance import RouteScope
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.terms import EVERY_ROUTE, Terms
from semel.log import log
from semel.web import routes
from semel.web.routes import Place, layers
from semel.web.tags import TAG, name_of, packages_of, policy_of, tag_holder

if TYPE_CHECKING:
    from semel.guard import Guard

Said = Literal["tag", "listed", "default", "none"]


@frozen
class RouteMethod:
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
class RouteEntry:
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

    def label(self, method: str) -> str:
        """What the guard calls it: `find_tag` of a request says the same."""
        return f"{method} {self.path.removeprefix(self.base)}"

    def tag(self) -> Policy | None:
        return self.policy or policy_of(self.endpoint, self.method)


@frozen
class _Position:
    """Where a reader is: below which path, and behind which guard, if any."""

    path: str = ""
    guard: Guard | None = None
    base: str = ""

    def below(self, path: str) -> _Position:
        return _Position(self.path + path, self.guard, self.base)

    def behind(self, guard: Guard | None) -> _Position:
        """Of several guards, the outermost one guards."""
        return self if self.guard or guard is None else _Position(self.path, guard, self.path)

    def entry(
        self, method: str, path: str, endpoint: Any, policy: Policy | None = None
    ) -> RouteEntry:
        return RouteEntry(method, self.path + path, endpoint, self.guard, policy, self.base)


def inventory(app: Any, guard: Guard | None = None) -> list[RouteMethod]:
    """Every route of ``app`` by method, in the order of its router, without HEAD and OPTIONS.

    ``guard``: one that stands around the application, which the routers do not show.
    """
    return [_route_method(entry) for entry in entries(app, _Position(guard=guard))]


def _route_method(entry: RouteEntry) -> RouteMethod:
    method, path, guard = entry.method, entry.path, entry.guard
    if guard is None or method in SAFE_METHODS:
        return RouteMethod(method, path, None, "none")

    def value(found: re.Match[str]) -> str:
        return next((_SAMPLES[kind] for kind in found.groups() if kind in _SAMPLES), _SAMPLE)

    # A path that the route would answer, to compare with listed routes.
    sample = _PARAMETER.sub(value, path)
    listed = routes.listed(guard.routes, method, Place(sample, sample))
    if listed is not None:
        return RouteMethod(method, path, listed.policy, "listed", entry.late)
    policy = entry.tag()
    if policy is not None:
        return RouteMethod(method, path, guard.bind(policy), "tag", entry.late)
    return RouteMethod(method, path, guard.policy, "default", entry.late)


_PARAMETER: Final = re.compile(r"[{<](?:(?P<first>\w+):)?(?P<second>\w+)(?::(?P<third>\w+))?[}>]")
_SAMPLES: Final = {
    "int": "730291",
    "float": "730291.5",
    "uuid": "8e03978e-40d5-43e8-bc93-6894a57f9324",
    "path": "q7vz/x2kd",
}
_SAMPLE: Final = "q7vz"
"""Values that nobody lists a route for: what is said of one value is not said of all."""


# ── readers ───────────────────────────────────────────────────────────────────────────────────────


def entries(app: Any, at: _Position = _Position()) -> Iterator[RouteEntry]:  # noqa: B008 - frozen
    """Every route in the routers of ``app``, which may be below middleware."""
    for _ in range(32):
        bound = getattr(app, "__self__", None)
        if hasattr(bound, "url_map"):
            # Flask's own ``wsgi_app``: what wraps that does not see these requests.
            yield from _flask(bound, at.behind(_installed_in(bound)))
            return
        app = app if bound is None else bound
        at = at.behind(_guard_of(app))
        reader: Callable[[Any, _Position], Iterable[RouteEntry]] | None = None
        if hasattr(app, "asgi_router") and hasattr(app, "route_handler_method_map"):
            reader = _litestar
        elif hasattr(app, "url_map") and hasattr(app, "wsgi_app"):
            reader = _flask_wrapped
        elif hasattr(app, "_middleware_chain"):
            # All routes of the project: a handler of Django has none of its own.
            from semel.frameworks.django.routes import routes as django_routes

            yield from django_routes(at.guard, at.path)
            return
        elif hasattr(getattr(app, "routes", None), "__iter__"):
            reader = _starlette
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


def _whole(app: Any, at: _Position) -> Iterator[RouteEntry]:
    """The routes of an application; one for all paths where they cannot be read."""
    found = list(entries(app, at))
    yield from found or [at.behind(_guard_of(app)).entry("*", "/{path:path}", app)]


def _guard_of(app: Any) -> Guard | None:
    """The guard of a middleware of ours, or of one that the application will put around itself."""
    from semel.guard import Guard

    guards: list[Any] = [getattr(app, "guard", None)] if "semel" in packages_of(app) else []
    for name in ("user_middleware", "middleware"):
        added: Any = getattr(app, name, ())
        if type(added) in (list, tuple):
            guards += [getattr(each, "kwargs", {}).get("guard") for each in added]
    guards += _around_flask(app)
    return next((guard for guard in guards if isinstance(guard, Guard)), None)


def _around_flask(app: Any) -> Iterator[Guard | None]:
    """The guards around its ``wsgi_app``, outermost first, then the installed one."""
    for layer in layers(getattr(app, "wsgi_app", None)):
        if layer is not app:
            yield getattr(layer, "guard", None)
    yield _installed_in(app)


def _installed_in(app: Any) -> Guard | None:
    return getattr(_named(app, "extensions").get("semel"), "guard", None)


def _named(app: Any, name: str) -> dict[str, Any]:
    found: Any = getattr(app, name, None)
    return found if hasattr(found, "items") else {}


def _starlette(app: Any, at: _Position) -> Iterator[RouteEntry]:
    """Starlette and FastAPI."""
    yield from _routes(app.routes, at)
    last = getattr(getattr(app, "router", app), "default", None)
    if last is not None and getattr(last, "__name__", "") != "not_found":
        yield from _whole(last, at)  # what answers where no route does


def _routes(given: Iterable[Any], at: _Position) -> Iterator[RouteEntry]:
    for each in given:
        route = getattr(each, "starlette_route", None) or each
        path, app = routes.path_of(route), getattr(route, "app", None)
        endpoint = getattr(route, "endpoint", None)
        if hasattr(route, "effective_candidates"):
            yield from _routes(routes.below(route) or (), at)  # whose paths have its prefix already
        elif endpoint is None:
            # Static files change nothing.
            known = app is None or hasattr(app, "lookup_path") or getattr(route, "routes", None)
            yield from (entries if known else _whole)(app, at.below(path))
        elif hasattr(route, "path_regex") and "WebSocket" not in type(route).__name__:
            # The middlewares of a single route.
            own = next((guard for layer in layers(app) if (guard := _guard_of(layer))), None)
            spot = at if at.guard or own is None else _Position(at.path, own, at.base)
            late = tuple(late_commits(getattr(route, "dependant", None)))
            for method in _methods(getattr(route, "methods", None), endpoint):
                yield replace(spot.entry(method, path, endpoint), late=late)


_VERBS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "QUERY")


def _methods(methods: Iterable[str] | None, endpoint: Any) -> list[str]:
    """The methods of a route; of a class that answers by its methods, those that it has."""
    if methods is None and isinstance(endpoint, type):
        methods = [name for name in _VERBS if hasattr(endpoint, name.lower())]
    return sorted(set(methods or ("*",)) - {"HEAD", "OPTIONS"})


def _litestar(app: Any, at: _Position) -> Iterator[RouteEntry]:
    for route in app.routes:
        handlers: dict[str, Any] = getattr(route, "route_handler_map", None) or {}
        for method in _methods(handlers, None) if handlers else ():
            handler = routes.handler_in(handlers[method])
            # On the function, or in ``opt`` of the handler, its controller, router or application.
            policy = policy_of(handler.fn, method) or handler.opt.get(routes.OPT)
            yield at.entry(method, route.path, handler.fn, policy)
        handler, path = getattr(route, "route_handler", None), route.path.rstrip("/")
        if handler is None or handlers or "WebSocket" in type(route).__name__:
            continue
        if getattr(handler, "is_static", False):
            continue
        if getattr(handler, "is_mount", False):  # an ASGI application
            yield from _whole(handler.fn, at.below(path))
        else:
            yield at.entry("*", path, handler.fn)


def _flask_wrapped(app: Any, at: _Position) -> Iterator[RouteEntry]:
    """Flask, and what its ``wsgi_app`` dispatches to before, where `install` guards nothing."""
    around = _Position(at.path) if at.guard in _around_flask(app) else at
    for layer in layers(app.wsgi_app):
        around = around.behind(getattr(layer, "guard", None))
        for mount, mounted in _named(layer, "mounts").items():
            yield from _whole(mounted, around.below(mount))
    yield from _flask(app, at)


def _flask(app: Any, at: _Position) -> Iterator[RouteEntry]:
    for rule in app.url_map.iter_rules():
        view = app.view_functions.get(rule.endpoint)
        endpoint = view if hasattr(view, TAG) else getattr(view, "view_class", view)
        for method in _methods(rule.methods, endpoint):
            yield at.entry(method, routes.rule_path(rule), endpoint)


# ── tagged routes that no key protects ────────────────────────────────────────────────────────────


def tell_unguarded(
    apps: Iterable[Any], tagged: Sequence[Callable[..., Any]], all_there: bool
) -> None:
    """Warn of endpoints, of ``apps`` or tagged by a guard, that are not guarded.

    Most of them refuse their requests (`tags`). The operator is warned before those come.
    ``all_there``: no more applications will come, in which the others could be.
    """
    try:
        known = [entry for app in apps for entry in entries(app)]
    except Exception:
        log.warning("semel: the routes of an application could not be read", exc_info=True)
        return
    for entry in filter(leaves_out, known):
        log.warning("semel: %s", explained(entry))
    answering = {id(each) for entry in known for each in _endpoints(entry)}
    lost = [each for each in tagged if id(each) not in answering]
    untagged = [each for each in lost if id(getattr(each, "__wrapped__", each)) in answering]
    if untagged:
        log.error(
            "semel: these answer requests without their tags: %s. Put @guard.route() below the "
            "framework's own decorator, next to the function",
            ", ".join(map(name_of, untagged)),
        )
    elsewhere = [each for each in lost if each not in untagged]
    if all_there and known and elsewhere:
        log.warning(
            "semel: tagged by guard.route(), and found in no application that this guard stands "
            "around: %s. Reached around the guard, they refuse",
            ", ".join(map(name_of, elsewhere)),
        )


def leaves_out(entry: RouteEntry) -> bool:
    """Whether a route answers a method that the policy on its endpoint does not name."""
    policy = entry.tag()
    if policy is None or not policy.methods or entry.every:
        return False
    return entry.method not in ("*", *SAFE_METHODS, *policy.methods)


def explained(entry: RouteEntry) -> str:
    return (
        f"{entry.method} {entry.path} is tagged with a policy that leaves {entry.method} out, so "
        "that no key protects it: name it in methods= of the policy, as in "
        f"methods={{{entry.method!r}}}"
    )


def _endpoints(entry: RouteEntry) -> Iterator[Any]:
    """The endpoint, and what it wraps."""
    for each in (entry.endpoint, tag_holder(entry.endpoint, entry.method)):
        for _ in range(32):
            yield each
            each = getattr(each, "func", None) or getattr(each, "__wrapped__", None)
            if each is None:
                break


# --- dependencies of FastAPI that commit after the answer is kept and sent

COMMITS_LATE: Final = (
    "the dependency {0} commits after its yield, when the answer has been kept and sent: a commit "
    "that fails then is lost. Depends({0}, scope='function') commits before"
)


def late_commits(dependant: Any) -> list[str]:
    """The dependencies that seem to commit after their ``yield``, at the end of the request.

    It is a hint, by the names in their code. FastAPI before 0.121 has no other scope.
    ``dependant``: FastAPI's object for an endpoint and its dependencies.
    """
    found: list[str] = []
    for each in getattr(dependant, "dependencies", ()):
        function: Any = inspect.unwrap(each.call)
        yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        names = getattr(getattr(function, "__code__", None), "co_names", ())
        late = yields and getattr(each, "scope", None) != "function"
        if late and _COMMITS.intersection(names):
            found.append(function.__name__)
        found += late_commits(each)
    return found


_COMMITS: Final = frozenset({"commit", "begin"})


# --- the routes that a process knows by name; it leaves the records of others alone

ONCE_ROUTE = "once {}"
"""The route of a function that runs `once` under a policy of its own, by its name."""


def is_function(route: str) -> bool:
    """Whether the name of a route is that of a function that runs `once`."""
    return route.startswith(ONCE_ROUTE.format(""))


class KnownRoutes:
    """The policies of one application: the guard's own, of listed routes, and of tags.

    ``app`` is the application, guarded or not. Without it no tags are found, and the records of
    tagged endpoints are left alone.
    """

    def __init__(self, guard: Guard, app: Any = None) -> None:
        self._guard = guard
        self.policies = {EVERY_ROUTE: guard.policy, **_tagged(guard, app)}
        """By the names of their routes."""
        # Of several that are listed alike the first one holds.
        self.policies |= {route.label: route.policy for route in reversed(guard.routes)}

    def known(self) -> RouteScope:
        """For a store, to list the records of these routes and no others."""
        functions = map(ONCE_ROUTE.format, self._guard.registry.probes)
        return RouteScope(self._guard.name, (*self.policies, *functions))

    def knows(self, terms: Terms | None) -> bool:
        return self.known().covers(terms)

    def knows_route(self, application: str, route: str) -> bool:
        known = self.known()
        return application == known.application and route in known.routes

    def policy(self, terms: Terms | None) -> Policy | None:
        """The policy of a record's route now; None if there is no such route here.

        Its promises are in its own terms. The policy says who can be asked, and how it runs.
        """
        if terms is None or terms.application != self._guard.name:
            return None
        return self.policies.get(terms.route)


def _tagged(guard: Guard, app: Any) -> dict[str, Policy]:
    """The tags by route. Two endpoints of one name are left out: the wrong one might be asked."""
    found: dict[str, Policy] = {}
    twice: set[str] = set()
    for entry in () if app is None else entries(app):
        policy = entry.tag()
        if policy is None or entry.guard not in (guard, None):
            continue
        # A route may answer every method: its policy says which take part.
        methods = sorted(policy.methods) if entry.method == "*" else [entry.method]
        for label in map(entry.label, methods):
            if found.setdefault(label, policy) is not policy:
                twice.add(label)
    for label in sorted(twice):
        log.warning("semel: two endpoints are called %s: their records are left alone", label)
    return {label: guard.bind(found[label]) for label in found if label not in twice}
