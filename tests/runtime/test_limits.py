"""Limits by themselves: what is granted, what is given back, and who is remembered."""

from __future__ import annotations

import tracemalloc
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.maintenance import digest
from semel.errors import ConfigurationError
from semel.runtime.limits import LimitCost, Limiter, Limits, OverLimit, Rate

NEW, LOOK = LimitCost.NEW_KEY, LimitCost.LOOKUP


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def granted(limiter: Limiter, tenant: str, toll: LimitCost, tries: int) -> int:
    return sum(limiter.charge(tenant, toll) is None for _ in range(tries))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_burst_then_the_rate_and_the_wait_is_true(clock: Clock) -> None:
    limiter = Limiter(Limits(new_keys=Rate(10)), clock)
    assert granted(limiter, "a", NEW, 50) == 10
    over = limiter.charge("a", NEW)
    assert isinstance(over, OverLimit)
    assert over.code == "too-fast"
    clock.now += over.wait / 1_000_000 - 0.01
    assert limiter.charge("a", NEW) is not None, "it was free before it was said to be"
    clock.now += 0.01
    assert limiter.charge("a", NEW) is None
    clock.now += 1_000
    assert granted(limiter, "a", NEW, 50) == 10


def test_tenants_and_tolls_are_apart(clock: Clock) -> None:
    limiter = Limiter(Limits(new_keys=Rate(2), lookups=Rate(3)), clock)
    assert granted(limiter, "a", NEW, 9) == 2
    assert granted(limiter, "a", LOOK, 9) == 3
    assert granted(limiter, "b", NEW, 9) == 2


def test_what_is_not_limited_is_granted(clock: Clock) -> None:
    limiter = Limiter(Limits(new_keys=Rate(1)), clock)
    assert granted(limiter, "a", LOOK, 1_000) == 1_000


def test_a_replay_costs_a_look_up_and_no_key(clock: Clock) -> None:
    limiter = Limiter(Limits(new_keys=Rate(2), lookups=Rate(5)), clock)
    for _ in range(5):
        assert limiter.charge("a", NEW) is None
        limiter.convert("a")
    assert granted(limiter, "a", NEW, 9) == 2
    assert granted(limiter, "a", LOOK, 9) == 0


def test_what_is_given_back_can_be_used_again(clock: Clock) -> None:
    limiter = Limiter(Limits(new_keys=Rate(1), lookups=Rate(1)), clock)
    for toll in (NEW, LOOK):
        for _ in range(5):
            assert limiter.charge("a", toll) is None
            limiter.give_back("a", toll)


@given(st.lists(st.tuples(st.sampled_from(["take", "convert", "back"]), st.floats(0, 0.5))))
def test_no_order_of_events_grants_more_than_burst_and_rate(
    events: list[tuple[str, float]],
) -> None:
    clock = Clock()
    limiter = Limiter(Limits(new_keys=Rate(5, timedelta(seconds=1), burst=3)), clock)
    begun, kept = clock.now, 0
    for what, pause in events:
        clock.now += pause
        if limiter.charge("a", NEW) is None:
            if what == "take":
                kept += 1
            elif what == "convert":
                limiter.convert("a")
            else:
                limiter.give_back("a", NEW)
    assert kept <= 3 + (clock.now - begun) * 5 + 1e-3


# ── keys that are alive ───────────────────────────────────────────────────────────────────────────


def test_a_tenant_at_its_cap_gets_no_new_key_and_may_still_look(clock: Clock) -> None:
    limiter = Limiter(Limits(active_keys=100), clock)
    limiter.count({digest("a"): 98}, again_in=60)
    assert granted(limiter, "a", NEW, 9) == 2
    assert limiter.charge("a", NEW) == OverLimit("too-many-keys", 60_000_000)
    assert limiter.charge("a", LOOK) is None
    assert granted(limiter, "b", NEW, 200) == 100
    limiter.count({digest("a"): 99}, again_in=60)
    assert granted(limiter, "a", NEW, 9) == 1


def test_what_was_made_is_counted_from_the_first_charge_after_a_count(clock: Clock) -> None:
    limiter = Limiter(Limits(active_keys=10), clock)
    assert granted(limiter, "a", NEW, 9) == 9
    limiter.count({digest("a"): 9}, again_in=60)
    assert limiter.charge("a", NEW) is None
    limiter.convert("a")
    assert granted(limiter, "a", NEW, 9) == 1


# ── many tenants, long names, odd clocks ──────────────────────────────────────────────────────────


def test_tenants_are_forgotten_before_memory_is_and_who_sends_most_is_kept(clock: Clock) -> None:
    limiter = Limiter(Limits(new_keys=Rate(100)), clock, room=1_000)
    assert granted(limiter, "greedy", NEW, 500) == 100
    for number in range(10_000):
        assert limiter.charge(f"tenant {number}", NEW) is None
        assert len(limiter) <= 1_000
    assert limiter.charge("greedy", NEW) is not None


def test_names_of_a_megabyte_take_no_megabytes(clock: Clock) -> None:
    limiter = Limiter(Limits(new_keys=Rate(1)), clock)
    tracemalloc.start()
    try:
        for number in range(200):
            assert limiter.charge(f"{number}" + "x" * 1_000_000, NEW) is None
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert limiter.charge("7" + "x" * 1_000_000, NEW) is not None


def test_two_long_names_with_one_beginning_are_two_tenants(clock: Clock) -> None:
    limiter = Limiter(Limits(new_keys=Rate(1)), clock)
    assert limiter.charge("x" * 5_000 + "a", NEW) is None
    assert limiter.charge("x" * 5_000 + "b", NEW) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rate(0),
        lambda: Rate(1.5),  # type: ignore[arg-type]
        lambda: Rate(True),
        lambda: Rate(1, timedelta(0)),
        lambda: Rate(1, burst=0),
        lambda: Limits(new_keys=5),  # type: ignore[arg-type]
        lambda: Limits(active_keys=0),
        lambda: Limits(active_keys=True),
    ],
)
def test_what_is_no_limit_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError):
        make()
