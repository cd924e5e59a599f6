"""What type checkers know of the public face: `make check` reads this file, nothing runs it.

`mistakes.py` is the other half: what they must refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypedDict, assert_type
from uuid import UUID

from fastapi import Depends, FastAPI
from flask import Flask
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import semel
from semel.frameworks import flask as semel_flask
from semel.inbox.inbox import ProviderEvent, Reading


class Charge(TypedDict):
    id: str
    amount: int


def insert(item: str, count: int = 1) -> int:
    return len(item) * count


async def insert_async(item: str, count: int = 1) -> int:
    return len(item) * count


def charge(key: str, amount: int) -> Charge:
    return {"id": key, "amount": amount}


async def charge_async(key: str, amount: int) -> Charge:
    return {"id": key, "amount": amount}


class Provider:
    def refund(self, key: str, charge: str) -> bool:
        return key != charge


# ── operations ────────────────────────────────────────────────────────────────────────────────────


def blocking() -> None:
    op = semel.operation()
    assert_type(op, semel.Operation)
    assert_type(op.phase("ordered", insert, "tea"), int)
    assert_type(op.phase("ordered", insert, "tea", 2), int)
    assert_type(op.phase("nothing", lambda: None), None)
    assert_type(op.call("charged", charge, 1850), Charge)
    assert_type(op.call("charged", charge, 1850, repeatable=True), Charge)
    assert_type(op.call("refunded", Provider().refund, "ch_1"), bool)
    assert_type(op.enqueue("receipt", {"order": 1}), str)
    assert_type(op.session, Session)


async def awaited() -> None:
    op = semel.async_operation()
    assert_type(op, semel.AsyncOperation)
    made: Coroutine[Any, Any, int] = op.phase("ordered", insert_async, "tea")
    assert_type(await made, int)
    assert_type(await op.phase("ordered", insert_async, "tea", 2), int)
    assert_type(await op.phase("ordered", insert, "tea"), int)  # a plain function will do
    assert_type(await op.call("charged", charge_async, 1850, repeatable=True), Charge)
    assert_type(await op.call("charged", charge, 1850), Charge)
    assert_type(await op.enqueue("receipt", {"order": 1}), str)
    assert_type(op.session, AsyncSession)


# ── functions ─────────────────────────────────────────────────────────────────────────────────────


def settle() -> Charge:
    return charge("key", 1)


async def settle_async() -> Charge:
    return charge("key", 1)


def once(guard: semel.Guard) -> semel.Once[Charge]:
    done = guard.once("message-1", settle, name="settle")
    assert_type(done, semel.Once[Charge])
    assert_type(done.value["amount"], int)
    assert_type(done.replayed, bool)
    return done


async def aonce(guard: semel.Guard) -> None:
    assert_type(await guard.aonce("message-1", settle_async, name="settle"), semel.Once[Charge])


# ── what an application gives to its guard ────────────────────────────────────────────────────────


def ask(inquiry: semel.Inquiry) -> semel.Happened | semel.CannotTell:
    return semel.CannotTell(inquiry.path)


async def ask_async(inquiry: semel.Inquiry) -> semel.Absent:
    return semel.Absent()


def read(event: ProviderEvent) -> Reading:
    return bytes(32), semel.Absent(final=True), event.id


async def read_async(event: ProviderEvent) -> tuple[str, semel.Happened]:
    return event.id, semel.Happened()


def who(request: semel.Request) -> UUID:
    found: UUID = request.state.user.id
    return found


async def who_async(request: semel.Request) -> str | None:
    return request.headers.get("x-user")


def registrations() -> None:
    guard = semel.Guard(tenant=who, policy=semel.payments(probe=ask))
    semel.Guard(tenant=who_async, policy=semel.payments(probe=ask_async))
    semel.ietf(render=lambda happened: semel.Response(201, (), str(happened.provider_id).encode()))

    @guard.probe("charged")
    def probe(inquiry: semel.Inquiry) -> semel.Absent:
        return semel.Absent()

    @guard.delivers("receipt")
    async def deliver(delivery: semel.Delivery) -> str:
        return delivery.key

    asked: Callable[[semel.Inquiry], semel.Absent] = probe  # a decorator leaves it as it was
    told: Callable[[semel.Delivery], Coroutine[Any, Any, str]] = deliver
    guard.probe("asked again")(asked)
    guard.delivers("told again")(told)
    guard.probe("asked")(ask_async)
    guard.delivers("told")(semel.Webhook("https://partner.example", secret=b"s" * 32))
    guard.inbox("bank", b"s" * 32, read)
    guard.inbox("bank", b"s" * 32, read_async)


def applications(guard: semel.Guard, app: FastAPI, flask: Flask) -> None:
    guard.fastapi(app, dependencies=[Depends(who)])
    semel_flask.install(flask, guard)
    assert_type(semel_flask.operation, semel.Operation)
    assert_type(semel_flask.session, Session)

    @guard.route(semel.ietf())
    def pay(amount: int) -> str:
        return f"{amount}"

    assert_type(pay(1), str)
