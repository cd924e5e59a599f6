"""The shop as ASGI applications: Starlette, with the guard around it, and FastAPI, with it inside.

Configured by the environment, to be run by uvicorn as ``tests.web.app:app``.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import semel
from semel.web.asgi_exchange import AsgiApp
from tests.waiting import auntil
from tests.web import shop
from tests.web.effects import Effects

Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(guard: semel.Guard, effects: Effects) -> Endpoint:
    async def sell(request: Request) -> Response:
        path, gate = request.url.path, request.headers.get("x-gate")
        nonce = effects.happen(request.headers.get("idempotency-key", "-"))
        if path == "/outlive" and gate is not None:
            shop.outlive(guard.runtime.keeper, Path(gate))
        await auntil(lambda: shop.opened(gate))
        return respond(shop.sell(path, nonce))

    return sell


def respond(sale: shop.Sale) -> Response:
    if len(sale.pieces) > 1:
        response: Response = StreamingResponse(one_by_one(sale.pieces), sale.status)
    else:
        response = Response(b"".join(sale.pieces), sale.status)
    for name, value in sale.headers:
        response.headers.append(name, value)
    return response


async def one_by_one(pieces: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def tagged(guard: semel.Guard, effects: Effects) -> dict[str, Endpoint]:
    """Each path with an endpoint of its own, which carries the path's policy."""
    return {
        path: guard.route(policy)(endpoint(guard, effects))
        for path, policy in shop.POLICIES.items()
    }


def starlette(guard: semel.Guard, effects: Effects) -> AsgiApp:
    routes = [Route(path, sell, methods=["POST"]) for path, sell in tagged(guard, effects).items()]
    return guard.asgi(Starlette(routes=routes))


def fastapi(guard: semel.Guard, effects: Effects) -> AsgiApp:
    app = FastAPI()
    for path, sell in tagged(guard, effects).items():
        app.add_api_route(path, sell, methods=["POST"], response_model=None)
    app.add_middleware(semel.Middleware, guard=guard)
    return app


def from_environment() -> Any:
    build = {"starlette": starlette, "fastapi": fastapi}[os.environ["SEMEL_TEST_FRAMEWORK"]]
    return build(shop.guard(), shop.effects())


if "SEMEL_TEST_STORE" in os.environ:
    app = from_environment()
