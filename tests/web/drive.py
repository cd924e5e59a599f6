"""Drives applications as a server would, in this process: ASGI and WSGI through one face."""

import asyncio
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote_from_bytes
from wsgiref.validate import validator

from semel.web.asgi_exchange import AsgiApp, Message, Scope
from semel.web.wsgi import Environ, WsgiApp
from tests import canary
from tests.web.client import BODY, Reply

KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"


@dataclass(frozen=True)
class Ask:
    """One request. ``path`` holds decoded octets, mount prefix excluded."""

    method: str = "POST"
    path: bytes = b"/x"
    key: str | None = KEY
    body: bytes = BODY
    query: bytes = b""
    root: str = ""
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)

    def all_headers(self) -> list[tuple[str, str]]:
        key = [] if self.key is None else [("idempotency-key", self.key)]
        return [*self.headers, ("x-api-token", canary.TOKEN), *key]


class Driver(Protocol):
    """Sends requests to one application; what it raises is kept, as a server would log it."""

    errors: list[BaseException]

    def __call__(self, ask: Ask = ...) -> Reply: ...


# ── ASGI ──────────────────────────────────────────────────────────────────────────────────────────


def scope_of(ask: Ask) -> Scope:
    path = ask.root.encode() + ask.path
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": ask.method,
        "scheme": "http",
        "path": path.decode("utf-8", "replace"),
        "raw_path": quote_from_bytes(path).encode(),
        "root_path": ask.root,
        "query_string": ask.query,
        "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in ask.all_headers()],
        "client": ("127.0.0.1", 4242),
        "server": ("127.0.0.1", 80),
        "extensions": {},
        "state": {},
    }


@dataclass
class Wire:
    """The server's end of one request: feeds the body, collects what is sent."""

    ask: Ask
    sent: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    _fed: bool = False

    async def receive(self) -> Message:
        if not self._fed:
            self._fed = True
            return {"type": "http.request", "body": self.ask.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def reply(self) -> Reply:
        """What the client got; status 0 stands for no answer at all."""
        if not self.sent:
            return Reply(0, (), b"")
        start, *rest = self.sent
        assert start["type"] == "http.response.start", self.sent
        assert {message["type"] for message in rest} <= {"http.response.body"}
        headers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in start["headers"])
        body = b"".join(message.get("body", b"") for message in rest)
        return Reply(start["status"], headers, body)


async def call(app: AsgiApp, ask: Ask) -> tuple[Reply, BaseException | None]:
    """One request through an ASGI application, and what it raised."""
    wire = Wire(ask)
    try:
        await app(scope_of(ask), wire.receive, wire.send)
    except (Exception, asyncio.CancelledError) as error:
        return wire.reply(), error
    return wire.reply(), None


class AsgiDriver:
    def __init__(self, app: AsgiApp, runner: asyncio.Runner) -> None:
        self.app = app
        self.errors: list[BaseException] = []
        self._runner = runner

    def __call__(self, ask: Ask | None = None) -> Reply:
        reply, error = self._runner.run(call(self.app, ask or Ask()))
        if error is not None:
            self.errors.append(error)
        return reply


# ── WSGI ──────────────────────────────────────────────────────────────────────────────────────────


def environ_of(ask: Ask) -> Environ:
    environ: Environ = {
        "REQUEST_METHOD": ask.method,
        "SCRIPT_NAME": ask.root.encode().decode("latin-1"),
        "PATH_INFO": ask.path.decode("latin-1"),
        "QUERY_STRING": ask.query.decode("latin-1"),
        "RAW_URI": quote_from_bytes(ask.root.encode() + ask.path),  # as gunicorn notes it
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(ask.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(ask.body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in ask.all_headers():
        cgi = name.upper().replace("-", "_")
        cgi = cgi if cgi in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{cgi}"
        environ[cgi] = (
            f"{environ[cgi]},{value}" if cgi.startswith("HTTP_") and cgi in environ else value
        )
    return environ


class WsgiDriver:
    """With ``strict``, wsgiref's validator sits between, as in front of any server."""

    def __init__(self, app: WsgiApp, *, strict: bool = True) -> None:
        self.app: Any = validator(app) if strict else app
        self.errors: list[BaseException] = []

    def __call__(self, ask: Ask | None = None) -> Reply:
        return self.serve(environ_of(ask or Ask()))

    def serve(self, environ: Environ) -> Reply:
        head: list[tuple[int, list[tuple[str, str]]]] = []
        written: list[bytes] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            head.append((int(status[:3]), headers))
            return written.append

        pieces: Iterable[bytes] = ()
        try:
            pieces = self.app(environ, start)
            written.extend(pieces)
        except BaseException as error:  # a worker told to stop raises SystemExit in its handler
            self.errors.append(error)
        finally:
            close: Callable[[], None] | None = getattr(pieces, "close", None)
            if close is not None:
                close()
        if not head or (self.errors and not written):
            # A server that has sent nothing yet answers an exception by itself.
            return Reply(0, (), b"") if not head else Reply(head[-1][0], tuple(head[-1][1]), b"")
        return Reply(head[-1][0], tuple(head[-1][1]), b"".join(written))
