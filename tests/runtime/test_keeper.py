"""The keeper: leases stay alive, writes are pursued, waiters are woken by one read."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

import semel
from semel.core import operations as ops
from semel.core.records import Fence, Identity, Origin, State
from semel.errors import SchemaError, StoreUnavailable
from semel.runtime import write_retries
from semel.runtime.events import Events
from semel.runtime.leases import Keeper, Lease, Leases, lease_clock
from semel.runtime.write_retries import WriteRetries
from semel.stores.base import Store
from semel.stores.memory import MemoryBackend
from tests.waiting import PATIENCE, until

R = TypeVar("R")

SECOND = 1_000_000
PATIENT = int(PATIENCE * SECOND)
ORIGIN = Origin("", "POST", "/", "a-key")


class Wall:
    """Both clocks: the store's and the process's."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds

    def micros(self) -> int:
        return int(self.seconds * SECOND)


class Flaky:
    """A real store that is down while ``down`` is set, and counts what it is asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.down = False
        self.asked: list[ops.StoreOperation[Any]] = []
        self.on_ask = threading.Event()
        self.on_perform: Callable[[], object] = lambda: None

    def perform(self, op: ops.StoreOperation[R]) -> R:
        self.asked.append(op)
        self.on_ask.set()
        self.on_perform()
        if self.down:
            raise StoreUnavailable("down")
        return self._store.perform(op)

    def count(self, kind: type) -> int:
        return sum(isinstance(op, kind) for op in self.asked)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def store(wall: Wall) -> Flaky:
    return Flaky(MemoryBackend(clock=wall.micros).blocking())


def new_identity() -> Identity:
    return Identity(os.urandom(32))


def claim(store: Flaky, identity: Identity, lease: float = 60) -> Fence:
    fence = Fence(os.urandom(16))
    store.perform(_claim(identity, fence, lease))
    return fence


def _claim(identity: Identity, fence: Fence, lease: float = 60) -> ops.Claim:
    return ops.Claim(identity, fence, "v1", b"", ORIGIN, int(lease * SECOND))


def state(store: Flaky, identity: Identity) -> State | None:
    reply = store.perform(ops.Read(identity))
    return reply.record.state if isinstance(reply, ops.Found) else None


def add(leases: Leases, lease: Lease) -> None:
    leases.held[lease.fence] = lease


def held(store: Flaky, wall: Wall, *, max_run: float = 900) -> tuple[Leases, Lease]:
    identity = new_identity()
    lease = Lease(identity, claim(store, identity), wall.seconds, 60, max_run)
    leases = Leases(wall.monotonic, Events())
    leases.held[lease.fence] = lease
    return leases, lease


# ── leases ────────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_is_renewed_each_third_and_outlives_its_first_term(
    wall: Wall, store: Flaky
) -> None:
    leases, lease = held(store, wall)
    for _ in range(12):
        wall.seconds = leases.run_once(store)
    assert store.count(ops.Renew) == 11
    assert wall.seconds - 1_000 >= 200
    assert lease.held(wall.seconds)
    assert isinstance(store.perform(ops.Lapse(lease.identity, lease.fence, 1)), ops.Lost)
    assert state(store, lease.identity) is State.IN_PROGRESS


def test_a_lease_is_left_to_lapse_after_max_run(wall: Wall, store: Flaky) -> None:
    leases, lease = held(store, wall, max_run=100)
    while len(leases):
        wall.seconds = leases.run_once(store)
        if wall.seconds == float("inf"):
            break
    assert len(leases) == 0
    wall.seconds = 1_000 + 100 + 61
    assert not lease.held(wall.seconds)
    assert isinstance(store.perform(ops.Lapse(lease.identity, lease.fence, 1)), ops.Applied)


class Cut:
    """A transaction that is told when it is severed."""

    def __init__(self) -> None:
        self.why: list[str] = []

    def sever(self, why: str) -> bool:
        self.why.append(why)
        raise RuntimeError("and fails at it")


class Stubborn:
    """A transaction that ends when it is severed for the second time."""

    def __init__(self) -> None:
        self.why: list[str] = []

    def sever(self, why: str) -> bool:
        self.why.append(why)
        return len(self.why) > 1


def test_a_transaction_is_severed_after_max_run_and_not_renewed_before(
    wall: Wall, store: Flaky
) -> None:
    leases, lease = held(store, wall, max_run=100)
    lease.transaction = cut = Cut()
    lease.is_transaction()
    assert lease.held(wall.seconds + 1_000_000)
    store.down = True  # by this very transaction: it is not waited for
    wall.seconds = leases.run_once(store)
    assert (wall.seconds, cut.why, store.count(ops.Renew)) == (1_100, [], 0)
    leases.run_once(store)
    assert cut.why == ["the handler ran longer than max_run"]
    assert len(leases) == 0
    assert not lease.held(wall.seconds)


def test_a_transaction_that_cannot_be_severed_yet_is_severed_later(
    wall: Wall, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    leases, lease = held(store, wall, max_run=60)
    lease.transaction = stubborn = Stubborn()
    lease.is_transaction()
    wall.seconds = 1_060
    again = leases.run_once(store)
    assert (len(leases), len(stubborn.why), again) == (1, 1, 1_065)
    leases.run_once(store)
    assert len(stubborn.why) == 1
    wall.seconds = again
    assert leases.run_once(store) == float("inf")
    assert (len(leases), len(stubborn.why)) == (0, 2)
    assert caplog.text.count("longer than max_run") == 1


def test_what_is_opened_after_max_run_is_severed_at_once(wall: Wall, store: Flaky) -> None:
    leases, lease = held(store, wall, max_run=60)
    wall.seconds = 1_060
    leases.run_once(store)
    lease.transaction = opened = Stubborn()
    assert opened.why == ["the handler ran longer than max_run"]


def test_a_transaction_is_severed_when_its_lease_is_lost(wall: Wall, store: Flaky) -> None:
    """Whoever has the record now needs the lock; nothing of it could be committed anyway."""
    leases, lease = held(store, wall)
    lease.transaction = cut = Cut()
    store.perform(ops.Release(lease.identity, lease.fence, retention=10**9, reason="by hand"))
    wall.seconds += 20
    leases.run_once(store)
    assert cut.why == ["the lease was lost"]
    assert len(leases) == 0


def test_what_outlives_max_run_ends_though_another_lease_cannot_be_renewed(
    wall: Wall, store: Flaky
) -> None:
    leases, _ = held(store, wall)
    overdue = Lease(new_identity(), Fence(os.urandom(16)), wall.seconds, 60, 60)
    overdue.transaction = cut = Cut()
    leases.held[overdue.fence] = overdue
    wall.seconds += 60
    store.down = True
    leases.run_once(store)
    assert cut.why


def test_a_lease_taken_by_another_is_known_to_be_lost(wall: Wall, store: Flaky) -> None:
    leases, lease = held(store, wall)
    store.perform(ops.Release(lease.identity, lease.fence, SECOND))
    wall.seconds += 20
    leases.run_once(store)
    assert lease.lost
    assert not lease.held(wall.seconds)


def test_a_run_that_completes_while_its_renewal_is_on_its_way_has_lost_nothing(
    wall: Wall, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    leases, lease = held(store, wall)
    store.perform(ops.Complete(lease.identity, lease.fence, b"", SECOND, SECOND))
    wall.seconds += 20
    assert leases.run_once(store) == float("inf")
    assert not lease.lost
    assert not caplog.text


def test_a_store_that_is_down_is_asked_again_before_the_lease_ends(
    wall: Wall, store: Flaky
) -> None:
    leases, lease = held(store, wall)
    wall.seconds += 20
    store.down = True
    again = leases.run_once(store)
    assert again < lease.good_until
    store.down = False
    wall.seconds = again
    leases.run_once(store)
    assert lease.good_until == again + 60


def test_one_failed_renewal_is_enough_for_one_round(wall: Wall, store: Flaky) -> None:
    leases, _ = held(store, wall)
    for _ in range(5):
        identity = new_identity()
        add(leases, Lease(identity, claim(store, identity), wall.seconds, 60, 900))
    wall.seconds += 20
    store.down = True
    leases.run_once(store)
    assert store.count(ops.Renew) == 1


def test_a_lease_is_counted_from_when_it_is_asked_for_again(wall: Wall, store: Flaky) -> None:
    _, lease = held(store, wall)
    wall.seconds += 300
    assert not lease.held(wall.seconds)
    lease.start(wall.seconds)
    assert lease.held(wall.seconds + 59)
    assert lease.ends_at == wall.seconds + 900


def refuses(store: Flaky, identity: Identity) -> None:
    """A store that will never take what is asked about this one, and says so in its own words."""

    def perform() -> None:
        if getattr(store.asked[-1], "identity", None) == identity:
            raise SchemaError("this column is new")

    store.on_perform = perform


def test_a_renewal_that_is_refused_for_good_ends_no_other_lease(wall: Wall, store: Flaky) -> None:
    leases, refused = held(store, wall)
    identity = new_identity()
    add(leases, Lease(identity, claim(store, identity), wall.seconds, 60, 900))
    refuses(store, refused.identity)
    wall.seconds += 20
    leases.run_once(store)
    assert [op.identity for op in store.asked if isinstance(op, ops.Renew)] == [
        refused.identity,
        identity,
    ]


def test_a_let_go_lease_is_not_renewed(wall: Wall, store: Flaky) -> None:
    leases, lease = held(store, wall)
    leases.held.pop(lease.fence, None)
    wall.seconds += 20
    assert leases.run_once(store) == float("inf")
    assert store.count(ops.Renew) == 0


def many(store: Flaky, wall: Wall, count: int) -> Leases:
    leases = Leases(wall.monotonic, Events())
    for _ in range(count):
        identity = new_identity()
        add(leases, Lease(identity, claim(store, identity), wall.seconds, 60, 900))
    return leases


def test_renewals_are_under_way_together(wall: Wall, store: Flaky) -> None:
    """The first goes alone; the others meet in the store, or none of them comes back."""
    leases = many(store, wall, 65)
    together = threading.Barrier(64)
    store.on_perform = lambda: store.count(ops.Renew) > 1 and together.wait(PATIENCE)
    wall.seconds += 20
    assert leases.run_once(store) == wall.seconds + 20
    assert store.count(ops.Renew) == 65


def test_a_round_leaves_none_that_is_due_for_long(wall: Wall, store: Flaky) -> None:
    leases = many(store, wall, 1_200)
    wall.seconds += 20
    rounds = 0
    while leases.run_once(store) <= wall.seconds:
        rounds += 1
    assert (rounds, store.count(ops.Renew)) == (2, 1_200)


def test_the_lease_that_ends_first_is_renewed_first(
    wall: Wall, store: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.runtime.leases._ABREAST", 1)
    leases = Leases(wall.monotonic, Events())
    durations = [90, 30, 120, 60, 45]
    for seconds in durations:
        identity = new_identity()
        add(leases, Lease(identity, claim(store, identity, seconds), wall.seconds, seconds, 900))
    wall.seconds += 29
    for lease in leases.held.values():
        lease.renew_at = wall.seconds
    leases.run_once(store)
    asked = [op.lease // SECOND for op in store.asked if isinstance(op, ops.Renew)]
    assert asked == sorted(durations)


def test_an_outage_in_the_middle_of_a_round_ends_it(
    wall: Wall, store: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.runtime.leases._ABREAST", 4)
    leases = many(store, wall, 100)

    def fail() -> None:
        if store.count(ops.Renew) > 10:
            store.down = True

    store.on_perform = fail
    wall.seconds += 20
    leases.run_once(store)
    assert 10 < store.count(ops.Renew) <= 10 + 4


def test_a_write_that_is_pursued_for_long_holds_up_no_renewal(store: Flaky) -> None:
    keeper, stuck, renewed = Keeper(lambda: store), threading.Event(), threading.Event()
    identity = new_identity()
    lease = Lease(identity, claim(store, identity), keeper._clock(), 60, 900)

    def perform() -> None:
        if isinstance(store.asked[-1], ops.Renew):
            renewed.set()
        else:
            stuck.set()
            assert renewed.wait(PATIENCE)

    store.on_perform = perform
    keeper.pursue(ops.Complete(new_identity(), lease.fence, b"", SECOND, SECOND))
    assert stuck.wait(PATIENCE)
    lease.renew_at = 0.0
    keeper.hold(lease)
    assert renewed.wait(PATIENCE)
    keeper.stop()


def test_a_machine_that_was_suspended_does_not_believe_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The monotonic clock stands still meanwhile, and says that the lease is young."""
    guard = semel.Guard("memory://", tenant=None, maintenance=None)
    slept = [0.0]
    assert abs(lease_clock() - time.clock_gettime(time.CLOCK_BOOTTIME)) < PATIENCE
    for module in ("semel.runtime.operation", "semel.web.exchange"):
        monkeypatch.setattr(f"{module}.lease_clock", lambda: lease_clock() + slept[0])

    def run() -> list[bool]:
        before = semel.operation().held
        slept[0] = 3_600.0
        return [before, semel.operation().held]

    assert guard.once("an-opaque-key-of-some-length", run, name="job").value == [True, False]
    guard.close()


