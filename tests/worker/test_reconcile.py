"""The reconciler: probes are asked in time, by one, and never believed more than they say."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

import semel
from semel.core.flow import run
from semel.core.frozen import replace
from semel.core.operations.handler import Ask
from semel.core.operations.requests import Advance, Inquire, Lost, Suspend
from semel.core.policy import ietf
from semel.core.records import Identity, Response, State
from semel.core.unknown.evidence import Absent, CannotTell, Happened, Inquiry
from semel.core.unknown.probe import (
    LONGEST_PAUSE,
    Doubt,
    GivenUp,
    hopeless,
    pause,
    reconcile,
)
from semel.core.unknown.settle_unknown import Passed, Settled, Undecided
from semel.testing.contract.terms import terms
from semel.worker.reconciler import Reconciler
from tests.ears import listen
from tests.scene import DAY, HOUR, MINUTE, SECOND, Scene, fresh_fence, scene_on
from tests.waiting import PATIENCE, Ahead, auntil

ANSWER = Response(201, (), b"paid")


class Provider:
    """A probe that says what it is told to, and remembers what it was asked."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.asked: list[Inquiry] = []

    def __call__(self, inquiry: Inquiry) -> Any:
        self.asked.append(inquiry)
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, BaseException):
            raise said
        return said


def doubt(scene: Scene, identity: Identity, probe: Any, **options: Any) -> Doubt:
    found = scene.recalled(identity)
    terms = ietf(**options).terms("", "*", probe=probe is not None)
    return Doubt(replace(found.case, terms=terms), found.now, terms, None, probe)


def perform(scene: Scene) -> Any:
    def performing(op: Any) -> Any:
        return op.probe(op.inquiry) if isinstance(op, Ask) else scene.harness.perform(op)

    return performing


def inspect(scene: Scene, given: Doubt, jitter: float = 1.0, **how: Any) -> Any:
    return run(reconcile(given, fresh_fence(), jitter, **how), perform(scene))


def serve(scene: Scene, policy: semel.Policy) -> Starlette:
    async def endpoint(request: Any) -> None:
        raise AssertionError("nobody calls it")

    tagged = scene.guard.route(policy)(endpoint)
    return Starlette(routes=[Route("/payments/{id}", tagged, methods=["POST"])])


ENDPOINT = "POST /payments/{id}"


# ── one question ──────────────────────────────────────────────────────────────────────────────────


