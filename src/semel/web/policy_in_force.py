"""The policy that a guard has applied to the current request; tagged endpoints check it.

A guard asks the router which endpoint will answer. Middleware further in may still send the
request elsewhere, and an application may have no guard at all. So a tagged endpoint checks before
it runs that its own policy was applied, and refuses if not: it never runs around its guard.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, NoReturn

from semel.core.frozen import is_async
from semel.core.policy import SAFE_METHODS, Policy
from semel.errors import Unguarded
from semel.runtime.operation import entered, watched
from semel.web.tags import packages_of

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
    if isinstance(endpoint, type):
        for name in map(str.lower, policy.methods):
            handler: Any = getattr(endpoint, name, None)
            if handler is not None:
                setattr(endpoint, name, _enforced(handler, policy, report))
        return endpoint
    return _enforced(endpoint, policy, report)


def _enforced(endpoint: Callable[..., Any], policy: Policy, report: Report) -> Any:
    """Wrapped as a coroutine, a generator or a function: frameworks look at the difference."""

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

    if not _is_function(endpoint):
        # An object that is called, such as an ASGI application: frameworks tell it from a function.
        return _AsyncObject(endpoint, check) if is_async(endpoint) else _Object(endpoint, check)
    iterates = inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint)
    wrapper = awaited if inspect.iscoroutinefunction(endpoint) else begun if iterates else called
    return functools.wraps(endpoint)(wrapper)


def _is_function(endpoint: Any) -> bool:
    return isinstance(endpoint, functools.partial) or inspect.isroutine(endpoint)


def demand_method(endpoint: Any, policy: Policy, method: str | None, report: Report) -> None:
    """Refuse a method that the policy on an endpoint leaves out, unless it is safe."""
    if policy.methods and method not in policy.methods and method not in SAFE_METHODS:
        refuse_unguarded(endpoint, LEFT_OUT, report)


def refuse_unguarded(endpoint: Any, by: object, report: Report) -> NoReturn:
    """Report that a request would run around its policy, and refuse it."""
    name = name_of(endpoint)
    report(name)
    raise Unguarded(_explained(name, by))


def name_of(endpoint: Any) -> str:
    """The name of an endpoint; of an object, that of its class."""
    return str(getattr(endpoint, "__qualname__", type(endpoint).__qualname__))


class _Object:
    """An endpoint that is an object; its attributes stay as they are."""

    def __init__(self, endpoint: Callable[..., Any], check: Callable[..., None]) -> None:
        self.__wrapped__ = endpoint
        self._semel_check = check

    def __call__(self, *given: Any, **named: Any) -> Any:
        self._semel_check(given, named)
        return self.__wrapped__(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


class _AsyncObject(_Object):
    """The same, awaited."""

    async def __call__(self, *given: Any, **named: Any) -> Any:
        self._semel_check(given, named)
        with watched(whole=_scope(given, named) is None):
            return await self.__wrapped__(*given, **named)


def _explained(name: str, by: object) -> str:
    if by is None:
        return (
            f"{name} is tagged by guard.route(), and no guard has seen this request: put "
            "guard.asgi(), guard.wsgi(), guard.fastapi() or the framework's extension around the "
            "application. Called from code of yours, it is its __wrapped__ that runs unguarded"
        )
    if by is LEFT_OUT:
        return (
            f"{name} has a policy that leaves the method of this request out: name it in methods= "
            "of the policy, or give it an endpoint of its own"
        )
    return (
        f"{name} is tagged by guard.route(), and its guard has applied another policy to this "
        "request: middleware between them changes its path, host or method, or the guard cannot "
        "read the router that led here. Put the middleware around the guard, give what is mounted "
        "a guard of its own, or name the path in Guard(routes=[...])"
    )


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


called_for: ContextVar[str | None] = ContextVar("semel_called_for", default=None)
"""The method that an endpoint is called for in a thread, out of sight of its framework."""

_CALLERS: Final = frozenset({"fastapi.routing", "litestar.routes.http"})
"""Modules that call endpoints, and have the request at hand."""


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


_FRAMEWORKS: Final = frozenset({"blacksheep", "django", "litestar", "rest_framework", "starlette"})


def _is_request(it: Any) -> bool:
    """Whether it is a request of a framework: a body sent by a client may look like one."""
    if packages_of(it).isdisjoint(_FRAMEWORKS) or not isinstance(getattr(it, "method", None), str):
        return False
    return hasattr(it, "scope") or hasattr(it, "META")
