"""A payments API in Litestar whose requests take effect once, however often they are sent."""

import asyncio
import os
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from litestar import Controller, Litestar, Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency, Provide
from litestar.exceptions import NotAuthorizedException
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.params import JSONBody

import semel
from semel.frameworks.litestar import install, transaction

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
STORE = os.environ.get("SEMEL_STORE", f"sqlite:///{FOLDER / 'semel.db'}")
CALLERS = {"Bearer alice": "alice", "Bearer bob": "bob"}

guard = semel.Guard(STORE, tenant=lambda request: request.raw["user"])


class Bearer(AbstractAuthenticationMiddleware):
    """Before any key is looked at: without a caller there is no answer, not even a kept one."""

    async def authenticate_request(
        self, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> AuthenticationResult:
        caller = CALLERS.get(connection.headers.get("authorization", ""))
        if caller is None:
            raise NotAuthorizedException("who are you?")
        return AuthenticationResult(user=caller, auth=None)


@dataclass
class Order:
    amount: int
    currency: str = "EUR"


Caller = Request[str, Any, Any]


def happened(request: Caller, route: str, amount: int) -> None:
    """What cannot be taken back: one line for each time that a handler really ran."""
    with (FOLDER / "effects.log").open("ab", buffering=0) as effects:
        effects.write(f"{route} {request.user} {amount}\n".encode())


def made(route: str, order: Order) -> Response[dict[str, Any]]:
    answer = {"id": uuid4().hex, **asdict(order)}
    return Response(answer, headers={"Location": f"/{route}/{answer['id']}"})


class Payments(Controller):
    path = "/payments"

    @get()
    async def count(self, request: Caller) -> dict[str, int]:
        effects = FOLDER / "effects.log"
        lines = effects.read_text().splitlines() if effects.exists() else []
        return {"count": sum(line.startswith(f"payments {request.user} ") for line in lines)}

    @post()
    @guard.route(semel.ietf(required=True, key="uuid"))
    async def pay(self, data: JSONBody[Order], request: Caller) -> Response[dict[str, Any]]:
        happened(request, "payments", data.amount)
        match data.amount:
            case 402:
                return Response({"error": "declined"}, status_code=402)
            case 503:
                return Response({"error": "try again"}, status_code=503)
            case 500:
                raise RuntimeError("the payment could not be made")
            case 700:
                while not (FOLDER / "release").exists():  # noqa: ASYNC110 - it is a file
                    await asyncio.sleep(0.01)
            case _:
                pass
        return made("payments", data)


@post("/transfers", opt={"semel": semel.payments(required=True, probe=None)}, sync_to_thread=True)
def transfer(data: JSONBody[Order], request: Caller) -> Response[dict[str, Any]]:
    """The policy in ``opt``, which controllers, routers and the application can have as well."""
    happened(request, "transfers", data.amount)
    if data.amount == 500:
        raise RuntimeError("sent to the bank, and no answer came")
    return made("transfers", data)


@post("/orders", dependencies={"orders": Provide(transaction)})
@guard.route(semel.ietf(mode="atomic", required=True))
async def place_order(
    data: JSONBody[Order], request: Caller, orders: NamedDependency[Any]
) -> dict[str, Any]:
    """``orders`` is a connection in semel's own transaction: order and key commit together."""
    happened(request, "orders", data.amount)
    row = orders.execute("INSERT INTO orders (amount) VALUES (?)", (data.amount,))
    if data.amount == 500:
        raise RuntimeError("the order is not to be")
    return {"id": row.lastrowid, **asdict(data)}


@get("/orders", sync_to_thread=True)
def count_orders() -> dict[str, int]:
    with closing(database()) as connection:
        return {"count": connection.execute("SELECT count(*) FROM orders").fetchone()[0]}


@post("/notes")
@guard.route(semel.ietf())
async def note(data: JSONBody[Order], request: Caller) -> Response[dict[str, Any]]:
    """A key is honoured, but not demanded."""
    happened(request, "notes", data.amount)
    return made("notes", data)


def database() -> sqlite3.Connection:
    return sqlite3.connect(FOLDER / "semel.db")


def make_table() -> None:
    with closing(database()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, amount INT)")


app = Litestar(
    [Payments, transfer, place_order, count_orders, note],
    middleware=[Bearer],
    on_app_init=[partial(install, guard=guard)],
    on_startup=[make_table],
)
