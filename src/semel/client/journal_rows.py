"""Rows of the journal: how a call and its answer are written down, sealed, and read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, TypeAlias

from semel.client.model import Answer, Call, Pairs
from semel.core.frozen import frozen
from semel.core.records import HeaderView, Request
from semel.core.request.fingerprint import FingerprintRule, fingerprint
from semel.errors import StoreCorrupt

Row: TypeAlias = Mapping[str, Any]


@frozen
class Kept:
    """What is kept of an answer; ``body`` is None where only its size is."""

    status: int
    size: int
    body: bytes | None


@frozen
class Entry:
    """A call in the journal."""

    call: Call
    held: bool
    """A process is at it now."""
    finished_at: float | None = None
    answer: Kept | None = None
    is_other: bool = False
    """Its key was asked for with another request."""


_RECIPE = FingerprintRule()


def meaning(call: Call) -> str:
    """What the call means, as a server reads it: JSON in another order is the same call."""
    given = {name.lower(): text for name, text in call.headers}
    named = [name for name in ("content-type", "content-encoding") if name in given]
    lines = [(name.encode(), given[name].encode("utf-8", "surrogatepass")) for name in named]
    sent = Request(call.method, call.url, b"", HeaderView(lines), None)
    return fingerprint(sent, call.body, _RECIPE).text


def request(call: Call) -> dict[str, Any]:
    """The columns of a new call."""
    columns = {
        "method": call.method,
        "url": call.url,
        "key": call.key,
        "name": call.name,
        "created_at": call.created_at,
        "fingerprint": meaning(call),
        "omitted": json.dumps(call.omitted),
        "headers": json.dumps(call.headers),
        "body": call.body,
    }
    return {**columns, "seal": _seal(columns, _REQUEST)}


def answer(call: Call, given: Answer, body: bytes | None, now: float) -> dict[str, Any]:
    """The columns of a call that is finished."""
    columns = {
        "id": call.row,
        "method": call.method,
        "url": call.url,
        "key": call.key,
        "name": call.name,
        "created_at": call.created_at,
        "fingerprint": meaning(call),
        "finished_at": now,
        "answer_status": given.status,
        "answer_size": len(given.body),
        "answer_body": body,
    }
    return {**columns, "seal": _seal(columns, _ANSWER)}


def entry(row: Row, *, held: bool) -> Entry:
    """A row as it was written; one that was changed since is refused."""
    finished = row["finished_at"] is not None
    if _seal(row, _ANSWER if finished else _REQUEST) != row["seal"]:
        raise StoreCorrupt(
            f"row {row['id']} of the journal is damaged; nothing of it is sent. Look at it by hand"
        )
    kept = Kept(row["answer_status"], row["answer_size"], row["answer_body"]) if finished else None
    return Entry(_call(row), held, row["finished_at"], kept)


def _call(row: Row) -> Call:
    return Call(
        key=row["key"],
        name=row["name"],
        method=row["method"],
        url=row["url"],
        headers=_pairs(row["headers"]) if row["finished_at"] is None else (),
        body=row["body"] or b"",
        created_at=row["created_at"],
        omitted=tuple(json.loads(row["omitted"])) if row["finished_at"] is None else (),
        status_url=row["status_url"],
        row=row["id"],
    )


def _pairs(text: str) -> Pairs:
    return tuple([(name, value) for name, value in json.loads(text)])


_IDENTITY = ("method", "url", "key", "name", "created_at", "fingerprint")
_REQUEST = (*_IDENTITY, "omitted", "headers", "body")
_ANSWER = (*_IDENTITY, "finished_at", "answer_status", "answer_size", "answer_body")


def _seal(row: Row, columns: tuple[str, ...]) -> bytes:
    """SHA-256 over the columns, each with its type and length: no two rows give the same octets."""
    hashed = sha256(b"semel j1\n")
    for column in columns:
        held = row[column]
        octets = held if isinstance(held, bytes) else str(held).encode("utf-8", "surrogatepass")
        hashed.update(f"{type(held).__name__} {len(octets)}\n".encode() + octets)
    return hashed.digest()
