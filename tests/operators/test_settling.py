"""Settling: what evidence makes of an unknown record, and that nothing else moves it."""

from __future__ import annotations

import sys
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.flow import run
from semel.core.frozen import replace
from semel.core.policy import Policy, ietf
from semel.core.records import Fence, Identity, OnLapse, Response, State
from semel.core.recovery import journal
from semel.core.stored import snapshot
from semel.core.unknown.evidence import Absent, CannotTell, Evidence, Happened
from semel.core.unknown.settle_unknown import (
    PROVIDER_ID,
    Passed,
    Running,
    Settled,
    Settlement,
    Undecided,
    Unusable,
    Witness,
    call_in_doubt,
    contradicts,
    in_doubt,
    settle_anew,
    settle_unknown,
)
from semel.errors import StoreCorrupt, StoreUnavailable
from semel.operators.operator import Operator
from tests.scene import DAY, HOUR, MINUTE, Scene, fresh_fence

ANN = Witness("operator", "ann", "seen in the dashboard")
ANSWER = Response(201, ((b"content-type", b"text/plain"), (b"set-cookie", b"a=1")), b"paid")


def settling(
    scene: Scene, identity: Identity, evidence: Evidence, policy: Policy | None = None
) -> Settlement:
    found = scene.recalled(identity)
    policy = policy or ietf()
    flow = settle_unknown(found.case, found.now, evidence, fresh_fence(), ANN, policy.render)
    came: Settlement = scene.run(flow)
    return came


def kept(scene: Scene, identity: Identity) -> snapshot.Snapshot:
    return snapshot.decode(scene.case(identity).record.snapshot or b"")


class TestAPlainHandler:
    def test_what_happened_is_completed_with_the_answer_its_client_should_have_got(
        self, scene: Scene
    ) -> None:
        identity = scene.unknown()
        came = settling(scene, identity, Happened(ANSWER, "ch_7"))
        assert isinstance(came, Settled)
        assert came.state is State.COMPLETED
        answer = kept(scene, identity)
        assert (answer.status, answer.body) == (201, b"paid")
        assert answer.headers == ((b"content-type", b"text/plain"),)  # cookies are not kept
        assert scene.case(identity).record.reason == (
            "operator ann: happened (ch_7): seen in the dashboard"
        )

    def test_times_are_those_it_was_promised(self, scene: Scene) -> None:
        """Whatever the settings of whoever settles it."""
        policy = ietf(retention=timedelta(days=7), tombstone=timedelta(days=1))
        identity = scene.unknown(route="POST /payments", policy=policy)
        now = scene.recalled(identity).now
        settling(scene, identity, Happened(ANSWER), ietf())
        record = scene.case(identity).record
        assert record.expires_at == pytest.approx(now + 7 * DAY, abs=MINUTE)
        assert record.forget_at == pytest.approx(now + 8 * DAY, abs=MINUTE)

    def test_created_then_declined_is_completed_with_the_failure(self, scene: Scene) -> None:
        identity = scene.unknown()
        declined = Response(402, (), b"card declined")
        assert isinstance(settling(scene, identity, Happened(declined)), Settled)
        assert scene.state(identity) is State.COMPLETED
        assert kept(scene, identity).status == 402

    def test_render_makes_the_answer(self, quick: Scene) -> None:
        policy = ietf(render=lambda said: Response(200, (), said.result["id"].encode()))
        identity = quick.unknown()
        settling(quick, identity, Happened({"id": "ch_7"}), policy)
        assert kept(quick, identity).body == b"ch_7"

    def test_without_an_answer_a_receipt_names_what_the_provider_made(self, scene: Scene) -> None:
        identity = scene.unknown()
        settling(scene, identity, Happened(None, "ch_7"))
        receipt = kept(scene, identity)
        assert (receipt.status, receipt.body) == (200, None)
        assert receipt.headers == ((PROVIDER_ID, b"ch_7"),)

    def test_an_answer_larger_than_the_policy_keeps_is_a_receipt(self, quick: Scene) -> None:
        identity = quick.unknown(policy=ietf(max_response_body=3))
        settling(quick, identity, Happened(ANSWER))
        assert (kept(quick, identity).body, kept(quick, identity).size) == (None, 4)

    def test_what_is_finally_absent_may_run_again(self, scene: Scene) -> None:
        identity = scene.unknown()
        came = settling(scene, identity, Absent(final=True))
        assert isinstance(came, Settled)
        assert came.state is State.FAILED_RETRYABLE
        retake = ops.Retake(identity, scene.case(identity).record.fence, fresh_fence(), MINUTE)
        assert not isinstance(scene.harness.perform(retake), ops.Lost)

    @pytest.mark.parametrize("evidence", [Absent(), Absent(final=False), CannotTell("down")])
    def test_evidence_that_decides_nothing_changes_nothing(
        self, scene: Scene, evidence: Evidence
    ) -> None:
        identity = scene.unknown()
        scene.travel(400 * DAY)  # age alone never settles
        before = scene.case(identity)
        assert isinstance(settling(scene, identity, evidence), Undecided)
        assert scene.case(identity) == before

    def test_a_function_done_once_keeps_its_result(self, quick: Scene) -> None:
        identity = quick.unknown(method="ONCE", path="/send-invoice")
        settling(quick, identity, Happened({"id": 7}))
        assert (kept(quick, identity).status, kept(quick, identity).body) == (200, b'{"id": 7}')

    @pytest.mark.parametrize(
        "result",
        [
            Response(99, (), b""),
            Response(700, (), b""),
            Response(200, (("content-type", "text/plain"),), b""),  # type: ignore[arg-type]
            Response(200, ((b"x", b"a\r\nset-cookie: b"),), b""),
            Response(200, (), "text"),  # type: ignore[arg-type]
            Response(204, (), b"HTTP/1.1 200 OK"),
            Response(304, (), b"x"),
        ],
    )
    def test_an_answer_that_nobody_could_send_is_not_kept(
        self, quick: Scene, result: Response
    ) -> None:
        identity = quick.unknown()
        assert isinstance(settling(quick, identity, Happened(result)), Unusable)
        assert quick.state(identity) is State.UNKNOWN

    @pytest.mark.parametrize(
        "render", [lambda said: None, lambda said: said.nothing, lambda said: sys.exit(1)]
    )
    def test_a_render_that_fails_leaves_it_unknown(self, quick: Scene, render: Any) -> None:
        identity = quick.unknown()
        came = settling(quick, identity, Happened(), ietf(render=render))
        assert isinstance(came, Unusable)
        assert came.error is not None
        assert quick.state(identity) is State.UNKNOWN


