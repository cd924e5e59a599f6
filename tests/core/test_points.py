"""Recovery points, without I/O: what is on record before and after each call and phase."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from semel.core.exchange.exchange import Progress
from semel.core.frozen import replace
from semel.core.operations.handler import Abandoned, Ask, Begun, Commit, Did, Do, Raised, RollBack
from semel.core.operations.requests import Advance, Applied, Lost, Recalled
from semel.core.records import Case, Fence, Identity, OnLapse, Origin, State
from semel.core.recovery import journal
from semel.core.recovery import points as steps
from semel.core.recovery.journal import Journal, PointKind
from semel.core.unknown.evidence import Absent, Evidence, Happened, inquiry
from semel.errors import LeaseLost, NotExecuted, OutcomeUnknown, StoreUnavailable
from tests.core.script import Script, a_record
from tests.servers.ports import bound_somewhere

IDENTITY, FENCE = Identity(b"i" * 32), Fence(b"f" * 16)
ORIGIN = Origin("", "POST", "/rides", "key")
APPLIED = Applied(State.IN_PROGRESS, 0, 1)
INTENT = Journal().intending("charge")
DEED = steps.PointCall("charge", lambda key: key, ())


def refused() -> Exception:
    """As a client raises it: only its trace proves that nothing was sent."""
    with bound_somewhere() as nobody, pytest.raises(ConnectionRefusedError) as raised:
        socket.create_connection(nobody.getsockname())
    return raised.value


NOT_SENT = refused()


def holder(points: Journal | None = None) -> steps.Holder:
    return steps.Holder(IDENTITY, FENCE, Progress(points), 0)


def script(**said: Any) -> Script:
    return Script(**{"Advance": APPLIED, "Held": True, "Begin": Begun(), **said})


def called(told: Script, who: steps.Holder, *, repeatable: bool = False, probe: Any = None) -> Any:
    question = inquiry(IDENTITY, ORIGIN, "charge", 0)
    return told.play(steps.call(who, DEED, repeatable, probe, question))


def written(told: Script) -> list[Journal]:
    return [journal.decode(op.journal) for op in told.all(Advance)]


def test_a_call_is_on_record_before_it_is_made_and_its_result_after() -> None:
    told = script(Do=Did({"id": 7}))
    assert called(told, holder()) == {"id": 7}
    assert told.kinds[0] is Advance
    assert written(told) == [INTENT, Journal().reaching("charge", PointKind.CALL, {"id": 7})]


def test_a_call_whose_intent_is_refused_is_not_made() -> None:
    told = script(Advance=Lost(None, 0))
    with pytest.raises(LeaseLost):
        called(told, holder())
    assert told.kinds == [Advance]


def test_a_call_whose_result_is_refused_has_lost_its_lease() -> None:
    told = script(Advance=[APPLIED, Lost(None, 0)], Do=Did(1))
    with pytest.raises(LeaseLost):
        called(told, holder())


def test_a_result_that_cannot_be_put_on_record_leaves_a_doubt() -> None:
    gone = StoreUnavailable("no")
    told = script(Advance=[APPLIED, gone], Do=Did(1), Pause=[True, False])
    who = holder()
    with pytest.raises(OutcomeUnknown, match="not on record"):
        called(told, who)
    assert who.progress.in_doubt


def test_a_call_that_was_not_sent_is_taken_off_the_record() -> None:
    told, who = script(Do=Raised(NOT_SENT)), holder()
    with pytest.raises(NotExecuted):
        called(told, who)
    assert written(told) == [INTENT, Journal()]
    assert not who.progress.in_doubt


def test_a_call_that_may_have_been_sent_stays_on_record() -> None:
    told, who = script(Do=Raised(TimeoutError("no answer"))), holder()
    with pytest.raises(OutcomeUnknown):
        called(told, who)
    assert written(told) == [INTENT]
    assert who.progress.in_doubt


def test_a_call_that_was_abandoned_stays_on_record_whatever_was_raised_in_it() -> None:
    """Stopped from outside: what it raised says nothing of what it had sent before."""
    told, who = script(Do=Abandoned(NOT_SENT)), holder()
    with pytest.raises(NotExecuted):
        called(told, who)
    assert written(told) == [INTENT]


def test_a_repeated_call_that_is_refused_says_nothing_of_the_first() -> None:
    told, who = script(Do=Raised(NOT_SENT)), holder(INTENT)
    with pytest.raises(NotExecuted):
        called(told, who, repeatable=True)
    assert written(told) == []
    assert who.progress.journal == INTENT


def test_what_a_probe_says_of_a_call_is_put_on_record() -> None:
    told, who = script(Ask=Happened({"id": 7})), holder(INTENT)
    assert called(told, who, probe=print) == {"id": 7}
    assert told.kinds == [Ask, Advance]
    assert written(told) == [Journal().reaching("charge", PointKind.CALL, {"id": 7})]


@pytest.mark.parametrize(("evidence", "made"), [(Absent(final=True), 1), (Absent(), 0)])
def test_only_what_is_absent_for_ever_is_made_again(evidence: Evidence, made: int) -> None:
    told = script(Ask=evidence, Do=Did(1))
    if made:
        called(told, holder(INTENT), probe=print)
    else:
        with pytest.raises(OutcomeUnknown):
            called(told, holder(INTENT), probe=print)
    assert len(told.all(Do)) == made


# ── phases ────────────────────────────────────────────────────────────────────────────────────────

REACHED = Journal().reaching("charge", PointKind.PHASE, 1)
GONE = StoreUnavailable("the line was cut")


def found(points: Journal, fence: Fence = FENCE) -> Recalled:
    record = a_record(
        State.IN_PROGRESS, fence, identity=IDENTITY, on_lapse=OnLapse.RESUME, leased_until=1
    )
    return Recalled(Case(record, ORIGIN, None, journal.encode(points), None, 0, 1), 0)


def test_a_phase_whose_commit_came_through_is_done() -> None:
    told = script(Do=Did(1), Commit=GONE, Recall=found(REACHED))
    assert told.play(steps.phase(holder(), DEED)) == 1


def test_a_phase_whose_commit_did_not_come_through_is_not_called_done() -> None:
    told, who = script(Do=Did(1), Commit=GONE, Recall=found(Journal())), holder()
    with pytest.raises(NotExecuted, match="not committed"):
        told.play(steps.phase(who, DEED))
    assert who.progress.journal == Journal()


def test_a_phase_that_another_holder_has_taken_over_is_lost() -> None:
    other = replace(found(Journal(), Fence(b"o" * 16)), now=1)
    told = script(Do=Did(1), Commit=GONE, Recall=other)
    with pytest.raises(LeaseLost):
        told.play(steps.phase(holder(), DEED))


def test_a_phase_that_is_refused_leaves_nothing() -> None:
    told = script(Do=Did(1), Advance=Lost(None, 0))
    with pytest.raises(LeaseLost):
        told.play(steps.phase(holder(), DEED))
    assert told.kinds[-1] is RollBack
    assert not told.all(Commit)
