"""The flow of one delivery: what is recorded, whether it is tried again, and when."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from semel.core import operations as ops
from semel.core.delivery import (
    RECORD_TRIES,
    CallDeliverer,
    DelivererFailed,
    DelivererReturned,
    Delivery,
    DeliveryEnding,
    DeliveryReport,
    RetryRules,
    deliver,
    encode_payload,
    next_pause,
)
from semel.core.flow import run
from semel.core.frozen import replace
from semel.core.records import Effect, Fence, Identity, Micros
from semel.errors import GiveUp, NotExecuted, RetryLater, StoreUnavailable
from semel.stores.memory import MemoryBackend

R = TypeVar("R")

SECOND = 1_000_000
FENCE, OTHER = Fence(b"f" * 16), Fence(b"g" * 16)
RULES = RetryRules(tries=3, first_pause=SECOND, longest_pause=10 * SECOND, keep=3600 * SECOND)
LEASE = 60 * SECOND


class World:
    """A memory store, a clock set by hand, a deliverer that does as it is told, and faults."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND
        self.backend = MemoryBackend(clock=lambda: self.now)
        self.store = self.backend.blocking()
        self.replies: deque[DelivererReturned | DelivererFailed | BaseException] = deque()
        self.sent: list[Delivery] = []
        self.rests: list[Micros] = []
        self.faults: deque[str] = deque()
        self.meanwhile: Any = lambda: None

    def perform(self, op: ops.FlowOperation[R]) -> R:
        reply: Any = self._perform(op)
        answer: R = reply
        return answer

    def _perform(self, op: ops.FlowOperation[Any]) -> Any:
        match op:
            case CallDeliverer():
                self.sent.append(op.delivery)
                self.meanwhile()
                reply = self.replies.popleft() if self.replies else DelivererReturned("provider-1")
                if isinstance(reply, BaseException):
                    raise reply
                return reply
            case ops.PauseBetweenLooks():
                self.rests.append(op.pause)
                return None
            case ops.StoreOperation():
                return self._store(op)
            case _:
                raise TypeError(op)

    def _store(self, op: ops.StoreOperation[Any]) -> Any:
        fault = self.faults.popleft() if self.faults else ""
        if fault == "lost":
            raise StoreUnavailable("no answer", applied=None)
        reply = self.store.perform(op)
        if fault == "applied":
            raise StoreUnavailable("the answer was lost", applied=None)
        return reply

    def write(self, key: str = "k1", order: str | None = None) -> None:
        self.store.perform(ops.Enqueue(key, None, "paid", encode_payload({"n": 1}), order))

    def take(self, fence: Fence = FENCE, limit: int = 10) -> tuple[Effect, ...]:
        return self.store.perform(ops.TakeEffects(fence, ("paid",), limit, LEASE)).effects

    def deliver(
        self, fence: Fence = FENCE, rules: RetryRules = RULES, luck: float = 0.5
    ) -> DeliveryReport:
        (effect,) = self.take(fence, 1)
        return run(deliver(effect, rules, fence, luck), self.perform)

    def shelf(self, shelf: ops.Shelf) -> list[Effect]:
        return list(self.store.perform(ops.BrowseEffects(shelf, 100)).effects)


@pytest.fixture
def world() -> World:
    return World()


# ── what a deliverer sees ─────────────────────────────────────────────────────────────────────────


def test_a_deliverer_gets_the_key_the_payload_and_which_try_it_is(world: World) -> None:
    identity = Identity(b"i" * 32)
    world.store.perform(
        ops.Enqueue("k1", identity, "paid", encode_payload({"é": [1, None]}), "account-7")
    )
    world.deliver()
    created_at = datetime.fromtimestamp(1_700_000_000, UTC)
    assert world.sent == [
        Delivery("k1", "paid", {"é": [1, None]}, identity, 1, created_at, "account-7")
    ]


def test_every_try_has_the_same_key(world: World) -> None:
    world.write()
    world.replies.extend([DelivererFailed(OSError("down")), DelivererFailed(OSError("down"))])
    for _ in range(3):
        world.deliver()
        world.now += 10 * SECOND
    assert [(each.key, each.tries) for each in world.sent] == [("k1", 1), ("k1", 2), ("k1", 3)]