class TestAnOperationWithPoints:
    def test_its_call_gets_its_result_and_it_goes_on(self, scene: Scene) -> None:
        identity = scene.unknown("ride_created", intent="charged")
        came = settling(scene, identity, Happened({"id": "ch_7"}, "ch_7"))
        assert isinstance(came, Settled)
        assert came.state is State.IN_PROGRESS
        found = scene.recalled(identity)
        points = journal.decode(found.case.journal)
        assert points.intent is None
        assert [(p.name, p.result) for p in points.points] == [
            ("ride_created", {"of": "ride_created"}),
            ("charged", {"id": "ch_7"}),
        ]
        assert found.case.record.lapsed(found.now)  # whoever comes next resumes it at once

    def test_a_call_that_is_finally_absent_is_withdrawn(self, scene: Scene) -> None:
        identity = scene.unknown("ride_created", intent="charged")
        settling(scene, identity, Absent(final=True))
        assert scene.state(identity) is State.FAILED_RETRYABLE
        points = journal.decode(scene.case(identity).journal)
        assert [p.name for p in points.points] == ["ride_created"]

    def test_a_result_that_is_not_json_leaves_it_unknown(self, quick: Scene) -> None:
        identity = quick.unknown(intent="charged")
        assert isinstance(settling(quick, identity, Happened(ANSWER)), Unusable)
        assert quick.state(identity) is State.UNKNOWN

    def test_a_handler_that_cannot_be_resumed_is_plain_whatever_its_journal_says(
        self, scene: Scene
    ) -> None:
        identity = scene.held()
        written = journal.encode(journal.Journal().intending("charged"))
        scene.harness.perform(ops.Advance(identity, scene.fences[identity], written))
        scene.harness.perform(ops.Suspend(identity, scene.fences[identity], "x", 0))
        assert isinstance(settling(scene, identity, Happened(ANSWER)), Settled)
        assert scene.state(identity) is State.COMPLETED

    def test_without_a_call_in_doubt_it_is_settled_as_a_plain_handler(self, scene: Scene) -> None:
        identity = scene.unknown("ride_created")
        settling(scene, identity, Happened(ANSWER))
        assert scene.state(identity) is State.COMPLETED

    def test_a_damaged_journal_is_refused(self, quick: Scene) -> None:
        identity = quick.held(on_lapse=OnLapse.RESUME)
        quick.harness.perform(ops.Advance(identity, quick.fences[identity], b"rubbish"))
        quick.harness.perform(ops.Suspend(identity, quick.fences[identity], "x", 0))
        with pytest.raises(StoreCorrupt):
            settling(quick, identity, Happened({"id": 1}))
        assert quick.state(identity) is State.UNKNOWN


