"""What the explorer has found: each schedule that once broke a promise, kept for ever."""

from __future__ import annotations

import pytest

from tests.proof.explorer.search import replay

FOUND = {
    "a client that leaves its zombie does not break the exchange": (
        "leased-accepted",
        "A.Claim A.runs:500 A.Release B.Claim B.Retake B.runs:500 time-passes sweep B.Release "
        "B.Recall-cancelled",
    ),
    "a client that leaves an operation begun does not break the exchange": (
        "leased-resume-repeatable",
        "A.Claim A.runs:go A.Advance A.held A.calls:did time-passes worker.finds-lapsed "
        "worker.Resume A.Advance A.Renew-cancelled",
    ),
    "a doubt whose commit was not answered does not take a settled record back": (
        "atomic-payments",
        "A.Begin A.Claim A.runs:500w A.acts A.Suspend A.Commit?applied time-passes "
        "reconciler.finds-unknown reconciler.Inquire reconciler.asks reconciler.SettleAbsent "
        "A.RollBack A.Ascertain",
    ),
}


@pytest.mark.parametrize("finding", FOUND)
def test_what_was_found_stays_repaired(finding: str) -> None:
    replay(*FOUND[finding])


@pytest.mark.parametrize("finding", FOUND)
def test_its_schedule_can_still_be_taken(finding: str) -> None:
    """A schedule whose steps have other names by now would prove nothing."""
    world, schedule = FOUND[finding]
    with pytest.raises(ValueError, match="no-such-step"):
        replay(world, f"{schedule} no-such-step", strict=True)
