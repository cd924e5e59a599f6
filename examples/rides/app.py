"""A ride-hailing API: one POST makes a ride, charges a card and sends a receipt. Each once.

The process may die at any line below. Whoever comes next, the client that tries again or the
worker, goes on behind the last point that is on record.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import semel
from examples.rides.authentication import Authentication
from examples.rides.gateway import Gateway
from examples.rides.tables import create_tables, execute

STORE = os.environ.get("RIDES_STORE", "sqlite:///rides.db")
PROVIDER = os.environ.get("RIDES_PROVIDER", "http://127.0.0.1:8100")
PATIENCE = float(os.environ.get("RIDES_PATIENCE", "3"))
LEASE = float(os.environ.get("RIDES_LEASE", "60"))
RECONCILE_AFTER = float(os.environ.get("RIDES_RECONCILE_AFTER", "5"))
HONOURS_KEYS = os.environ.get("RIDES_HONOURS_KEYS") == "1"
"""Whether the provider answers the second request with a key as it answered the first."""

gateway = Gateway(PROVIDER, PATIENCE)
guard = semel.Guard(STORE, tenant=lambda request: request.raw["rider"], migrate=True)


def ask_provider(inquiry: semel.Inquiry) -> semel.Happened:
    """What became of a charge whose answer nobody has seen.

    That the provider does not know it is no evidence: whoever wanted to make it may be stopped
    and still send it. So it is called off there, and "voided" is what became of it.
    """
    entry = gateway.call_off(inquiry.downstream_key())
    return semel.Happened(entry, provider_id=entry.get("id"))


POLICY = semel.payments(
    required=True,
    mode="resumable",
    probe=ask_provider,
    lease=timedelta(seconds=LEASE),
    reconcile_after=timedelta(seconds=RECONCILE_AFTER),
)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    create_tables(STORE)
    yield


api = FastAPI(title="Rides", lifespan=lifespan)


class Order(BaseModel):
    """What a rider asks for."""

    pickup: str
    destination: str
    card: str


@api.post("/rides")
@guard.route(POLICY)
def request_ride(order: Order, request: Request) -> JSONResponse:
    """201 and the ride, or 402 when the card was declined."""
    op = semel.operation()
    ride = op.phase("ride_created", create_ride, request.scope["rider"], order)
    charge = charge_card(op, ride, order.card)
    ride = op.phase("ride_settled", settle_ride, ride, charge)
    return JSONResponse(ride, 201 if ride["status"] == "booked" else 402)


def create_ride(rider: str, order: Order) -> dict[str, Any]:
    """Its id is drawn once: a run that resumes gets the one in the journal."""
    ride = {"id": uuid4().hex, "rider": rider, "fare": 1450, "status": "requested"}
    execute(
        "INSERT INTO rides (id, rider, pickup, destination, fare, status)"
        " VALUES (?, ?, ?, ?, ?, 'requested')",
        *(ride["id"], rider, order.pickup, order.destination, ride["fare"]),
    )
    return ride


def charge_card(op: semel.Operation, ride: dict[str, Any], card: str) -> dict[str, Any]:
    """Charge it once. A try that was called off is followed by another, under another key."""
    for number in count(1):
        name = f"charged-{number}"
        charge: dict[str, Any] = op.call(name, gateway.charge, ride, card, repeatable=HONOURS_KEYS)
        if charge["status"] != "voided":
            return charge
    raise AssertionError("count() never ends")


def settle_ride(ride: dict[str, Any], charge: dict[str, Any]) -> dict[str, Any]:
    """The ride and its receipt, in one transaction. The worker sends the receipt."""
    status = "booked" if charge["status"] == "charged" else "declined"
    execute(
        "UPDATE rides SET status = ?, charge = ? WHERE id = ?", status, charge["id"], ride["id"]
    )
    if status == "booked":
        semel.operation().enqueue("receipt", {"ride": ride["id"], "amount": ride["fare"]})
    return ride | {"status": status, "charge": charge["id"]}


@guard.delivers("receipt", first_pause=timedelta(milliseconds=100))
def mail_receipt(delivery: semel.Delivery) -> str:
    """Done at least once, always with the same key: the provider mails the first."""
    return gateway.mail(delivery.key, delivery.payload)


@api.exception_handler(semel.OutcomeUnknown)
@api.exception_handler(semel.NotExecuted)
@api.exception_handler(httpx.HTTPError)
def not_yet(request: Request, error: Exception) -> JSONResponse:
    """The record knows how far it came; the client only has to send the same request again."""
    return JSONResponse({"error": f"not done yet: {error}"}, 503, {"retry-after": "1"})


app = Authentication(guard.asgi(api))
