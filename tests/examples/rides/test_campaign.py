"""Every ride is charged once and mailed once, wherever its processes die.

The small form runs with all tests. ``pytest -m proof`` kills hundreds, under every conduct of the
provider, and prints where.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.examples.rides.campaign import CONDUCT, HURRY, Ground, Plan, database, ground, verdict_on
from tests.proof.crash.grounds import thrown_away
from tests.proof.crash.verdict import Verdict
from tests.proof.floors import missing, rounds
from tests.waiting import PATIENCE

# ── small ─────────────────────────────────────────────────────────────────────────────────────────


WHEN = ("before", "after")
WORST = (
    *("after commit 1", "after Advance 2", "before charges 1", "after charges 1"),
    *("before commit 2", "after commit 2", "after Complete 1", "after answer 1"),
)
"""Between two things of which one has happened. Everywhere else they die with ``make proof``, and
those of plain routes do in tests/proof/test_crash.py."""
WORKERS = ("after void 1", "after Resume 1", "after charges 1", "before Complete 1")
"""Likewise, for those who go on with these rides."""


def test_killed_in_between_each_ride_is_charged_and_mailed_once(
    standing: Ground, folder: Path
) -> None:
    verdict = verdict_on(Plan(workers=WORKERS, where=WORST, retries=0), standing, folder)
    assert verdict.clean, verdict
    died = [f"request: {at[:-2]}" for at in WORST] + [f"work: {at[:-2]}" for at in WORKERS]
    assert sorted(verdict.kills.elements()) == sorted(died)


CROSSED: dict[str, Any] = {
    "crossing": True,
    "where": ("before begin 1", "after commit 1", "after Advance 2", "before charges 1"),
    "then": ("after Advance 1", "before charges 1", "after charges 1", "before Complete 1"),
    "retries": 0,
}
"""Where a first is stopped, and where the second that takes over."""


def test_a_process_that_goes_on_after_it_was_overtaken_changes_nothing(
    standing: Ground, folder: Path
) -> None:
    verdict = verdict_on(Plan(**CROSSED), standing, folder)
    assert verdict.clean, verdict
    assert verdict.stops.total() == 2 * len(CROSSED["where"])


OVER = tuple(
    f"{when} {what} 1" for what in ("TakeEffects", "receipts", "MarkDelivered") for when in WHEN
)
OUTBOX = Plan(workers=OVER, where=("after answer 1",) * 2, retries=0)
"""Rides that are done but for their receipts, and workers that die over those."""


def test_workers_that_die_over_a_receipt_leave_one(standing: Ground, folder: Path) -> None:
    verdict = verdict_on(OUTBOX, standing, folder)
    assert verdict.clean, verdict
    over = [at for at in verdict.kills if at.startswith("work")]
    assert over == [f"work: {at[:-2]}" for at in OVER]


# ── positive controls ─────────────────────────────────────────────────────────────────────────────


def test_without_the_intent_on_record_a_ride_is_charged_twice(
    standing: Ground, folder: Path
) -> None:
    plan = Plan(
        without="intent", where=("before Advance 2", "after charges 1"), retries=0, rounds=5
    )
    verdict = verdict_on(plan, standing, folder)
    assert any("charges 2" in duplicate for duplicate in verdict.duplicates), verdict


def test_without_the_fence_a_ride_is_done_twice(standing: Ground, folder: Path) -> None:
    plan = Plan(without="fence", rounds=5, **CROSSED)
    verdict = verdict_on(plan, standing, folder)
    assert verdict.duplicates, verdict


# ── the whole campaign ────────────────────────────────────────────────────────────────────────────

FORTY = tuple(range(40))
PLANS = [
    *(
        Plan(conduct, honours_keys, retries=retries, workers=workers)
        for conduct in CONDUCT
        for honours_keys in (False, True)
        for retries, workers in ((1, ()), (0, FORTY))
    ),
    *(Plan(conduct, workers=FORTY, awaited=True) for conduct in CONDUCT),
    Plan(workers=FORTY, where=("after answer 1",) * 4, retries=0),
]
CROSSINGS = [
    Plan(conduct, crossing=True, awaited=awaited)
    for conduct in ("good", "drops the answer")
    for awaited in (False, True)
]


@pytest.mark.proof
@pytest.mark.parametrize("which", ["sqlite", "postgresql", "mariadb"])
def test_five_hundred_kills_no_duplicate_none_lost(
    which: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, plans = Verdict(), (*PLANS, *CROSSINGS)
    floors = {"kills": 500}
    planned = rounds(len(plans), lambda: missing({"kills": whole.kills.total()}, floors))
    for number in planned:
        plan = plans[number % len(plans)]
        with ExitStack() as stack:
            folder = stack.enter_context(thrown_away())
            store = stack.enter_context(database(which, folder, request.getfixturevalue))
            patience = HURRY if plan.conduct == "slow" else PATIENCE
            here = stack.enter_context(
                ground(store, folder, honours_keys=plan.honours_keys, patience=patience)
            )
            verdict = verdict_on(plan, here, folder)
        with capsys.disabled():
            print(_line(plan, verdict))
        whole.add(verdict)
    with capsys.disabled():
        print(_table(which, whole))
    assert whole.clean, whole


def _line(plan: Plan, verdict: Verdict) -> str:
    keys = "honours keys" if plan.honours_keys else "awaited" if plan.awaited else "probed"
    deaths = f"{verdict.kills.total()} kills, {verdict.stops.total()} stops"
    wrong = [verdict.duplicates, verdict.lost, verdict.wedged, verdict.differing]
    return f"  {plan.conduct:18}{keys:14}{verdict.keys:4} rides, {deaths}: {wrong}"


def _table(which: str, verdict: Verdict) -> str:
    """Where processes died, and what was wrong afterwards."""
    places = sorted({at.replace(" before", "").replace(" after", "") for at in verdict.kills})
    lines = [f"\n{which}: {verdict.keys} rides", f"{'':28}{'before':>8}{'after':>8}"]
    for place in places:
        role, _, what = place.partition(": ")
        counts = [verdict.kills[f"{role}: {when} {what}"] for when in ("before", "after")]
        lines.append(f"{role + ' ' + what:28}{counts[0]:8}{counts[1]:8}")
    roles = Counter[str]()
    for at, number in verdict.kills.items():
        roles[at.partition(":")[0]] += number
    said = ", ".join(f"{number} of {role}" for role, number in roles.items())
    return "\n".join(
        [
            *lines,
            f"kills {verdict.kills.total()} ({said}), stops {verdict.stops.total()}",
            f"duplicates {len(verdict.duplicates)}, lost {len(verdict.lost)}, "
            f"wedged {len(verdict.wedged)}, differing answers {len(verdict.differing)}, "
            f"receipts delivered again {verdict.redeliveries}",
        ]
    )
