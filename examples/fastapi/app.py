"""A payments API in FastAPI whose requests take effect once, however often they are sent."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated
from uuid import uuid4

from fastapi import Depends, FastAPI, HTTPException, Request, Response, Security
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, StrictInt

import semel
from semel.frameworks.fastapi import transaction

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
STORE = os.environ.get("SEMEL_STORE", f"sqlite:///{FOLDER / 'semel.db'}")
CALLERS = {"alice", "bob"}

guard = semel.Guard(STORE, tenant=lambda request: request.state.caller)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    with closing(database()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, amount INT)")
    yield


app = FastAPI(title="Payments", lifespan=lifespan)
bearer = HTTPBearer(auto_error=False)


async def caller(
    request: Request,
    token: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
) -> str:
    """Before any key is looked at: without a caller there is no answer, not even a kept one."""
    if token is None or token.credentials not in CALLERS:
        raise HTTPException(401, "who are you?")
    request.state.caller = token.credentials
    return token.credentials


Caller = Annotated[str, Depends(caller)]


class Declined(Exception):
    """By the bank. Its answer is kept: the same key will not be asked about twice."""


@app.exception_handler(Declined)
async def declined(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": "declined"}, 402)


class Order(BaseModel):
    amount: StrictInt
    currency: str = "EUR"


class Made(Order):
    id: str


def happened(route: str, caller: str, amount: int) -> None:
    """What cannot be taken back: one line for each time that an endpoint really ran."""
    with (FOLDER / "effects.log").open("ab", buffering=0) as effects:
        effects.write(f"{route} {caller} {amount}\n".encode())


def made(route: str, order: Order, response: Response) -> Made:
    result = Made(id=uuid4().hex, **order.model_dump())
    response.headers["Location"] = f"/{route}/{result.id}"
    return result


@app.post("/payments", status_code=201)
@guard.route(semel.ietf(required=True, key="uuid"))
async def pay(order: Order, caller: Caller, response: Response) -> Made:
    happened("payments", caller, order.amount)
    match order.amount:
        case 402:
            raise Declined
        case 503:
            raise HTTPException(503, "try again")
        case 500:
            raise RuntimeError("the payment could not be made")
        case 700:
            while not (FOLDER / "release").exists():  # noqa: ASYNC110 - it is a file
                await asyncio.sleep(0.01)
        case _:
            pass
    return made("payments", order, response)


@app.get("/payments")
def payments(caller: Caller) -> dict[str, int]:
    effects = FOLDER / "effects.log"
    lines = effects.read_text().splitlines() if effects.exists() else []
    return {"count": sum(line.startswith(f"payments {caller} ") for line in lines)}


@app.post("/transfers", status_code=201)
@guard.route(semel.payments(required=True, probe=None))
def transfer(order: Order, caller: Caller, response: Response) -> Made:
    happened("transfers", caller, order.amount)
    if order.amount == 500:
        raise RuntimeError("sent to the bank, and no answer came")
    return made("transfers", order, response)


@app.post("/orders", status_code=201)
@guard.route(semel.ietf(mode="atomic", required=True))
def place_order(
    order: Order, caller: Caller, orders: Annotated[sqlite3.Connection, Depends(transaction)]
) -> Made:
    """The connection is in semel's own transaction: order and key commit together."""
    happened("orders", caller, order.amount)
    row = orders.execute("INSERT INTO orders (amount) VALUES (?)", (order.amount,))
    if order.amount == 500:
        raise RuntimeError("the order is not to be")
    return Made(id=str(row.lastrowid), **order.model_dump())


@app.get("/orders")
def count_orders(caller: Caller) -> dict[str, int]:
    with closing(database()) as connection:
        return {"count": connection.execute("SELECT count(*) FROM orders").fetchone()[0]}


@app.post("/notes", status_code=201)
@guard.route(semel.ietf())
async def note(order: Order, caller: Caller, response: Response) -> Made:
    """A key is honoured, but not demanded."""
    happened("notes", caller, order.amount)
    return made("notes", order, response)


def database() -> sqlite3.Connection:
    return sqlite3.connect(FOLDER / "semel.db")


guard.fastapi(app)
