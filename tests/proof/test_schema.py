"""Requests made from an OpenAPI document, right ones and wrong ones: schemathesis against semel.

The application's document says which keys its routes take and what they refuse
(`guard.fastapi`). What comes back is what the document says; nothing is a server error; and what
was sent twice with one key ran once and was answered twice alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated
from uuid import uuid4

import pytest
import schemathesis
from fastapi import FastAPI, Path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import semel

EXAMPLES = 10 if settings().max_examples <= 100 else 400
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
KEY = "Idempotency-Key"

ran = Counter[str]()
"""How often handlers ran, by what they made."""

guard = semel.Guard("memory://", tenant=None, maintenance=None)
app = FastAPI(title="Shop")


class Order(BaseModel, extra="forbid"):
    amount: int = Field(ge=0, le=1_000_000)
    currency: str = Field("EUR", min_length=3, max_length=3)


class Made(Order):
    id: str


def made(order: Order) -> Made:
    result = Made(id=uuid4().hex, **order.model_dump())
    ran[result.id] += 1
    return result


@app.post("/payments", status_code=201)
@guard.route(semel.ietf(required=True, key="uuid"))
async def pay(order: Order) -> Made:
    return made(order)


@app.post("/notes", status_code=201)
@guard.route(semel.stripe())
async def note(order: Order) -> Made:
    return made(order)


@app.patch("/orders/{number}")
@guard.route(semel.payments(required=True, probe=None))
def change(number: Annotated[int, Path(ge=0)], order: Order) -> Made:
    return made(order)


guard.fastapi(app)
schema = schemathesis.openapi.from_asgi("/openapi.json", app)
FOUND = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
OPERATIONS = {operation.label: operation for operation in FOUND}
EACH = pytest.mark.parametrize("operation", OPERATIONS)
steady = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    guard.close()


@EACH
@steady
@given(data=st.data())
def test_what_is_answered_is_what_the_document_says(operation: str, data: st.DataObject) -> None:
    case = data.draw(OPERATIONS[operation].as_strategy())
    case.validate_response(case.call(), checks=CHECKS)


@EACH
@steady
@given(data=st.data())
def test_what_is_sent_twice_with_one_key_runs_once(operation: str, data: st.DataObject) -> None:
    case = data.draw(OPERATIONS[operation].as_strategy())
    case.headers[KEY] = str(uuid4())
    before = ran.total()
    first, second = (case.call() for _ in range(2))
    if first.status_code >= 300:
        assert ran.total() == before  # refused before the handler, by whomever
        return
    assert ran.total() == before + 1
    assert (second.status_code, second.content) == (first.status_code, first.content)
    replayed = [each.headers["idempotent-replayed"] for each in (first, second)]
    assert replayed == [["false"], ["true"]]


def test_something_was_made() -> None:
    """The requests above are not refused one and all."""
    assert len(OPERATIONS) == 3
    assert ran.total() >= 5