# ── write_retries
# ───────────────────────────────────────────────────────────────────────────────────────


def test_a_write_is_pursued_until_the_store_takes_it(wall: Wall, store: Flaky) -> None:
    identity = new_identity()
    fence = claim(store, identity)
    retries = WriteRetries(wall.monotonic, Events())
    retries.add(ops.Complete(identity, fence, b"", SECOND, SECOND))
    store.down = True
    for _ in range(5):
        wall.seconds = max(wall.seconds, retries.run_once(store))
    assert len(retries) == 1
    store.down = False
    assert retries.run_once(store) == float("inf")
    assert state(store, identity) is State.COMPLETED


def test_a_retraction_waits_for_a_claim_that_is_still_on_its_way(wall: Wall, store: Flaky) -> None:
    identity, fence = new_identity(), Fence(os.urandom(16))
    retries = WriteRetries(wall.monotonic, Events())
    retries.add(ops.Release(identity, fence, SECOND))
    wall.seconds = retries.run_once(store)
    assert len(retries) == 1, "an absent record is no proof that the claim will not land"
    store.perform(ops.Claim(identity, fence, "v1", b"", ORIGIN, 60 * SECOND))
    retries.run_once(store)
    assert len(retries) == 0
    assert state(store, identity) is State.FAILED_RETRYABLE


