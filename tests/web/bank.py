"""A bank whose handlers write in semel's own transaction, in every colour and on every database.

A handler is a script: a generator that yields what it does (`Sql`, `Put`, `Use`, `Wait`) and
returns its answer, so that the same one is run by an event loop, by a thread of one, and by WSGI.
"""

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from fastapi import FastAPI
from flask import Flask
from flask import Response as FlaskResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import semel
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse, WsgiApp
from tests.databases import aexecuted, connect, executed
from tests.stores.harness import TABLES
from tests.waiting import PATIENCE, auntil, patient
from tests.web.drive import AsgiDriver, Driver, WsgiDriver

STORES = ("sqlite", "postgres", "mariadb")
PAID = (1, 1, ["completed"])
"""What `Ledger.all` says after one payment."""
NOTHING: tuple[int, int, list[str]] = (0, 0, [])
PLAIN = ("content-type", "text/plain")


# ── databases ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Ledger:
    """The bank's database as an auditor sees it: through a connection of his own."""

    url: str

    @property
    def sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def mysql(self) -> bool:
        return self.url.startswith("mysql")

    @property
    def file(self) -> str:
        return self.url.removeprefix("sqlite:///")

    @property
    def store(self) -> str:
        """For a guard: its database may take its time."""
        return patient(self.url)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(connect(self.url)) as connection:
            return executed(connection, statement)

    def found(self) -> None:
        """Make the tables: the bank's own, and semel's."""
        with closing(semel.Guard(self.store, tenant=None)) as guard:
            guard.migrate()
        self.ask("CREATE TABLE payment (name VARCHAR(200) PRIMARY KEY)")

    def payments(self) -> list[str]:
        return [row[0] for row in self.ask("SELECT name FROM payment ORDER BY name")]

    def all(self) -> tuple[int, int, list[str]]:
        """How many payments and effects there are, and the states of the records."""
        rows = self.ask(
            "SELECT 'payment' FROM payment UNION ALL SELECT 'effect' FROM semel_effect "
            "UNION ALL SELECT state FROM semel_records"
        )
        names = [row[0] for row in rows]
        states = [name for name in names if name not in ("payment", "effect")]
        return names.count("payment"), names.count("effect"), states

    def clear(self) -> None:
        statements = [f"DELETE FROM {name}" for name in ("payment", "semel_effect", "semel_record")]
        with closing(connect(self.url)) as connection:
            for each in statements:
                executed(connection, each)


@contextmanager
def opened(store: str, folder: Path, server: Callable[[str], Any]) -> Iterator[Ledger]:
    """``server``: the one of that name, started when it is asked for."""
    if store == "sqlite":
        ledger = Ledger(f"sqlite:///{folder / 'bank.db'}")
        ledger.found()
        yield ledger
    else:
        with server(store).prepared(found, (*TABLES, "payment")) as url:
            yield Ledger(url)


def found(url: str) -> None:
    Ledger(url).found()


# ── scripts ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sql:
    """One statement on the transaction's connection."""

    text: str


@dataclass(frozen=True)
class Put:
    """One effect into the outbox."""

    name: str


@dataclass(frozen=True)
class Use:
    """Call a function with the running operation; what it returns is awaited where it can be."""

    function: Callable[[Any], Any]


