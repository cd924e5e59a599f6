"""Many operations in one transaction.

Claims and completions are nearly all of the traffic: all claims go as one statement, and so do all
completions. When a row was not as expected, and for everything else, the operation's own plan
runs. Sending it again is safe, because every operation is idempotent per fence. The operations of
one batch are concurrent (none was acknowledged before another was queued), so any order is legal.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from semel.core.operations.requests import Applied, Claim, Claimed, Complete, StoreOperation
from semel.core.records import Micros, OnLapse, State
from semel.core.texts import described, shown
from semel.errors import StoreUnavailable
from semel.stores.sql.plans import plan
from semel.stores.sqlite.connection import DIALECT, outage, run, spoils_transaction

SIZES: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Rows per statement. Each size is prepared once; a batch in between repeats its last row."""


class Withdrawing(Protocol):
    """The queue of a job."""

    def withdraw(self, job: WriterJob) -> StoreUnavailable: ...


class WriterJob:
    """One queued operation. ``reply`` or ``error`` is set before it is delivered."""

    __slots__ = ("deliver_to", "error", "op", "reply", "taken", "withdrawn", "writer")

    def __init__(self, op: StoreOperation[Any], deliver_to: Mailbox) -> None:
        self.op = op
        self.deliver_to = deliver_to
        self.writer: Withdrawing | None = None
        self.reply: Any = None
        self.error: BaseException | None = None
        self.taken = False
        self.withdrawn = False


class Mailbox(Protocol):
    """Receives finished jobs: all of its jobs of one batch in one call."""

    def deliver(self, jobs: Sequence[WriterJob]) -> None: ...


def run_batch(connection: sqlite3.Connection, batch: Sequence[WriterJob], now: Micros) -> None:
    """Set the reply or the error of each job. Raises when the whole transaction is spoilt."""
    claims: list[WriterJob] = []
    completions: list[WriterJob] = []
    for job in batch:
        op = job.op
        if type(op) is Complete:
            completions.append(job)
        elif type(op) is Claim and (op.fresh_until is None or op.fresh_until >= now):
            claims.append(job)
    for jobs, many in ((claims, _CLAIM), (completions, _COMPLETE)):
        _run_many(connection, jobs, now, many)
        # At once: no later operation may undo what took effect before its reply is set.
        _run_each(connection, jobs, now)
    _run_each(connection, batch, now)


def _run_each(connection: sqlite3.Connection, jobs: Sequence[WriterJob], now: Micros) -> None:
    """Run each job that has neither reply nor error. An error of one undoes only its statement."""
    for job in jobs:
        if job.reply is not None or job.error is not None:
            continue
        try:
            job.reply = run(connection, plan(job.op), now)
        except sqlite3.Error as error:
            if spoils_transaction(error):
                raise
            job.error = outage(error, applied=False)
        except Exception as error:
            job.error = error


class _Many:
    """One statement for many operations of a kind.

    ``values``: the parameters of all rows. ``replies``: the replies when every row was changed.
    """

    def __init__(
        self,
        query: str,
        values: Callable[[Any, Micros], list[object]],
        replies: Callable[[Any, Micros], Sequence[object]],
    ) -> None:
        compiled = DIALECT.queries[query]
        self.width = len(compiled.takes)
        self.texts = {size: compiled.for_rows(size) for size in SIZES}
        self.values = values
        self.replies = replies


def _run_many(
    connection: sqlite3.Connection, jobs: Sequence[WriterJob], now: Micros, many: _Many
) -> None:
    for start in range(0, len(jobs), SIZES[-1]):
        chunk = jobs[start : start + SIZES[-1]]
        ops = [job.op for job in chunk]
        if len(ops) > 1 and _changed(connection, ops, now, many):
            for job, reply in zip(chunk, many.replies(ops, now), strict=True):
                job.reply = reply


def _changed(
    connection: sqlite3.Connection, ops: Sequence[StoreOperation[Any]], now: Micros, many: _Many
) -> bool:
    """Whether the statement changed every row. The last row is repeated to fill up the size."""
    size = next(size for size in SIZES if size >= len(ops))
    try:
        values = many.values(ops, now)
        if size > len(ops):
            values += values[-many.width :] * (size - len(ops))
        return connection.execute(many.texts[size], values).rowcount == len(ops)
    except sqlite3.Error as error:
        if spoils_transaction(error):
            raise
        return False
    except Exception:
        # One of them cannot be written at all. Each runs alone next, and only that one fails.
        return False


# Short parameters are bound as bytearrays: for each one of type bytes sqlite3 looks for an adapter,
# which takes longer than to copy and bind it.


def _claim_values(ops: Sequence[Claim], now: Micros) -> list[object]:
    values: list[object] = []
    for op in ops:
        origin = op.origin
        place = (origin.tenant, origin.method, origin.path, origin.key)
        fingerprint, *texts = described(op.fingerprint, *place)
        values += (bytearray(op.identity), bytearray(op.fence), fingerprint, bytearray(op.fields))
        values += texts
        on_lapse, duty = _ON_LAPSE[op.on_lapse]
        values += (on_lapse, now, now + op.lease, duty, op.request, op.terms)
    return values


def _claimed(ops: Sequence[Claim], now: Micros) -> Sequence[object]:
    return [Claimed(now + op.lease, now, now) for op in ops]


def _complete_values(ops: Sequence[Complete], now: Micros) -> list[object]:
    values: list[object] = []
    for op in ops:
        expires_at = now + op.retention
        resource = None if op.resource is None else shown(op.resource)
        values += (bytearray(op.identity), bytearray(op.fence), op.snapshot)
        values += (expires_at, expires_at + op.tombstone, resource)
    return values


def _completed(ops: Sequence[Complete], now: Micros) -> Sequence[object]:
    return [Applied(_COMPLETED, now, None, now + op.retention) for op in ops]


_COMPLETED: Final = State.COMPLETED
_ON_LAPSE: Final = {
    choice: (choice.value, "resume" if choice is OnLapse.RESUME else "lease") for choice in OnLapse
}
"""The column values: the choice itself, and who acts when the lease has run out."""

_CLAIM: Final = _Many("claim_many", _claim_values, _claimed)
_COMPLETE: Final = _Many("complete_many", _complete_values, _completed)