class TestOneQuestion:
    def test_the_answer_settles_it(self, scene: Scene) -> None:
        identity = scene.unknown()
        provider = Provider(Happened(ANSWER, "ch_7"))
        assert isinstance(inspect(scene, doubt(scene, identity, provider)), Settled)
        assert scene.state(identity) is State.COMPLETED
        record = scene.case(identity).record
        assert record.reason == "probe POST /payments: happened (ch_7)"
        (asked,) = provider.asked
        assert (asked.identity, asked.tenant, asked.path) == (identity, "tern", "/payments")
        assert asked.tries == 0

    def test_the_next_time_is_on_record_before_the_question_is_put(self, scene: Scene) -> None:
        identity = scene.unknown()
        seen: list[Any] = []

        def probe(_: Inquiry) -> CannotTell:
            seen.append(scene.recalled(identity))
            return CannotTell()

        inspect(scene, doubt(scene, identity, probe, reconcile_after=timedelta(minutes=1)))
        (during,) = seen
        assert during.case.tries == 1
        assert during.case.due_at == pytest.approx(during.now + MINUTE, abs=10 * SECOND)

    def test_of_two_who_saw_the_same_one_asks(self, scene: Scene) -> None:
        identity = scene.unknown()
        provider = Provider(CannotTell())
        both = [doubt(scene, identity, provider) for _ in range(2)]
        came = [inspect(scene, each) for each in both]
        assert [type(each) for each in came] == [Undecided, Passed]
        assert len(provider.asked) == 1

    def test_without_the_number_of_tries_both_would_ask(self, scene: Scene) -> None:
        """The control for the test above: the second, told the new number, asks too."""
        identity = scene.unknown()
        provider = Provider(CannotTell())
        inspect(scene, doubt(scene, identity, provider))
        inspect(scene, doubt(scene, identity, provider))
        assert [each.tries for each in provider.asked] == [0, 1]

    @pytest.mark.parametrize("said", [ValueError("down"), TimeoutError(), None, "paid", True, 42])
    def test_a_probe_that_fails_or_talks_nonsense_cannot_tell(
        self, quick: Scene, said: Any
    ) -> None:
        identity = quick.unknown()
        came = inspect(quick, doubt(quick, identity, Provider(said)))
        assert isinstance(came, Undecided)
        assert came.error is not None
        assert quick.state(identity) is State.UNKNOWN
        assert quick.case(identity).tries == 1

    def test_absent_now_is_asked_again(self, scene: Scene) -> None:
        identity = scene.unknown()
        assert isinstance(inspect(scene, doubt(scene, identity, Provider(Absent()))), Undecided)
        assert scene.state(identity) is State.UNKNOWN
        assert scene.case(identity).due_at is not None

    def test_with_nobody_to_ask_it_is_a_dead_letter_at_once(self, scene: Scene) -> None:
        identity = scene.unknown()
        assert isinstance(inspect(scene, doubt(scene, identity, None)), GivenUp)
        assert scene.case(identity).due_at is None
        assert scene.state(identity) is State.UNKNOWN

    def test_a_record_settled_meanwhile_is_left_alone(self, scene: Scene) -> None:
        identity = scene.unknown()
        slow = doubt(scene, identity, Provider(Absent(final=True)))
        inspect(scene, doubt(scene, identity, Provider(Happened(ANSWER))))
        assert isinstance(inspect(scene, slow), Passed)
        assert scene.state(identity) is State.COMPLETED

    def test_a_record_settled_while_the_probe_was_asked_is_left_alone(self, scene: Scene) -> None:
        identity = scene.unknown()

        def probe(_: Inquiry) -> Absent:
            inspect(scene, doubt(scene, identity, Provider(Happened(ANSWER))))
            return Absent(final=True)

        assert isinstance(inspect(scene, doubt(scene, identity, probe)), Passed)
        assert scene.state(identity) is State.COMPLETED


