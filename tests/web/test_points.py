"""Recovery points: what is on record is not done again, and what may have happened is not repeated.

On real databases, in both colours. Processes that are really killed are in the rides campaign.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.operations.requests import Applied, Inquire, Lost, Resume
from semel.core.records import Fence
from semel.core.unknown.evidence import Absent, CannotTell, Happened, Inquiry
from semel.operators.operator import Operator
from semel.worker.reconciler import Reconciler
from semel.worker.stored_runs import StoredRuns
from tests.databases import connect, executed
from tests.stores.harness import server_of
from tests.web.rides import LEASE, Rides, rides_on

MICROS = LEASE // timedelta(microseconds=1)


@pytest.fixture(
    params=["sqlite-asgi", "sqlite-wsgi", "postgresql-asgi", "mysql-asgi", "mysql-wsgi"]
)
def rides(
    request: pytest.FixtureRequest, tmp_path: Path, runner: asyncio.Runner
) -> Iterator[Rides]:
    store, colour = request.param.split("-")

    with rides_on(store, colour, tmp_path, runner, server_of(request, store)) as made:
        yield made


def refused(key: str, amount: int) -> Any:
    raise semel.NotExecuted("the provider is down")


def lost(key: str, amount: int) -> Any:
    raise ConnectionResetError("no answer came")


def test_an_operation_runs_its_points_once_and_is_replayed(rides: Rides) -> None:
    first, second = rides.send(), rides.send()
    assert (first.status, first.body) == (second.status, second.body)
    assert first.status == 201
    assert json.loads(first.body)[0] == {"phase": "made"}
    assert rides.rows() == ["made"]
    assert len(rides.script.charged) == 1
    assert rides.state == "completed"


def test_a_retry_goes_on_where_the_first_try_ended(rides: Rides) -> None:
    rides.script.charge = refused
    assert rides.send().status >= 500
    assert rides.state == "failed_retryable"
    assert rides.points() == [("made", True)]  # the intent was taken back: it was surely not sent
    rides.script.charge = lambda key, amount: "ok"
    assert rides.send().status == 201
    assert rides.rows() == ["made"]
    assert len(rides.script.charged) == 2
    assert len(set(rides.script.charged)) == 1  # the same downstream key


def test_a_call_that_may_have_happened_is_not_made_again(rides: Rides) -> None:
    rides.script.charge = lost
    assert rides.send().status == 500
    assert rides.state == "unknown"
    assert rides.points() == [("made", True), ("charged", False)]
    assert rides.send().status == 409
    assert len(rides.script.charged) == 1


def test_a_repeatable_call_is_made_again_with_the_same_key(rides: Rides) -> None:
    rides.script.charge, rides.script.repeatable = lost, True
    assert rides.send().status == 500
    assert rides.state == "in_progress"  # not freed: it may have been made
    rides.script.charge = lambda key, amount: "ok"
    rides.later(timedelta(minutes=2))
    assert rides.send().status == 201
    assert len(rides.script.charged) == 2
    assert len(set(rides.script.charged)) == 1


def released(rides: Rides) -> None:
    """A first try that ended before it did anything."""
    rides.script.in_phase = lambda: refused("", 0)
    rides.send()
    rides.script.in_phase = lambda: None
    assert rides.points() == []


def test_a_phase_that_fails_leaves_neither_its_writes_nor_its_effects(rides: Rides) -> None:
    rides.script.effect = True
    released(rides)
    assert rides.rows() == []
    assert rides.effects() == 0
    assert rides.send().status == 201
    assert rides.rows() == ["made"]
    assert rides.effects() == 1


def test_two_effects_of_one_name_need_to_be_told_apart(
    rides: Rides, caplog: pytest.LogCaptureFixture
) -> None:
    rides.script.effect, rides.script.phases = True, ("made", "paid")
    assert rides.send().status == 500
    said = caplog.text + "".join(str(error) for error in rides.send.errors)
    assert "tell several of one name apart by which=" in said
    assert (rides.rows(), rides.effects()) == (["made"], 1)
    rides.script.which = True
    assert rides.send().status == 201
    assert (rides.rows(), rides.effects()) == (["made", "paid"], 2)


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_request_resumes_what_a_dead_holder_began(rides: Rides, repeatable: bool) -> None:
    released(rides)
    rides.a_holder_dies_with("made")
    rides.script.repeatable = repeatable
    assert rides.send().status == 201
    assert rides.rows() == []  # the dead holder's phase is on record, and is not done again
    assert len(rides.script.charged) == 1


def test_an_intent_without_a_probe_stays_unknown(rides: Rides) -> None:
    released(rides)
    rides.a_holder_dies_with("made", intent="charged")
    assert rides.send().status == 500
    assert rides.script.charged == []
    assert rides.state == "unknown"
    assert rides.case().due_at is None  # nobody can be asked: a dead letter


def test_an_intent_of_a_repeatable_call_is_made_again(rides: Rides) -> None:
    released(rides)
    rides.a_holder_dies_with("made", intent="charged")
    rides.script.repeatable = True
    assert rides.send().status == 201
    assert len(rides.script.charged) == 1


def test_a_repeated_call_that_is_refused_says_nothing_of_the_first(rides: Rides) -> None:
    released(rides)
    rides.a_holder_dies_with("made", intent="charged")
    rides.script.repeatable, rides.script.charge = True, refused
    assert rides.send().status >= 500
    assert rides.points() == [("made", True), ("charged", False)]
    assert rides.state == "in_progress"


EVIDENCE: list[tuple[Any, int, int]] = [
    (Happened({"id": "ch_1"}), 201, 0),
    (Absent(final=True), 201, 1),
    (Absent(), 500, 0),
    (CannotTell(), 500, 0),
    ("nonsense", 500, 0),
    (RuntimeError("the provider does not answer"), 500, 0),
]


@pytest.mark.parametrize(("evidence", "status", "calls"), EVIDENCE)
def test_a_probe_decides_what_becomes_of_an_intent(
    rides: Rides, evidence: Any, status: int, calls: int
) -> None:
    asked: list[Inquiry] = []

    @rides.guard.probe("charged")
    def probe(inquiry: Inquiry) -> Any:
        asked.append(inquiry)
        if isinstance(evidence, Exception):
            raise evidence
        return evidence

    released(rides)
    rides.a_holder_dies_with("made", intent="charged")
    reply = rides.send()
    assert reply.status == status
    assert len(rides.script.charged) == calls
    assert rides.state == ("completed" if status == 201 else "unknown")
    assert [inquiry.name for inquiry in asked] == ["charged"]
    if calls:
        assert rides.script.charged == [asked[0].downstream_key()]
    if isinstance(evidence, Happened):
        assert json.loads(reply.body)[1] == {"id": "ch_1"}


def test_renamed_points_are_a_clear_error_and_nothing_is_done(
    rides: Rides, caplog: pytest.LogCaptureFixture
) -> None:
    rides.script.charge = refused
    rides.send()
    rides.script = type(rides.script)(phases=("created",))
    assert rides.send().status == 500
    assert "'made' where the code now has the phase 'created'" in caplog.text
    assert rides.rows() == ["made"]
    assert rides.script.charged == []
    rides.script = type(rides.script)()  # the code it was begun with
    assert rides.send().status == 201


def test_removed_points_are_a_clear_error_and_the_answer_is_not_kept(
    rides: Rides, caplog: pytest.LogCaptureFixture
) -> None:
    rides.script.charge = refused
    rides.send()
    rides.script = type(rides.script)(phases=(), calls=())
    assert rides.send().status == 500
    assert "'made', which the code did not come to" in caplog.text
    assert rides.state == "failed_retryable"


def test_a_holder_whose_key_was_taken_over_makes_no_call(rides: Rides) -> None:
    other = Fence(b"\xee" * 16)

    def taken_over() -> None:
        record = rides.case().record
        rides.harness.travel(MICROS)
        resume = Resume(record.identity, record.fence, other, MICROS)
        assert isinstance(rides.harness.backend.blocking().perform(resume), Applied)

    rides.script.between = taken_over
    reply = rides.send()
    assert rides.script.charged == []
    assert reply.status == 409
    assert rides.case().record.fence == other
    assert rides.points() == [("made", True)]


def test_a_phase_of_a_holder_that_was_replaced_is_rolled_back(rides: Rides) -> None:
    released(rides)
    other = Fence(b"\xee" * 16)
    serial = rides.harness.backend.url.startswith("sqlite")

    def taken_over() -> None:
        """SQLite has one writer, so there it can only be done through the phase's own."""
        record = rides.case().record
        rides.harness.travel(MICROS)
        resume = Resume(record.identity, record.fence, other, MICROS)
        backend: Any = rides.harness.backend
        op: Any = semel.operation()
        store = backend.on(op.transaction) if serial else backend.blocking()
        assert isinstance(store.perform(resume), Applied)

    rides.script.in_phase = taken_over
    rides.send()
    assert rides.rows() == []
    assert serial or rides.case().record.fence == other


