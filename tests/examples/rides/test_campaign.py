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

from tests.examples.rides.campaign import CONDUCT, Plan, campaign
from tests.forms import in_proof
from tests.proof.crash.grounds import thrown_away
from tests.proof.crash.verdict import Verdict
from tests.servers import PostgresServer


def verdict_on(plan: Plan, store: str, folder: Path) -> Verdict:
    with campaign(plan, store, folder) as given:
        return given.run()


CALM: dict[str, Any] = {"retries": 0, "patience": 5.0, "lease": 1.2}
"""On a busy machine everything takes its time, and must come to the places where it dies."""


# ── small ─────────────────────────────────────────────────────────────────────────────────────────


WORST = (
    *("after commit 1", "after Advance 2", "before charges 1", "after charges 1"),
    *("before commit 2", "after commit 2", "after Complete 1", "after answer 1"),
)
"""Between two things of which one has happened. Everywhere else they die with ``make proof``, and
those of plain routes do in tests/proof/test_crash.py."""


def test_killed_in_between_each_ride_is_charged_and_mailed_once(store: str, folder: Path) -> None:
    verdict = verdict_on(Plan(workers=8, where=WORST, **CALM), store, folder)
    assert verdict.clean, verdict
    assert verdict.kills.total() >= len(WORST)


CROSSED = ("before begin 1", "after commit 1", "after Advance 2", "before charges 1")


def test_a_process_that_goes_on_after_it_was_overtaken_changes_nothing(
    store: str, folder: Path
) -> None:
    verdict = verdict_on(Plan(crossing=True, where=CROSSED, **CALM), store, folder)
    assert verdict.clean, verdict
    assert verdict.stops.total() >= len(CROSSED) // 2  # a busy machine is late for some


OUTBOX = Plan(workers=40, where=("after answer 1",) * 4, **CALM)
"""Rides that are done but for their receipts, and workers that die over those."""


def test_workers_that_die_over_a_receipt_leave_one(store: str, folder: Path) -> None:
    verdict = verdict_on(OUTBOX, store, folder)
    assert verdict.clean, verdict
    over = {at.rpartition(" ")[2] for at in verdict.kills if at.startswith("work")}
    assert {"TakeEffects", "receipts", "Deliver"} <= over


# ── positive controls ─────────────────────────────────────────────────────────────────────────────


def test_without_the_intent_on_record_a_ride_is_charged_twice(folder: Path) -> None:
    plan = Plan(without="intent", where=("before Advance 2", "after charges 1"), **CALM)
    verdict = verdict_on(plan, f"sqlite:///{folder / 'rides.db'}", folder)
    assert any("charges 2" in duplicate for duplicate in verdict.duplicates), verdict


def test_without_the_fence_a_ride_is_done_twice(folder: Path) -> None:
    plan = Plan(without="fence", crossing=True, where=CROSSED, **CALM)
    verdict = verdict_on(plan, f"sqlite:///{folder / 'rides.db'}", folder)
    assert verdict.duplicates, verdict


# ── the whole campaign ────────────────────────────────────────────────────────────────────────────

PLANS = [
    *(
        Plan(conduct, honours_keys, retries=retries, workers=workers)
        for conduct in CONDUCT
        for honours_keys in (False, True)
        for retries, workers in ((1, 0), (0, 40))
    ),
    *(Plan(conduct, workers=40, awaited=True) for conduct in CONDUCT),
    OUTBOX,
]
CROSSINGS = [
    Plan(conduct, crossing=True, awaited=awaited)
    for conduct in ("good", "drops the answer")
    for awaited in (False, True)
]


@pytest.mark.proof
@pytest.mark.parametrize("which", ["sqlite", *in_proof("postgresql")])
def test_five_hundred_kills_no_duplicate_none_lost(
    which: str, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Verdict()
    for plan in (*PLANS, *CROSSINGS):
        with ExitStack() as stack:
            folder = stack.enter_context(thrown_away())
            store = f"sqlite:///{folder / 'rides.db'}"
            if which == "postgresql":
                store = stack.enter_context(postgres.database())
            verdict = verdict_on(plan, store, folder)
        with capsys.disabled():
            print(_line(plan, verdict))
        whole.add(verdict)
    with capsys.disabled():
        print(_table(which, whole))
    assert whole.clean, whole
    assert whole.kills.total() >= 500


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
