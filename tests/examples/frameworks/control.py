"""The shop with its guard taken out, or put in wrongly, to see the verdicts fail.

``CONTROL`` says which. ``unguarded``: there is none. ``careless``: it stands outside of
authentication and knows no tenants, forgets everything with its process, commits orders by
themselves, and believes that a transfer which raised did not happen. ``right``: none of that.
"""

import os
import sqlite3
from pathlib import Path
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import semel
from tests.waiting import auntil

FOLDER = Path(os.environ["SHOP_FOLDER"])
CONTROL = os.environ["CONTROL"]
CARELESS = CONTROL == "careless"
STORE = "memory://" if CARELESS else f"sqlite:///{FOLDER / 'semel.db'}"
TRANSFERS = semel.ietf(required=True) if CARELESS else semel.payments(required=True, probe=None)


def tenant_of(request: semel.Request) -> Any:
    return request.raw["tenant"]


guard = semel.Guard(
    STORE,
    tenant=None if CARELESS else tenant_of,
    routes=[
        semel.Route("POST", "/payments", semel.ietf(required=True, key="uuid")),
        semel.Route("POST", "/transfers", TRANSFERS),
        semel.Route("POST", "/orders", semel.ietf(mode="leased" if CARELESS else "atomic")),
    ],
)


class Authentication:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        sent = dict(scope["headers"]).get(b"authorization", b"")
        tenant = {b"Bearer alice": "alice", b"Bearer bob": "bob"}.get(sent)
        if tenant is None:
            return await JSONResponse({"error": "who are you?"}, 401)(scope, receive, send)
        return await self._app({**scope, "tenant": tenant}, receive, send)


def happened(request: Request, route: str, amount: object) -> None:
    with (FOLDER / "effects.log").open("a") as log:
        log.write(f"{route} {request.scope['tenant']} {amount}\n")


async def order_of(request: Request) -> Any:
    try:
        order = await request.json()
        return order if isinstance(order["amount"], int) else None
    except (ValueError, TypeError, KeyError):
        return None


async def pay(request: Request) -> Response:
    order = await order_of(request)
    if order is None:
        return JSONResponse({"error": "amount?"}, 400)
    route = request.url.path[1:]
    happened(request, route, order["amount"])
    match order["amount"]:
        case 500:
            raise RuntimeError("broken")
        case 402:
            return JSONResponse({"error": "declined"}, 402)
        case 503:
            return JSONResponse({"error": "come again"}, 503)
        case 700:
            await auntil((FOLDER / "release").exists)
    made = {"id": uuid4().hex, **order}
    return JSONResponse(made, 201, {"location": f"/{route}/{made['id']}"})


def orders() -> sqlite3.Connection:
    connection = sqlite3.connect(FOLDER / "semel.db")
    connection.execute("CREATE TABLE IF NOT EXISTS orders (amount INTEGER)")
    return connection


async def order(request: Request) -> Response:
    wanted = await order_of(request)
    happened(request, "orders", wanted["amount"])
    if CONTROL == "right":
        semel.async_operation().transaction.execute(
            "INSERT INTO orders VALUES (?)", (wanted["amount"],)
        )
    else:
        with orders() as connection:
            connection.execute("INSERT INTO orders VALUES (?)", (wanted["amount"],))
        connection.close()
    if wanted["amount"] == 500:
        raise RuntimeError("broken")
    return JSONResponse({"id": uuid4().hex}, 201)


async def count(request: Request) -> Response:
    if request.url.path == "/orders":
        connection = orders()
        counted = connection.execute("SELECT count(*) FROM orders").fetchone()[0]
        connection.close()
        return JSONResponse({"count": counted})
    lines = (FOLDER / "effects.log").read_text().splitlines()
    mine = f"payments {request.scope['tenant']} "
    return JSONResponse({"count": sum(line.startswith(mine) for line in lines)})


routes = [
    *(Route(f"/{name}", pay, methods=["POST"]) for name in ("payments", "transfers", "notes")),
    Route("/orders", order, methods=["POST"]),
    *(Route(f"/{name}", count) for name in ("payments", "orders")),
]
orders().close()
(FOLDER / "effects.log").touch()
bare = Starlette(routes=routes)
app: ASGIApp = Authentication(guard.asgi(bare))
if CONTROL == "unguarded":
    app = Authentication(bare)
elif CARELESS:
    app = guard.asgi(Authentication(bare))