def test_a_result_that_is_no_json_is_refused(rides: Rides) -> None:
    rides.script.in_phase = lambda: {1, 2}
    assert rides.send().status == 500
    assert (rides.rows(), rides.state) == ([], "failed_retryable")
    rides.script.in_phase = lambda: None
    rides.script.charge = lambda key, amount: {1, 2}
    assert rides.send().status == 500
    assert rides.state == "unknown"  # it happened, and nobody knows with which result


def test_results_are_the_same_the_first_time_and_every_time_after(rides: Rides) -> None:
    rides.script.in_phase = lambda: {"pair": (1, 2), 3: "three"}
    first = json.loads(rides.send().body)[0]
    assert first == {"pair": [1, 2], "3": "three"}


def test_an_operation_in_doubt_that_is_settled_goes_on_and_finishes(rides: Rides) -> None:
    rides.script.charge = lost
    rides.send()
    settled = Happened({"id": "ch_7"}, provider_id="ch_7")
    identity = rides.case().record.identity
    Operator(rides.guard).settle(identity, settled, by="ann", reason="seen in their list")
    assert rides.state == "in_progress"
    reply = rides.send()
    assert reply.status == 201
    assert json.loads(reply.body)[1] == {"id": "ch_7"}
    assert len(rides.script.charged) == 1


