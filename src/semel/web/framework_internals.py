"""Hooks on private names of frameworks: a run learns whether its endpoint returned or raised.

A guard around a whole application sees only what leaves it. An exception may come from the
endpoint, or from after it, when no answer could be made of what it returned. If a framework no
longer has what is hooked here, every exception counts as the second kind: in doubt, the endpoint
has acted. `tests/web/test_returned.py` fails then.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Final

from semel.core.frozen import is_async
from semel.errors import Unguarded
from semel.log import log
from semel.runtime.operation import note, watched
from semel.web.routes import layers
from semel.web.tags import TAG, called_for, method_of_caller, packages_of, ruled_by

_WATCHED: Final = "__semel_watched__"


def watch_fastapi() -> bool:
    """Note when endpoints return, in every FastAPI application; False if that is impossible.

    Read in FastAPI 0.162.4: ``run_endpoint_function`` is a function of its own, and the
    request handler looks it up by its name.
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
    if _names(maker.__code__, "solve_dependencies"):
        routing.solve_dependencies = _watched(routing.solve_dependencies, whole=False)
    return True


def _at_its_gate(plain: Any) -> Any:
    """``run_endpoint_function``, which refuses an endpoint that is not the one at the gate.

    For a tagged endpoint it notes the method of the request, because in a thread it is not seen.
    """
    from semel.web.endpoint_gate import passed_by  # which needs asyncio, as FastAPI does

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
    """Hook the application inside of what is guarded, by the packages of its class."""
    for layer in layers(app):
        for package in packages_of(layer) & {*_HOOKED, "cherrypy"}:
            seen = _watch_cherrypy() if package == "cherrypy" else _hook(layer, package)
            if not seen and package not in _warned:
                _warned.add(package)
                log.warning(
                    "semel: this version of %s is not known: it answers 500 to any exception, and "
                    "a guard cannot see which, so a handler that timed out is judged as one that "
                    "failed. Use semel.payments(), or raise semel.OutcomeUnknown where a call may "
                    "have been made",
                    package,
                )


_warned: set[str] = set()


def _noting(plain: Any) -> Any:
    """A function that answers exceptions, and notes each of them in the current run."""

    @functools.wraps(plain)
    def answer(*given: Any, **named: Any) -> Any:
        for each in given:
            if isinstance(each, BaseException):
                note(each)
        return plain(*given, **named)

    setattr(answer, _WATCHED, True)
    return answer


def _watch_cherrypy() -> bool:
    """CherryPy: two of its hooks run where exceptions are answered, unexpected ones and its own."""
    cherrypy: Any = sys.modules.get("cherrypy")
    if cherrypy is None:
        return False

    def note_handled() -> None:
        error = sys.exception()
        if error is not None:
            note(error)

    for hook in ("before_error_response", "before_finalize"):
        cherrypy.config.update({f"hooks.{hook}.semel": note_handled})
    return True


def _watched(plain: Any, *, whole: bool = True) -> Any:
    """``plain``, sync or async as it is, which notes in the current run how it ended."""

    async def awaited(*given: Any, **named: Any) -> Any:
        with watched(whole=whole):
            return await plain(*given, **named)

    def called(*given: Any, **named: Any) -> Any:
        with watched(whole=whole):
            return plain(*given, **named)

    made = functools.wraps(plain)(awaited if is_async(plain) else called)
    setattr(made, _WATCHED, True)
    return made


_HOOKED: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = {
    "flask": {"handle_user_exception": _noting, "dispatch_request": _watched},
    "falcon": {"_handle_exception": _noting},
    "blacksheep": {"handle_request_handler_exception": _noting},
}
"""Methods that answer the exceptions of views, and Flask's that calls the view.

By the package of an application's class, or of one of its bases: Flask's is one of Quart's. Read in
Falcon 4.4 and BlackSheep 2.6.
"""


def _hook(app: Any, package: str) -> bool:
    """Hook these methods, once; False if there is no such method."""
    for name, wrap in _HOOKED[package].items():
        owner = app
        if package == "falcon":  # on the class, because instances have slots
            owner = next((it for it in type(app).__mro__ if name in vars(it)), None)
        plain: Any = getattr(owner, name, None)
        if plain is None:
            return False
        if not hasattr(plain, _WATCHED):
            setattr(owner, name, wrap(plain))
    return True