def test_the_key_is_not_printed(world: World) -> None:
    world.write("a-key-nobody-may-read")
    world.deliver()
    assert "a-key-nobody-may-read" not in repr(world.sent[0])


# ── what is recorded ──────────────────────────────────────────────────────────────────────────────


def test_a_delivery_is_recorded_with_the_providers_id(world: World) -> None:
    world.write()
    assert world.deliver() == DeliveryReport(DeliveryEnding.DELIVERED)
    (done,) = world.shelf(ops.Shelf.DELIVERED)
    assert (done.provider_id, done.tries) == ("provider-1", 1)
    assert world.take(OTHER) == ()


def test_an_error_is_recorded_and_tried_again_after_the_pause(world: World) -> None:
    world.write()
    world.replies.append(DelivererFailed(OSError("connection refused")))
    report = world.deliver(luck=0.5)
    assert report == DeliveryReport(
        DeliveryEnding.FAILED, "OSError: connection refused", SECOND // 2
    )
    (waiting,) = world.shelf(ops.Shelf.WAITING)
    assert waiting.error == "OSError: connection refused"
    world.now += SECOND // 2 - 1
    assert world.take(OTHER) == ()
    world.now += 1
    assert [effect.tries for effect in world.take(OTHER)] == [2]


def test_after_its_last_try_an_effect_is_a_dead_letter(world: World) -> None:
    world.write()
    world.replies.extend([DelivererFailed(NotExecuted("no")) for _ in range(3)])
    endings = []
    for _ in range(3):
        endings.append(world.deliver().ending)
        world.now += 10 * SECOND
    assert endings == [DeliveryEnding.FAILED, DeliveryEnding.FAILED, DeliveryEnding.DEAD]
    world.now += 10**15
    assert world.take(OTHER) == ()
    assert [effect.tries for effect in world.shelf(ops.Shelf.DEAD)] == [3]


def test_giving_up_makes_a_dead_letter_at_once(world: World) -> None:
    world.write()
    world.replies.append(DelivererFailed(GiveUp("the account is closed")))
    assert world.deliver() == DeliveryReport(DeliveryEnding.DEAD, "GiveUp: the account is closed")
    (dead,) = world.shelf(ops.Shelf.DEAD)
    assert dead.error == "GiveUp: the account is closed"


def test_a_delivery_that_takes_its_worker_down_each_time_is_not_tried_for_ever(
    world: World,
) -> None:
    world.write()
    for _ in range(RULES.tries):
        assert len(world.take()) == 1
        world.now += LEASE
    report = world.deliver()
    assert report.ending is DeliveryEnding.DEAD
    assert world.sent == []
    assert len(world.shelf(ops.Shelf.DEAD)) == 1


def test_a_payload_that_is_no_json_is_a_dead_letter(world: World) -> None:
    world.store.perform(ops.Enqueue("k1", None, "paid", b"\xff", None))
    assert world.deliver().ending is DeliveryEnding.DEAD
    assert world.sent == []


# ── a store that fails ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ["lost", "applied"])
@pytest.mark.parametrize(
    "reply", [DelivererReturned("provider-1"), DelivererFailed(OSError("down"))]
)
def test_a_result_is_offered_until_the_store_has_it(
    world: World, fault: str, reply: DelivererReturned | DelivererFailed
) -> None:
    world.write()
    (effect,) = world.take()
    world.replies.append(reply)
    world.faults.extend([fault] * 3)
    report = run(deliver(effect, RULES, FENCE, 0.5), world.perform)
    assert report.ending is (
        DeliveryEnding.DELIVERED if isinstance(reply, DelivererReturned) else DeliveryEnding.FAILED
    )
    assert len(world.sent) == 1
    assert world.rests == [50_000, 100_000, 200_000]


def test_a_result_that_no_store_takes_leaves_the_effect_to_its_lease(world: World) -> None:
    world.write()
    (effect,) = world.take()
    world.faults.extend(["lost"] * RECORD_TRIES)
    report = run(deliver(effect, RULES, FENCE, 0.5), world.perform)
    assert report.ending is DeliveryEnding.UNRECORDED
    assert world.take(OTHER) == ()
    world.now += LEASE
    assert [effect.key for effect in world.take(OTHER)] == ["k1"]