class TestWhatIsNotUnknown:
    def test_a_lease_that_is_past_lapses_first(self, scene: Scene) -> None:
        identity = scene.held()
        scene.travel(2 * MINUTE)
        assert isinstance(settling(scene, identity, Happened(ANSWER)), Settled)
        assert scene.state(identity) is State.COMPLETED

    def test_a_live_lease_is_not_touched(self, scene: Scene) -> None:
        identity = scene.held()
        came = settling(scene, identity, Happened(ANSWER))
        assert isinstance(came, Running)
        assert came.until > came.now
        assert scene.state(identity) is State.IN_PROGRESS

    def test_a_lapsed_operation_is_left_to_be_resumed(self, scene: Scene) -> None:
        identity = scene.held("ride_created", intent="charged")
        scene.travel(2 * MINUTE)
        assert isinstance(settling(scene, identity, Happened({})), Running)
        assert scene.state(identity) is State.IN_PROGRESS

    def test_a_lapsed_one_that_may_be_released_is_released(self, scene: Scene) -> None:
        identity = scene.held(on_lapse=OnLapse.RELEASE)
        scene.travel(2 * MINUTE)
        assert isinstance(settling(scene, identity, Happened(ANSWER)), Passed)
        assert scene.state(identity) is State.FAILED_RETRYABLE

    @pytest.mark.parametrize("evidence", [Happened(ANSWER), Absent(final=True)])
    def test_what_is_settled_is_never_settled_again(self, scene: Scene, evidence: Evidence) -> None:
        for identity in (scene.completed(), scene.released()):
            before = scene.case(identity)
            came = settling(scene, identity, evidence)
            assert isinstance(came, Passed)
            assert came.state is before.record.state
            assert scene.case(identity) == before

    def test_of_all_orders_of_evidence_the_first_that_decides_wins(self, quick: Scene) -> None:
        said: list[Evidence] = [
            CannotTell(),
            Absent(),
            Happened(Response(201, (), b"one")),
            Happened(Response(201, (), b"two")),
            Absent(final=True),
        ]
        for order in permutations(said):
            identity = quick.unknown()
            seen = quick.recalled(identity)  # all of them saw it unknown
            came = [
                quick.run(settle_unknown(seen.case, seen.now, each, fresh_fence(), ANN))
                for each in order
            ]
            first = next(e for e in order if isinstance(e, Happened) or e == Absent(final=True))
            assert [type(c) for c in came].count(Settled) == 1
            assert isinstance(came[order.index(first)], Settled)
            completed = quick.state(identity) is State.COMPLETED
            assert completed == isinstance(first, Happened)


def test_settling_burns_the_fence_of_the_one_who_held_it(scene: Scene) -> None:
    identity = scene.unknown()
    old = scene.fences[identity]
    settling(scene, identity, Absent(final=True))
    late = ops.Complete(identity, old, snapshot.encode(snapshot.Snapshot(200, (), b"")), HOUR, HOUR)
    assert isinstance(scene.harness.perform(late), ops.Lost)


def test_an_answer_lost_on_the_wire_is_asked_for_again_and_is_still_ours(quick: Scene) -> None:
    identity = quick.unknown()
    found = quick.recalled(identity)
    asked: list[ops.StoreOperation[Any]] = []

    def perform(op: Any) -> Any:
        reply = quick.harness.perform(op)
        asked.append(op)
        if len(asked) == 1:
            raise StoreUnavailable("the answer was lost")
        return reply

    flow = settle_unknown(found.case, found.now, Happened(ANSWER), fresh_fence(), ANN)
    assert isinstance(run(flow, perform), Settled)
    assert asked[0] == asked[1]


