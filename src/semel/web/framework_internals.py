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

from semel.log import log
from semel.process.current import note, returned

_WATCHED: Final = "__semel_watched__"


_HIDING: Final = frozenset({"blacksheep", "cherrypy", "falcon", "quart"})
"""Frameworks that make a 500 of any exception, out of a guard's sight."""

_told: set[str] = set()


def warn_of_hidden_exceptions(app: Any) -> None:
    """Say once that a time-out in a handler looks like any 500 there."""
    package = type(getattr(app, "__self__", app)).__module__.partition(".")[0]
    if package not in _HIDING or package in _told:
        return
    _told.add(package)
    log.warning(
        "semel: %s answers 500 to any exception, and a guard cannot see which: a handler that "
        "timed out is judged as one that failed. Use semel.payments(), or raise "
        "semel.OutcomeUnknown where a call may have been made",
        package,
    )


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

    @functools.wraps(plain)
    async def run_endpoint_function(**given: Any) -> Any:
        try:
            return returned(await plain(**given))
        except Exception as error:
            note(error)
            raise

    setattr(run_endpoint_function, _WATCHED, True)
    routing.run_endpoint_function = run_endpoint_function
    return True


def _names(code: CodeType | None, name: str) -> bool:
    """Whether a function, or one that it makes, looks up a name."""
    if code is None:
        return False
    made = [each for each in code.co_consts if isinstance(each, CodeType)]
    return name in code.co_names or any(_names(each, name) for each in made)


def watch_flask(app: Any) -> None:
    """Hear of views that return, in one Flask application, given as such or as its ``wsgi_app``."""
    flask = getattr(app, "__self__", app)
    plain = getattr(flask, "dispatch_request", None)
    if plain is None or not hasattr(flask, "view_functions") or hasattr(plain, _WATCHED):
        return

    @functools.wraps(plain)
    def dispatch_request(*context: Any) -> Any:
        try:
            return returned(plain(*context))
        except Exception as error:
            note(error)
            raise

    setattr(dispatch_request, _WATCHED, True)
    flask.dispatch_request = dispatch_request