def test_the_completer_finishes_what_its_client_has_left(
    rides: Rides, runner: asyncio.Runner
) -> None:
    released(rides)
    rides.a_holder_dies_with("made")
    done = runner.run(_round(rides))
    assert done == 1
    assert rides.state == "completed"
    assert len(rides.script.charged) == 1
    assert rides.case().request is None  # dropped at completion
    assert rides.send().status == 201
    assert len(rides.script.charged) == 1


async def _round(rides: Rides) -> int:
    runs = StoredRuns(rides.guard, rides.app)
    try:
        return (await runs.run_once()).done
    finally:
        await runs.aclose()


def fails_after_its_charge(rides: Rides) -> None:
    """The first of two calls is made, the second is not."""
    rides.script.calls = ("charged", "mailed")

    def charge(key: str, amount: int) -> str:
        if len(rides.script.charged) > 1:
            raise semel.NotExecuted("the mail server is down")
        return "ok"

    rides.script.charge = charge
    assert rides.send().status >= 500
    assert rides.points() == [("made", True), ("charged", True)]
    assert rides.state == "in_progress"  # its key is not freed: it has to be finished
    rides.script.charge = lambda key, amount: "ok"
    rides.later(timedelta(minutes=2))


def test_an_operation_that_fails_after_its_charge_is_finished_by_a_retry(rides: Rides) -> None:
    fails_after_its_charge(rides)
    assert rides.send().status == 201
    assert len(set(rides.script.charged)) == 2
    assert len(rides.script.charged) == 3


def test_an_operation_that_fails_after_its_charge_is_finished_by_the_completer(
    rides: Rides, runner: asyncio.Runner
) -> None:
    fails_after_its_charge(rides)
    assert runner.run(_round(rides)) == 1
    assert rides.state == "completed"


def test_an_operation_that_cannot_be_finished_is_a_dead_letter_in_the_end(
    rides: Rides, runner: asyncio.Runner
) -> None:
    fails_after_its_charge(rides)
    rides.script.charge = refused
    runner.run(_round(rides))
    assert rides.state == "in_progress"
    assert len(set(rides.script.charged)) == 2
    rides.harness.travel(rides.guard.policy.give_up_micros)
    runner.run(_round(rides))
    assert rides.state == "unknown"
    assert rides.case().due_at is None
    # An operator who says that the rest did not happen does not free it: it has charged.
    identity = rides.case().record.identity
    Operator(rides.guard).settle(identity, Absent(final=True), by="ann", reason="no mail was sent")
    assert rides.state == "in_progress"
    rides.script.charge = lambda key, amount: "ok"
    assert rides.send().status == 201


def test_evidence_that_a_second_call_is_absent_lets_the_operation_go_on(
    rides: Rides, runner: asyncio.Runner
) -> None:
    fails_after_its_charge(rides)
    rides.script.charge = lost
    rides.send()
    assert rides.state == "unknown"
    identity = rides.case().record.identity
    Operator(rides.guard).settle(identity, Absent(final=True), by="ann", reason="not in their list")
    rides.script.charge = lambda key, amount: "ok"
    assert runner.run(_round(rides)) == 1
    assert rides.state == "completed"