# ── leases ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "reply",
    [DelivererReturned("mine"), DelivererFailed(OSError("down")), DelivererFailed(GiveUp("no"))],
)
def test_whoever_lost_the_lease_to_another_records_nothing(
    world: World, reply: DelivererReturned | DelivererFailed
) -> None:
    world.write()
    world.replies.append(reply)

    def overtake() -> None:
        world.now += LEASE
        assert len(world.take(OTHER)) == 1

    world.meanwhile = overtake
    assert world.deliver().ending is DeliveryEnding.OVERTAKEN
    (waiting,) = world.shelf(ops.Shelf.WAITING)
    assert (waiting.error, waiting.provider_id) == (None, None)
    assert world.store.perform(ops.MarkDelivered("k1", OTHER, "theirs", SECOND)).applied
    (done,) = world.shelf(ops.Shelf.DELIVERED)
    assert done.provider_id == "theirs"


def test_a_delivery_past_its_lease_that_nobody_took_over_counts(world: World) -> None:
    world.write()

    def pass_time() -> None:
        world.now += LEASE + 1

    world.meanwhile = pass_time
    assert world.deliver().ending is DeliveryEnding.DELIVERED


def test_an_interrupted_delivery_is_tried_again_at_once_by_another(world: World) -> None:
    world.write()
    world.replies.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        world.deliver()
    (again,) = world.take(OTHER)
    assert (again.key, again.tries) == ("k1", 2)
    assert again.error == "the worker was stopped during the delivery"


def test_being_stopped_at_the_last_try_gives_nothing_up(world: World) -> None:
    world.write()
    world.replies.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        world.deliver(rules=replace(RULES, tries=1))
    assert world.shelf(ops.Shelf.DEAD) == []


# ── order ─────────────────────────────────────────────────────────────────────────────────────────


def test_of_one_order_the_next_comes_only_when_the_one_before_is_done(world: World) -> None:
    for key in ("a1", "a2"):
        world.write(key, order="account-7")
    world.write("b1")
    world.replies.append(DelivererFailed(OSError("down")))
    assert [effect.key for effect in world.take()] == ["a1", "b1"]
    assert world.take(OTHER) == ()
    world.now += LEASE
    assert world.store.perform(ops.MarkFailed("a1", FENCE, "down", SECOND)) == ops.EffectWritten(
        True, world.now
    )
    assert [effect.key for effect in world.take(OTHER)] == ["b1"]
    world.now += SECOND
    assert [effect.key for effect in world.take(OTHER)] == ["a1"]
    world.store.perform(ops.MarkDelivered("a1", OTHER, None, SECOND))
    assert [effect.key for effect in world.take(OTHER)] == ["a2"]


def test_a_dead_letter_steps_aside(world: World) -> None:
    for key in ("a1", "a2"):
        world.write(key, order="account-7")
    world.replies.append(DelivererFailed(GiveUp("no")))
    world.deliver()
    assert [effect.key for effect in world.take(OTHER)] == ["a2"]


# ── pauses ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("tries", "longest"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (900, 10)])
def test_pauses_double_up_to_the_longest_and_are_spread_over_all_of_it(
    tries: int, longest: int
) -> None:
    rules = replace(RULES, tries=1000)
    pauses = [next_pause(tries, rules, luck, OSError()) for luck in (0.0, 0.25, 1.0)]
    assert pauses == [0, longest * SECOND // 4, longest * SECOND]


def test_who_asks_to_be_left_alone_is_left_alone_so_long_within_reason() -> None:
    asked = RetryLater("busy", after=timedelta(seconds=5))
    assert next_pause(1, RULES, 0.0, asked) == 5 * SECOND
    assert next_pause(1, RULES, 1.0, asked) == 6 * SECOND
    for_ever = RetryLater("busy", after=timedelta(days=9))
    assert next_pause(1, RULES, 0.0, for_ever) == RULES.longest_pause
    assert next_pause(1, RULES, 0.0, RetryLater("?", after=timedelta(-1))) == 0
    assert next_pause(3, RULES, 0.0, asked) is None


def test_what_an_exception_says_is_kept_short_and_in_one_line(world: World) -> None:
    world.write()
    world.replies.append(DelivererFailed(OSError("a\nb " + "x" * 10_000)))
    report = world.deliver()
    assert report.error is not None
    assert report.error.startswith("OSError: a b xxx")
    assert len(report.error) == 500