class Gate(Protocol):
    """An event of this process's, or a file."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float) -> bool: ...


@dataclass(frozen=True)
class Wait:
    """Until somebody opens the gate."""

    gate: Gate


@dataclass(frozen=True)
class Says:
    """A handler's answer. More than one piece is streamed; then ``error`` ends it, if given."""

    status: int = 201
    pieces: tuple[bytes, ...] = (b"paid",)
    error: Exception | None = None

    def flow(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.error is not None:
            raise self.error

    @property
    def streamed(self) -> bool:
        return len(self.pieces) > 1 or self.error is not None


Step = Sql | Put | Use | Wait
Script = Callable[[], Generator[Step, Any, Says]]


def pay(name: str | None = None, says: Says | None = None) -> Script:
    """One payment and one effect, then the answer, which names the payment."""

    def script() -> Generator[Step, Any, Says]:
        row = name or uuid4().hex
        yield Sql(f"INSERT INTO payment VALUES ('{row}')")
        yield Put("receipt")
        return says or Says(pieces=(row.encode(),))

    return script


def play(script: Script) -> Says:
    """In a thread."""
    steps = script()
    try:
        step = next(steps)
        while True:
            try:
                done = _do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        said: Says = end.value
        return said


def _do(step: Step) -> Any:
    operation = semel.operation()
    match step:
        case Sql(text):
            return executed(operation.transaction, text)
        case Put(name):
            return operation.enqueue(name, {"for": name})
        case Use(function):
            return function(operation)
        case Wait(gate):
            assert gate.wait(PATIENCE)
            return None


async def aplay(script: Script) -> Says:
    """In an event loop."""
    steps = script()
    try:
        step = next(steps)
        while True:
            try:
                done = await _ado(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        said: Says = end.value
        return said


async def _ado(step: Step) -> Any:
    operation = semel.async_operation()
    match step:
        case Sql(text):
            return await aexecuted(operation.transaction, text)
        case Put(name):
            return await operation.enqueue(name, {"for": name})
        case Use(function):
            return await _ready(function(operation))
        case Wait(gate):
            return await auntil(gate.is_set)


async def _ready(value: Any) -> Any:
    """SQLite's connection is the plain one in either colour."""
    return await value if inspect.isawaitable(value) else value


# ── applications ──────────────────────────────────────────────────────────────────────────────────


def raw(guard: semel.Guard, script: Script) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        says = await aplay(script)
        headers = [(name.encode(), value.encode()) for name, value in [PLAIN]]
        await send({"type": "http.response.start", "status": says.status, "headers": headers})
        for piece in says.flow() if says.streamed else ():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        body = b"" if says.streamed else b"".join(says.pieces)
        await send({"type": "http.response.body", "body": body})

    return guard.asgi(app)


def _response(says: Says) -> Response:
    if says.streamed:
        return StreamingResponse(says.flow(), says.status, media_type="text/plain")
    return Response(b"".join(says.pieces), says.status, media_type="text/plain")


def fastapi(guard: semel.Guard, script: Script) -> AsgiApp:
    app = FastAPI()

    async def handle() -> Response:
        return _response(await aplay(script))

    app.add_api_route("/{path:path}", handle, methods=["POST"], response_model=None)
    app.add_middleware(semel.Middleware, guard=guard)
    return app


def threaded(guard: semel.Guard, script: Script) -> AsgiApp:
    """A ``def`` endpoint: the transaction is begun by the loop and used by a thread."""

    def handle(request: Request) -> Response:
        return _response(play(script))

    return guard.asgi(Starlette(routes=[Route("/{path:path}", handle, methods=["POST"])]))


def bare(guard: semel.Guard, script: Script) -> WsgiApp:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        says = play(script)
        start_response(f"{says.status} {HTTPStatus(says.status).phrase}", [PLAIN])
        return says.flow()

    return guard.wsgi(app)


def flask(guard: semel.Guard, script: Script) -> WsgiApp:
    app = Flask("bank")
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.logger.disabled = True

    @app.post("/<path:path>")
    def handle(path: str) -> FlaskResponse:
        says = play(script)
        body: Any = says.flow() if says.streamed else b"".join(says.pieces)
        return FlaskResponse(body, says.status, mimetype="text/plain")

    return guard.wsgi(app.wsgi_app)


ASGI: dict[str, Callable[[semel.Guard, Script], AsgiApp]] = {
    "asgi": raw,
    "fastapi": fastapi,
    "def": threaded,
}
WSGI: dict[str, Callable[[semel.Guard, Script], WsgiApp]] = {"wsgi": bare, "flask": flask}
COLOURS = (*ASGI, *WSGI)


class Changing:
    """A script that a test exchanges between two requests."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.runs = 0

    def __call__(self) -> Generator[Step, Any, Says]:
        self.runs += 1
        return (yield from self.script())


@dataclass
class Bank:
    """A guarded bank of one colour over one database, served in this process."""

    guard: semel.Guard
    ledger: Ledger
    script: Changing
    send: Driver
    app: Any

    def plays(self, script: Script) -> None:
        self.script.script = script


def bank(
    colour: str, guard: semel.Guard, ledger: Ledger, runner: asyncio.Runner, script: Script
) -> Bank:
    changing = Changing(script)
    if colour in ASGI:
        app: Any = ASGI[colour](guard, changing)
        return Bank(guard, ledger, changing, AsgiDriver(app, runner), app)
    app = WSGI[colour](guard, changing)
    return Bank(guard, ledger, changing, WsgiDriver(app), app)
