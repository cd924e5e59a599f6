"""The application under load: a small API, bare or guarded as ``SEMEL_TEST_BENCH`` says."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel


async def pay(request: Request) -> JSONResponse:
    order = await request.json()
    return JSONResponse({"id": "pay_1", "amount": order["amount"], "status": "captured"}, 201)


app = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
if url := os.environ.get("SEMEL_TEST_BENCH"):
    app = semel.Guard(url, tenant=None, migrate=True).asgi(app)  # type: ignore[assignment]
