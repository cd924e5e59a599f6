"""How long a worker may rest: nothing that comes up meanwhile is slept through."""

from __future__ import annotations

import pytest

from semel.core.operations.maintenance import Due, DueRecords, Work
from semel.core.operations.outbox import Effects, TakeEffects
from semel.core.records import Fence
from semel.stores.sql.plans import plan


def test_what_becomes_due_between_the_two_statements_of_a_take_is_not_missed() -> None:
    """PostgreSQL's clock goes on from one statement to the next.

    Looked for first and asked for the next one then, an effect that became due in between would be
    neither taken nor told, and the worker would rest until it polls.
    """
    steps = plan(TakeEffects(Fence(b"f" * 16), ("paid",), 5, 60))
    assert next(steps).name == "next_effect"
    assert steps.send([(1_001, 1_000)]).name == "take_effects"
    with pytest.raises(StopIteration) as done:
        steps.send([])
    assert done.value.value == Effects((), 1_000, 1_001)


def test_nor_is_what_becomes_due_between_those_of_a_list() -> None:
    steps = plan(Due(Work.PENDING, 5))
    assert next(steps).name == "next_due"
    assert steps.send([(1_001, 1_000)]).name == "due"
    with pytest.raises(StopIteration) as done:
        steps.send([])
    assert done.value.value == DueRecords((), 1_000, 1_001)
