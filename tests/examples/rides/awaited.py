"""The example's handler in the other colour: the same points, awaited.

The campaign runs both, since they meet different code of semel's.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import semel
from examples.rides.authentication import Authentication
from tests.databases import aexecuted


async def execute(statement: str, *values: Any) -> None:
    connection = semel.async_operation().transaction
    await aexecuted(connection, statement.replace("?", "%s"), values)


def awaited(rides: Any) -> Any:
    """The application, with a coroutine function behind its route."""
    api = FastAPI(exception_handlers=dict(rides.api.exception_handlers))

    async def created(rider: str, order: Any) -> Any:
        ride = {"id": uuid4().hex, "rider": rider, "fare": 1450, "status": "requested"}
        await execute(
            "INSERT INTO rides (id, rider, pickup, destination, fare, status)"
            " VALUES (?, ?, ?, ?, ?, 'requested')",
            *(ride["id"], rider, order.pickup, order.destination, ride["fare"]),
        )
        return ride

    async def settled(ride: Any, charge: Any) -> Any:
        status = "booked" if charge["status"] == "charged" else "declined"
        change = "UPDATE rides SET status = ?, charge = ? WHERE id = ?"
        await execute(change, status, charge["id"], ride["id"])
        if status == "booked":
            await semel.async_operation().enqueue(
                "receipt", {"ride": ride["id"], "amount": ride["fare"]}
            )
        return ride | {"status": status, "charge": charge["id"]}

    async def charged(key: str, ride: Any, card: str) -> Any:
        return await asyncio.to_thread(rides.gateway.charge, key, ride, card)

    async def charge_card(op: semel.AsyncOperation, ride: Any, card: str) -> Any:
        for number in count(1):
            name = f"charged-{number}"
            charge = await op.call(name, charged, ride, card, repeatable=rides.HONOURS_KEYS)
            if charge["status"] != "voided":
                return charge
        raise AssertionError("count() never ends")

    guard: semel.Guard = rides.guard

    @api.post("/rides")
    @guard.route(rides.POLICY)
    async def request_ride(request: Request) -> JSONResponse:
        order = rides.Order(**await request.json())
        op = semel.async_operation()
        ride = await op.phase("ride_created", created, request.scope["rider"], order)
        charge = await charge_card(op, ride, order.card)
        ride = await op.phase("ride_settled", settled, ride, charge)
        return JSONResponse(ride, 201 if ride["status"] == "booked" else 402)

    return Authentication(rides.guard.asgi(api))