class TestPauses:
    def test_they_double_up_to_an_hour(self) -> None:
        given = terms(reconcile_after=MINUTE)
        assert [pause(given, n) // MINUTE for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
        assert pause(given, 10_000) == LONGEST_PAUSE

    @pytest.mark.parametrize("jitter", [0.5, 0.75, 1.0])
    def test_they_are_jittered(self, quick: Scene, jitter: float) -> None:
        identity = quick.unknown()
        inspect(quick, doubt(quick, identity, Provider(CannotTell())), jitter)
        found = quick.recalled(identity)
        assert found.case.due_at == found.now + int(MINUTE * jitter)

    @pytest.mark.parametrize("jitter", [0.5, 1.0])
    def test_it_is_given_up_after_so_long_and_not_before(self, quick: Scene, jitter: float) -> None:
        identity = quick.unknown()
        provider = Provider(CannotTell())
        while True:
            given = doubt(quick, identity, provider, give_up_after=timedelta(days=3))
            came = inspect(quick, given, jitter)
            if isinstance(came, GivenUp):
                break
            found = quick.recalled(identity)
            assert found.case.due_at is not None
            quick.travel(found.case.due_at - found.now)
        age = quick.recalled(identity).now - quick.case(identity).record.created_at
        assert 3 * DAY <= age <= 3 * DAY + HOUR
        assert quick.case(identity).due_at is None
        assert len(provider.asked) > 70

    def test_old_alone_is_not_given_up(self, scene: Scene) -> None:
        """Were no worker there for a month, all would be given up unasked."""
        identity = scene.unknown()
        scene.travel(30 * DAY)
        provider = Provider(Happened(ANSWER))
        assert isinstance(inspect(scene, doubt(scene, identity, provider)), Settled)

    def test_somebody_who_insists_is_served_and_a_dead_letter_stays_one(self, scene: Scene) -> None:
        identity = scene.unknown(probe_after=None)
        assert scene.case(identity).due_at is None
        provider = Provider(CannotTell())
        assert isinstance(
            inspect(scene, doubt(scene, identity, provider), asker="operator ann"), Undecided
        )
        assert scene.case(identity).due_at is None
        assert len(provider.asked) == 1

    def test_hopeless_needs_both_age_and_questions(self, quick: Scene) -> None:
        identity = quick.unknown()
        given = doubt(quick, identity, Provider(CannotTell()))
        assert hopeless(given) is None
        assert hopeless(doubt(quick, identity, None)) == "nobody can be asked"

    def test_a_worker_that_lacks_the_probe_of_a_route_gives_nothing_up(self, quick: Scene) -> None:
        """It was made where there was one: another version has it, or had it lately."""
        identity = quick.unknown()
        given = replace(doubt(quick, identity, Provider(CannotTell())), probe=None)
        assert isinstance(inspect(quick, given), Undecided)
        assert quick.case(identity).due_at is not None


# ── the loop ──────────────────────────────────────────────────────────────────────────────────────


class TestTheLoop:
    async def test_everything_due_is_asked_about(self, quick: Scene) -> None:
        provider = Provider(Happened(ANSWER))
        quick.guard.routes = (semel.Route("POST", "/payments", ietf(probe=provider)),)
        records = [quick.unknown(route="POST /payments") for _ in range(5)]
        later = quick.unknown(route="POST /payments", probe_after=HOUR)
        ear = listen(quick.guard)
        reconciler = Reconciler(quick.guard)
        came = await reconciler.run_once()
        assert (came.done, came.note) == (5, "settled 5")
        assert {quick.state(each) for each in records} == {State.COMPLETED}
        assert quick.state(later) is State.UNKNOWN
        came = await reconciler.run_once()
        assert came.done == 0
        assert came.next_due_in == pytest.approx(3600, abs=60)
        assert ear.tally("reconcile", "came") == {"settled": 5}

    @pytest.mark.parametrize("store", ["sqlite-async", "postgresql-async"])
    async def test_on_a_real_store(
        self, store: str, request: pytest.FixtureRequest, tmp_path: Any
    ) -> None:
        provider = Provider(Happened(ANSWER))
        with scene_on(store, tmp_path, request, ietf(probe=provider)) as scene:
            identity, call = scene.unknown(), scene.unknown("made", intent="charged")
            scene.guard.probe("charged")(Provider(Happened({"id": 1})))
            came = await Reconciler(scene.guard).run_once()
            await scene.guard.backend.aclose()
            assert came.done == 2
            assert scene.state(identity) is State.COMPLETED
            assert scene.state(call) is State.IN_PROGRESS

    async def test_a_batch_is_bounded_and_the_rest_follows_at_once(self, quick: Scene) -> None:
        quick.guard.policy = ietf(probe=Provider(Happened(ANSWER)))
        for _ in range(5):
            quick.unknown()
        reconciler = Reconciler(quick.guard, batch=2)
        rounds = [await reconciler.run_once() for _ in range(4)]
        assert [each.done for each in rounds] == [2, 2, 1, 0]
        assert [each.next_due_in for each in rounds[:3]] == [0.0, 0.0, 0.0]

    async def test_no_more_probes_run_side_by_side_than_allowed(self, quick: Scene) -> None:
        at_once, most = 0, 0

        async def probe(_: Inquiry) -> CannotTell:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            return CannotTell()

        quick.guard.policy = ietf(probe=probe)
        for _ in range(10):
            quick.unknown()
        await Reconciler(quick.guard, at_once=3).run_once()
        assert most == 3

    async def test_a_plain_probe_runs_in_a_thread_of_its_own(self, quick: Scene) -> None:
        threads: list[threading.Thread] = []

        def probe(_: Inquiry) -> Happened:
            threads.append(threading.current_thread())
            return Happened(ANSWER)

        quick.guard.policy = ietf(probe=probe)
        quick.unknown()
        await Reconciler(quick.guard).run_once()
        (thread,) = threads
        assert thread is not threading.current_thread()
        assert thread.daemon

    async def test_a_probe_that_hangs_holds_up_nobody(
        self, quick: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        release, ended = threading.Event(), asyncio.Event()

        def hanging(_: Inquiry) -> Happened:
            assert release.wait(PATIENCE)
            return Happened(ANSWER)

        async def deaf(_: Inquiry) -> Happened:
            while not release.is_set():
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    continue
            ended.set()
            return Happened(ANSWER)

        quick.guard.probe("hanging")(hanging)
        quick.guard.probe("deaf")(deaf)
        quick.guard.probe("fine")(Provider(Happened({"id": 1})))
        records = [quick.unknown(intent=name) for name in ("hanging", "deaf", "fine")]
        clock, patience = Ahead(), timedelta(hours=1)
        round_ = asyncio.create_task(Reconciler(quick.guard, patience=patience).run_once())
        try:
            await auntil(lambda: quick.state(records[2]) is State.IN_PROGRESS)
            while not round_.done():  # their time, and what the deaf one has to end
                await clock.forward(patience.total_seconds())
        finally:
            release.set()
        came = await round_
        assert came.done == 3
        states = [quick.state(each) for each in records]
        assert states == [State.UNKNOWN, State.UNKNOWN, State.IN_PROGRESS]
        assert caplog.text.count("TimeoutError") >= 2
        await auntil(ended.is_set)

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("secret"),
            StopIteration(),  # as next() raises where a provider's list is empty
            SystemExit(1),
            KeyboardInterrupt(),
            asyncio.CancelledError(),
        ],
    )
    @pytest.mark.parametrize("colour", ["plain", "async"])
    async def test_what_a_probe_raises_ends_nothing(
        self, quick: Scene, error: BaseException, colour: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def asynchronous(_: Inquiry) -> Happened:
            raise error

        quick.guard.probe("bad")(asynchronous if colour == "async" else Provider(error))
        quick.guard.probe("fine")(Provider(Happened({"id": 1})))
        bad, fine = quick.unknown(intent="bad"), quick.unknown(intent="fine")
        came = await Reconciler(quick.guard).run_once()
        assert came.done == 2
        assert (quick.state(bad), quick.state(fine)) == (State.UNKNOWN, State.IN_PROGRESS)
        assert any(each.levelno == logging.ERROR for each in caplog.records)

    async def test_a_damaged_journal_becomes_a_dead_letter_and_harms_no_other(
        self, quick: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        quick.guard.policy = ietf(probe=Provider(Happened(ANSWER)))
        damaged, fine = quick.held("made"), quick.unknown()
        quick.harness.perform(Advance(damaged, quick.fences[damaged], b"rubbish"))
        quick.harness.perform(Suspend(damaged, quick.fences[damaged], "x", 0))
        await Reconciler(quick.guard).run_once()
        assert quick.state(fine) is State.COMPLETED
        assert (quick.state(damaged), quick.case(damaged).due_at) == (State.UNKNOWN, None)
        assert "cannot be asked about" in caplog.text

    async def test_dead_letters_are_logged_as_errors_and_never_with_their_key(
        self, quick: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        quick.unknown()
        came = await Reconciler(quick.guard, app=object()).run_once()
        assert came.note == "given_up 1"
        (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "dead letter" in line.getMessage()
        assert "an-opaque" not in caplog.text


# ── whom to ask ───────────────────────────────────────────────────────────────────────────────────


class TestWhomToAsk:
    async def test_the_probe_of_the_call_in_doubt(self, quick: Scene) -> None:
        provider = Provider(Happened({"id": "ch_7"}))
        quick.guard.probe("charged")(provider)
        identity = quick.unknown("made", intent="charged")
        await Reconciler(quick.guard).run_once()
        (asked,) = provider.asked
        assert asked.name == "charged"
        assert asked.downstream_key() == quick.key_of(identity, "charged")
        assert quick.state(identity) is State.IN_PROGRESS

    async def test_the_probe_of_what_is_done_once(self, quick: Scene) -> None:
        provider = Provider(Happened({"sent": True}))
        quick.guard.probe("send-invoice")(provider)
        key = "invoice-2024-0001"

        def fails() -> dict[str, bool]:
            raise semel.OutcomeUnknown("timed out")

        with pytest.raises(semel.OutcomeUnknown):
            quick.guard.once(key, fails, name="send-invoice")
        quick.travel(2 * MINUTE)
        await Reconciler(quick.guard).run_once()
        assert len(provider.asked) == 1
        again = quick.guard.once(key, fails, name="send-invoice")
        assert (again.value, again.replayed) == ({"sent": True}, True)

    async def test_the_probe_of_a_listed_route(self, quick: Scene) -> None:
        listed, default = Provider(CannotTell()), Provider(CannotTell())
        quick.guard.routes = (semel.Route("POST", "/payments/{id}", ietf(probe=listed)),)
        quick.guard.policy = ietf(probe=default)
        quick.unknown(path="/payments/7", route="POST /payments/{id}")
        quick.unknown(path="/refunds/7")
        await Reconciler(quick.guard).run_once()
        assert [each.path for each in listed.asked] == ["/payments/7"]
        assert [each.path for each in default.asked] == ["/refunds/7"]

    async def test_the_probe_on_an_endpoint(self, quick: Scene) -> None:
        provider = Provider(Happened(ANSWER))
        app = serve(quick, ietf(probe=provider))
        identity = quick.unknown(path="/payments/a%20b", route=ENDPOINT)
        await Reconciler(quick.guard, quick.guard.asgi(app)).run_once()
        assert quick.state(identity) is State.COMPLETED

    async def test_the_probe_on_an_endpoint_of_a_mounted_application(self, quick: Scene) -> None:
        provider = Provider(Happened(ANSWER))
        inner = serve(quick, ietf(probe=provider))
        outer = Starlette(routes=[Mount("/shop", quick.guard.asgi(inner))])
        identity = quick.unknown(path="/shop/payments/7", route=ENDPOINT)
        await Reconciler(quick.guard, outer).run_once()
        assert quick.state(identity) is State.COMPLETED

    async def test_the_probe_on_an_endpoint_behind_a_prefix(self, quick: Scene) -> None:
        provider = Provider(Happened(ANSWER))
        app = serve(quick, ietf(probe=provider))
        identity = quick.unknown(path="/api/payments/7", route=ENDPOINT)
        await Reconciler(quick.guard, app).run_once()
        assert quick.state(identity) is State.COMPLETED

    async def test_the_probe_on_a_flask_view(self, quick: Scene) -> None:
        provider = Provider(Happened(ANSWER))
        app = flask.Flask("shop")
        view = quick.guard.route(ietf(probe=provider))(lambda payment: "")
        app.add_url_rule("/payments/<payment>", "pay", view, methods=["POST"])
        identity = quick.unknown(path="/payments/7", route="POST /payments/<payment>")
        await Reconciler(quick.guard, quick.guard.wsgi(app)).run_once()
        assert quick.state(identity) is State.COMPLETED

    async def test_an_application_that_nobody_showed_does_not_make_dead_letters(
        self, quick: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A worker started without --app would otherwise give everything up at once."""
        serve(quick, ietf(probe=Provider(Happened(ANSWER))))
        identity = quick.unknown(path="/payments/7", route=ENDPOINT)
        await Reconciler(quick.guard).run_once()
        assert quick.case(identity).due_at is not None
        assert f"left alone: {ENDPOINT}" in caplog.text

    def test_a_router_that_fails_is_no_reason_to_give_up(self, quick: Scene) -> None:
        class Broken:
            @property
            def routes(self) -> Any:
                raise RuntimeError("broken")

        serve(quick, ietf())
        with pytest.raises(RuntimeError):
            Reconciler(quick.guard, Broken())


def test_inquire_is_lost_on_what_is_settled(scene: Scene) -> None:
    identity = scene.completed()
    fence = scene.case(identity).record.fence
    assert isinstance(scene.harness.perform(Inquire(identity, fence, 0, None)), Lost)
