"""A roll-out on every store: what runs twice in shadow is not promised, and the counts add up."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import semel
from semel.runtime.shadow import read_counts
from tests.scene import KEY, Scene


def test_a_roll_out_on_every_store(scene: Scene) -> None:
    backend = scene.harness.backend
    numbers = iter(range(10))
    guards = [semel.Guard(backend, tenant=None, enforce="shadow", name="shop") for _ in range(2)]
    results = [
        guard.once(key, lambda: next(numbers), name="job").value
        for guard in guards
        for key in (KEY, f"another-{KEY}")[: 1 if guard is guards[1] else 2]
    ]
    assert results == [0, 1, 2]
    for guard in guards:
        guard.runtime.close()
    counts = read_counts(backend.blocking(), "shop", datetime(2000, 1, 1, tzinfo=UTC))
    assert counts == {"once job": {"keyed": 3, "would_replay": 1, "differs": 1}}
    enforced = semel.Guard(backend, tenant=None, name="shop")
    again = enforced.once(f"another-{KEY}", lambda: next(numbers), name="job")
    assert (again.value, again.replayed) == (1, True)
    with pytest.raises(semel.Refused) as refused:
        enforced.once(KEY, lambda: next(numbers), name="job")
    assert refused.value.code == "ran-again"
    assert next(numbers) == 3
    enforced.runtime.close()
