"""The rows of the journal: their columns, their seal, and the process that holds one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from semel.client.model import CallAnswer, LogicalCall
from semel.core.frozen import frozen
from semel.core.records import HeaderView, Request
from semel.core.request.fingerprint import FingerprintRule, fingerprint
from semel.errors import StoreCorrupt

Row: TypeAlias = Mapping[str, Any]


@frozen
class KeptAnswer:
    """What is kept of an answer; ``body`` is None if only its size is kept."""

    status: int
    size: int
    body: bytes | None


@frozen
class JournaledCall:
    """A call in the journal."""

    call: LogicalCall
    held: bool
    """A process works on it now."""
    finished_at: float | None = None
    answer: KeptAnswer | None = None
    is_other: bool = False
    """The row with this key is of another request."""


_RULE = FingerprintRule()


def fingerprint_of(call: LogicalCall) -> str:
    """The fingerprint, as a server makes it: JSON in another order is the same call."""
    given = {name.lower(): text for name, text in call.headers}
    named = [name for name in ("content-type", "content-encoding") if name in given]
    lines = [(name.encode(), given[name].encode("utf-8", "surrogatepass")) for name in named]
    sent = Request(call.method, call.url, b"", HeaderView(lines), None)
    return fingerprint(sent, call.body, _RULE).text


def request_columns(call: LogicalCall) -> dict[str, Any]:
    """The columns of a new call."""
    columns = {
        **_identity(call),
        "omitted": json.dumps(call.omitted),
        "headers": json.dumps(call.headers),
        "body": call.body,
    }
    return {**columns, "seal": _seal(columns, _REQUEST)}


def answer_columns(
    call: LogicalCall, given: CallAnswer, body: bytes | None, now: float
) -> dict[str, Any]:
    """The columns of a finished call."""
    columns = {
        **_identity(call),
        "finished_at": now,
        "answer_status": given.status,
        "answer_size": len(given.body),
        "answer_body": body,
    }
    return {**columns, "id": call.row, "seal": _seal(columns, _ANSWER)}


def _identity(call: LogicalCall) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": call.url,
        "key": call.key,
        "name": call.name,
        "created_at": call.created_at,
        "fingerprint": fingerprint_of(call),
    }


def read_row(row: Row, *, held: bool) -> JournaledCall:
    """The call of a row; a row that was changed since it was written is refused."""
    finished = row["finished_at"] is not None
    if _seal(row, _ANSWER if finished else _REQUEST) != row["seal"]:
        raise StoreCorrupt(
            f"row {row['id']} of the journal is damaged; nothing of it is sent. Look at it by hand"
        )
    call = LogicalCall(
        key=row["key"],
        name=row["name"],
        method=row["method"],
        url=row["url"],
        headers=() if finished else tuple([(n, text) for n, text in json.loads(row["headers"])]),
        body=row["body"] or b"",
        created_at=row["created_at"],
        omitted=() if finished else tuple(json.loads(row["omitted"])),
        status_url=row["status_url"],
        row=row["id"],
    )
    if not finished:
        return JournaledCall(call, held)
    kept = KeptAnswer(row["answer_status"], row["answer_size"], row["answer_body"])
    return JournaledCall(call, held, row["finished_at"], kept)


_IDENTITY = ("method", "url", "key", "name", "created_at", "fingerprint")
_REQUEST = (*_IDENTITY, "omitted", "headers", "body")
_ANSWER = (*_IDENTITY, "finished_at", "answer_status", "answer_size", "answer_body")


def _seal(row: Row, columns: tuple[str, ...]) -> bytes:
    """SHA-256 over the columns, each with its type and length, so that no two rows look alike."""
    hashed = sha256(b"semel j1\n")
    for column in columns:
        held = row[column]
        octets = held if isinstance(held, bytes) else str(held).encode("utf-8", "surrogatepass")
        hashed.update(f"{type(held).__name__} {len(octets)}\n".encode() + octets)
    return hashed.digest()


# ── who holds a call ──────────────────────────────────────────────────────────────────────────────
# A process has a name by which others can tell whether it has ended: the machine's boot, its
# process namespace, its process number, and when it started. Numbers are used again; all four
# together are not. Without /proc a name says nothing, and a hold ends only by time.

_PROC = Path("/proc")
_NOWHERE = "-"
_names: dict[int, str] = {}


def this_process() -> str:
    """The name of this process; a forked child has another."""
    pid = os.getpid()
    if pid not in _names:
        place = _place()
        # Without a place the name must still be unique.
        started = _started(pid) if place != _NOWHERE else uuid4().hex
        _names[pid] = f"{place} {pid} {started}"
    return _names[pid]


def is_dead(name: str) -> bool:
    """Whether the process has surely ended; False also if that cannot be known from here."""
    place, _, rest = name.partition(" ")
    pid, _, started = rest.partition(" ")
    if place == _NOWHERE or place != _place() or not pid.isdecimal():
        return False
    return _started(int(pid)) != started


def _place() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return _NOWHERE


def _started(pid: int) -> str:
    """When the process started, in ticks since boot; empty if it has ended."""
    try:
        # The second field is the command in parentheses and may itself hold any character.
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # ended, and its parent has not looked yet
    except (OSError, IndexError):
        return ""
