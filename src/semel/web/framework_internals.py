"""How frameworks call endpoints: hooks on them, so that a run knows what its endpoint came to.

A guard around a whole application sees only what leaves it. An exception that leaves it may have
been raised by the endpoint, or after the endpoint returned, when no answer could be made of what it
returned. Where a framework no longer has what is hooked here, every exception is taken for the
second kind: in doubt the endpoint has acted. `tests/web/test_returned.py` fails then.
"""

from __future__ import annotations

import functools
import sys
from types import CodeType
from typing import Any, Final

from semel.core.frozen import is_async
from semel.errors import Unguarded
from semel.log import log
from semel.runtime.operation import note, watched
from semel.web.policy_in_force import called_for, method_of_caller, ruled_by
from semel.web.tags import TAG, layers, packages_of

_WATCHED: Final = "__semel_watched__"


def watch_fastapi() -> bool:
    """Hear of endpoints that return, in every FastAPI application; False when that cannot be done.

    Read in FastAPI 0.162.4: ``run_endpoint_function`` is a function of its own for those who
    measure endpoints, and what handles a request looks it up by its name.
    """
    routing: Any = sys.modules.get("fastapi.routing")
    if routing is None:
        return True
    plain: Any = getattr(routing, "run_endpoint_function", None)
    if hasattr(plain, _WATCHED):
        return True
    maker: Any = getattr(routing, "get_request_handler", None)
    if plain is None or not _names(getattr(maker, "__code__", None), "run_endpoint_function"):
        log.warning(
            "semel: this version of FastAPI is not known: an exception in a request with a key "
            "leaves its outcome unknown. guard.fastapi(app) knows better"
        )
        return False

    routing.run_endpoint_function = _at_its_gate(_watched(plain))
    if _names(getattr(maker, "__code__", None), "solve_dependencies"):
        routing.solve_dependencies = _watched(routing.solve_dependencies, whole=False)
    return True


def _at_its_gate(plain: Any) -> Any:
    """``run_endpoint_function``, which calls no endpoint around the gate of its request.

    A tagged one that its policy does not rule may be called for a safe method: that is told, for
    in a thread nobody sees it.
    """
    from semel.web.gate import passed_by  # which needs asyncio, as FastAPI does

    @functools.wraps(plain)
    async def run_endpoint_function(**given: Any) -> Any:
        if passed_by(given["dependant"]):
            raise Unguarded(
                "another endpoint was to answer than the one whose key would be claimed: "
                "middleware inside of guard.fastapi() changes the path. Put it around, or use "
                "guard.asgi()"
            )
        policy = getattr(given["dependant"].call, TAG, None)
        if policy is None or ruled_by.get() is policy:
            return await plain(**given)
        token = called_for.set(method_of_caller())
        try:
            return await plain(**given)
        finally:
            called_for.reset(token)

    return run_endpoint_function


def _names(code: CodeType | None, name: str) -> bool:
    """Whether a function, or one that it makes, looks up a name."""
    if code is None:
        return False
    made = [each for each in code.co_consts if isinstance(each, CodeType)]
    return name in code.co_names or any(_names(each, name) for each in made)


def watch_app(app: Any) -> None:
    """Hear of what endpoints come to, in the application that is inside of what is guarded."""
    for layer in layers(app):
        kinds = packages_of(layer)
        for package, watch in _WATCHES.items():
            if package in kinds and not watch(layer):
                _warn_of_hidden(package)


_warned: set[str] = set()


def _warn_of_hidden(package: str) -> None:
    """Say once that a time-out in a handler looks like any 500 there."""
    if package in _warned:
        return
    _warned.add(package)
    log.warning(
        "semel: this version of %s is not known: it answers 500 to any exception, and a guard "
        "cannot see which, so a handler that timed out is judged as one that failed. Use "
        "semel.payments(), or raise semel.OutcomeUnknown where a call may have been made",
        package,
    )


def _watch_flask(flask: Any) -> bool:
    """Flask and Quart: what calls the view, and what answers whatever was raised on the way."""
    if not hasattr(flask, "dispatch_request") or not hasattr(flask, "handle_user_exception"):
        return False
    if not hasattr(flask.dispatch_request, _WATCHED):
        flask.dispatch_request = _watched(flask.dispatch_request)
        flask.handle_user_exception = _noting(flask.handle_user_exception)
    return True


def _watch_falcon(falcon: Any) -> bool:
    """Read in Falcon 4.4: every exception is handed to one method, which finds its handler.

    Of the class: its instances have slots.
    """
    kind: Any = next((it for it in type(falcon).__mro__ if "_handle_exception" in vars(it)), None)
    if kind is None:
        return False
    if not hasattr(kind._handle_exception, _WATCHED):
        kind._handle_exception = _noting(kind._handle_exception)
    return True


def _watch_blacksheep(blacksheep: Any) -> bool:
    """Read in BlackSheep 2.6: every exception of a handler is handed to one method."""
    plain: Any = getattr(blacksheep, "handle_request_handler_exception", None)
    if plain is None:
        return False
    if not hasattr(plain, _WATCHED):
        blacksheep.handle_request_handler_exception = _noting(plain)
    return True


def _noting(plain: Any) -> Any:
    """A function that answers exceptions, with a word to the current run of each."""

    @functools.wraps(plain)
    def answer(*given: Any, **named: Any) -> Any:
        for each in given:
            if isinstance(each, BaseException):
                note(each)
        return plain(*given, **named)

    setattr(answer, _WATCHED, True)
    return answer


def _watch_cherrypy(_: Any) -> bool:
    """Two of its hooks are run where exceptions are answered: unexpected ones, and its own."""
    cherrypy: Any = sys.modules.get("cherrypy")
    if cherrypy is None:
        return False
    for hook in ("before_error_response", "before_finalize"):
        cherrypy.config.update({f"hooks.{hook}.semel": _note_handled})
    return True


def _note_handled() -> None:
    error = sys.exception()
    if error is not None:
        note(error)


_WATCHES: Final = {
    "flask": _watch_flask,  # a base of Quart's, too
    "falcon": _watch_falcon,
    "blacksheep": _watch_blacksheep,
    "cherrypy": _watch_cherrypy,
}
"""By the package that an application's class, or one of its bases, comes from."""


def _watched(plain: Any, *, whole: bool = True) -> Any:
    """``plain``, in its colour, with a word to the current run of what came of it."""

    async def awaited(*given: Any, **named: Any) -> Any:
        with watched(whole=whole):
            return await plain(*given, **named)

    def called(*given: Any, **named: Any) -> Any:
        with watched(whole=whole):
            return plain(*given, **named)

    made = functools.wraps(plain)(awaited if is_async(plain) else called)
    setattr(made, _WATCHED, True)
    return made
