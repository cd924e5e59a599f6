"""Settling by evidence: an unknown record and what is said about it. Probes, webhooks and operators
all end here. How a run is settled by its own outcome is in `core/exchange/settle.py`.

What is written names the fence that was seen, and only an unknown record takes it: of several who
settle at once one is first, and evidence that comes late or out of order changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias, assert_never

from semel.core.exchange import replay
from semel.core.flow import Flow, ask
from semel.core.frozen import frozen, replace
from semel.core.operations.acts import Act, act
from semel.core.operations.requests import (
    Applied,
    Lapse,
    NoRecord,
    Recall,
    SettleAbsent,
    SettleCall,
    SettleHappened,
    StoreOperation,
    Suspend,
    Written,
)
from semel.core.records import Case, Fence, Headers, Micros, OnLapse, Response, State
from semel.core.recovery import journal
from semel.core.recovery.journal import Journal
from semel.core.stored import snapshot
from semel.core.stored.snapshot import Snapshot
from semel.core.terms import Terms
from semel.core.texts import one_line
from semel.core.unknown.evidence import Absent, CannotTell, Evidence, Happened
from semel.errors import StoreUnavailable

ONCE: Final = "ONCE"
"""The method of a `guard.once`; its path is the name of what is done once."""

PROVIDER_ID: Final = b"semel-provider-id"
"""The header of a receipt that names what the provider made."""

_LONGEST: Final = 500
"""Characters of a provider's id that are kept: it is for people, and comes from outside."""

_JSON: Final[Headers] = ((b"content-type", b"application/json"),)


@frozen
class Settled:
    """The evidence is on record. In progress: an operation goes on behind its settled call."""

    state: State
    now: Micros


@frozen
class Undecided:
    """The evidence decides nothing. ``error``: what a probe raised, or what it said instead."""

    reason: str
    error: Exception | None = None


@frozen
class Unusable:
    """It happened, but what was said of it cannot be kept; the record stays unknown."""

    reason: str
    error: BaseException | None = None


@frozen
class Running:
    """Somebody is at it, or will be: a lease that is not past, a request still to be run."""

    state: State
    until: Micros
    now: Micros


@frozen
class Passed:
    """Not unknown any more, gone (None), or not as it was seen: somebody was first."""

    state: State | None
    now: Micros


Settlement: TypeAlias = Settled | Undecided | Unusable | Running | Passed


@frozen
class Witness:
    """Who brings the evidence: ``source`` such as "probe", ``name`` such as "charged"."""

    source: str
    name: str
    reason: str = ""

    def says(self, verdict: str, provider_id: str | None = None) -> Act:
        """What is kept with the record, and in the audit table."""
        which = f" ({provider_id})" if provider_id else ""
        why = f": {self.reason}" if self.reason else ""
        return act(f"{self.source} {self.name}", f"{verdict}{which}{why}")


Render: TypeAlias = Callable[[Happened], Response]
"""A route's ``render=``: makes an answer of what happened."""


def settle_unknown(
    case: Case,
    now: Micros,
    evidence: Evidence,
    fence: Fence,
    witness: Witness,
    render: Render | None = None,
) -> Flow[Settlement]:
    """Decide an unknown record by ``evidence``; ``fence`` is new, and burns the one that was seen.

    ``now`` is the store's, from when ``case`` was read. A record in progress whose lease is past
    is lapsed first, as its next request would do. What is kept is kept as long as the record's own
    terms say, whoever settles it.
    """
    terms = case.terms
    if terms is None:
        return Undecided(_NO_TERMS)
    record = case.record
    state: State | None = record.state
    # A resumable one is left: whoever resumes it finds its points, and asks about a call begun.
    if record.lapsed(now) and record.on_lapse is not OnLapse.RESUME:
        state = _state((yield from ask(Lapse(record.identity, record.fence, terms.retention))))
    if state is State.IN_PROGRESS or state is State.PENDING:
        return Running(state, case.record.leased_until or now, now)
    if state is not State.UNKNOWN:
        return Passed(state, now)
    op = _operation(case, evidence, terms, fence, witness, render)
    if not isinstance(op, StoreOperation):
        return op
    return _settlement_of((yield from _insist(op)))