def test_a_retraction_waits_for_a_retake_that_is_still_on_its_way(wall: Wall, store: Flaky) -> None:
    """Let go, the key would be held by nobody when it comes, and its outcome called unknown."""
    identity, fence = new_identity(), Fence(os.urandom(16))
    seen = claim(store, identity)
    store.perform(ops.Release(identity, seen, SECOND))
    retries = WriteRetries(wall.monotonic, Events())
    retries.add(ops.Release(identity, fence, SECOND), None, seen)
    wall.seconds = retries.run_once(store)
    assert len(retries) == 1, "a record as it was before is no proof either"
    store.perform(ops.Retake(identity, seen, fence, 60 * SECOND))
    retries.run_once(store)
    assert len(retries) == 0
    assert state(store, identity) is State.FAILED_RETRYABLE


def test_a_pursuit_ends_when_another_fence_holds_the_record(wall: Wall, store: Flaky) -> None:
    identity = new_identity()
    claim(store, identity)
    retries = WriteRetries(wall.monotonic, Events())
    retries.add(ops.Release(identity, Fence(os.urandom(16)), SECOND))
    assert retries.run_once(store) == float("inf")
    assert state(store, identity) is State.IN_PROGRESS


def test_an_outage_ends_the_round_so_that_leases_are_not_kept_waiting(
    wall: Wall, store: Flaky
) -> None:
    retries = WriteRetries(wall.monotonic, Events())
    for _ in range(5):
        retries.add(ops.Release(new_identity(), Fence(os.urandom(16)), SECOND))
    store.down = True
    retries.run_once(store)
    assert store.count(ops.Release) == 1
    assert len(retries) == 5


