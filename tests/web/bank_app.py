"""The bank under real servers: ``tests.web.bank_app:app`` for uvicorn, and for gunicorn.

A request says where it wants to be held (``x-hold``) and by which file it is let go (``x-gate``):
at a step of its handler, or before or after an operation on semel's transaction. Who is held says
so in a file, with the number of its process, and can then be killed.
"""

import os
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import semel
from semel.core.operations.requests import FlowOperation
from semel.runtime.transactions import AsyncTransact, Transact
from semel.runtime.waiters import Waiters, Wake
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse, WsgiApp
from tests.waiting import PATIENCE, auntil, until
from tests.web.bank import ASGI, WSGI, Put, Says, Sql, Step, Wait
from tests.web.effects import Effects

HANDLER = ("handler begins", "row written", "effect put")
IN_SEMEL = (
    *("before Begin", "after Begin", "after Claim", "after Save"),
    *("before Complete", "after Complete", "before Commit"),
)
COMMITTED = "after Commit"

POLICIES = {
    "/pay": semel.ietf(mode="atomic"),
    "/wait": semel.ietf(mode="atomic", in_flight="wait", wait=timedelta(seconds=PATIENCE)),
    "/accept": semel.accepted(mode="atomic"),
}

_hold: ContextVar[tuple[str, str]] = ContextVar("hold", default=("", ""))


@dataclass(frozen=True)
class FileGate:
    path: str

    def is_set(self) -> bool:
        return Path(self.path).exists()

    def wait(self, timeout: float) -> bool:
        return until(self.is_set, seconds=timeout)


class Posts:
    """Where requests are held."""

    def __init__(self, folder: Path) -> None:
        self.reached = Effects(folder / "reached")
        self.waiting = Effects(folder / "waiting")

    def gate(self, name: str) -> FileGate | None:
        wanted, gate = _hold.get()
        if wanted != name:
            return None
        self.reached.happen(name.replace(" ", "-"))
        return FileGate(gate)

    def pay(self) -> Generator[Step, Any, Says]:
        name = uuid4().hex
        yield from self._post(HANDLER[0])
        yield Sql(f"INSERT INTO payment VALUES ('{name}')")
        yield from self._post(HANDLER[1])
        yield Put("receipt")
        yield from self._post(HANDLER[2])
        return Says(pieces=(name.encode(),))

    def _post(self, name: str) -> Generator[Step, Any, None]:
        if gate := self.gate(name):
            yield Wait(gate)


def watch(posts: Posts) -> None:
    """Hold requests at semel's own operations too, and note those who wait."""
    perform, aperform, await_ = Transact.perform, AsyncTransact._perform, Waiters.await_

    def watched(self: Transact, op: FlowOperation[Any]) -> Any:
        name = type(op).__name__
        if gate := posts.gate(f"before {name}"):
            gate.wait(PATIENCE)
        reply = perform(self, op)
        if gate := posts.gate(f"after {name}"):
            gate.wait(PATIENCE)
        return reply

    async def awatched(self: AsyncTransact, op: FlowOperation[Any]) -> Any:
        name = type(op).__name__
        if gate := posts.gate(f"before {name}"):
            await auntil(gate.is_set)
        reply = await aperform(self, op)
        if gate := posts.gate(f"after {name}"):
            await auntil(gate.is_set)
        return reply

    async def waits(self: Waiters, *arguments: Any) -> Wake:
        posts.waiting.happen("-")
        return await await_(self, *arguments)

    patched: list[tuple[type, str, Callable[..., Any]]] = [
        (Transact, "perform", watched),
        (AsyncTransact, "_perform", awatched),
        (Waiters, "await_", waits),
    ]
    for owner, name, function in patched:
        setattr(owner, name, function)


def held_asgi(app: AsgiApp) -> AsgiApp:
    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            _hold.set((headers.get("x-hold", ""), headers.get("x-gate", "")))
        await app(scope, receive, send)

    return outer


def held_wsgi(app: WsgiApp) -> WsgiApp:
    def outer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        _hold.set((environ.get("HTTP_X_HOLD", ""), environ.get("HTTP_X_GATE", "")))
        return app(environ, start_response)

    return outer


def from_environment() -> Any:
    posts = Posts(Path(os.environ["SEMEL_TEST_FOLDER"]))
    watch(posts)
    guard = semel.Guard(
        os.environ["SEMEL_TEST_STORE"],
        tenant=None,
        routes=[semel.Route("POST", path, policy) for path, policy in POLICIES.items()],
    )
    colour = os.environ["SEMEL_TEST_FRAMEWORK"]
    if colour in ASGI:
        return held_asgi(ASGI[colour](guard, posts.pay))
    return held_wsgi(WSGI[colour](guard, posts.pay))


if "SEMEL_TEST_STORE" in os.environ:
    app = from_environment()
