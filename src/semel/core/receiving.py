"""Events of providers: each is read once, and what it says about a record settles it.

The record is settled first and the event noted after. Both may be repeated: between them a process
may die, and the provider, not having been thanked, sends the event again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from semel.core.contract import NoRecord, Recall
from semel.core.evidence import Absent, CannotTell, Evidence, Happened
from semel.core.flow import Flow, ask
from semel.core.frozen import frozen
from semel.core.model import Case, Fence, Identity, Micros
from semel.core.outbox import Note
from semel.core.policy import Policy
from semel.core.runner import Did, Do
from semel.core.settling import Running, Settlement, Unusable, Witness, settle


@frozen
class Notice:
    """An event whose sender is proved: ``event`` names it for good; it is remembered ``keep``."""

    source: str
    event: str
    keep: Micros


@frozen
class Known:
    """It was taken in before."""


@frozen
class Ignored:
    """It is about nothing of ours."""

    reason: str


@frozen
class Unread:
    """The application could not read it; the provider should send it again."""

    error: BaseException


@frozen
class Taken:
    """It is evidence, and this came of it."""

    case: Case
    evidence: Evidence
    settlement: Settlement


Reception: TypeAlias = Known | Ignored | Unread | Taken


def take_in(
    notice: Notice, read: Callable[[], Any], policy_of: Callable[[Case], Policy], fence: Fence
) -> Flow[Reception]:
    """Take in an event. ``read`` says which record it is about, and what it proves; or None."""
    if (yield from ask(Note(notice.source, notice.event, None))).before:
        return Known()
    did = yield from ask(Do(read, ()))
    if not isinstance(did, Did):
        return Unread(did.error)
    if did.value is None:
        return (yield from _ignore(notice, "it says nothing of a record"))
    try:
        identity, evidence = witnessed(did.value)
    except (TypeError, ValueError) as error:
        return Unread(error)
    found = yield from ask(Recall(identity))
    if isinstance(found, NoRecord):
        return (yield from _ignore(notice, "there is no such record"))
    case = found.case
    witness = Witness("webhook", f"{notice.source} {notice.event}")
    came = yield from settle(case, found.now, evidence, policy_of(case), fence, witness)
    if not isinstance(came, Running | Unusable):
        yield from ask(Note(notice.source, notice.event, notice.keep))
    return Taken(case, evidence, came)


def witnessed(said: Any) -> tuple[Identity, Evidence]:
    """What a reader returned: the record's identity, as bytes or in hexadecimal, and evidence."""
    try:
        given, evidence = said
    except (TypeError, ValueError):
        raise TypeError("a reader returns (identity, evidence), or None") from None
    identity: Any = bytes.fromhex(given) if isinstance(given, str) else given
    if not isinstance(identity, bytes) or len(identity) != 32:
        raise ValueError("an identity has 32 bytes, or 64 hexadecimal digits")
    if not isinstance(evidence, Happened | Absent | CannotTell):
        raise TypeError("evidence is Happened, Absent or CannotTell")
    return Identity(identity), evidence


def _ignore(notice: Notice, reason: str) -> Flow[Ignored]:
    yield from ask(Note(notice.source, notice.event, notice.keep))
    return Ignored(reason)
