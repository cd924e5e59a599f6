"""What a plan yields, the steps that several plans share, and how statements are sent: without I/O.

A connection that fails throws a `StatementFault` into the generator; it decides whether the
statement is sent again or the caller gets an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from semel.core import operations as ops
from semel.core.records import Identity, Micros, Record, State
from semel.core.texts import shown
from semel.errors import SemelError
from semel.stores.sql.rows import Rows, now_in, record_and_now, written

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")


class Statement(NamedTuple):
    """One query of the dialect, by name, and its parameters (the clock is added by the store)."""

    name: str
    params: Mapping[str, object]


Plan: TypeAlias = Generator[Statement, Rows, R]

Done: TypeAlias = Callable[[Any, Record | None, Micros], bool]
"""Whether the record that a read found is the work of an earlier try of the same operation."""

# ── steps of plans ────────────────────────────────────────────────────────────────────────────────


def write(
    name: str, op: Any, params: dict[str, Any], done: Done, *, again: bool = True
) -> Plan[ops.Written]:
    """Compare and set. No row means: already done by this very fence, or lost; a read tells.

    The read may find a record that came in between: then the write is tried once more.
    """
    identity: Identity = op.identity
    params["identity"] = identity
    rows = yield Statement(name, params)
    if rows:
        return written(rows)
    record, now = record_and_now((yield Statement("read", {"identity": identity})))
    if again and _has_just_come(record, now, params):
        return (yield from write(name, op, params, done, again=False))
    if not done(op, record, now):
        return ops.Lost(record, now)
    if record is None:
        return ops.Applied(None, now)
    return ops.Applied(record.state, now, record.leased_until, record.expires_at)


def _has_just_come(record: Record | None, now: Micros, params: Mapping[str, object]) -> bool:
    """Whether the record is held by the very fence that found none: its claim or retake was late.

    Called lost, nobody would hold it: its holder takes it back and does not look again.
    """
    if record is None or "seen" in params or record.fence != params.get("fence"):
        return False
    return record.state is State.IN_PROGRESS and not record.lapsed(now)


def act_params(act: ops.Act) -> dict[str, object]:
    """The parameters of a statement that writes an audit entry (`tools/queries.py`)."""
    return {"actor": shown(act.by), "why": shown(act.reason)}


def clock_of(rows: Rows) -> Plan[Micros]:
    """The time in the last column of a statement's rows; without rows, ask for the clock."""
    return now_in(rows if rows else (yield Statement("clock", {})))


# ── sending them, again where that is safe ────────────────────────────────────────────────────────


class StatementFault(Exception):
    """One statement failed.

    ``doubt``: it may have been applied all the same. ``broken``: the connection must be closed.
    ``tries``: how often the statement may be sent in all before giving up. ``code``: the server's.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | int | None = None,
        doubt: bool = False,
        broken: bool = True,
        tries: int = 1,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.doubt = doubt
        self.broken = broken
        self.tries = tries

    @property
    def contagious(self) -> bool:
        """Whether the idle connections are probably lost too: then the next try opens a new one."""
        return self.broken and self.tries > 1


def usable_after(error: BaseException | None) -> bool:
    """Whether a connection can be used again after a statement, which ended with this error."""
    return error is None or (isinstance(error, StatementFault) and not error.broken)


class ToStoreError(Protocol):
    """Makes the error that the caller of the store gets for a fault."""

    def __call__(self, fault: StatementFault, /, *, doubt: bool) -> SemelError: ...


def retried(
    steps: Plan[R], store_error: ToStoreError, *, doubt: bool = False
) -> Generator[Statement, Rows, R]:
    """The statements of a plan; a `StatementFault` is thrown in at the statement that failed.

    Every statement is idempotent per fence, so one whose answer was lost is simply sent again.
    ``doubt``: it was sent before, and may have been applied.
    """
    statement = next(steps)
    tries = 0
    while True:
        tries += 1
        try:
            rows = yield statement
        except StatementFault as fault:
            doubt = doubt or fault.doubt
            if tries >= fault.tries:
                raise store_error(fault, doubt=doubt) from None
            continue
        doubt, tries = True, 0
        try:
            statement = steps.send(rows)
        except StopIteration as done:
            reply: R = done.value
            return reply


# Twin of adrive, by tools.twins
def drive(steps: Generator[Q, A, R], execute: Callable[[Q], A]) -> R:
    """Run ``steps`` to their end, blocking; what ``execute`` raises is thrown in."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = execute(asked)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as done:
        reply: R = done.value
        return reply


async def adrive(steps: Generator[Q, A, R], execute: Callable[[Q], Awaitable[A]]) -> R:
    """The same, awaited."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = await execute(asked)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as done:
        reply: R = done.value
        return reply