def breaks_before_its_guard(rides: Rides) -> Any:
    """The application, with something around its guard that fails."""

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the session store is down")

    def wsgi(environ: Any, start_response: Any) -> Any:
        raise RuntimeError("the session store is down")

    return asgi if rides.async_ else wsgi


def test_an_operation_that_no_worker_can_get_through_is_not_freed(
    rides: Rides, runner: asyncio.Runner
) -> None:
    fails_after_its_charge(rides)
    broken = StoredRuns(rides.guard, breaks_before_its_guard(rides))
    assert runner.run(broken.run_once()).note == "put_down 1"
    assert rides.state == "in_progress"
    rides.later(timedelta(minutes=10))
    assert runner.run(_round(rides)) == 1
    assert rides.state == "completed"


def test_an_operation_that_no_worker_can_get_through_is_a_dead_letter_in_the_end(
    rides: Rides, runner: asyncio.Runner
) -> None:
    fails_after_its_charge(rides)
    rides.harness.travel(rides.guard.policy.give_up_micros)
    runner.run(StoredRuns(rides.guard, breaks_before_its_guard(rides)).run_once())
    assert rides.state == "unknown"
    assert rides.case().due_at is None


def test_an_operation_whose_journal_is_damaged_is_a_dead_letter(rides: Rides) -> None:
    fails_after_its_charge(rides)
    with closing(connect(rides.database)) as connection:
        executed(connection, "UPDATE semel_record SET journal = substr(journal, 1, 20)")
    charged = list(rides.script.charged)
    assert rides.send().status == 503
    assert rides.script.charged == charged
    assert rides.state == "unknown"
    assert rides.case().due_at is None


def test_a_worker_does_not_run_an_operation_as_a_plain_handler(
    rides: Rides, runner: asyncio.Runner
) -> None:
    """Its route was changed while it was under way: run from its start, it would charge again."""
    released(rides)
    rides.a_holder_dies_with("made", intent="charged")
    rides.guard.policy = rides.guard.bind(semel.ietf())
    runner.run(_round(rides))
    assert (rides.rows(), rides.script.charged) == ([], [])
    assert rides.state == "in_progress"  # a worker of another version may know it still
    rides.harness.travel(rides.guard.policy.give_up_micros)
    runner.run(_round(rides))
    assert (rides.state, rides.case().due_at) == ("unknown", None)
    assert (rides.rows(), rides.script.charged) == ([], [])


def test_once_it_is_given_up_nobody_is_told_to_come_again(
    rides: Rides, runner: asyncio.Runner
) -> None:
    @rides.guard.probe("charged")
    def probe(inquiry: Inquiry) -> CannotTell:
        return CannotTell()

    rides.script.charge = lost
    rides.send()
    assert rides.send().problem["retryable"] is True
    record = rides.case().record
    given_up = Inquire(record.identity, record.fence, 0, None)
    assert isinstance(rides.harness.backend.blocking().perform(given_up), Applied)
    assert rides.send().problem["retryable"] is False


def test_the_reconciler_settles_a_call_and_the_completer_finishes(
    rides: Rides, runner: asyncio.Runner
) -> None:
    @rides.guard.probe("charged")
    async def probe(inquiry: Inquiry) -> Happened:
        return Happened({"key": inquiry.downstream_key()})

    rides.script.charge = lost
    rides.send()
    assert rides.state == "unknown"
    rides.later(timedelta(minutes=2))
    asked = runner.run(Reconciler(rides.guard, rides.app).run_once())
    assert asked.done == 1
    assert runner.run(_round(rides)) == 1
    assert rides.state == "completed"
    assert len(rides.script.charged) == 1


def test_of_two_who_resume_one_wins(rides: Rides) -> None:
    released(rides)
    rides.a_holder_dies_with("made")
    record = rides.case().record
    store = rides.harness.backend.blocking()
    ops = [Resume(record.identity, record.fence, Fence(bytes([n]) * 16), MICROS) for n in (1, 2)]
    first, second = [store.perform(op) for op in ops]
    assert isinstance(first, Applied)
    assert isinstance(second, Lost)


def test_points_belong_to_routes_that_can_be_resumed(
    rides: Rides, caplog: pytest.LogCaptureFixture
) -> None:
    rides.guard.policy = rides.guard.bind(semel.ietf())
    assert rides.send().status == 500
    said = caplog.text + "".join(str(error) for error in rides.send.errors)
    assert "mode='resumable'" in said
    assert rides.rows() == []


def test_a_store_without_transactions_refuses_operations() -> None:
    with pytest.raises(semel.ConfigurationError, match="no transactions"):
        semel.Guard("memory://", tenant=None, policy=Rides.policy())
