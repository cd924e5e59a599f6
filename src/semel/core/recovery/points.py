"""Recovery points: flows that a running handler drives through `op.phase` and `op.call`.

What is on record returns without being done again. Each ``yield`` is a place where the process may
die; what is found then is argued at those places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, assert_never

from semel.core.exchange.progress import Progress
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
)
from semel.core.operations.requests import Advance, Lost, Recall, Recalled, Written
from semel.core.records import Fence, Identity, Micros
from semel.core.recovery import journal as journals
from semel.core.recovery.journal import Journal, PointKind
from semel.core.recovery.was_sent import WasSent, classify
from semel.core.request import keys
from semel.core.unknown.evidence import Absent, CannotTell, Evidence, Happened, Inquiry
from semel.errors import ConfigurationError, LeaseLost, NotExecuted, OutcomeUnknown, StoreError


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


def phase(holder: Holder, deed: PointCall) -> Flow[Any]:
    """A local transaction: the function's writes and the journal's entry commit together."""
    with holder.progress.alone(deed.name, PointKind.PHASE):
        return (yield from _phase(holder, deed))


def _phase(holder: Holder, deed: PointCall) -> Flow[Any]:
    met = holder.progress.meet(deed.name, PointKind.PHASE)
    if met is not None:
        holder.progress.passing(holder.progress.journal)
        return met.result
    begun = yield from ask(Begin(holder.identity))
    if isinstance(begun, Occupied):
        raise NotExecuted(f"phase {deed.name!r}: an earlier run is still in the middle of it")
    reached = yield from _in_transaction(holder, deed)
    holder.progress.passing(reached)
    return reached.points[-1].result


def _in_transaction(holder: Holder, deed: PointCall) -> Flow[Journal]:
    outcome = yield from ask(Do(deed.function, deed.arguments))
    match outcome:
        case Raised(error) | Abandoned(error):
            yield from ask(RollBack())
            raise error
        case Did(value):
            pass
        case _:
            assert_never(outcome)
    try:
        reached, blob = _reached(holder, deed, PointKind.PHASE, value)
    except ConfigurationError:
        yield from ask(RollBack())
        raise
    try:
        yield from ask(Flush())
        written = yield from ask(Advance(holder.identity, holder.fence, blob))
        _demand_applied(written, deed)
        yield from ask(Commit())
    except StoreError as error:
        yield from ask(RollBack())
        yield from _ascertain(holder, deed, blob, error)
    except Exception:
        yield from ask(RollBack())
        raise
    return reached


def _ascertain(holder: Holder, deed: PointCall, blob: bytes, error: StoreError) -> Flow[None]:
    """A commit nobody answered for: the journal, read under the lock, says whether it happened."""
    if getattr(error, "applied", None) is not False:
        try:
            yield from ask(Ascertain(holder.identity))
            found = yield from ask(Recall(holder.identity))
        except StoreError as again:
            raise NotExecuted(f"phase {deed.name!r}: the store does not answer") from again
        if isinstance(found, Recalled) and found.case.record.fence == holder.fence:
            if found.case.journal == blob:
                return
        else:
            raise LeaseLost(f"phase {deed.name!r}: the lease was lost") from error
    # Whatever is on record is what a retry goes on from, so nothing is lost by saying so.
    raise NotExecuted(f"phase {deed.name!r} was not committed: {error}") from error


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────


def call(
    holder: Holder,
    deed: PointCall,
    repeatable: bool,
    probe: Callable[..., Any] | None,
    inquiry: Inquiry,
) -> Flow[Any]:
    """At most one outside effect: the intent is on record before, the result after."""
    with holder.progress.alone(deed.name, PointKind.CALL):
        return (yield from _call(holder, deed, repeatable, probe, inquiry))


def _call(
    holder: Holder,
    deed: PointCall,
    repeatable: bool,
    probe: Callable[..., Any] | None,
    inquiry: Inquiry,
) -> Flow[Any]:
    progress = holder.progress
    met = progress.meet(deed.name, PointKind.CALL)
    if met is not None and met.done:
        progress.passing(progress.journal)
        return met.result
    progress.repeating = repeatable
    first = not (met is not None and repeatable)
    if met is None:
        yield from _intend(holder, deed)
    elif not repeatable:
        # An earlier run died between its intent and its result: it may have sent.
        happened = yield from _inquire(deed, probe, inquiry)
        if happened is not None:
            reached, blob = _reached(holder, deed, PointKind.CALL, happened.result)
            yield from _record(holder, deed, blob)
            progress.passing(reached)
            return reached.points[-1].result
    # A process that was stopped here for long finds its lease gone, and sends nothing.
    if not (yield from ask(Held())):
        raise LeaseLost(f"call {deed.name!r}: the lease passed before it was made")
    key = keys.downstream_key(holder.identity, holder.epoch, "call", deed.name)
    outcome = yield from ask(Do(deed.function, (key, *deed.arguments)))
    if isinstance(outcome, Did):
        return (yield from _done(holder, deed, outcome))
    return (yield from _failed(holder, deed, outcome, first))


def _intend(holder: Holder, deed: PointCall) -> Flow[None]:
    if any(
        (it.name, it.kind) == (deed.name, PointKind.CALL) for it in holder.progress.journal.points
    ):
        raise ConfigurationError(
            f"call {deed.name!r} was made already: a second one needs a name of its own, or the "
            "provider would take it, by its key, for the first"
        )
    intended = holder.progress.journal.intending(deed.name)
    op = Advance(holder.identity, holder.fence, journals.encode(intended))
    _demand_applied((yield from ask(op)), deed)
    holder.progress.journal = intended


def _inquire(
    deed: PointCall, probe: Callable[..., Any] | None, inquiry: Inquiry
) -> Flow[Happened | None]:
    """What became of an earlier run's call; None when it surely did not happen and never will."""
    if probe is None:
        raise OutcomeUnknown(f"call {deed.name!r} may have happened, and there is nobody to ask")
    evidence: Evidence = yield from ask(Ask(probe, inquiry))
    match evidence:
        case Happened():
            return evidence
        case Absent(final=True):
            return None
        case Absent() | CannotTell():
            raise OutcomeUnknown(f"call {deed.name!r} may have happened; the probe cannot tell")
        case _:
            assert_never(evidence)