# ── each guard taken out is noticed ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("evidence", [Happened(ANSWER), Absent(final=True), Happened({"id": 1})])
def test_without_the_fence_that_was_seen_nothing_is_settled(
    scene: Scene, evidence: Evidence
) -> None:
    """The control: the same operation, believing in another fence, is lost."""
    identity = (
        scene.unknown(intent="charged") if evidence == Happened({"id": 1}) else scene.unknown()
    )
    found = scene.recalled(identity)

    def tampering(op: Any) -> Any:
        if isinstance(op, ops.SettleHappened | ops.SettleAbsent | ops.SettleCall):
            op = replace(op, seen=fresh_fence())
        return scene.harness.perform(op)

    flow = settle_unknown(found.case, found.now, evidence, fresh_fence(), ANN)
    assert isinstance(run(flow, tampering), Passed)
    assert scene.state(identity) is State.UNKNOWN


def test_what_is_in_doubt_has_a_name(quick: Scene) -> None:
    assert in_doubt(quick.case(quick.unknown("made", intent="charged"))) == "charged"
    assert (
        in_doubt(quick.case(quick.unknown(method="ONCE", path="/send-invoice"))) == "send-invoice"
    )
    assert in_doubt(quick.case(quick.unknown())) is None
    assert call_in_doubt(quick.case(quick.unknown("made", intent="charged"))) == "charged"
    assert call_in_doubt(quick.case(quick.unknown("made"))) is None
    assert call_in_doubt(quick.case(quick.unknown(method="ONCE", path="/invoice"))) is None


def test_evidence_that_comes_too_late_and_says_otherwise_is_noticed() -> None:
    assert contradicts(Happened(), State.FAILED_RETRYABLE)
    assert contradicts(Absent(final=True), State.COMPLETED)
    assert not contradicts(Happened(), State.COMPLETED)
    assert not contradicts(Absent(), State.COMPLETED)
    assert not contradicts(CannotTell(), State.FAILED_RETRYABLE)
    assert not contradicts(Happened(), None)


def test_a_witness_says_one_printable_line_of_bounded_length() -> None:
    said = Witness("operator", "ann\n", "because\x00" + "x" * 1000).says("happened", "ch\r\n7")
    assert said.by.isprintable()
    assert said.reason.isprintable()
    assert len(said.reason) == 500


def putting_right(
    scene: Scene, identity: Identity, evidence: Evidence, call: str = "charged"
) -> Settlement:
    found = scene.recalled(identity)
    flow = settle_anew(found.case, found.now, call, evidence, fresh_fence(), ANN)
    came: Settlement = scene.run(flow)
    return came


def results(scene: Scene, identity: Identity) -> list[Any]:
    return [point.result for point in journal.decode(scene.case(identity).journal).points]


