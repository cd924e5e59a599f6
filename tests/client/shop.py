"""A shop behind a guard, one route for each policy; the order says how the shop misbehaves."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel
from tests.web.effects import Effects

TOKENS = {"Bearer ann's first": "ann", "Bearer ann's second": "ann", "Bearer bob's": "bob"}

EFFECTS = Effects(os.environ.get("SEMEL_TEST_EFFECTS", "effects"))
SEEN = Path(os.environ.get("SEMEL_TEST_SEEN", "seen"))

guard = semel.Guard(
    os.environ.get("SEMEL_TEST_STORE", "memory://"),
    publish=True,
    tenant=lambda request: TOKENS.get(request.headers.get("authorization", "")),
    routes=[
        semel.Route("POST", "/ietf", semel.ietf(required=True)),
        semel.Route("POST", "/stripe", semel.stripe(required=True)),
        semel.Route("POST", "/accepted", semel.accepted(required=True)),
        semel.Route("POST", "/payments", semel.payments(required=True, probe=None)),
        semel.Route("POST", "/strict", semel.ietf(strict=True)),
        semel.Route(
            "POST", "/in-body", semel.ietf(required=True, key_from=semel.body("/meta/key"))
        ),
    ],
)
tries: dict[str, int] = defaultdict(int)
gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


async def sell(request: Request) -> JSONResponse:
    sale: dict[str, Any] = await request.json()
    order, how = str(sale["order"]), str(sale.get("how", ""))
    tries[order] += 1
    if how == "busy at first" and tries[order] == 1:
        return JSONResponse({"error": "come back"}, 503)
    nonce = EFFECTS.happen(order)
    if how == "in doubt":
        raise semel.OutcomeUnknown("the provider gave no answer")
    if how == "slow":
        await gates[order].wait()
    if how == "declined":
        return JSONResponse({"error": "declined", "nonce": nonce}, 402)
    return JSONResponse({"order": order, "nonce": nonce}, 201)


async def release(request: Request) -> JSONResponse:
    gates[request.path_params["order"]].set()
    return JSONResponse({})


PATHS = ("ietf", "stripe", "accepted", "payments", "strict", "in-body")
guarded = guard.asgi(
    Starlette(
        routes=[
            *(Route(f"/{path}", sell, methods=["POST"]) for path in PATHS),
            Route("/release/{order}", release, methods=["POST"]),
        ]
    )
)


def note(line: str) -> None:
    with SEEN.open("a") as seen:
        seen.write(line)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Notes who asks; a slow order is let go when it is asked for a second time.

    Where the guard lets the second wait, when it comes; elsewhere when it has its answer.
    """
    headers = {name.decode(): text.decode() for name, text in scope.get("headers", ())}
    order = headers.get("x-order", "")
    if order:
        note(f"{order} {headers.get('idempotency-key', '-')}\n")
    again = order in seen_before
    if again and scope["path"] == "/payments":
        gates[order].set()
    seen_before.add(order)
    await guarded(scope, receive, send)
    if again:
        gates[order].set()


seen_before: set[str] = set()
