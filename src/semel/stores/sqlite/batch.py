"""Many operations in one transaction.

Claims and completions, which are nearly all of the traffic, go as one statement each; when a row
was not as expected, and for everything else, the operation's own plan decides. Asking again is
always right, because every operation is idempotent per fence. The operations of one batch are
concurrent (none was acknowledged before another was queued), so any order among them is legal.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from semel.core.contract import Applied, Claim, Claimed, Complete, StoreOperation
from semel.core.model import Micros, OnLapse, State
from semel.core.texts import described, shown
from semel.errors import StoreUnavailable
from semel.stores.sql.plans import plan
from semel.stores.sqlite.file import DIALECT, outage, run, spoils_transaction

Row = tuple[object, ...]

SIZES: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Rows per statement: each size is prepared once; a batch in between repeats its last row."""


class Withdrawing(Protocol):
    """Where a job is queued."""

    def withdraw(self, job: Job) -> StoreUnavailable: ...


class Job:
    """One queued operation; ``reply`` or ``error`` is set before it is delivered."""

    __slots__ = ("deliver_to", "engine", "error", "op", "reply", "taken", "withdrawn")

    def __init__(self, op: StoreOperation[Any], deliver_to: Mailbox) -> None:
        self.op = op
        self.deliver_to = deliver_to
        self.engine: Withdrawing | None = None
        self.reply: Any = None
        self.error: BaseException | None = None
        self.taken = False
        self.withdrawn = False


class Mailbox(Protocol):
    """Where finished jobs go; a mailbox gets all of its jobs of one batch in one call."""

    def deliver(self, jobs: Sequence[Job]) -> None: ...


def run_batch(connection: sqlite3.Connection, batch: Sequence[Job], now: Micros) -> None:
    """Set the reply or the error of each job. Raises when the transaction itself is spoilt."""
    claims = [job for job in batch if type(job.op) is Claim and _fresh(job.op, now)]
    completions = [job for job in batch if type(job.op) is Complete]
    for jobs, many in ((claims, _CLAIM), (completions, _COMPLETE)):
        _run_many(connection, jobs, now, many)
        # Before anything else: what took effect must not be undone by another before it is told so.
        _run_each(connection, jobs, now)
    _run_each(connection, batch, now)


def _fresh(op: Claim, now: Micros) -> bool:
    return op.fresh_until is None or op.fresh_until >= now


def _run_each(connection: sqlite3.Connection, jobs: Sequence[Job], now: Micros) -> None:
    """Those that have neither reply nor error yet."""
    for job in jobs:
        if job.reply is None and job.error is None:
            _run_one(connection, job, now)


def _run_one(connection: sqlite3.Connection, job: Job, now: Micros) -> None:
    """One operation. An error of its own stays with it: its statement was undone, no other."""
    try:
        job.reply = run(connection, plan(job.op), now)
    except sqlite3.Error as error:
        if spoils_transaction(error):
            raise
        job.error = outage(error, applied=False)
    except Exception as error:
        job.error = error


class _Many:
    """How one kind of operation is done for many at once."""

    def __init__(
        self,
        query: str,
        row: Callable[[Any, Micros], Row],
        reply: Callable[[Any, Micros], object],
    ) -> None:
        compiled = DIALECT.queries[query]
        self.texts = {size: compiled.for_rows(size) for size in SIZES}
        self.row = row
        self.reply = reply


def _run_many(
    connection: sqlite3.Connection, jobs: Sequence[Job], now: Micros, many: _Many
) -> None:
    for start in range(0, len(jobs), SIZES[-1]):
        chunk = jobs[start : start + SIZES[-1]]
        if len(chunk) > 1 and _all_changed(connection, chunk, now, many):
            for job in chunk:
                job.reply = many.reply(job.op, now)


def _all_changed(
    connection: sqlite3.Connection, chunk: Sequence[Job], now: Micros, many: _Many
) -> bool:
    size = next(size for size in SIZES if size >= len(chunk))
    try:
        rows = [many.row(job.op, now) for job in chunk]
        rows += [rows[-1]] * (size - len(rows))
        values = [value for row in rows for value in row]
        return connection.execute(many.texts[size], values).rowcount == len(chunk)
    except sqlite3.Error as error:
        if spoils_transaction(error):
            raise
        return False
    except Exception:
        # One of them cannot be written at all; alone it will say so, and the others will not.
        return False


def _claim_row(op: Claim, now: Micros) -> Row:
    origin = op.origin
    place = (origin.tenant, origin.method, origin.path, origin.key)
    fingerprint, *texts = described(op.fingerprint, *place)
    return (
        op.identity,
        op.fence,
        fingerprint,
        op.fields,
        *texts,
        op.on_lapse.value,
        now,
        now + op.lease,
        "resume" if op.on_lapse is OnLapse.RESUME else "lease",
        op.request,
        op.terms,
    )


def _complete_row(op: Complete, now: Micros) -> Row:
    expires_at = now + op.retention
    resource = None if op.resource is None else shown(op.resource)
    return (op.identity, op.fence, op.snapshot, expires_at, expires_at + op.tombstone, resource)


_CLAIM: Final = _Many("claim_many", _claim_row, lambda op, now: Claimed(now + op.lease, now, now))
_COMPLETE: Final = _Many(
    "complete_many",
    _complete_row,
    lambda op, now: Applied(State.COMPLETED, now, None, now + op.retention),
)
