"""A floor that was not reached means another round, and no end without an end."""

from collections import Counter

import pytest

from tests.proof.floors import missing, rounds


def test_rounds_go_on_until_the_floors_are_reached() -> None:
    counts: Counter[str] = Counter()
    for number in rounds(2, lambda: missing(counts, {"late": 3})):
        counts["late"] += number >= 2  # chance is late
    assert counts["late"] == 3
    assert number == 4


def test_no_round_is_left_out_where_floors_are_reached_early() -> None:
    assert list(rounds(3, dict)) == [0, 1, 2]


def test_a_budget_that_is_used_up_says_how_far_it_came() -> None:
    with pytest.raises(AssertionError, match="'cuts': '1 of 2'"):
        list(rounds(1, lambda: missing({"cuts": 1}, {"cuts": 2}), budget=0))
