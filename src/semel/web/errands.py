"""A stored request sent through its application again, by a worker.

The way is that of the first time: the outermost application, authentication included. An `Errand`
travels with it in the ASGI scope or the WSGI environ, where no client can put anything; by it
authentication knows the caller (`principal`) and the guard knows that the record is held already.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from semel.core.answers import Answer
from semel.core.model import Case, Fence, Micros
from semel.core.stored import StoredRequest

ERRAND: Final = "semel.errand"

_MADE_HERE: Final = (b"content-length", b"transfer-encoding", b"idempotency-key")
"""Headers that a second one of, though ``carry=`` may name it, would spoil."""


class Errand:
    """A record that a worker holds, on its way to its handler."""

    __slots__ = (
        *("answer", "case", "fence", "last", "overdue", "reached", "request", "requeue"),
        "started",
    )

    def __init__(
        self,
        case: Case,
        fence: Fence,
        request: StoredRequest,
        started: float,
        requeue: Micros | None = None,
        overdue: bool = False,
        last: bool = False,
    ) -> None:
        self.case = case
        self.fence = fence
        self.request = request
        self.started = started
        """When the lease was asked for, by the clock of leases."""
        self.requeue = requeue
        self.overdue = overdue
        self.last = last
        self.reached = False
        """Its guard has it, and settles its record, whatever its worker hears of that."""
        self.answer: Answer | None = None
        """What came of it; None when nobody waited for that, or it never reached its guard."""


def principal(request: Any) -> Any:
    """Who the caller was, in a worker's run of a stored request; None in every other request.

    Takes a request of Starlette, FastAPI, Django or Flask, semel's own, an ASGI scope or a WSGI
    environ. Authentication that accepts it trusts semel's store as it trusts its own sessions.
    """
    errand = find_errand(request)
    return None if errand is None else errand.request.principal


def find_errand(request: Any) -> Errand | None:
    if type(request) is dict:  # what servers give: the only one on the way of every request
        told: object = request.get(ERRAND)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return told if isinstance(told, Errand) else None
    for place in (request, *(getattr(request, name, None) for name in ("scope", "raw", "environ"))):
        if isinstance(place, Mapping):
            found: object = place.get(ERRAND)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            return found if isinstance(found, Errand) else None
    # Django's name for the environ; or semel's own request, of which that is inside.
    inner = getattr(request, "META", None) or getattr(request, "raw", None)
    return None if inner is None else find_errand(inner)


def asgi_scope(errand: Errand, state: Any = None) -> dict[str, Any]:
    """The request as a server would announce it."""
    request = errand.request
    root = _decoded(request.root)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": root + _decoded(request.path),
        "raw_path": (request.root + request.path).encode("latin-1"),
        "root_path": root,
        "query_string": request.query,
        "headers": [*_headers(request)],
        "client": None,
        "server": ("semel-worker", 0),
        "state": {} if state is None else dict(state),
        ERRAND: errand,
    }


async def run_asgi(app: Any, errand: Errand, state: Any = None) -> None:
    """Send it through; what comes back went to the record, so it is dropped here.

    Nobody hangs up before it is answered: frameworks stop a handler whose client has left.
    """
    import asyncio  # here, because a WSGI process need not load it

    asked, answered = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await answered.wait()
            return {"type": "http.disconnect"}
        asked = True
        return {"type": "http.request", "body": errand.request.body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            answered.set()

    await app(asgi_scope(errand, state), receive, send)


def wsgi_environ(errand: Errand) -> dict[str, Any]:
    request = errand.request
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": unquote_to_bytes(request.root).decode("latin-1"),
        "PATH_INFO": unquote_to_bytes(request.path).decode("latin-1"),
        "QUERY_STRING": request.query.decode("latin-1"),
        "SERVER_NAME": "semel-worker",
        "SERVER_PORT": "0",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        ERRAND: errand,
    }
    for name, line in _headers(request):
        key = name.decode("latin-1").upper().replace("-", "_")
        key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
        value = line.decode("latin-1")
        environ[key] = f"{environ[key]}, {value}" if key in environ else value
    return environ


def run_wsgi(app: Any, errand: Errand) -> None:
    """The same, for a WSGI application; blocks."""

    def write(piece: bytes) -> None:
        """Nobody is there to read it."""

    def start_response(*_: Any) -> Any:
        return write

    body: Iterable[bytes] = app(wsgi_environ(errand), start_response)
    try:
        for _ in body:
            pass
    finally:
        close = getattr(body, "close", None)
        if close is not None:
            close()


def _headers(request: StoredRequest) -> Iterable[tuple[bytes, bytes]]:
    if not any(name == b"host" for name, _ in request.headers):
        yield b"host", b"semel-worker"
    yield b"content-length", b"%d" % len(request.body)
    yield b"idempotency-key", request.key.encode("latin-1")
    yield from (line for line in request.headers if line[0] not in _MADE_HERE)


def _decoded(path: str) -> str:
    return unquote_to_bytes(path).decode("utf-8", "surrogateescape")
