"""What tests assert of answers and effects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from semel.core.delivery import delivery_of
from semel.core.operations.outbox import Shelf
from semel.core.records import Micros
from semel.operators.lists import effects

if TYPE_CHECKING:
    from semel.guard import Guard

REPLAYED = "idempotent-replayed"


@dataclass(frozen=True)  # not our own `frozen`, which does not print payloads and keys
class EffectSeen:
    """An effect in the outbox."""

    name: str
    payload: Any
    state: Literal["waiting", "delivered", "dead"]
    key: str
    """Its downstream key."""
    tries: int
    error: str | None
    """Why its last try failed."""
    created_at: Micros


def effects_of(guard: Guard, name: str | None) -> Iterator[EffectSeen]:
    for shelf in Shelf:
        for found in effects(guard, shelf, name):
            payload = delivery_of(found).payload
            told = (found.key, found.tries, found.error, found.created_at)
            yield EffectSeen(found.name, payload, shelf.value, *told)


def assert_replayed(first: Any, again: Any, *, header: str = REPLAYED) -> None:
    """``again`` is the replay of ``first``: the same answer, marked as repeated.

    Answers of httpx, requests, Starlette's, Flask's and Django's test clients, or of `guard.once`.
    ``header``: the name that the policy has for the mark.
    """
    pairs: list[tuple[str, Any, Any]]
    marks: tuple[bool | None, bool | None]
    if isinstance(getattr(first, "replayed", None), bool):
        pairs = [("value", first.value, again.value)]
        marks = (first.replayed, again.replayed)
    else:
        pairs = [("status", _status(first), _status(again)), ("body", _body(first), _body(again))]
        marks = (_mark(first, header), _mark(again, header))
    for what, one, other in pairs:
        if one != other:
            raise AssertionError(f"not a replay: its {what} is {other!r}, and was {one!r}")
    if marks != (False, True):
        raise AssertionError(
            f"not a first answer and its replay: {header} is {marks[0]} and {marks[1]}"
        )


def _status(answer: Any) -> int:
    status = getattr(answer, "status_code", None)
    if status is None:
        raise TypeError(f"{type(answer).__name__} is no answer of a test client, nor of guard.once")
    return int(status)


def _body(answer: Any) -> bytes:
    body: bytes = answer.data if hasattr(answer, "data") else answer.content
    return body


def _mark(answer: Any, header: str) -> bool | None:
    """Whether it says that it is a replay; None: it says nothing."""
    return {"true": True, "false": False}.get(answer.headers.get(header, ""))
