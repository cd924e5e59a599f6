"""The application under load, bare: a small API that counts how often it really did its work."""

from __future__ import annotations

import os
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

executions = 0

NEW_IDS = "BENCH_NEW_IDS" in os.environ
"""Whether each payment gets an id of its own, as `semel check` needs it to tell answers apart."""


def new_id() -> str:
    return f"pay_{uuid4().hex}" if NEW_IDS else "pay_1"


async def pay(request: Request) -> JSONResponse:
    global executions
    order = await request.json()
    executions += 1
    return JSONResponse({"id": new_id(), "amount": order["amount"], "status": "captured"}, 201)


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
