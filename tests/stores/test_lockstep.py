"""Two stores in step: whatever is asked, in whatever order, every store answers as memory does.

A state machine of Hypothesis asks both the same and compares each reply and, after each write, the
record with all that is kept of it. Time passes in both alike: in memory by its clock, in the others
by moving what they keep into the past. What breaks is told in the fewest steps.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Duty, Fence, Identity, State
from semel.stores.memory import MemoryBackend
from semel.testing.contract.records import ACT, demand_found_in_time, new_fence, new_identity
from tests.conftest import note
from tests.forms import in_proof
from tests.proof.histories.spoilt import SPOILT
from tests.stores.harness import (
    EACH_ONCE,
    OUTBOXES,
    FakeClock,
    Harness,
    open_harness,
    server_of,
)
from tests.stores.moves import LIMIT, TENANT, TERMS, Board, Dice
from tests.stores.timeless import UNIT, timeless

STORES = [name for name in EACH_ONCE if not name.startswith("memory")]
SIZES = [pytest.param(10, id="small"), pytest.param(400, id="full", marks=pytest.mark.proof)]
STEPS = 15

KEYS = st.integers(0, 2)
SEEDS = st.integers(0, 1 << 32)
UNITS = st.integers(1, 6)
STATES = st.sets(st.sampled_from(State), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
NAMES = st.sampled_from(("one", "two"))


class Lockstep(RuleBasedStateMachine):
    """A store and its model, which is the memory store."""

    harness: ClassVar[Harness]
    asked: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.model = MemoryBackend(clock=self.clock)
        self.mark = os.urandom(6).hex()
        """In every name, so that an earlier example left nothing that has it."""

    def both(self, op: ops.StoreOperation[Any]) -> Any:
        """Asked of both; the reply, which is one."""
        return self.same(op, op)

    def same(self, mine: ops.StoreOperation[Any], theirs: ops.StoreOperation[Any]) -> Any:
        expected, got = self.model.perform(mine), self.harness.perform(theirs)
        self.asked[type(mine).__name__] += 1
        assert comparable(got) == comparable(expected)
        return expected

    @rule(units=UNITS)
    def time_passes(self, units: int) -> None:
        self.clock.travel(units * UNIT)
        self.harness.travel(units * UNIT)


def comparable(reply: Any) -> Any:
    """Without times; what is due in the same moment comes in any order."""
    plain = timeless(reply)
    match plain:
        case ops.Effects():
            return replace(plain, effects=sorted(plain.effects, key=lambda each: each.key))
        case _:
            return plain


class Records(Lockstep):
    """Requests, workers, operators and maintenance, on three keys."""

    def __init__(self) -> None:
        super().__init__()
        self.identities = [new_identity() for _ in range(3)]
        self.boards = [Board(identity) for identity in self.identities]
        self.steps = 0
        for terms in TERMS:
            self.both(ops.Agree(terms))

    def dice(self, seed: int) -> Dice:
        """Others at every step: a fence comes once only."""
        self.steps += 1
        return Dice(f"{seed} {self.steps}")

    @initialize(seed=SEEDS)
    def a_busy_morning(self, seed: int) -> None:
        self.requests_come(seed, 15)

    @rule(seed=SEEDS, count=st.integers(1, 10))
    def requests_come(self, seed: int, count: int) -> None:
        dice = self.dice(seed)
        for _ in range(count):
            board = dice.choice(self.boards)
            op = board.choose(dice)
            if isinstance(op, ops.Reap):
                self.reap()
            else:
                board.learn(op, self.both(op))
                self.both(ops.Recall(board.identity))
            for identity in self.identities:  # a round changes others as well
                demand_found_in_time(self.harness, identity, renewed=True)

    def reap(self) -> None:
        """A store may expire in one round what it forgets in the next: all of them, then."""
        counts = [Counter[str](), Counter[str]()]
        for count, perform in zip(counts, (self.model.perform, self.harness.perform), strict=True):
            while told := perform(ops.Reap(LIMIT)).counts:
                count.update({name: some for name, some in told.items() if some})
                if not any(told.values()):
                    break
        assert counts[0] == counts[1]

    @rule(key=KEYS, seed=SEEDS, fresh=st.integers(-2, 2))
    def a_claim_comes_with_an_age(self, key: int, seed: int, fresh: int) -> None:
        """The time until which it is fresh is the store's own, so each gets another."""
        board = self.boards[key]
        op = board.claim(self.dice(seed))
        mine, theirs = (
            self._aged(op, perform, fresh) for perform in (self.model.perform, self.harness.perform)
        )
        board.learn(op, self.same(mine, theirs))

    def _aged(self, op: ops.Claim, perform: Any, fresh: int) -> ops.Claim:
        now = perform(ops.Read(Identity(bytes(32)))).now
        return replace(op, fresh_until=now + fresh * UNIT + UNIT // 2)

    @rule(work=st.sampled_from(ops.Work), states=STATES, dead=st.booleans())
    def somebody_looks(self, work: ops.Work, states: tuple[State, ...], dead: bool) -> None:
        """A worker, an operator, and who asks for a tenant's records."""
        mine, theirs = (
            sorted(case.record.identity for case in perform(ops.Due(work, LIMIT)).cases)
            for perform in (self.model.perform, self.harness.perform)
        )
        assert mine == theirs
        for op in (ops.Browse(states, LIMIT, dead=dead), ops.Scan(states, LIMIT), ops.Count(LIMIT)):
            self.both(op)
        self.both(ops.ListBelongings(TENANT, LIMIT))
        for duty in Duty:
            mine, theirs = (
                sorted(each.glimpse.identity for each in perform(ops.ListNewest(duty, LIMIT)).found)
                for perform in (self.model.perform, self.harness.perform)
            )
            assert mine == theirs
        self._compare_audits()

    def _compare_audits(self) -> None:
        count = len(self.model.perform(ops.BrowseAudit(LIMIT)).entries)
        mine, theirs = (
            [
                replace(each, place="", at=0)
                for each in timeless(perform(ops.BrowseAudit(LIMIT))).entries
            ]
            for perform in (self.model.perform, self.harness.perform)
        )
        assert theirs[:count] == mine  # those of earlier examples follow

    @rule(names=st.tuples(NAMES, NAMES, st.none() | NAMES), who=st.integers(0, 1), units=UNITS)
    def somebody_begins(self, names: tuple[str, str, str | None], who: int, units: int) -> None:
        """A process starts: it registers its routes, and may lead."""
        route, recipe, previous = names
        self.both(ops.Register(f"{self.mark} {route}", recipe, previous, units * UNIT))
        self.both(ops.Lead(f"{self.mark} {route}", Fence(self.identities[who][:16]), units * UNIT))
        self.both(ops.WhoLeads(f"{self.mark} {route}"))

    def teardown(self) -> None:
        """Leave no record, by the contract's own means, whatever had happened."""
        for identity in self.identities:
            while isinstance(told := self.harness.perform(ops.Recall(identity)), ops.Recalled):
                self.harness.perform(_onward(identity, told))


def _onward(identity: Identity, told: ops.Recalled) -> ops.StoreOperation[Any]:
    """One step nearer to no record."""
    fence = told.case.record.fence
    match told.case.record.state:
        case State.PENDING:
            return ops.Take(identity, fence, new_fence(), UNIT)
        case State.IN_PROGRESS:
            return ops.Suspend(identity, fence)
        case State.UNKNOWN:
            return ops.EvictUnknown(identity, fence, new_fence(), UNIT, ACT, free=True)
        case _:
            return ops.Evict(identity, fence, ACT)


class Outbox(Lockstep):
    """Effects that are written, taken, delivered, failed, given up and tried again; and events."""

    def __init__(self) -> None:
        super().__init__()
        self.fences = [new_fence() for _ in range(2)]

    def key(self, number: int) -> str:
        return f"{self.mark} {number}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.mark,)

    @rule(key=KEYS, order=st.none() | NAMES, delay=st.integers(0, 2))
    def an_effect_is_written(self, key: int, order: str | None, delay: int) -> None:
        ordered = order and f"{self.mark} {order}"
        self.both(ops.Enqueue(self.key(key), None, self.mark, b"payload", ordered, delay * UNIT))

    @rule(who=st.integers(0, 1), units=UNITS)
    def a_worker_takes(self, who: int, units: int) -> None:
        self.both(ops.TakeEffects(self.fences[who], self.names, LIMIT, units * UNIT))

    @rule(who=st.integers(0, 1), units=UNITS)
    def a_worker_renews(self, who: int, units: int) -> None:
        self.both(ops.RenewEffects(self.fences[who], units * UNIT))

    @rule(key=KEYS, who=st.integers(0, 1), units=UNITS)
    def it_is_delivered(self, key: int, who: int, units: int) -> None:
        self.both(ops.MarkDelivered(self.key(key), self.fences[who], "its id", units * UNIT))
        self.both(ops.FindEffect(self.key(key)))

    @rule(key=KEYS, who=st.integers(0, 1), units=st.none() | st.integers(0, 3))
    def it_fails(self, key: int, who: int, units: int | None) -> None:
        again = None if units is None else units * UNIT
        self.both(ops.MarkFailed(self.key(key), self.fences[who], "refused", again))
        self.both(ops.FindEffect(self.key(key)))

    @rule(key=KEYS, drop=st.booleans())
    def an_operator_decides(self, key: int, drop: bool) -> None:
        self.both(ops.Requeue(self.key(key), ACT, drop))
        self.both(ops.FindEffect(self.key(key)))

    @rule(shelf=st.sampled_from(ops.Shelf))
    def an_operator_looks(self, shelf: ops.Shelf) -> None:
        self.both(ops.BrowseEffects(shelf, LIMIT))

    @rule(event=NAMES, keep=st.none() | UNITS)
    def an_event_comes(self, event: str, keep: int | None) -> None:
        self.both(ops.NoteEvent(self.mark, event, None if keep is None else keep * UNIT))

    @rule()
    def the_reaper_comes(self) -> None:
        mine, theirs = (
            Counter({name: some for name, some in perform(ops.Reap(LIMIT)).counts.items() if some})
            for perform in (self.model.perform, self.harness.perform)
        )
        assert mine == theirs

    def teardown(self) -> None:
        """All is given up, one after the other where they have an order; all is forgotten."""
        perform = self.harness.perform
        for _ in range(3):
            self.time_passes(10)
            for effect in perform(ops.TakeEffects(self.fences[0], self.names, LIMIT, UNIT)).effects:
                perform(ops.MarkFailed(effect.key, self.fences[0], "given up", None))
        for key in map(self.key, range(3)):
            perform(ops.Requeue(key, ACT, drop=True))
        self.time_passes(10)
        perform(ops.Reap(LIMIT))


@pytest.fixture(
    scope="module",
    # The statements of a divided table are those of a whole one.
    params=[in_proof(name)[0] if name.startswith("partitioned") else name for name in STORES],
)
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    folder = tmp_path_factory.mktemp(request.param)
    with open_harness(request.param, folder, server_of(request, request.param)) as opened:
        yield opened


SHARE = {"redis-sync": 0.2, "rediscluster-sync": 0.1}
"""Of the examples: a round or a list asks each of a thousand buckets there."""


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("machine", [Records, Outbox])
def test_a_store_answers_as_memory_does(
    harness: Harness, request: pytest.FixtureRequest, machine: type[Lockstep], examples: int
) -> None:
    store = request.node.callspec.params["harness"]
    if machine is Outbox and store not in OUTBOXES:
        return  # which is said by test_a_store_says_whether_it_has_an_outbox
    asked = played(machine, harness, round(examples * SHARE.get(store, 1)))
    what = machine.__name__.lower()
    note(request, f"in step with memory, {store}: {asked.total():,} operations, {what}", "proof")


def played(machine: type[Lockstep], harness: Harness, examples: int, **how: Any) -> Counter[str]:
    """What was asked, by kind."""
    steady = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        suppress_health_check=list(HealthCheck),
        **how,
    )
    asked = Counter[str]()
    bound = type(machine.__name__, (machine,), {"harness": harness, "asked": asked})
    run_state_machine_as_test(bound, settings=steady)
    return asked