def settle_anew(
    case: Case, now: Micros, call: str, evidence: Evidence, fence: Fence, witness: Witness
) -> Flow[Settlement]:
    """Put right what an operation's last call was said to have come to.

    While nothing has come behind it: else the operation has acted on it. Whoever runs the operation
    is stopped first, and cannot begin another call then; who dies in between leaves it unknown.
    """
    op = _anew(case, now, call, evidence, fence, witness)
    if not isinstance(op, StoreOperation):
        return op
    if case.record.state is State.UNKNOWN:
        return _settlement_of((yield from _insist(op)))
    stopped = witness.says(f"stopped, to settle {call} anew").line
    written = yield from _insist(Suspend(case.record.identity, case.record.fence, stopped))
    found = yield from ask(Recall(case.record.identity))
    if not isinstance(written, Applied) or isinstance(found, NoRecord):
        return _settlement_of(written)
    op = _anew(found.case, found.now, call, evidence, fence, witness)
    if isinstance(op, StoreOperation):
        return _settlement_of((yield from _insist(op)))
    if call_in_doubt(found.case) is None:  # it had gone on just before, and is let go on
        record, points = found.case.record, found.case.journal or journal.encode(Journal())
        said = witness.says("goes on as it was")
        yield from _insist(SettleCall(record.identity, record.fence, fence, points, said))
    return op


def _anew(
    case: Case, now: Micros, call: str, evidence: Evidence, fence: Fence, witness: Witness
) -> StoreOperation[Written] | Settlement:
    points, state = _journal_of(case), case.record.state
    if case.terms is None:
        return Undecided(_NO_TERMS)
    if state not in (State.UNKNOWN, State.IN_PROGRESS):
        return Passed(state, now)
    last = points.points[-1] if points is not None and points.points else None
    if points is None or last is None:
        return Undecided(f"it made no call {call!r}")
    if (last.name, last.kind, last.done) != (call, journal.PointKind.CALL, True):
        begun = "" if last.done else ", which is not known to have ended"
        return Undecided(f"the last it came to is the {last.kind} {last.name!r}{begun}")
    doubted = replace(case, journal=journal.encode(points.doubting()))
    return _operation(doubted, evidence, case.terms, fence, witness, None)


_NO_TERMS: Final = "its terms are not on record: nobody knows how long it must be kept"


def contradicts(evidence: Evidence, state: State | None) -> bool:
    """Whether evidence came too late for a record that was settled the other way."""
    if isinstance(evidence, Happened):
        return state is State.FAILED_RETRYABLE
    return isinstance(evidence, Absent) and evidence.final and state is State.COMPLETED


def in_doubt(case: Case) -> str | None:
    """The name of what nobody knows the outcome of: an operation's call, or what is done once."""
    intent = journal.decode(case.journal).intent
    if intent is not None:
        return intent.name
    return case.origin.path.removeprefix("/") if case.origin.method == ONCE else None


def call_in_doubt(case: Case) -> str | None:
    """The call that evidence must be about; None where it is about the whole handler."""
    points = _journal_in_doubt(case)
    return None if points is None or points.intent is None else points.intent.name


# ── what is written ───────────────────────────────────────────────────────────────────────────────


def _state(written: Written) -> State | None:
    if isinstance(written, Applied):
        return written.state
    return None if written.record is None else written.record.state


def _settlement_of(written: Written) -> Settlement:
    if isinstance(written, Applied) and written.state is not None:
        return Settled(written.state, written.now)
    return Passed(_state(written), written.now)


def _insist(op: StoreOperation[Written]) -> Flow[Written]:
    """Write, and write again if the reply is lost: the fence tells our own write from others'."""
    try:
        return (yield from ask(op))
    except StoreUnavailable:
        return (yield from ask(op))