def test_a_write_that_is_refused_for_good_holds_up_no_other(wall: Wall, store: Flaky) -> None:
    retries = WriteRetries(wall.monotonic, Events())
    first, second = new_identity(), new_identity()
    for identity in (first, second):
        retries.add(ops.Release(identity, claim(store, identity), SECOND))
    refuses(store, first)
    retries.run_once(store)
    assert state(store, second) is State.FAILED_RETRYABLE
    wall.seconds += write_retries._HORIZON + 1
    retries.run_once(store)
    assert len(retries) == 0  # given up, as any other


def test_too_many_pursuits_make_room_without_spoiling_the_round(
    wall: Wall, store: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_retries, "_LIMIT", 1)
    retries = WriteRetries(wall.monotonic, Events())
    identity = new_identity()
    first = ops.Complete(identity, claim(store, identity), b"", SECOND, SECOND)
    retries.add(first)
    store.on_perform = lambda: retries.add(first)
    retries.run_once(store)
    assert len(retries) == 1


@pytest.mark.parametrize("late", [True, False])
def test_an_outcome_that_is_never_recorded_is_told(
    wall: Wall, store: Flaky, caplog: pytest.LogCaptureFixture, late: bool
) -> None:
    identity = new_identity()
    fence = claim(store, identity)
    retries = WriteRetries(wall.monotonic, Events())
    retries.add(ops.Complete(identity, fence, b"", SECOND, SECOND))
    if late:
        store.perform(ops.Release(identity, fence, SECOND))
    else:
        store.down = True
        wall.seconds += 16 * 60
    retries.run_once(store)
    assert len(retries) == 0
    assert any(record.levelname == "ERROR" for record in caplog.records)


