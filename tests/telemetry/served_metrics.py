"""A small shop that counts what it does, to be run by uvicorn: everything an alert may be about.

``/work`` does a round of what workers do; ``/break`` lets the next claim find the store out.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

from prometheus_client import make_asgi_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import semel
from semel.core.delivery import encode_payload
from semel.core.operations.outbox import Enqueue
from semel.core.operations.requests import Claim
from semel.stores import open_backend
from semel.telemetry.prometheus import Prometheus
from semel.worker.deliveries import Deliveries
from semel.worker.maintenance import Maintenance
from semel.worker.reconciler import Reconciler
from semel.worker.worker import Loop
from tests.web.faults import FaultyBackend

backend = FaultyBackend(open_backend(os.environ.get("SEMEL_TEST_STORE", "memory://")))


def whose(request: semel.Request) -> str:
    return request.headers["x-tenant"]  # who sends none is a bug of the application's


def ask(inquiry: semel.Inquiry) -> semel.Happened | semel.CannotTell:
    return answers.pop()


answers: list[semel.Happened | semel.CannotTell] = [
    semel.CannotTell("not yet"),
    semel.Happened(semel.Response(201, (), b"made")),
]
"""Of a provider that is asked about two keys."""
SHORT = timedelta(milliseconds=400)
DOUBT = semel.ietf(probe=ask, reconcile_after=timedelta(milliseconds=1))
SLOW = semel.ietf(lease=SHORT, max_run=SHORT, effects="none", after_lapse="release")

guard = semel.Guard(
    backend,
    tenant=whose,
    routes=[semel.Route("POST", "/doubt", DOUBT), semel.Route("POST", "/slow", SLOW)],
    maintenance=None,
    on_event=Prometheus(tenants=["ann"]),
)
runs = 0
gone = asyncio.Event()


@guard.delivers("mail", tries=1)
async def mail(delivery: semel.Delivery) -> None:
    if delivery.payload is None:
        raise ValueError("no address")


async def pay(request: Request) -> Response:
    return Response(await request.body(), 201)


async def fail(request: Request) -> Response:
    return Response(status_code=503)


async def doubt(request: Request) -> Response:
    raise semel.OutcomeUnknown("no answer")


async def slow(request: Request) -> Response:
    """The first run ends when the second has: long after its lease."""
    global runs
    runs += 1
    if runs == 1:
        await gone.wait()
    gone.set()
    return Response(status_code=201)


async def begun(request: Request) -> Response:
    return Response(str(runs))


async def work(request: Request) -> Response:
    for key, payload in (("good", "ann"), ("bad", None)):
        op = Enqueue(key, None, "mail", encode_payload(payload))
        await asyncio.to_thread(backend.blocking().perform, op)
    rounds: list[Loop] = [Deliveries(guard), Reconciler(guard), Maintenance(guard)]
    for loop in rounds:
        await loop.run_once()
    await guard.ahealth()
    return Response()


async def break_(request: Request) -> Response:
    backend.fail(Claim, times=1)
    return Response()


shop = Starlette(
    routes=[
        Route(path, endpoint, methods=["POST"])
        for path, endpoint in (("/pay", pay), ("/fail", fail), ("/doubt", doubt), ("/slow", slow))
    ]
)
app = Starlette(
    routes=[
        Mount("/metrics", make_asgi_app()),
        Route("/begun", begun, methods=["POST"]),
        Route("/work", work, methods=["POST"]),
        Route("/break", break_, methods=["POST"]),
        Mount("/", guard.asgi(shop)),
    ]
)
