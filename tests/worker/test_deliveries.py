"""The outbox's loop in a process: concurrency, order, time-outs, leases, stopping."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import semel
from semel.core.delivery import Delivery, encode_payload
from semel.core.operations.outbox import (
    BrowseEffects,
    Enqueue,
    RenewEffects,
    Shelf,
    TakeEffects,
)
from semel.core.records import Effect
from semel.errors import ConfigurationError, GiveUp, StoreUnavailable
from semel.runtime.leases import new_fence
from semel.stores.memory import MemoryBackend
from semel.worker.deliveries import Deliveries
from semel.worker.worker import Round
from tests.waiting import PATIENCE, auntil, turns

SOON = timedelta(seconds=PATIENCE)
"""No test waits for it: a bound for what must happen."""


class Outbox:
    """A guard on a memory store with a hand-set clock, and what was delivered."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000
        self.backend = MemoryBackend(clock=lambda: self.now)
        self.guard = semel.Guard(self.backend, tenant=None)
        self.store = self.backend.blocking()
        self.delivered: list[str] = []

    def write(self, *keys: str, name: str = "paid", order: str | None = None) -> None:
        for key in keys:
            self.store.perform(Enqueue(key, None, name, encode_payload(key), order))

    def deliverer(self, function: Callable[..., Any], name: str = "paid", **options: Any) -> None:
        self.guard.delivers(name, **{"timeout": SOON, **options})(function)

    def loop(self, **options: Any) -> Deliveries:
        return Deliveries(self.guard, **{"luck": lambda: 0.5, **options})

    def shelf(self, shelf: Shelf) -> list[Effect]:
        return list(self.store.perform(BrowseEffects(shelf, 1000)).effects)

    def keys(self, shelf: Shelf) -> list[str]:
        return sorted(effect.key for effect in self.shelf(shelf))

    async def note(self, delivery: Delivery) -> str:
        self.delivered.append(delivery.key)
        return f"id of {delivery.key}"


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "semel"):
        yield caplog


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(SOON.total_seconds()):
        yield


async def test_what_is_due_is_delivered_and_acknowledged(outbox: Outbox) -> None:
    outbox.deliverer(outbox.note)
    outbox.write(*(f"k{n}" for n in range(40)))
    round_ = await outbox.loop(concurrency=4).run_once()
    assert round_ == Round(40, None, "delivered 40")
    assert sorted(outbox.delivered) == outbox.keys(Shelf.DELIVERED)
    assert {each.provider_id for each in outbox.shelf(Shelf.DELIVERED)} == {
        f"id of {key}" for key in outbox.delivered
    }


async def test_what_is_not_due_yet_tells_when(outbox: Outbox) -> None:
    outbox.deliverer(outbox.note)
    outbox.store.perform(Enqueue("k", None, "paid", b"1", None, 90_000_000))
    assert await outbox.loop().run_once() == Round(0, 90.0, "")


async def test_effects_without_a_deliverer_are_left_for_those_who_have_one(outbox: Outbox) -> None:
    outbox.deliverer(outbox.note)
    outbox.write("ours")
    outbox.write("theirs", name="shipped")
    await outbox.loop().run_once()
    assert outbox.delivered == ["ours"]
    assert outbox.keys(Shelf.WAITING) == ["theirs"]
    assert [each.tries for each in outbox.shelf(Shelf.WAITING)] == [0]


async def test_a_guard_without_deliverers_takes_nothing(outbox: Outbox) -> None:
    outbox.write("k")
    assert await outbox.loop().run_once() == Round(0)


async def test_one_that_fails_keeps_nobody_else_from_being_delivered(
    outbox: Outbox, quiet: pytest.LogCaptureFixture
) -> None:
    async def fail_at_odd(delivery: Delivery) -> None:
        if int(delivery.payload[1:]) % 2:
            raise OSError("down")

    outbox.deliverer(fail_at_odd)
    outbox.write(*(f"k{n}" for n in range(10)))
    round_ = await outbox.loop(concurrency=3).run_once()
    assert (round_.done, round_.note) == (10, "delivered 5, failed 5")
    assert round_.next_due_in == 0.5
    assert "OSError: down" in quiet.text


async def test_a_dead_letter_is_an_error_in_the_log_without_its_key(
    outbox: Outbox, quiet: pytest.LogCaptureFixture
) -> None:
    def refuse(delivery: Delivery) -> None:
        raise GiveUp("closed")

    outbox.deliverer(refuse)
    outbox.write("a-key-nobody-may-read")
    assert (await outbox.loop().run_once()).note == "dead 1"
    assert [record.levelname for record in quiet.records] == ["ERROR"]
    assert "a-key-nobody-may-read" not in quiet.text


