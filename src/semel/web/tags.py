"""Policies on endpoints: a tag, and the check that its endpoint runs under it or not at all.

A guard asks the router which endpoint will answer (`routes`). Middleware further in may still send
the request elsewhere, and an application may have no guard at all. So a tagged endpoint checks
before it runs that its own policy was applied, and refuses if not: it never runs around its guard.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from semel.core.frozen import frozen, is_async
from semel.core.policy import SAFE_METHODS, Policy
from semel.errors import ConfigurationError, Unguarded
from semel.runtime.operation import entered, watched

F = TypeVar("F")

TAG: Final = "__semel_policy__"
_TELLS: Final = "__semel_tells__"
"""On an endpoint that reports when it is entered."""
_NINJA_HOOK: Final = "_ninja_contribute_to_operation"
"""Django Ninja (read in 1.7) calls these functions when it makes an operation of an endpoint."""
NINJA: Final = (
    "semel cannot guard operations of Django Ninja, which authenticate by themselves: a key would "
    "be claimed, and its answer repeated, before that. Call guard.once in the operation instead"
)

in_use: set[bool] = set()
"""Not empty once an endpoint of this process is tagged; until then no router is asked."""


def tag(policy: Policy, *, tells: bool = False) -> Callable[[F], F]:
    """A decorator that puts ``policy`` on an endpoint.

    ``tells``: the endpoint reports when it is entered (`enforced`); else it claims by itself.
    """

    def refuse_ninja(operation: Any) -> None:
        raise ConfigurationError(NINJA)

    def remember(endpoint: F) -> F:
        setattr(endpoint, TAG, policy)
        setattr(endpoint, _TELLS, tells)
        setattr(endpoint, _NINJA_HOOK, [refuse_ninja])
        in_use.add(True)
        return endpoint

    return remember


def any_tags() -> bool:
    """Whether any endpoint of this process is tagged."""
    return bool(in_use)


@frozen
class Tagged:
    """A policy found on an endpoint, and the name of its route."""

    policy: Policy
    label: str
    tells: bool = False
    """The endpoint reports when it is entered."""


def tagged(endpoint: Any, method: str, path: str, higher: Policy | None = None) -> Tagged | None:
    """The tag of an endpoint. ``higher``: the policy that holds where it has none."""
    holder = tag_holder(endpoint, method)
    policy: Policy | None = getattr(holder, TAG, None) or higher
    if policy is None:
        return None
    return Tagged(policy, f"{method} {path}", bool(getattr(holder, _TELLS, False)))


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


def name_of(endpoint: Any) -> str:
    """The name of an endpoint; of an object, that of its class."""
    return str(getattr(endpoint, "__qualname__", type(endpoint).__qualname__))


# ── the policy that a guard has applied ───────────────────────────────────────────────────────────

LISTED: Final = object()
"""The policy of a listed route, which comes before any tag."""
DEFAULT: Final = object()
"""No policy was found for the route: the guard's own holds."""
LEFT_OUT: Final = object()
"""A tag was found whose policy does not name the method of the request."""
SAFE: Final = object()
"""A safe method, which takes no part in any policy."""

ruled_by: ContextVar[object] = ContextVar("semel_ruled_by", default=None)
"""The policy of a tag, or one of the markers above; None: no guard has seen the request."""

Report = Callable[[str], None]
"""Gets the name of an endpoint that refused."""


def enforced(endpoint: Any, policy: Policy, report: Report) -> Any:
    """``endpoint``, which runs under ``policy`` or not at all.

    In a class, the handlers of the policy's methods are wrapped. Safe methods take no part.
    """
    if not isinstance(endpoint, type):
        return _enforced(endpoint, policy, report)
    for name in map(str.lower, policy.methods):
        handler: Any = getattr(endpoint, name, None)
        if handler is not None:
            setattr(endpoint, name, _enforced(handler, policy, report))
    return endpoint


