"""An API that Stripe's own client talks to, guarded by `semel.stripe()`.

``FOLDER``: every request that arrives is a line of ``arrived`` there, every run of the handler a
line of ``ran``. A payment described as "slow" waits until there is a file ``go``.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel
from semel.web.asgi_exchange import Receive, Scope, Send
from tests.waiting import auntil

FOLDER = Path(os.environ["FOLDER"])


def note(name: str) -> int:
    """One more line; how many there are."""
    with (FOLDER / name).open("a") as file:
        file.write("x\n")
    return len((FOLDER / name).read_text().splitlines())


async def pay(request: Request) -> JSONResponse:
    payment = parse_qs((await request.body()).decode())
    description = payment.get("description", [""])[0]
    number = note("ran")
    if description == "slow":
        await auntil((FOLDER / "go").exists)
    if description == "declined":
        error = {"type": "card_error", "code": "card_declined", "message": "No."}
        return JSONResponse({"error": error}, 402)
    if description == "broken":
        return JSONResponse({"error": {"type": "api_error", "message": "Oh."}}, 500)
    return JSONResponse({"id": f"pi_{number}", "object": "payment_intent"})


guard = semel.Guard("memory://", tenant=None, policy=semel.stripe())
guarded = guard.asgi(Starlette(routes=[Route("/v1/payment_intents", pay, methods=["POST"])]))


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" and scope["path"].startswith("/v1/"):
        note("arrived")
    await guarded(scope, receive, send)
