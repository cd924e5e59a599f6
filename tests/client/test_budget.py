"""Backoff stays within its bounds and its budget; a Retry-After is understood or ignored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import Budget
from semel.client.responses import retry_after
from semel.errors import ConfigurationError

seconds = st.floats(0.001, 1000, allow_nan=False)


@st.composite
def budgets(draw: st.DrawFn) -> Budget:
    first, longest, within = sorted(draw(st.tuples(seconds, seconds, seconds)))
    return Budget(
        draw(st.integers(1, 50)),
        timedelta(seconds=within),
        timedelta(seconds=first),
        timedelta(seconds=longest),
    )


@given(budgets(), st.integers(0, 10_000), seconds, st.none() | seconds)
def test_a_pause_is_within_its_bounds_and_never_reaches_past_the_budget(
    budget: Budget, attempt: int, elapsed: float, after: float | None
) -> None:
    pause = budget.pause(attempt, elapsed, after)
    left = budget.within.total_seconds() - elapsed
    if pause is None:
        assert (after or 0) + budget.first_pause.total_seconds() > left
        return
    least, most = pause
    assert least == (after or 0)
    assert least <= most <= left
    assert most - least <= budget.longest_pause.total_seconds() + 1e-6


@given(budgets(), st.integers(0, 100))
def test_the_ceiling_doubles_until_the_longest_pause(budget: Budget, attempt: int) -> None:
    doubled = min(2 * budget.ceiling(attempt), budget.longest_pause.total_seconds())
    assert budget.ceiling(attempt + 1) == pytest.approx(doubled)
    assert budget.ceiling(0) == pytest.approx(budget.first_pause.total_seconds())


@pytest.mark.parametrize(
    "options",
    [
        {"tries": 0},
        {"first_pause": timedelta(0)},
        {"longest_pause": timedelta(milliseconds=1)},
        {"within": timedelta(seconds=1)},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Budget(**options)  # type: ignore[arg-type]


# ── Retry-After ───────────────────────────────────────────────────────────────────────────────────

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def http_date(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("9" * 5000, float("9" * 12)),
        (http_date(NOON + timedelta(seconds=90)), 90),
        ("Monday, 16-Nov-26 12:01:30 GMT", 90),
        ("Mon Nov 16 12:01:30 2026", 90),
        (http_date(NOON - timedelta(days=1)), 0),
    ],
)
def test_seconds_and_every_form_of_date_are_understood(said: str, waits: float) -> None:
    assert retry_after(said, None, NOON.timestamp()) == waits


def test_a_date_is_counted_from_the_servers_own_clock() -> None:
    """The two clocks differ by an hour; the wait is ten seconds all the same."""
    said = http_date(NOON + timedelta(seconds=10))
    assert retry_after(said, http_date(NOON), NOON.timestamp() + 3600) == 10


@pytest.mark.parametrize("said", [None, "", "-1", "1.5", "soon", "1e3", "٣", "0x10", "1, 2"])
def test_what_cannot_be_understood_says_nothing(said: str | None) -> None:
    assert retry_after(said, None, 0.0) is None


@given(st.none() | st.text(), st.none() | st.text(), st.floats(0, 1e11))
def test_no_garbage_raises_or_goes_back_in_time(
    said: str | None, date: str | None, wall: float
) -> None:
    waits = retry_after(said, date, wall)
    assert waits is None or waits >= 0


@given(st.text(alphabet="0123456789 :,-+GMTonJaDec", max_size=40), st.floats(0, 1e11))
def test_nothing_that_looks_like_a_date_raises(said: str, wall: float) -> None:
    waits = retry_after(said, said, wall)
    assert waits is None or waits >= 0
