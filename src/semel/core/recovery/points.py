"""Recovery points: flows that a running handler drives through `op.phase` and `op.call`.

What is on record returns without being done again. Each ``yield`` is a place where the process may
die; what is found then is argued at those places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, assert_never

from semel.core.exchange.exchange import Progress
from semel.core.flow import Flow, ask
from semel.core.frozen import frozen
from semel.core.operations.handler import (
    Abandoned,
    Ascertain,
    Ask,
    Begin,
    Commit,
    Did,
    Do,
    Flush,
    Held,
    Occupied,
    Pause,
    Raised,
    RollBack,
    Save,
    Undo,
)
from semel.core.operations.requests import Advance, Lost, Recall, Recalled, Written
from semel.core.records import Fence, Identity, Micros
from semel.core.recovery import journal as journals
from semel.core.recovery.journal import Journal, PointKind
from semel.core.recovery.was_sent import WasSent, classify
from semel.core.request import keys
from semel.core.unknown.evidence import Absent, CannotTell, Evidence, Happened, Inquiry
from semel.errors import (
    ConfigurationError,
    LeaseLost,
    NotExecuted,
    OutcomeUnknown,
    SchemaError,
    StoreError,
)


@frozen
class Holder:
    """Who is running: one fence's hold on one record, and how far it has come."""

    identity: Identity
    fence: Fence
    progress: Progress
    epoch: Micros
    """When this life of the key began."""


@frozen
class PointCall:
    """A point's name, what is to be done there, and the package of the handler that wants it."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    package: str = ""


# ── phases ────────────────────────────────────────────────────────────────────────────────────────


def phase(holder: Holder, point: PointCall) -> Flow[Any]:
    """A local transaction: the function's writes and the journal's entry commit together."""
    progress = holder.progress
    with progress.alone(point.name, PointKind.PHASE):
        if progress.ended is not None:
            raise OutcomeUnknown(progress.ended)
        met = progress.meet(point.name, PointKind.PHASE)
        if met is not None:
            progress.passing(progress.journal)
            return met.result
        begun = yield from ask(Begin(holder.identity))
        if isinstance(begun, Occupied):
            raise NotExecuted(f"phase {point.name!r}: an earlier run is still in the middle of it")
        reached = yield from _in_transaction(holder, point)
        progress.passing(reached)
        return reached.points[-1].result


def _in_transaction(holder: Holder, point: PointCall) -> Flow[Journal]:
    yield from ask(Save())  # by its savepoint the transaction is known in the end
    outcome = yield from ask(Do(point.function, point.arguments))
    match outcome:
        case Raised(error):
            raise (yield from _undo(holder, point)) or error
        case Abandoned(error):
            yield from _undo(holder, point)
            raise error
        case Did(value):
            pass
        case _:
            assert_never(outcome)
    try:
        reached, blob = _reached(holder, point, PointKind.PHASE, value)
    except ConfigurationError as error:
        raise (yield from _undo(holder, point)) or error from error.__cause__
    try:
        yield from ask(Flush())
        written = yield from ask(Advance(holder.identity, holder.fence, blob))
        _demand_applied(written, point)
        yield from ask(Commit())
    except StoreError as error:
        yield from ask(RollBack())
        yield from _ascertain(holder, point, blob, error)
    except Exception as error:
        yield from ask(RollBack())
        if isinstance(error, ConfigurationError) and not isinstance(error, SchemaError):
            raise _ended(holder, point, error) from error
        raise
    return reached


def _undo(holder: Holder, point: PointCall) -> Flow[OutcomeUnknown | None]:
    """Roll back. To go back to the savepoint first tells whether the function has ended the
    transaction itself: what it wrote may be there then, and must not be written again."""
    doubt = None
    try:
        yield from ask(Undo())
    except ConfigurationError as error:
        doubt = _ended(holder, point, error)
    except StoreError:
        pass  # the transaction is lost, and all of it
    yield from ask(RollBack())
    return doubt


def _ended(holder: Holder, point: PointCall, error: ConfigurationError) -> OutcomeUnknown:
    said = holder.progress.ended = f"phase {point.name!r}: {error}"
    return OutcomeUnknown(said)


def _ascertain(holder: Holder, point: PointCall, blob: bytes, error: StoreError) -> Flow[None]:
    """A commit nobody answered for: the journal, read under the lock, says whether it happened."""
    if getattr(error, "applied", None) is not False:
        try:
            yield from ask(Ascertain(holder.identity))
            found = yield from ask(Recall(holder.identity))
        except StoreError as again:
            raise NotExecuted(f"phase {point.name!r}: the store does not answer") from again
        if isinstance(found, Recalled) and found.case.record.fence == holder.fence:
            if found.case.journal == blob:
                return
        else:
            raise LeaseLost(f"phase {point.name!r}: the lease was lost") from error
    # Whatever is on record is what a retry goes on from, so nothing is lost by saying so.
    raise NotExecuted(f"phase {point.name!r} was not committed: {error}") from error


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────


def call(
    holder: Holder,
    point: PointCall,
    repeatable: bool,
    probe: Callable[..., Any] | None,
    inquiry: Inquiry,
) -> Flow[Any]:
    """At most one outside effect: the intent is on record before, the result after."""
    with holder.progress.alone(point.name, PointKind.CALL):
        return (yield from _call(holder, point, repeatable, probe, inquiry))


def _call(
    holder: Holder,
    point: PointCall,
    repeatable: bool,
    probe: Callable[..., Any] | None,
    inquiry: Inquiry,
) -> Flow[Any]:
    progress = holder.progress
    met = progress.meet(point.name, PointKind.CALL)
    if met is not None and met.done:
        progress.passing(progress.journal)
        return met.result
    progress.repeating = repeatable
    first = not (met is not None and repeatable)
    if met is None:
        yield from _intend(holder, point)
    elif not repeatable:
        # An earlier run died between its intent and its result: it may have sent.
        happened = yield from _inquire(point, probe, inquiry)
        if happened is not None:
            reached = _reached(holder, point, PointKind.CALL, happened.result)
            return (yield from _pass(holder, point, *reached))
    # A process that was stopped here for long finds its lease gone, and sends nothing.
    if not (yield from ask(Held())):
        raise LeaseLost(f"call {point.name!r}: the lease passed before it was made")
    key = keys.downstream_key(holder.identity, holder.epoch, "call", point.name)
    outcome = yield from ask(Do(point.function, (key, *point.arguments)))
    if not isinstance(outcome, Did):
        return (yield from _failed(holder, point, outcome, first))
    try:
        reached = _reached(holder, point, PointKind.CALL, outcome.value)
    except ConfigurationError as error:
        raise OutcomeUnknown(str(error)) from error  # it happened, and its result cannot be kept
    return (yield from _pass(holder, point, *reached))


def _intend(holder: Holder, point: PointCall) -> Flow[None]:
    if any(
        (it.name, it.kind) == (point.name, PointKind.CALL) for it in holder.progress.journal.points
    ):
        raise ConfigurationError(
            f"call {point.name!r} was made already: a second one needs a name of its own, or the "
            "provider would take it, by its key, for the first"
        )
    intended = holder.progress.journal.intending(point.name)
    op = Advance(holder.identity, holder.fence, journals.encode(intended))
    _demand_applied((yield from ask(op)), point)
    holder.progress.journal = intended


def _inquire(
    point: PointCall, probe: Callable[..., Any] | None, inquiry: Inquiry
) -> Flow[Happened | None]:
    """What became of an earlier run's call; None when it surely did not happen and never will."""
    if probe is None:
        raise OutcomeUnknown(f"call {point.name!r} may have happened, and there is nobody to ask")
    evidence: Evidence = yield from ask(Ask(probe, inquiry))
    match evidence:
        case Happened():
            return evidence
        case Absent(final=True):
            return None
        case Absent() | CannotTell():
            raise OutcomeUnknown(f"call {point.name!r} may have happened; the probe cannot tell")
        case _:
            assert_never(evidence)


