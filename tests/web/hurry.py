"""Time that a test does not wait for: pauses between two tries, and the end of ``max_run``."""

from collections.abc import Callable

import pytest

import semel

_WHERE = ("semel.web.exchange", "semel.web.exchange_async", "semel.runtime.recovery_points")


def no_pauses(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> list[int]:
    """Between two tries at a write nobody rests; the tries that were paused before are kept."""
    tries: list[int] = []

    def pause_before(attempt: int) -> float:
        tries.append(attempt)
        return seconds

    for module in _WHERE:
        monkeypatch.setattr(f"{module}.pause_before", pause_before)
    return tries


def overrun(guard: semel.Guard) -> Callable[[], bool]:
    """Those who run in a transaction now have run longer than ``max_run``.

    Their end is told to the guard's own thread, which sees to it; the result says whether it has.
    A ``max_run`` short enough to wait for is at times too short for what must succeed within it.
    """
    keeper = guard.runtime.keeper
    leases = list(keeper.leases.held.values())
    for lease in leases:
        lease.renew_at = lease.ends_at = 0.0
    keeper.renewing.rouse(0.0)
    return lambda: all(lease.lost for lease in leases)