def _enforced(endpoint: Callable[..., Any], policy: Policy, report: Report) -> Any:
    """Wrapped as a coroutine, a generator or a function: frameworks look at the difference."""
    import inspect  # here, because `import semel` need not load it

    def check(given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        by = ruled_by.get()
        if not policy.methods:
            return None  # exempt: wrapped all the same, for the tag must not be on what it wraps
        if by is policy or by is LISTED or _method(given, named) in SAFE_METHODS:
            return entered()
        refuse_unguarded(endpoint, by, report)

    async def awaited(*given: Any, **named: Any) -> Any:
        check(given, named)
        with watched(whole=_scope(given, named) is None):
            return await endpoint(*given, **named)

    def begun(*given: Any, **named: Any) -> Any:
        check(given, named)  # now: a generator runs when its request may be out of sight
        return endpoint(*given, **named)

    def called(*given: Any, **named: Any) -> Any:
        check(given, named)
        with watched():
            return endpoint(*given, **named)

    if not any((isinstance(endpoint, functools.partial), inspect.isroutine(endpoint))):
        # An object that is called, such as an ASGI application: frameworks tell it from a function.
        return _AsyncObject(endpoint, awaited) if is_async(endpoint) else _Object(endpoint, begun)
    wrapper = called
    if inspect.iscoroutinefunction(endpoint):
        wrapper = awaited
    elif inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
        wrapper = begun
    return functools.wraps(endpoint)(wrapper)


class _Object:
    """An endpoint that is an object; its attributes stay as they are."""

    def __init__(self, endpoint: Callable[..., Any], checked: Callable[..., Any]) -> None:
        self.__wrapped__ = endpoint
        self._semel_checked = checked

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._semel_checked(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


class _AsyncObject(_Object):
    """The same, awaited."""

    async def __call__(self, *given: Any, **named: Any) -> Any:
        return await self._semel_checked(*given, **named)


def demand_method(endpoint: Any, policy: Policy, method: str | None, report: Report) -> None:
    """Refuse a method that the policy on an endpoint leaves out, unless it is safe."""
    if policy.methods and method not in policy.methods and method not in SAFE_METHODS:
        refuse_unguarded(endpoint, LEFT_OUT, report)


def refuse_unguarded(endpoint: Any, by: object, report: Report) -> NoReturn:
    """Report that a request would run around its policy, and refuse it."""
    name = name_of(endpoint)
    report(name)
    if by is None:
        raise Unguarded(
            f"{name} is tagged by guard.route(), and no guard has seen this request: put "
            "guard.asgi(), guard.wsgi(), guard.fastapi() or the framework's extension around the "
            "application. Called from code of yours, it is its __wrapped__ that runs unguarded"
        )
    if by is LEFT_OUT:
        raise Unguarded(
            f"{name} has a policy that leaves the method of this request out: name it in methods= "
            "of the policy, or give it an endpoint of its own"
        )
    raise Unguarded(
        f"{name} is tagged by guard.route(), and its guard has applied another policy to this "
        "request: middleware between them changes its path, host or method, or the guard cannot "
        "read the router that led here. Put the middleware around the guard, give what is mounted "
        "a guard of its own, or name the path in Guard(routes=[...])"
    )


# ── the method that an endpoint is called for ─────────────────────────────────────────────────────

called_for: ContextVar[str | None] = ContextVar("semel_called_for", default=None)
"""The method that an endpoint is called for in a thread, out of sight of its framework."""
_CALLERS: Final = frozenset({"fastapi.routing", "litestar.routes.http"})
"""Modules that call endpoints, and have the request at hand."""
_FRAMEWORKS: Final = frozenset({"blacksheep", "django", "litestar", "rest_framework", "starlette"})


def _method(given: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    """The method that the endpoint is called for; None where no request can be seen."""
    flask: Any = sys.modules.get("flask")
    if flask is not None and flask.has_request_context():
        return str(flask.request.method).upper()
    scope = _scope(given, named)
    if scope is not None:
        return str(scope["method"]).upper()
    for it in (*given[:2], *named.values()):
        if _is_request(it):
            return str(it.method).upper()
    return called_for.get() or method_of_caller()


def _scope(given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The ASGI scope, if an ASGI application is called for a request."""
    first: Any = given[0] if given else named.get("scope")
    if not hasattr(first, "setdefault"):
        return None  # Starlette's request is a mapping too, but nobody can write in it
    return first if first.get("type") == "http" else None


def method_of_caller() -> str | None:
    """The method of the request in the frames of FastAPI or Litestar.

    They pass the request only to endpoints that ask for it. Read in FastAPI 0.162 and Litestar 2.
    None where no request is found: then the endpoint refuses.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(16):
        if frame is None:
            return None
        is_caller = frame.f_globals.get("__name__") in _CALLERS
        found = frame.f_locals.get("request") if is_caller else None
        if found is not None and _is_request(found):
            return str(found.method).upper()
        frame = frame.f_back
    return None


def _is_request(it: Any) -> bool:
    """Whether it is a request of a framework: a body sent by a client may look like one."""
    if packages_of(it).isdisjoint(_FRAMEWORKS) or not isinstance(getattr(it, "method", None), str):
        return False
    return hasattr(it, "scope") or hasattr(it, "META")


def packages_of(it: object) -> set[str]:
    """The packages of its class and of all base classes: a subclass may be in any package."""
    return {kind.__module__.partition(".")[0] for kind in type(it).__mro__}
