"""A handler is not begun on a lease that has already passed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import semel

EXPIRED_AT_ONCE = semel.ietf(lease=timedelta(microseconds=1))


def test_nothing_runs_when_the_lease_passed_before_the_handler_could_begin() -> None:
    guard = semel.Guard("memory://", tenant=None, policy=EXPIRED_AT_ONCE)
    runs: list[int] = []
    for _ in range(2):
        with pytest.raises(semel.NotExecuted):
            guard.once("a-key-of-enough-length", lambda: runs.append(1), name="job")
    assert runs == []
    guard.close()


async def test_the_same_for_a_coroutine() -> None:
    guard = semel.Guard("memory://", tenant=None, policy=EXPIRED_AT_ONCE)
    runs: list[int] = []

    async def job() -> Any:
        runs.append(1)

    with pytest.raises(semel.NotExecuted):
        await guard.aonce("a-key-of-enough-length", job, name="job")
    assert runs == []
    await guard.aclose()
