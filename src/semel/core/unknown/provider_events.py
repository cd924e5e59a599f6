"""Events of providers: each is read once, and what it says about a record settles it.

The record is settled first and the event noted after. Both may be repeated: between them a process
may die, and the provider, not having been thanked, sends the event again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from semel.core.flow import Flow, ask
from semel.core.frozen import frozen
from semel.core.operations.handler import Ascertain, Did, Do
from semel.core.operations.outbox import NoteEvent
from semel.core.operations.requests import Found, NoRecord, Recall
from semel.core.records import Case, Fence, Identity, Micros, OnLapse, State
from semel.core.recovery import journal
from semel.core.unknown.evidence import Absent, CannotTell, Evidence, Happened
from semel.core.unknown.settle_unknown import (
    Render,
    Running,
    Settlement,
    Undecided,
    Unusable,
    Witness,
    settle_unknown,
)

LONGEST: Final = 200
"""Characters of what a provider says that are told on."""


@frozen
class Notice:
    """An event whose sender is proved: ``event`` names it for good; it is remembered ``keep``."""

    source: str
    event: str
    keep: Micros


@frozen
class AlreadyTaken:
    """It was taken in before."""


@frozen
class Ignored:
    """It is about nothing of ours.

    ``identity`` and ``evidence``: what it said, where it may be about a record that is yet to come.
    """

    reason: str
    identity: Identity | None = None
    evidence: Evidence | None = None


@frozen
class Unread:
    """The application could not read it; the provider should send it again."""

    error: BaseException


def summary(evidence: Evidence) -> dict[str, object]:
    """What evidence says, for people: no result, which may hold anything."""
    match evidence:
        case Happened(_, provider_id):
            said: dict[str, object] = {"says": "happened"}
            return said if provider_id is None else {**said, "provider_id": provider_id[:LONGEST]}
        case Absent(final):
            return {"says": "absent", "final": final}
        case CannotTell(reason):
            return {"says": "cannot tell", "reason": reason[:LONGEST]}


@frozen
class Taken:
    """It is evidence, and this came of it."""

    case: Case
    evidence: Evidence
    settlement: Settlement


Reception: TypeAlias = AlreadyTaken | Ignored | Unread | Taken


def take_in(
    notice: Notice,
    read: Callable[[], Any],
    render_of: Callable[[Case], Render | None],
    application: str,
    fence: Fence,
) -> Flow[Reception]:
    """Take in an event. ``read`` says what it is about, and what it proves; or None.

    Only records of ``application`` are settled by what it was told.
    """
    if (yield from ask(NoteEvent(notice.source, notice.event, None))).before:
        return AlreadyTaken()
    did = yield from ask(Do(read, ()))
    if not isinstance(did, Did):
        return Unread(did.error)
    if did.value is None:
        return (yield from _ignore(notice, "it says nothing of a record"))
    try:
        identity, evidence, name = witnessed(did.value)
    except (TypeError, ValueError) as error:
        return Unread(error)
    found = yield from ask(Recall(identity))
    # Of an atomic run under way nobody sees the record: whoever holds its lock is waited for.
    # Where that takes too long it is an error, and the provider sends the event again.
    if isinstance(found, NoRecord) and isinstance((yield from ask(Ascertain(identity))), Found):
        found = yield from ask(Recall(identity))
    if isinstance(found, NoRecord):
        reason = "there is no such record"
        return (yield from _ignore(notice, reason, identity, evidence))
    case = found.case
    if case.terms is not None and case.terms.application != application:
        return (yield from _ignore(notice, "it is about a record of another application"))
    witness = Witness("webhook", f"{notice.source} {notice.event}")
    came: Settlement | None = _beside_the_point(case, name)
    if came is None:
        came = yield from settle_unknown(case, found.now, evidence, fence, witness, render_of(case))
    if not isinstance(came, Running | Unusable):
        yield from ask(NoteEvent(notice.source, notice.event, notice.keep))
    return Taken(case, evidence, came)


def _beside_the_point(case: Case, name: str | None) -> Undecided | Unusable | None:
    """An operation makes several calls: evidence about one must not settle another."""
    if case.record.state is not State.UNKNOWN or case.record.on_lapse is not OnLapse.RESUME:
        return None
    points = journal.decode(case.journal)
    if name is None and points.acted:
        return Unusable("it has made several calls: the reader must say which one the event proves")
    if name is not None and (points.intent is None or points.intent.name != name):
        return Undecided(f"the event is about {name!r}, which is not in doubt")
    return None


def witnessed(said: Any) -> tuple[Identity, Evidence, str | None]:
    """What a reader returned: the record's identity, as bytes or in hexadecimal, evidence, and,
    where it has more than one, the name of the operation's call."""
    try:
        given, evidence, name = said if len(said) == 3 else (*said, None)
    except (TypeError, ValueError):
        raise TypeError("a reader returns (identity, evidence[, call]), or None") from None
    identity: Any = bytes.fromhex(given) if isinstance(given, str) else given
    if not isinstance(identity, bytes) or len(identity) != 32:
        raise ValueError("an identity has 32 bytes, or 64 hexadecimal digits")
    if not isinstance(evidence, Happened | Absent | CannotTell):
        raise TypeError("evidence is Happened, Absent or CannotTell")
    if name is not None and not isinstance(name, str):
        raise TypeError("a call is named by text, as in op.call")
    return Identity(identity), evidence, name


def _ignore(
    notice: Notice,
    reason: str,
    identity: Identity | None = None,
    evidence: Evidence | None = None,
) -> Flow[Ignored]:
    yield from ask(NoteEvent(notice.source, notice.event, notice.keep))
    return Ignored(reason, identity, evidence)
