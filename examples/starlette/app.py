"""A payments API in Starlette whose requests take effect once, however often they are sent."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    SimpleUser,
)
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import semel

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
STORE = os.environ.get("SEMEL_STORE", f"sqlite:///{FOLDER / 'semel.db'}")
CALLERS = {"Bearer alice": "alice", "Bearer bob": "bob"}

guard = semel.Guard(STORE, tenant=lambda request: request.raw["user"].username)


class Bearer(AuthenticationBackend):
    """Before any key is looked at: without a caller there is no answer, not even a kept one."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        caller = CALLERS.get(conn.headers.get("authorization", ""))
        if caller is None:
            raise AuthenticationError("who are you?")
        return AuthCredentials(["authenticated"]), SimpleUser(caller)


def refuse(conn: HTTPConnection, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": "Bearer"})


async def asked(request: Request) -> dict[str, Any]:
    """The body, which must say how much."""
    try:
        body: Any = await request.json()
    except ValueError:
        raise HTTPException(400, "not JSON") from None
    match body:
        case {"amount": int(amount), "currency": str(currency)}:
            return {"amount": amount, "currency": currency}
        case _:
            raise HTTPException(400, "an amount, a whole number, and a currency")


def happened(request: Request, route: str, amount: int) -> None:
    """What cannot be taken back: one line for each time that an endpoint really ran."""
    with (FOLDER / "effects.log").open("ab", buffering=0) as effects:
        effects.write(f"{route} {request.user.username} {amount}\n".encode())


def made(route: str, what: dict[str, Any]) -> Response:
    answer = {"id": uuid4().hex, **what}
    return JSONResponse(answer, 201, {"Location": f"/{route}/{answer['id']}"})


class Payments(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        effects = FOLDER / "effects.log"
        lines = effects.read_text().splitlines() if effects.exists() else []
        mine = f"payments {request.user.username} "
        return JSONResponse({"count": sum(line.startswith(mine) for line in lines)})

    @guard.route(semel.ietf(required=True, key="uuid"))
    async def post(self, request: Request) -> Response:
        payment = await asked(request)
        happened(request, "payments", payment["amount"])
        match payment["amount"]:
            case 402:
                return JSONResponse({"error": "declined"}, 402)
            case 503:
                return JSONResponse({"error": "try again"}, 503)
            case 500:
                raise RuntimeError("the payment could not be made")
            case 700:
                while not (FOLDER / "release").exists():  # noqa: ASYNC110 - it is a file
                    await asyncio.sleep(0.01)
            case _:
                pass
        return made("payments", payment)


@guard.route(semel.payments(required=True, probe=None))
async def transfer(request: Request) -> Response:
    wanted = await asked(request)
    happened(request, "transfers", wanted["amount"])
    if wanted["amount"] == 500:
        raise RuntimeError("sent to the bank, and no answer came")
    return made("transfers", wanted)


class Orders(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        with closing(database()) as connection:
            counted = connection.execute("SELECT count(*) FROM orders").fetchone()[0]
        return JSONResponse({"count": counted})

    @guard.route(semel.ietf(mode="atomic", required=True))
    async def post(self, request: Request) -> Response:
        """The transaction is semel's own: order and key commit together."""
        wanted = await asked(request)
        happened(request, "orders", wanted["amount"])
        orders = semel.async_operation().transaction
        row = orders.execute("INSERT INTO orders (amount) VALUES (?)", (wanted["amount"],))
        if wanted["amount"] == 500:
            raise RuntimeError("the order is not to be")
        return JSONResponse({"id": row.lastrowid, **wanted}, 201)


@guard.route(semel.ietf())
async def note(request: Request) -> Response:
    """A key is honoured, but not demanded."""
    wanted = await asked(request)
    happened(request, "notes", wanted["amount"])
    return made("notes", wanted)


def database() -> sqlite3.Connection:
    return sqlite3.connect(FOLDER / "semel.db")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    with closing(database()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, amount INT)")
    yield


app = Starlette(
    routes=[
        Route("/payments", Payments),
        Route("/transfers", transfer, methods=["POST"]),
        Route("/orders", Orders),
        Route("/notes", note, methods=["POST"]),
    ],
    middleware=[
        Middleware(AuthenticationMiddleware, backend=Bearer(), on_error=refuse),
        Middleware(semel.Middleware, guard=guard),
    ],
    lifespan=lifespan,
)