def test_a_pursuit_is_given_up_at_its_horizon(wall: Wall, store: Flaky) -> None:
    retries = WriteRetries(wall.monotonic, Events())
    retries.add(ops.Release(new_identity(), Fence(os.urandom(16)), SECOND))
    store.down = True
    wall.seconds += 16 * 60
    retries.run_once(store)
    assert len(retries) == 0


# ── waiters, with the real thread ─────────────────────────────────────────────────────────────────


@pytest.fixture
def keeper(wall: Wall, store: Flaky) -> Iterator[Keeper]:
    made = Keeper(lambda: store)
    yield made
    made.stop()


def threads_waiting(keeper: Keeper) -> int:
    with keeper.waiters._lock:
        watches = keeper.waiters.watches.values()
        return sum(not slot.done() for watch in watches for slot in watch.threads)


def test_one_read_serves_all_threads_that_wait_and_one_is_elected(
    keeper: Keeper, store: Flaky
) -> None:
    identity = new_identity()
    fence = claim(store, identity)
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(keeper.waiters.wait, identity, fence, PATIENT, 8) for _ in range(8)]
        until(lambda: threads_waiting(keeper) == 8)
        store.perform(ops.Release(identity, fence, SECOND))
        before = store.count(ops.Read)
        keeper.settled(identity)
        wakes = [wait.result(PATIENCE) for wait in waits]
    assert store.count(ops.Read) - before <= 1
    assert all(isinstance(wake, ops.Woken) for wake in wakes)
    assert sum(isinstance(wake, ops.Woken) and wake.elected for wake in wakes) == 1


