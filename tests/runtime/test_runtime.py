"""The runtime: one for each process, begun once, closed and begun again."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.records import Identity
from semel.core.terms import EVERY_ROUTE
from semel.once import Once
from semel.runtime.breaker import FAILURES, LASTING
from semel.runtime.limits import LimitCost
from semel.runtime.runtime import Background, Runtime
from semel.web.exchange_async import start_task
from tests.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

THREADS = 8
HOUR = timedelta(hours=1)
KEY = Identity(b"\7" * 32)

MakeGuard = Callable[..., semel.Guard]


@pytest.fixture
def make_guard() -> Iterator[MakeGuard]:
    made: list[semel.Guard] = []

    def make(store: str = "memory://", **options: Any) -> semel.Guard:
        made.append(semel.Guard(store, tenant=None, **options))
        return made[-1]

    yield make
    for guard in made:
        guard.close()


def in_a_child(holds: Callable[[], bool]) -> bool:
    """Whether it holds in a forked child, asked by another thread than the one that has forked.

    That one owns the locks it held when it forked; the other has to wait for them.
    """
    child = os.fork()
    if child == 0:
        said: list[bool] = []
        asks = threading.Thread(target=lambda: said.append(holds()), daemon=True)
        asks.start()
        asks.join(PATIENCE)
        os._exit(0 if said == [True] else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def once(guard: semel.Guard, key: str = "k") -> Once[int]:
    return guard.once(f"{key:->32}", os.getpid, name="pay")


def standing() -> list[str]:
    """The threads beside requests that this process has now."""
    names = ("semel-maintenance", "semel-census")
    return sorted(each.name for each in threading.enumerate() if each.name in names)


# ── a forked child ────────────────────────────────────────────────────────────────────────────────


def used(make_guard: MakeGuard) -> semel.Guard:
    """A guard of which every part has something that is this process's own."""
    limits = semel.Limits(new_keys=semel.Rate(3, HOUR))
    guard = make_guard(limits=limits, replay_cache=timedelta(minutes=1))
    for _ in range(2):
        once(guard)  # the second is read, and remembered
    guard.start()
    runtime = guard.runtime
    runtime.seen_keys.meet(KEY)
    for _ in range(FAILURES):
        runtime.breaker.failed(time.monotonic() - 2 * LASTING)
    assert learnt(guard) == {
        *("begun", "breaker", "seen_keys", "limiter", "plans", "replays", "threads"),
    }
    return guard


def learnt(guard: semel.Guard) -> set[str]:
    """The parts of a runtime that are not as they were made; to ask leaves marks."""
    runtime = guard.runtime
    assert runtime.limiter is not None
    assert runtime.replays is not None
    found = {
        "begun": runtime.begun,
        "breaker": runtime.breaker.is_open,
        "seen_keys": runtime.seen_keys.meet(KEY),
        "leases": bool(runtime.keeper.leases),
        "limiter": any(runtime.limiter.charge("", LimitCost.NEW_KEY) for _ in range(3)),
        "plans": runtime.plan(EVERY_ROUTE, guard.policy).enrolled,
        "replays": bool(runtime.replays._young or runtime.replays._old),
        "running": bool(runtime.running),
        "threads": bool(standing()),
        "waiters": bool(runtime.keeper.waiters.watches),
    }
    return {part for part, is_there in found.items() if is_there}


def test_a_child_starts_with_nothing_of_its_parents(make_guard: MakeGuard) -> None:
    guard = used(make_guard)
    parents = guard.runtime
    assert in_a_child(lambda: guard.runtime is not parents and learnt(guard) == set())
    assert guard.runtime is parents
    assert learnt(guard) >= {"begun", "breaker", "plans", "replays", "threads"}


def test_so_does_a_grandchild(make_guard: MakeGuard) -> None:
    guard = used(make_guard)
    parents = guard.runtime

    def again() -> bool:
        childs = guard.runtime
        return in_a_child(lambda: guard.runtime not in (parents, childs) and not learnt(guard))

    assert in_a_child(again)