# ── every kind of deliverer ───────────────────────────────────────────────────────────────────────


class Caller:
    """An object that is called."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    async def __call__(self, delivery: Delivery) -> str:
        self.seen.append(threading.current_thread().name)
        return delivery.key


async def test_coroutines_run_in_the_loop_and_functions_in_threads(outbox: Outbox) -> None:
    seen: list[str] = []

    async def coroutine(delivery: Delivery) -> None:
        seen.append(threading.current_thread().name)

    def function(delivery: Delivery) -> None:
        seen.append(threading.current_thread().name)

    def hands_on(delivery: Delivery) -> Any:
        return coroutine(delivery)

    kinds: list[Callable[..., Any]] = [
        coroutine,
        partial(coroutine),
        Caller(seen),
        function,
        hands_on,
    ]
    for number, kind in enumerate(kinds):
        outbox.deliverer(kind, name=f"e{number}")
        outbox.write(f"k{number}", name=f"e{number}")
    await outbox.loop().run_once()
    assert len(outbox.shelf(Shelf.DELIVERED)) == 5
    assert sorted(seen) == ["MainThread"] * 4 + ["semel-delivery"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration, MemoryError])
@pytest.mark.parametrize("threaded", [True, False])
async def test_nothing_that_a_deliverer_raises_reaches_the_worker(
    outbox: Outbox, kind: type[BaseException], threaded: bool
) -> None:
    def function(delivery: Delivery) -> None:
        raise kind("no")

    async def coroutine(delivery: Delivery) -> None:
        raise kind("no")

    outbox.deliverer(function if threaded else coroutine)
    outbox.write("k")
    assert (await outbox.loop().run_once()).note == "failed 1"
    (waiting,) = outbox.shelf(Shelf.WAITING)
    assert waiting.error is not None
    assert kind.__name__ in waiting.error


async def test_a_deliverer_that_cancels_itself_has_failed(outbox: Outbox) -> None:
    async def cancel(delivery: Delivery) -> None:
        raise asyncio.CancelledError

    outbox.deliverer(cancel)
    outbox.write("k")
    assert (await outbox.loop().run_once()).note == "failed 1"


async def test_what_is_returned_besides_an_id_does_not_undo_the_delivery(
    outbox: Outbox, quiet: pytest.LogCaptureFixture
) -> None:
    outbox.deliverer(lambda delivery: {"id": 7})
    outbox.write("k")
    assert (await outbox.loop().run_once()).note == "delivered 1"
    assert "returned dict" in quiet.text


# ── time-outs ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_coroutine_that_takes_too_long_is_stopped_and_tried_again(outbox: Outbox) -> None:
    stopped = asyncio.Event()

    async def hang(delivery: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    outbox.deliverer(hang, timeout=timedelta(milliseconds=20))
    outbox.write("k")
    assert (await outbox.loop().run_once()).note == "failed 1"
    assert stopped.is_set()
    (waiting,) = outbox.shelf(Shelf.WAITING)
    assert waiting.error is not None
    assert waiting.error.startswith("TimeoutError: not delivered within")


async def test_a_coroutine_that_takes_no_notice_is_left_behind(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.worker.deliveries._GRACE", 0.02)
    end = asyncio.Event()

    async def stubborn(delivery: Delivery) -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    outbox.deliverer(stubborn, timeout=timedelta(milliseconds=20))
    outbox.write("k")
    assert (await outbox.loop().run_once()).note == "failed 1"
    end.set()


async def test_a_thread_that_hangs_is_left_behind_and_its_late_result_ignored(
    outbox: Outbox,
) -> None:
    end, threads = threading.Event(), list[threading.Thread]()

    def hang(delivery: Delivery) -> str:
        threads.append(threading.current_thread())
        end.wait(SOON.total_seconds())
        return "too late"

    outbox.deliverer(hang, timeout=timedelta(milliseconds=20))
    outbox.write("k")
    assert (await outbox.loop().run_once()).note == "failed 1"
    (left_behind,) = await auntil(lambda: threads)
    end.set()
    await asyncio.to_thread(left_behind.join)
    await turns()
    assert outbox.keys(Shelf.DELIVERED) == []


# ── side by side, and in order ────────────────────────────────────────────────────────────────────


async def test_no_more_are_under_way_at_once_than_allowed(outbox: Outbox) -> None:
    under_way, most = 0, 0
    all_at_once = asyncio.Barrier(5)

    async def count(delivery: Delivery) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await all_at_once.wait()
        await turns()  # one more would begin now
        under_way -= 1

    outbox.deliverer(count)
    outbox.write(*(f"k{n}" for n in range(30)))
    await outbox.loop(concurrency=5).run_once()
    assert most == 5


async def test_a_slow_one_does_not_keep_new_ones_waiting(outbox: Outbox) -> None:
    """Written and announced while a delivery hangs, an effect is delivered in the same round."""
    begun, end, arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def note(delivery: Delivery) -> None:
        if delivery.key == "slow":
            begun.set()
            await end.wait()
        else:
            arrived.set()

    outbox.deliverer(note)
    outbox.write("slow")
    loop = outbox.loop()
    round_ = asyncio.create_task(loop.run_once())
    await begun.wait()
    outbox.write("new")
    loop.wake()
    await arrived.wait()
    end.set()
    assert (await round_).done == 2


async def test_what_becomes_due_during_a_round_is_taken_in_it(outbox: Outbox) -> None:
    """The pause of a failed one ends while another delivery still hangs."""
    end = asyncio.Event()

    async def twice(delivery: Delivery) -> None:
        if delivery.key == "slow":
            await end.wait()
        elif delivery.tries == 1:
            raise OSError("down")
        else:
            end.set()

    outbox.deliverer(twice, first_pause=timedelta(milliseconds=10))
    outbox.write("slow", "flaky")
    round_ = asyncio.create_task(outbox.loop().run_once())

    def ended_later() -> bool:
        outbox.now += 10_000
        return end.is_set()

    await auntil(ended_later)
    assert (await round_).note == "delivered 2, failed 1"


async def test_effects_of_one_order_are_delivered_one_after_the_other(outbox: Outbox) -> None:
    under_way = set[str]()
    overlaps = list[str]()

    async def watch(delivery: Delivery) -> None:
        assert delivery.order is not None
        if delivery.order in under_way:
            overlaps.append(delivery.key)
        under_way.add(delivery.order)
        await turns()
        under_way.remove(delivery.order)
        outbox.delivered.append(delivery.key)

    outbox.deliverer(watch)
    for number in range(8):
        for account in "abc":
            outbox.write(f"{account}{number}", order=account)
    assert (await outbox.loop(concurrency=10).run_once()).done == 24
    assert overlaps == []
    for account in "abc":
        ours = [key for key in outbox.delivered if key[0] == account]
        assert ours == [f"{account}{number}" for number in range(8)]


async def test_two_loops_share_the_work_and_deliver_nothing_twice(outbox: Outbox) -> None:
    outbox.deliverer(outbox.note)
    outbox.write(*(f"k{n:03}" for n in range(100)))
    rounds = await asyncio.gather(*(outbox.loop(concurrency=3).run_once() for _ in range(2)))
    assert sum(each.done for each in rounds) == 100
    assert all(each.done for each in rounds)
    assert sorted(outbox.delivered) == outbox.keys(Shelf.DELIVERED)


# ── leases ────────────────────────────────────────────────────────────────────────────────────────


async def test_the_lease_of_a_long_delivery_is_renewed(outbox: Outbox) -> None:
    """Others cannot take it although the first lease is long past."""
    lease = timedelta(milliseconds=30)
    stolen: list[Effect] = []

    async def long(delivery: Delivery) -> None:
        for _ in range(5):
            await renewed.wait()
            renewed.clear()
            outbox.now += 20_000
            theft = TakeEffects(new_fence(), ("paid",), 1, 1_000_000)
            stolen.extend(outbox.store.perform(theft).effects)

    renewed = asyncio.Event()
    perform = outbox.backend.perform

    def watched(op: Any) -> Any:
        if isinstance(op, RenewEffects):
            renewed.set()
        return perform(op)

    outbox.backend.perform = watched  # type: ignore[method-assign]
    outbox.deliverer(long)
    outbox.write("k")
    assert (await outbox.loop(lease=lease).run_once()).note == "delivered 1"
    assert stolen == []


async def test_a_failed_effect_is_not_held_by_the_renewal_of_others(outbox: Outbox) -> None:
    """Two of one batch: one fails and is due again although the other is still under way."""
    end = asyncio.Event()

    async def watch(delivery: Delivery) -> None:
        if delivery.key == "slow":
            await end.wait()
        elif delivery.tries == 1:
            raise OSError("down")
        else:
            end.set()

    perform = outbox.backend.perform

    def renewing(op: Any) -> Any:
        if isinstance(op, RenewEffects):
            outbox.now += 1_000  # at each renewal: the lease never ends, the pause does
        return perform(op)

    outbox.backend.perform = renewing  # type: ignore[method-assign]
    outbox.deliverer(watch, first_pause=timedelta(milliseconds=10))
    outbox.write("slow", "flaky")
    loop = outbox.loop(lease=timedelta(milliseconds=6))
    assert (await loop.run_once()).note == "delivered 2, failed 1"


async def test_a_renewal_that_fails_is_tried_again(
    outbox: Outbox, quiet: pytest.LogCaptureFixture
) -> None:
    renewals = 0
    enough = asyncio.Event()
    perform = outbox.backend.perform

    def flaky(op: Any) -> Any:
        nonlocal renewals
        if isinstance(op, RenewEffects):
            renewals += 1
            if renewals < 3:
                raise StoreUnavailable("no answer")
            enough.set()
        return perform(op)

    async def long(delivery: Delivery) -> None:
        await enough.wait()

    outbox.backend.perform = flaky  # type: ignore[method-assign]
    outbox.deliverer(long)
    outbox.write("k")
    loop = outbox.loop(lease=timedelta(milliseconds=15))
    assert (await loop.run_once()).note == "delivered 1"
    assert quiet.text.count("(deliver, RenewEffects): no answer") == 2


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────


async def test_stopped_it_finishes_what_is_under_way_and_takes_nothing_more(
    outbox: Outbox,
) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def slow(delivery: Delivery) -> None:
        begun.set()
        await end.wait()

    outbox.deliverer(slow)
    outbox.write("first")
    loop = outbox.loop(concurrency=1)
    round_ = asyncio.create_task(loop.run_once())
    await begun.wait()
    outbox.write("second")
    loop.stop()
    end.set()
    assert (await round_).note == "delivered 1"
    (waiting,) = outbox.shelf(Shelf.WAITING)
    assert (waiting.key, waiting.tries) == ("second", 0)


@pytest.mark.parametrize("threaded", [True, False])
async def test_cancelled_it_gives_back_what_is_under_way(outbox: Outbox, threaded: bool) -> None:
    begun, end = threading.Event(), threading.Event()

    def thread(delivery: Delivery) -> None:
        begun.set()
        end.wait(SOON.total_seconds())

    async def coroutine(delivery: Delivery) -> None:
        begun.set()
        await asyncio.Event().wait()

    outbox.deliverer(thread if threaded else coroutine)
    outbox.write("k")
    round_ = asyncio.create_task(outbox.loop().run_once())
    await asyncio.to_thread(begun.wait, SOON.total_seconds())
    round_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await round_
    end.set()
    again = outbox.store.perform(TakeEffects(new_fence(), ("paid",), 1, 1_000_000)).effects
    assert [(each.key, each.tries) for each in again] == [("k", 2)]


async def test_a_store_that_fails_lets_what_is_under_way_record_its_end(outbox: Outbox) -> None:
    perform = outbox.backend.perform
    broken = False

    async def break_store(delivery: Delivery) -> None:
        nonlocal broken
        broken = True

    def flaky(op: Any) -> Any:
        if broken and isinstance(op, TakeEffects):
            raise StoreUnavailable("no answer")
        return perform(op)

    outbox.backend.perform = flaky  # type: ignore[method-assign]
    outbox.deliverer(break_store)
    outbox.write("k")
    with pytest.raises(StoreUnavailable):
        await outbox.loop().run_once()
    assert outbox.keys(Shelf.DELIVERED) == ["k"]


async def test_a_long_round_reports_while_it_goes_on(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.worker.worker._REPORT_EVERY", 0.0)
    reports: list[Round] = []
    outbox.deliverer(outbox.note)
    outbox.write(*(f"k{n}" for n in range(20)))
    last = await outbox.loop(concurrency=2, report=reports.append).run_once()
    assert sum(each.done for each in [*reports, last]) == 20
    assert len(reports) > 1


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"lease": timedelta(0)}])
async def test_wrong_options_are_refused(outbox: Outbox, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        outbox.loop(**wrong)


async def test_threads_do_not_keep_each_other_waiting(outbox: Outbox) -> None:
    """More hang than a pool of threads would have."""
    end = threading.Event()

    def hang(delivery: Delivery) -> None:
        if delivery.key == "last":
            end.set()
        assert end.wait(SOON.total_seconds())

    outbox.deliverer(hang)
    outbox.write(*(f"k{n}" for n in range(49)), "last")
    assert (await outbox.loop(concurrency=50).run_once()).note == "delivered 50"