@pytest.mark.parametrize("guard", [name for name, store in SPOILT.items() if store.alone])
def test_a_store_without_a_guard_is_found_out_of_step(guard: str) -> None:
    clock = FakeClock()
    spoilt = Harness(SPOILT[guard](clock), clock.travel, 0, "sync")
    with pytest.raises(AssertionError, match="assert"):
        played(Records, spoilt, 200, phases=[Phase.generate])
    spoilt.close()


MISLAID = {
    "duty": "NEW.duty = 2 BEGIN UPDATE semel_record SET duty = 1",
    "due_at": "NEW.duty = 1 BEGIN UPDATE semel_record SET due_at = NEW.due_at + 9000000000",
}


@pytest.mark.parametrize("column", MISLAID)
def test_a_store_that_mislays_records_is_found_out_of_step(tmp_path: Path, column: str) -> None:
    """What requests are told is right, and whoever looks after the record does not find it."""
    with open_harness("sqlite-sync", tmp_path, lambda: pytest.fail("no server")) as opened:
        opened.backend.migrate()
        with closing(sqlite3.connect(tmp_path / "records.db")) as connection:
            connection.execute(
                f"CREATE TRIGGER mislays AFTER UPDATE ON semel_record WHEN {MISLAID[column]} "
                "WHERE identity = NEW.identity; END"
            )
        with pytest.raises(AssertionError) as found:
            played(Records, opened, 200, phases=[Phase.generate])
    assert demand_found_in_time.__name__ in {entry.name for entry in found.traceback}
