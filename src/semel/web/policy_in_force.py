"""Which policy rules the request of the current context, as its guard has found.

A guard asks a router which endpoint will answer. Middleware further in may still send the request
elsewhere, and an application may have no guard at all. So a tagged endpoint looks here before it
runs, and refuses where its own policy is not the one that was applied: it never runs around its
guard.
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
"""The policy is that of a listed route, which comes before any tag."""
DEFAULT: Final = object()
"""No policy was found for the route: the guard's own rules."""
LEFT_OUT: Final = object()
"""A tag was found whose policy does not name the method of the request."""
SAFE: Final = object()
"""A safe method, which takes no part in any policy."""

ruled_by: ContextVar[object] = ContextVar("semel_ruled_by", default=None)
"""The policy of a tag, or one of those above; None: no guard has seen the request."""

Report = Callable[[str], None]
"""Is told of an endpoint that refused, by its name."""


def enforced(endpoint: Any, policy: Policy, report: Report) -> Any:
    """``endpoint``, which runs under ``policy`` or not at all.

    Of a class its handlers of the policy's methods do so; a safe method takes no part.
    """
    if isinstance(endpoint, type):
        for name in map(str.lower, policy.methods):
            handler: Any = getattr(endpoint, name, None)
            if handler is not None:
                setattr(endpoint, name, _enforced(handler, policy, report))
        return endpoint
    return _enforced(endpoint, policy, report)


def _enforced(endpoint: Callable[..., Any], policy: Policy, report: Report) -> Any:
    """In the colour of the endpoint: frameworks look at that to decide how to call it."""

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


def demand_method(endpoint: Any, policy: Policy, method: str | None, report: Report) -> None:
    """Refuse a method that the policy on an endpoint leaves out, where it could be meant."""
    if policy.methods and method not in policy.methods and method not in SAFE_METHODS:
        refuse_unguarded(endpoint, LEFT_OUT, report)


def refuse_unguarded(endpoint: Any, by: object, report: Report) -> NoReturn:
    """Tell that a request was to be run around its policy, and do not run it."""
    name = name_of(endpoint)
    report(name)
    raise Unguarded(_explained(name, by))


def name_of(endpoint: Any) -> str:
    """What an endpoint is called; an object goes by its class."""
    return str(getattr(endpoint, "__qualname__", type(endpoint).__qualname__))


def _is_function(endpoint: Any) -> bool:
    return isinstance(endpoint, functools.partial) or inspect.isroutine(endpoint)


class _Object:
    """An endpoint that is no function; all else of it is as it was."""

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
    """Where it is an ASGI application that is called for a request: whatever that is."""
    first: Any = given[0] if given else named.get("scope")
    if not hasattr(first, "setdefault"):
        return None  # Starlette's request is a mapping too, but nobody can write in it
    return first if first.get("type") == "http" else None


called_for: ContextVar[str | None] = ContextVar("semel_called_for", default=None)
"""The method that an endpoint is called for in a thread, out of sight of its framework."""

_CALLERS: Final = frozenset({"fastapi.routing", "litestar.routes.http"})
"""Modules that call endpoints, and have the request at hand."""


def method_of_caller() -> str | None:
    """FastAPI and Litestar give a request to those who ask for it; they know it all the same.

    Read in FastAPI 0.162 and Litestar 2. Where there is none, nobody is let through.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(16):
        if frame is None:
            return None
        found = frame.f_locals.get("request") if _is_caller(frame) else None
        if found is not None and _is_request(found):
            return str(found.method).upper()
        frame = frame.f_back
    return None


def _is_caller(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _CALLERS


_FRAMEWORKS: Final = frozenset({"blacksheep", "django", "litestar", "rest_framework", "starlette"})


def _is_request(it: Any) -> bool:
    """A request of a framework's; what looks like one may be a body that a client has sent."""
    if packages_of(it).isdisjoint(_FRAMEWORKS) or not isinstance(getattr(it, "method", None), str):
        return False
    return hasattr(it, "scope") or hasattr(it, "META")