def _operation(
    case: Case,
    evidence: Evidence,
    terms: Terms,
    fence: Fence,
    witness: Witness,
    render: Render | None,
) -> StoreOperation[Written] | Undecided | Unusable:
    match evidence:
        case CannotTell(reason):
            return Undecided(reason or "it cannot be told")
        case Absent(final=False):
            return Undecided("absent now, but it may still come")
        case Absent():
            return _absent(case, terms, fence, witness)
        case Happened():
            return _happened(case, evidence, terms, fence, witness, render)
        case _:
            assert_never(evidence)


def _absent(case: Case, terms: Terms, fence: Fence, witness: Witness) -> SettleAbsent | SettleCall:
    """A retry may run; an operation that has acted before goes on without one."""
    points, evidence = _journal_of(case), witness.says("absent, and final")
    left = None if points is None else points.withdrawing()
    blob = None if left is None else journal.encode(left)
    identity, seen = case.record.identity, case.record.fence
    if left is not None and blob is not None and left.acted:
        return SettleCall(identity, seen, fence, blob, evidence)
    return SettleAbsent(identity, seen, fence, terms.retention, evidence, blob)


def _happened(
    case: Case,
    evidence: Happened,
    terms: Terms,
    fence: Fence,
    witness: Witness,
    render: Render | None,
) -> SettleCall | SettleHappened | Unusable:
    record, points = case.record, _journal_in_doubt(case)
    said = witness.says("happened", evidence.provider_id)
    try:
        if points is not None:
            kept = journal.encode(points.settling(evidence.result))
            return SettleCall(record.identity, record.fence, fence, kept, said)
        kept = snapshot.encode(_snapshot(case, evidence, terms, render))
    except (Exception, SystemExit) as error:  # render= and what a probe returns are another's
        return Unusable(f"what happened cannot be kept: {type(error).__name__}", error)
    times = (terms.retention, terms.tombstone)
    return SettleHappened(record.identity, record.fence, fence, kept, *times, said)


def _journal_in_doubt(case: Case) -> Journal | None:
    """The journal of an operation whose call is in doubt; None for a plain handler."""
    points = _journal_of(case)
    return points if points is not None and points.intent is not None else None


def _journal_of(case: Case) -> Journal | None:
    """The journal of an operation, also of one that was begun and never finished."""
    resumable = case.record.on_lapse is OnLapse.RESUME
    return journal.decode(case.journal) if resumable else None


# ── the answer of a plain handler ─────────────────────────────────────────────────────────────────


def _snapshot(case: Case, evidence: Happened, terms: Terms, render: Render | None) -> Snapshot:
    """The answer the client should have got, or a receipt with the provider's id."""
    response = _response(case, evidence, render)
    if response is None:
        shown = one_line(evidence.provider_id or "")
        receipt = ((PROVIDER_ID, shown[:_LONGEST].encode("latin-1", "replace")),)
        headers = () if evidence.provider_id is None else receipt
        return Snapshot(200, headers, None, schema_version=terms.schema_version)
    return replay.kept(response, terms)


def _response(case: Case, evidence: Happened, render: Render | None) -> Response | None:
    if isinstance(evidence.result, Response):
        return _checked(evidence.result)
    if render is not None:
        return _checked(render(evidence))
    if case.origin.method == ONCE and evidence.result is not None:
        return Response(200, _JSON, json.dumps(evidence.result, allow_nan=False).encode())
    return None


def _checked(response: Any) -> Response:
    """A probe's or render='s mistake must not become an answer that nobody can send."""
    if not isinstance(response, Response):
        raise TypeError(f"a semel.Response is needed, not {type(response).__name__}")
    if not isinstance(response.status, int) or not 200 <= response.status <= 599:
        raise ValueError("the status of an answer is from 200 to 599")
    if not isinstance(response.body, bytes):
        raise TypeError("the body of an answer is bytes")
    if response.body and response.status in replay.WITHOUT_A_BODY:
        # Some servers send it all the same, and a client takes it for the next answer's head.
        raise ValueError(f"an answer with the status {response.status} has no body")
    for name, text in response.headers:
        if not isinstance(name, bytes) or not isinstance(text, bytes):
            raise TypeError("the headers of an answer are pairs of bytes")
        if b"\n" in name + text or b"\r" in name + text or not name:
            raise ValueError("a header of the answer would break its head")
    return response