class TestACallThatWasSettledWrongly:
    def settled(self, scene: Scene) -> Identity:
        identity = scene.unknown("made", intent="charged")
        settling(scene, identity, Happened({"id": "wrong"}))
        return identity

    def resumed(self, scene: Scene, identity: Identity) -> Fence:
        fence, seen = fresh_fence(), scene.case(identity).record.fence
        assert isinstance(
            scene.harness.perform(ops.Resume(identity, seen, fence, MINUTE)), ops.Applied
        )
        return fence

    def test_is_settled_anew(self, scene: Scene) -> None:
        identity = self.settled(scene)
        came = putting_right(scene, identity, Happened({"id": "right"}, "ch_7"))
        assert isinstance(came, Settled)
        assert came.state is State.IN_PROGRESS
        assert results(scene, identity) == [{"of": "made"}, {"id": "right"}]
        said = "operator ann: happened (ch_7): seen in the dashboard"
        assert scene.case(identity).record.reason == said
        verbs = [entry.verb for entry in Operator(scene.guard).audit(identity=identity)]
        assert verbs == ["settle", "settle"]

    def test_also_as_absent_and_then_it_is_made(self, quick: Scene) -> None:
        identity = self.settled(quick)
        assert isinstance(putting_right(quick, identity, Absent(final=True)), Settled)
        assert results(quick, identity) == [{"of": "made"}]

    def test_also_while_somebody_holds_it_who_can_then_begin_nothing(self, scene: Scene) -> None:
        """As between two tries of a worker, whose pause is a lease."""
        identity = self.settled(scene)
        fence = self.resumed(scene, identity)
        assert isinstance(putting_right(scene, identity, Happened("right")), Settled)
        intended = journal.decode(scene.case(identity).journal).intending("refunded")
        op = ops.Advance(identity, fence, journal.encode(intended))
        assert isinstance(scene.harness.perform(op), ops.Lost)
        assert results(scene, identity) == [{"of": "made"}, "right"]

    def test_also_of_a_dead_letter(self, quick: Scene) -> None:
        identity = self.settled(quick)
        quick.harness.perform(ops.Suspend(identity, self.resumed(quick, identity), "given up"))
        came = putting_right(quick, identity, Happened("right"))
        assert isinstance(came, Settled)
        assert came.state is State.IN_PROGRESS

    def test_not_once_the_operation_has_gone_on(self, quick: Scene) -> None:
        identity = self.settled(quick)
        fence, points = self.resumed(quick, identity), journal.decode(quick.case(identity).journal)
        for name, kind in (("booked", journal.PointKind.PHASE), ("mailed", journal.PointKind.CALL)):
            points = points.reaching(name, kind, None)
            quick.harness.perform(ops.Advance(identity, fence, journal.encode(points)))
            before = quick.case(identity)
            came = putting_right(quick, identity, Happened("right"))
            assert isinstance(came, Undecided)
            assert name in came.reason
            assert quick.case(identity) == before

    @pytest.mark.parametrize("then", ["a phase", "a call"])
    def test_nor_if_it_goes_on_at_the_same_moment(self, scene: Scene, then: str) -> None:
        identity = self.settled(scene)
        fence, found = self.resumed(scene, identity), scene.recalled(identity)
        points = journal.decode(found.case.journal)
        phase = points.reaching("booked", journal.PointKind.PHASE, None)
        points = phase if then == "a phase" else points.intending("mailed")

        def just_before(op: Any) -> Any:
            if isinstance(op, ops.Suspend):
                scene.harness.perform(ops.Advance(identity, fence, journal.encode(points)))
            return scene.harness.perform(op)

        given = (found.case, found.now, "charged", Happened("right"), fresh_fence(), ANN)
        assert isinstance(run(settle_anew(*given), just_before), Undecided)
        assert journal.decode(scene.case(identity).journal) == points
        goes_on = State.IN_PROGRESS if then == "a phase" else State.UNKNOWN
        assert scene.state(identity) is goes_on

    def test_whoever_was_first_wins(self, quick: Scene) -> None:
        identity = self.settled(quick)
        found = quick.recalled(identity)
        self.resumed(quick, identity)
        given = (found.case, found.now, "charged", Happened("right"), fresh_fence(), ANN)
        assert isinstance(quick.run(settle_anew(*given)), Passed)
        assert results(quick, identity)[-1] == {"id": "wrong"}

    def test_not_what_is_in_doubt_ended_or_no_operation(self, quick: Scene) -> None:
        right = Happened("right")
        assert isinstance(putting_right(quick, quick.unknown(intent="charged"), right), Undecided)
        assert isinstance(putting_right(quick, quick.completed(), right), Passed)
        assert isinstance(putting_right(quick, quick.held(), right), Undecided)

    def test_evidence_that_cannot_be_kept_stops_nobody(self, quick: Scene) -> None:
        identity = self.settled(quick)
        before = quick.case(identity)
        for evidence in (Happened(object()), Absent(final=False), CannotTell()):
            putting_right(quick, identity, evidence)
        assert quick.case(identity) == before

    def test_whoever_is_cut_off_half_way_leaves_it_unknown(self, quick: Scene) -> None:
        identity = self.settled(quick)
        found = quick.recalled(identity)

        def cut_off(op: Any) -> Any:
            if isinstance(op, ops.Recall):
                raise StoreUnavailable("gone")
            return quick.harness.perform(op)

        given = (found.case, found.now, "charged", Happened("right"), fresh_fence(), ANN)
        with pytest.raises(StoreUnavailable):
            run(settle_anew(*given), cut_off)
        assert quick.state(identity) is State.UNKNOWN
        assert isinstance(putting_right(quick, identity, Happened("right")), Settled)
