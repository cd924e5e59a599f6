"""A worker sends a stored request through its application again.

The request takes the same way as the first time, authentication included. A `WorkerRun` is in its
ASGI scope or WSGI environ, where no client can put anything. From it, authentication learns the
caller (`principal`), and the guard learns that the record is held already.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from semel.core.exchange.exchange import WorkerRun
from semel.core.stored.requests import StoredRequest

WORKER_RUN: Final = "semel.worker_run"

_MADE_HERE: Final = (b"content-length", b"transfer-encoding")
"""Headers that are made here, so a stored one of the same name is left out."""


def principal(request: Any) -> Any:
    """Who the caller was, in a worker's run of a stored request; None in every other request.

    Takes a request of Starlette, FastAPI, Django or Flask, semel's own, an ASGI scope or a WSGI
    environ. Authentication that accepts it trusts semel's store as it trusts its own sessions.
    """
    run = find_worker_run(request)
    return None if run is None else run.request.principal


def find_worker_run(request: Any) -> WorkerRun | None:
    if isinstance(request, Mapping):
        run: object = request.get(WORKER_RUN)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return run if isinstance(run, WorkerRun) else None
    for name in ("scope", "raw", "environ", "META"):  # the last is Django's name for the environ
        inner = getattr(request, name, None)
        if isinstance(inner, Mapping):
            return find_worker_run(inner)
    inner = getattr(request, "raw", None)  # of semel's own request: that of the framework
    return None if inner is None else find_worker_run(inner)


def asgi_scope(run: WorkerRun, state: Any = None) -> dict[str, Any]:
    """The stored request as the scope that a server would make."""
    request = run.request
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
        WORKER_RUN: run,
    }


async def run_asgi(app: Any, run: WorkerRun, state: Any = None) -> None:
    """Send the request through an ASGI application. Its answer is dropped: the record has it.

    The client seems to stay until the answer: frameworks stop a handler whose client has left.
    """
    import asyncio  # here, because a WSGI process need not load it

    asked, answered = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await answered.wait()
            return {"type": "http.disconnect"}
        asked = True
        return {"type": "http.request", "body": run.request.body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            answered.set()

    await app(asgi_scope(run, state), receive, send)


def wsgi_environ(run: WorkerRun) -> dict[str, Any]:
    request = run.request
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
        WORKER_RUN: run,
    }
    for name, line in _headers(request):
        key = name.decode("latin-1").upper().replace("-", "_")
        key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
        value = line.decode("latin-1")
        environ[key] = f"{environ[key]}, {value}" if key in environ else value
    return environ


def run_wsgi(app: Any, run: WorkerRun) -> None:
    """`run_asgi` for a WSGI application; blocks."""

    def write(piece: bytes) -> None:
        """Nobody is there to read it."""

    def start_response(*_: Any) -> Any:
        return write

    body: Iterable[bytes] = app(wsgi_environ(run), start_response)
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
    yield from (line for line in request.headers if line[0] not in _MADE_HERE)


def _decoded(path: str) -> str:
    return unquote_to_bytes(path).decode("utf-8", "surrogateescape")