def _failed(
    holder: Holder, point: PointCall, outcome: Raised | Abandoned, first: bool
) -> Flow[NoReturn]:
    """The function raised. Only what surely was not done is taken off the record.

    That a repeated call was refused says nothing of the one an earlier run made.
    """
    error, sent = outcome.error, classify(outcome.error, point.package)
    surely_not = (
        first and sent in (WasSent.NOT_SENT, WasSent.ANSWERED) and isinstance(outcome, Raised)
    )
    if surely_not:
        withdrawn = holder.progress.journal.withdrawing()
        yield from _record(holder, point, journals.encode(withdrawn))
        holder.progress.journal = withdrawn
    if sent is WasSent.NOT_SENT and not isinstance(error, NotExecuted):
        raise NotExecuted(f"call {point.name!r} was not sent: {error}") from error
    if surely_not or holder.progress.repeating or isinstance(error, OutcomeUnknown):
        raise error
    raise OutcomeUnknown(f"call {point.name!r} may have happened: {error!r}") from error


def _pass(holder: Holder, point: PointCall, reached: Journal, blob: bytes) -> Flow[Any]:
    """Put the call's result on record, and go on behind it."""
    yield from _record(holder, point, blob)
    holder.progress.passing(reached)
    return reached.points[-1].result


def _record(holder: Holder, point: PointCall, blob: bytes) -> Flow[None]:
    """Write the journal until the store acknowledges it, or the lease is over."""
    op = Advance(holder.identity, holder.fence, blob)
    attempt = 0
    while True:
        try:
            return _demand_applied((yield from ask(op)), point)
        except StoreError as error:
            attempt += 1
            if not (yield from ask(Pause(holder.identity, holder.fence, attempt))):
                raise OutcomeUnknown(f"call {point.name!r}: its result is not on record") from error


def _demand_applied(written: Written, point: PointCall) -> None:
    if isinstance(written, Lost):
        raise LeaseLost(f"{point.name!r}: the lease was lost")


def _reached(
    holder: Holder, point: PointCall, kind: PointKind, value: Any
) -> tuple[Journal, bytes]:
    """As it will be read: the first run must not see other results than those that come after."""
    try:
        blob = journals.encode(holder.progress.journal.reaching(point.name, kind, value))
        return journals.decode(blob), blob
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the result of {point.name!r} must be JSON: {error}") from error
