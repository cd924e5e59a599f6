"""A payments API that dies in the middle of a charge, and the provider's books in a file."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel

FOLDER = Path(os.environ.get("SEMEL_TEST_FOLDER", "."))
BOOKS = FOLDER / "charges"
DEATH = FOLDER / "die"

guard = semel.Guard(os.environ.get("SEMEL_TEST_STORE", "memory://"), tenant=None, maintenance=None)


def ask_provider(inquiry: semel.Inquiry) -> Any:
    """What the provider's books say of the downstream key."""
    key = inquiry.downstream_key("charge")
    booked = BOOKS.read_text().split() if BOOKS.exists() else []
    if key not in booked:
        return semel.CannotTell("not there now")
    body = json.dumps({"charge": key}).encode()
    answer = semel.Response(201, ((b"content-type", b"application/json"),), body)
    return semel.Happened(answer, key)


@guard.route(
    semel.payments(
        probe=ask_provider,
        reconcile_after=timedelta(milliseconds=100),
    )
)
async def pay(request: Request) -> JSONResponse:
    key = semel.async_operation().downstream_key("charge")
    with BOOKS.open("a") as books:
        books.write(key + "\n")
    if DEATH.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return JSONResponse({"charge": key}, 201)


app = guard.asgi(Starlette(routes=[Route("/payments", pay, methods=["POST"])]))