async def test_one_read_serves_all_tasks_that_wait_and_one_is_elected(
    keeper: Keeper, store: Flaky
) -> None:
    identity = new_identity()
    fence = claim(store, identity)
    waits = [
        asyncio.create_task(keeper.waiters.await_(identity, fence, PATIENT)) for _ in range(200)
    ]
    await asyncio.sleep(0)
    store.perform(ops.Complete(identity, fence, b"", SECOND, SECOND))
    before = store.count(ops.Read)
    keeper.settled(identity)
    wakes = await asyncio.gather(*waits)
    assert sum(isinstance(wake, ops.Woken) and wake.elected for wake in wakes) == 1
    assert store.count(ops.Read) - before <= 1


def test_a_thread_without_room_does_not_wait(keeper: Keeper, store: Flaky) -> None:
    identity = new_identity()
    fence = claim(store, identity)
    assert isinstance(keeper.waiters.wait(identity, fence, PATIENT, 0), ops.Unwoken)


def test_a_waiter_whose_patience_ends_is_not_woken(keeper: Keeper, store: Flaky) -> None:
    identity = new_identity()
    fence = claim(store, identity)
    assert isinstance(keeper.waiters.wait(identity, fence, 1, 8), ops.Unwoken)


async def test_a_lapse_wakes_waiters(keeper: Keeper, store: Flaky, wall: Wall) -> None:
    identity = new_identity()
    fence = claim(store, identity)
    waiting = asyncio.create_task(keeper.waiters.await_(identity, fence, PATIENT))
    await asyncio.sleep(0)
    wall.seconds += 61
    keeper.settled(identity)
    wake = await waiting
    assert isinstance(wake, ops.Woken)
    assert wake.record.lapsed(wake.now)


async def test_an_evicted_record_ends_the_wait(keeper: Keeper, store: Flaky) -> None:
    wake = await keeper.waiters.await_(new_identity(), Fence(os.urandom(16)), PATIENT)
    assert isinstance(wake, ops.Unwoken)


def test_the_thread_renews_a_short_lease_by_itself(store: Flaky) -> None:
    keeper = Keeper(lambda: store)
    identity = new_identity()
    lease = Lease(identity, claim(store, identity), keeper._clock(), 0.3, 900)
    store.on_ask.clear()
    keeper.hold(lease)
    assert store.on_ask.wait(PATIENCE)
    keeper.let_go(lease)
    keeper.stop()
    assert store.count(ops.Renew) >= 1


def test_what_needs_a_claim_is_pursued_with_it(wall: Wall, store: Flaky) -> None:
    retries = WriteRetries(wall.monotonic, Events())
    identity, fence = new_identity(), Fence(os.urandom(16))
    store.down = True
    retries.add(ops.Suspend(identity, fence, "in doubt", None), _claim(identity, fence))
    wall.seconds = retries.run_once(store)
    store.down = False
    retries.run_once(store)
    assert (len(retries), state(store, identity)) == (0, State.UNKNOWN)


def test_what_needs_a_claim_that_is_another_s_by_now_is_given_up_and_said(
    wall: Wall, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    retries = WriteRetries(wall.monotonic, Events())
    identity, fence = new_identity(), Fence(os.urandom(16))
    claim(store, identity)
    retries.add(ops.Suspend(identity, fence, "in doubt", None), _claim(identity, fence))
    retries.run_once(store)
    assert (len(retries), state(store, identity)) == (0, State.IN_PROGRESS)
    assert "came too late" in caplog.text


def test_stopping_gives_every_pursuit_one_last_try(store: Flaky) -> None:
    identity = new_identity()
    fence = claim(store, identity)
    keeper = Keeper(lambda: store)
    store.down = True
    store.on_ask.clear()
    keeper.pursue(ops.Complete(identity, fence, b"", SECOND, SECOND))
    assert store.on_ask.wait(PATIENCE)
    store.down = False
    keeper.stop()
    assert state(store, identity) is State.COMPLETED
