"""The application under load, bare: a small API that counts how often it really did its work."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

executions = 0


async def pay(request: Request) -> JSONResponse:
    global executions
    order = await request.json()
    executions += 1
    return JSONResponse({"id": "pay_1", "amount": order["amount"], "status": "captured"}, 201)


async def count(request: Request) -> JSONResponse:
    return JSONResponse(executions)


def count_one() -> None:
    """For wrappings that run a function of their own in place of `pay`."""
    global executions
    executions += 1


app = Starlette(
    routes=[
        Route("/payments", pay, methods=["POST"]),
        Route("/executions", count, methods=["GET"]),
    ]
)
