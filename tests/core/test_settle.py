"""What an operation's run comes to, by its journal."""

from __future__ import annotations

from itertools import product

import pytest

from semel.core.exchange.exchange import Progress
from semel.core.exchange.settle import Verdict, concession, conclude, is_usual
from semel.core.operations.handler import HandlerOutcome, Raised, Returned
from semel.core.operations.requests import Release, Renew, Suspend
from semel.core.policy import Policy, accepted, ietf, payments, stripe
from semel.core.recovery.journal import Journal, PointKind
from semel.errors import OperationChanged, OutcomeUnknown
from tests.core.whole import varied, workers_run
from tests.core.world import answered, call

OPERATION = ietf(mode="resumable")
ACTED = Journal().reaching("charge", PointKind.CALL, 1)
INTENT = Journal().intending("charge")
BOOM = Raised(ValueError("boom"))


def test_an_answer_before_all_that_is_on_record_is_no_answer() -> None:
    """The code has lost a point that an earlier run had passed."""
    outcome, verdict = conclude(call(policy=OPERATION), answered(), Progress(ACTED))
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, OperationChanged)
    assert verdict is Verdict.RELEASE


def test_an_answer_behind_all_that_is_on_record_is_kept() -> None:
    progress = Progress(ACTED)
    progress.meet("charge", PointKind.CALL)
    outcome = answered()
    assert conclude(call(policy=OPERATION), outcome, progress) == (outcome, Verdict.KEEP)


POLICIES = [
    ietf(),
    stripe(),
    payments(probe=None),
    accepted(),
    ietf(after_error="unknown", after_doubt="keep"),
    ietf(keep={200}),
    ietf(keep=lambda response: False),
    OPERATION,
]
DOUBT = OutcomeUnknown("who knows")


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_what_is_usual_is_what_the_long_way_keeps(policy: Policy) -> None:
    statuses, flags = (200, 201, 204, 302, 399, 400, 404, 429, 500), (False, True)
    for status, *odd in product(statuses, flags, flags, flags, flags, flags):
        doubted, raised, by_router, of_a_worker, made = map(bool, odd)
        progress, ex = Progress(), call(policy=policy)
        ex.worker = workers_run() if of_a_worker else None
        if made:
            _ = progress.making("charge", _never())
        behind = DOUBT if doubted else None
        outcome = Returned(answered(status).response, behind, raised, by_router)
        usual = is_usual(ex, outcome, progress)
        assert not usual or conclude(ex, outcome, progress) == (outcome, Verdict.KEEP)
        kept_by_all = policy.keep is None and policy is not OPERATION
        assert usual == (status < 400 and not any(odd) and kept_by_all)
        progress.unfinished()


async def _never() -> None:
    raise AssertionError


@pytest.mark.parametrize("outcome", [BOOM, answered(500)])
@pytest.mark.parametrize(
    ("journal", "repeating", "verdict"),
    [
        (Journal(), False, Verdict.RELEASE),
        (INTENT, False, Verdict.SUSPEND),
        (INTENT, True, Verdict.RELEASE),
    ],
)
def test_a_failed_operation_is_judged_by_its_journal(
    outcome: HandlerOutcome, journal: Journal, repeating: bool, verdict: Verdict
) -> None:
    progress = Progress(journal)
    progress.repeating = repeating
    for point in journal.points:
        progress.meet(point.name, point.kind)
    assert conclude(call(policy=OPERATION), outcome, progress)[1] is verdict


@pytest.mark.parametrize("journal", [ACTED, INTENT])
def test_an_operation_that_has_begun_is_left_to_lapse(journal: Journal) -> None:
    op = concession(call(policy=OPERATION), Verdict.RELEASE, BOOM.error, Progress(journal))
    assert isinstance(op, Renew)


@pytest.mark.parametrize("journal", [ACTED, INTENT])
def test_an_operation_that_was_tried_for_long_enough_is_a_dead_letter(journal: Journal) -> None:
    """Renewed, it would be tried for ever."""
    overdue = varied(call(policy=OPERATION), worker=workers_run(overdue=True))
    op = concession(overdue, Verdict.RELEASE, BOOM.error, Progress(journal))
    assert isinstance(op, Suspend)
    assert op.probe_after is None


def test_an_operation_that_has_done_nothing_outside_is_released() -> None:
    phase = Journal().reaching("made", PointKind.PHASE, 1)
    op = concession(call(policy=OPERATION), Verdict.RELEASE, BOOM.error, Progress(phase))
    assert isinstance(op, Release)
