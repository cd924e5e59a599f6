"""One handler in both colours: an ASGI and a WSGI application around the same plain function."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus

import semel
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse, WsgiApp
from tests.web.drive import AsgiDriver, Driver, WsgiDriver
from tests.web.effects import Effects

COLOURS = ("asgi", "wsgi")
TEXT = ("content-type", "text/plain")


@dataclass(frozen=True)
class Said:
    """A handler's answer."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (TEXT,)


Handle = Callable[[], Said]


def asgi(handle: Handle) -> AsgiApp:
    """An ASGI application that answers every request by ``handle``."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        said = handle()
        headers = [(name.encode(), value.encode()) for name, value in said.headers]
        await send({"type": "http.response.start", "status": said.status, "headers": headers})
        await send({"type": "http.response.body", "body": said.body})

    return app


def wsgi(handle: Handle) -> WsgiApp:
    """A WSGI application that answers every request by ``handle``."""

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        said = handle()
        line = f"{said.status} {HTTPStatus(said.status).phrase}"
        start_response(line, list(said.headers))
        return [said.body]

    return app


def driver(
    colour: str,
    guard: semel.Guard,
    handle: Handle,
    runner: asyncio.Runner,
    *,
    strict: bool = True,
) -> Driver:
    """A guarded application of that colour, and a server for it."""
    if colour == "asgi":
        return AsgiDriver(guard.asgi(asgi(handle)), runner)
    return WsgiDriver(guard.wsgi(wsgi(handle)), strict=strict)


def once(effects: Effects, key: str = "-") -> Handle:
    """A handler that has an effect and answers with its nonce."""
    return lambda: Said(effects.happen(key).encode())
