"""A node whose clock is wrong: ``tests.proof.faults.clocks:app`` under uvicorn.

``SEMEL_TEST_SHIFT`` seconds are added to every reading of the time of day in its process, before
anything of semel is imported. Elapsed time (the monotonic clock) is right, as it is on a machine
that was set wrong. One path for each store; ``/STORE/tend`` does a round of maintenance there.
"""

from __future__ import annotations

import os
import time

SHIFT = int(os.environ.get("SEMEL_TEST_SHIFT", "0"))
_time, _time_ns = time.time, time.time_ns
if SHIFT:
    time.time = lambda: _time() + SHIFT
    time.time_ns = lambda: _time_ns() + SHIFT * 1_000_000_000

import json  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402

import semel  # noqa: E402
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send  # noqa: E402
from semel.worker.maintenance import Maintenance  # noqa: E402
from tests.waiting import auntil  # noqa: E402
from tests.web.effects import Effects  # noqa: E402

POLICY = semel.ietf(
    lease=timedelta(minutes=15), retention=timedelta(hours=2), tombstone=timedelta(hours=1)
)
"""Longer than anybody stands at a gate, and shorter than clocks are apart."""


def pay(effects: Effects) -> AsgiApp:
    """Waits, when told to, until a file is there."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        nonce = effects.happen(headers[b"idempotency-key"].decode())
        gate = headers.get(b"x-gate")
        await auntil(lambda: gate is None or Path(gate.decode()).exists())
        await answer(send, 201, nonce.encode())

    return app


async def answer(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def node(urls: dict[str, str], effects: Effects) -> AsgiApp:
    guards = {
        store: semel.Guard(url, tenant=None, policy=POLICY, maintenance=None)
        for store, url in urls.items()
    }
    apps = {store: guard.asgi(pay(effects)) for store, guard in guards.items()}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        _, store, *rest = scope["path"].split("/")
        if rest == ["tend"]:
            round_ = await Maintenance(guards[store]).run_once()
            await answer(send, 200, round_.note.encode())
        elif rest == ["clock"]:
            await answer(send, 200, str(time.time()).encode())
        else:
            await apps[store](scope, receive, send)

    return app


if "SEMEL_TEST_STORES" in os.environ:
    app = node(
        json.loads(os.environ["SEMEL_TEST_STORES"]), Effects(os.environ["SEMEL_TEST_EFFECTS"])
    )