def _failed(
    holder: Holder, deed: PointCall, outcome: Raised | Abandoned, first: bool
) -> Flow[NoReturn]:
    """The function raised. Only what surely was not done is taken off the record.

    That a repeated call was refused says nothing of the one an earlier run made.
    """
    error, sent = outcome.error, classify(outcome.error, deed.package)
    surely_not = (
        first and sent in (WasSent.NOT_SENT, WasSent.ANSWERED) and isinstance(outcome, Raised)
    )
    if surely_not:
        withdrawn = holder.progress.journal.withdrawing()
        yield from _record(holder, deed, journals.encode(withdrawn))
        holder.progress.journal = withdrawn
    if sent is WasSent.NOT_SENT and not isinstance(error, NotExecuted):
        raise NotExecuted(f"call {deed.name!r} was not sent: {error}") from error
    if surely_not or holder.progress.repeating or isinstance(error, OutcomeUnknown):
        raise error
    raise OutcomeUnknown(f"call {deed.name!r} may have happened: {error!r}") from error


def _done(holder: Holder, deed: PointCall, did: Did) -> Flow[Any]:
    try:
        reached, blob = _reached(holder, deed, PointKind.CALL, did.value)
    except ConfigurationError as error:
        raise OutcomeUnknown(str(error)) from error  # it happened, and its result cannot be kept
    yield from _record(holder, deed, blob)
    holder.progress.passing(reached)
    return reached.points[-1].result


def _record(holder: Holder, deed: PointCall, blob: bytes) -> Flow[None]:
    """Write the journal until the store acknowledges it, or the lease is over."""
    op = Advance(holder.identity, holder.fence, blob)
    attempt = 0
    while True:
        try:
            return _demand_applied((yield from ask(op)), deed)
        except StoreError as error:
            attempt += 1
            if not (yield from ask(Pause(holder.identity, holder.fence, attempt))):
                raise OutcomeUnknown(f"call {deed.name!r}: its result is not on record") from error


def _demand_applied(written: Written, deed: PointCall) -> None:
    if isinstance(written, Lost):
        raise LeaseLost(f"{deed.name!r}: the lease was lost")


def _reached(holder: Holder, deed: PointCall, kind: PointKind, value: Any) -> tuple[Journal, bytes]:
    """As it will be read: the first run must not see other results than those that come after."""
    try:
        blob = journals.encode(holder.progress.journal.reaching(deed.name, kind, value))
        return journals.decode(blob), blob
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the result of {deed.name!r} must be JSON: {error}") from error
