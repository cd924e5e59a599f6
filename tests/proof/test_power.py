"""What SQLite's store acknowledged is there after the power failed, at whatever moment.

A small form runs with all tests; `make proof` cuts at every place of longer recordings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import note
from tests.proof.power.audit import Verdict
from tests.proof.power.campaign import Plan, started, verdicts_of

SMALL = Plan(seed=1, rounds=4, lives=16, cuts=500, deep_each=5, generations=2)
CONTROL = Plan(seed=2, rounds=5, lives=16, cuts=80, deep_each=4)
LONG = [
    Plan(seed, rounds=7, lives=20, variants=2, deep_each=2, generations=2) for seed in range(3, 6)
]


def verdicts_on(plans: Sequence[Plan], folder: Path, processes: int = 1) -> list[Verdict]:
    shares = [plans[at::processes] for at in range(processes)]
    found: list[Verdict] = []
    with ExitStack() as stack:
        children = [started(share, folder / f"{at}") for at, share in enumerate(shares)]
        for child in children:
            stack.callback(child.kill)
        for at, child in enumerate(children):
            found += verdicts_of(child, folder / f"{at}")
    return found


def told(verdict: Verdict) -> str:
    ways = ", ".join(f"{count:,} {way}" for way, count in sorted(verdict.cuts.items()))
    return (
        f"power: {verdict.cuts.total():,} cuts ({ways}) in {verdict.writes:,} writes of "
        f"{verdict.acts:,} acts; {verdict.unsafe:,} with writes that were not synced; "
        f"{verdict.checked:,} times all rows of a key were compared; {verdict.deep:,} images "
        f"checked and worked with, {verdict.asked:,} keys asked for there; "
        f"lost or damaged: {len(verdict.wrong)}"
    )


def test_what_was_acknowledged_survives_a_power_cut(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (verdict,) = verdicts_on([SMALL], tmp_path)
    note(request, told(verdict), "proof")
    assert verdict.clean, verdict.wrong
    assert verdict.cuts.total() >= 1_000
    thorough(verdict, SMALL)


def thorough(verdict: Verdict, plan: Plan) -> None:
    cuts = verdict.cuts.total()
    assert verdict.unsafe > cuts // 4
    assert verdict.deep >= cuts // plan.deep_each
    assert verdict.asked > verdict.deep
    assert verdict.checked > 10 * cuts


@pytest.mark.proof
def test_what_was_acknowledged_survives_fifty_thousand_power_cuts(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    verdict = Verdict()
    for each in verdicts_on(LONG, tmp_path, os.cpu_count() or 1):
        verdict.add(each)
    note(request, told(verdict), "proof")
    assert verdict.clean, verdict.wrong
    assert verdict.cuts.total() >= 50_000
    thorough(verdict, LONG[0])


# ── that it would notice ──────────────────────────────────────────────────────────────────────────


def test_a_store_that_syncs_less_loses_what_it_acknowledged(tmp_path: Path) -> None:
    """NORMAL instead of FULL; OFF; and a disk that says it has synced and has not."""
    plans = [replace(CONTROL, without=without) for without in ("full sync", "sync", "true disk")]
    normal, off, lying = (verdict.wrong for verdict in verdicts_on(plans, tmp_path))
    assert "lost" in normal
    assert "damaged" not in normal
    assert "lost" in off
    assert {"lost", "damaged"} <= lying.keys()