def test_every_guard_gets_a_runtime_of_its_own(make_guard: MakeGuard) -> None:
    guards = [make_guard() for _ in range(3)]
    parents = [guard.runtime for guard in guards]
    assert in_a_child(lambda: len({*parents, *(each.runtime for each in guards)}) == 6)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_child_is_served_though_its_parent_was_at_work_everywhere(
    store: str, tmp_path: Path, make_guard: MakeGuard
) -> None:
    """Forked while another thread holds every lock, and two more are about their rounds."""
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'keys.db'}"
    guard = make_guard(url)
    once(guard, "before")
    keeper, held, go = guard.runtime.keeper, threading.Event(), threading.Event()

    def hold() -> None:
        with keeper.waiters._lock, keeper.renewing._wake, keeper._other_work._wake:
            held.set()
            go.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait(PATIENCE)
        try:
            assert in_a_child(lambda: _serves(guard))
        finally:
            go.set()


def _serves(guard: semel.Guard) -> bool:
    """Requests are served, leases renewed, records waited for, and all is closed at the end."""
    served = once(guard, "in the child")
    keeper = guard.runtime.keeper
    keeper.settled(KEY)
    keeper.renewing.rouse(0.0)
    keeper._other_work.rouse(0.0)
    begun = guard.runtime.begun and standing() == ["semel-maintenance"]
    guard.close()
    return begun and served.value == os.getpid() and not served.replayed and not standing()


async def test_a_child_does_not_end_its_parents_tasks(make_guard: MakeGuard) -> None:
    """Their ``finally`` would run there too, with connections that are the parent's."""
    guard, ended = make_guard(), list[int]()

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(os.getpid())

    task = start_task(work(), guard.runtime.running)
    await asyncio.sleep(0)
    name = task.get_name()
    del task
    assert in_a_child(lambda: gc.collect() >= 0 and not guard.runtime.running and not ended)
    (task,) = guard.runtime.running
    assert task.get_name() == name
    task.cancel()
    await asyncio.wait({task})
    assert ended == [os.getpid()]


# ── the threads beside requests ───────────────────────────────────────────────────────────────────


class Meeting(list[bool]):
    """Nobody is told that nothing has begun before all have asked."""

    def __init__(self) -> None:
        super().__init__([True])
        self._all = threading.Barrier(THREADS)

    def pop(self, *at: Any) -> bool:
        self._all.wait(PATIENCE)
        return super().pop(*at)


class Counted:
    """A thread that is started and stopped."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def stop(self) -> None:
        self.told.append("stop")


def test_threads_that_come_first_together_begin_once(make_guard: MakeGuard) -> None:
    """Of two that look after the records, one would never be closed."""
    runtime, made = make_guard().runtime, list[Counted]()

    def background(given: Runtime) -> list[Background]:
        assert given is runtime
        made.append(Counted())
        return [made[-1]]

    runtime._background, runtime._unbegun = background, Meeting()
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(runtime.begin) for _ in range(THREADS)]:
            done.result(PATIENCE)
    assert [each.told for each in made] == [["start"]]
    runtime.close()
    assert [each.told for each in made] == [["start", "stop"]]


def test_closed_it_begins_again_with_the_next_request(make_guard: MakeGuard) -> None:
    guard = make_guard(limits=semel.Limits(active_keys=100))
    both = ["semel-census", "semel-maintenance"]
    for key in ("one", "two"):
        assert (guard.runtime.begun, standing()) == (False, [])
        keeper = guard.runtime.keeper
        once(guard, key)
        assert (guard.runtime.begun, standing()) == (True, both)
        guard.close()
        assert guard.runtime.keeper is not keeper
    assert (guard.runtime.begun, standing()) == (False, [])


def test_nothing_begins_before_a_keyed_request(make_guard: MakeGuard) -> None:
    """A command, or a worker with loops of its own, has no threads of maintenance besides."""
    guard = make_guard(limits=semel.Limits(active_keys=100))
    guard.start()
    assert guard.health().up
    assert (guard.runtime.begun, standing()) == (False, [])


def test_who_leaves_maintenance_to_workers_has_no_thread_for_it(make_guard: MakeGuard) -> None:
    guard = make_guard(maintenance=None)
    once(guard)
    assert (guard.runtime.begun, standing()) == (True, [])
