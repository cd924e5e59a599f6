"""The replay cache: what it may answer, for how long, and how much it holds."""

from __future__ import annotations

import gc
import gzip
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from semel.core.exchange.answers import Answer
from semel.core.exchange.exchange import Exchange
from semel.core.exchange.settings_changed import announce
from semel.core.flow import run
from semel.core.frozen import replace
from semel.core.operations.handler import Streaming
from semel.core.operations.requests import Found, Read, Register
from semel.core.policy import ietf, stripe
from semel.core.records import Record, Request, Response, State
from semel.errors import ConfigurationError, StoreCorrupt
from semel.runtime.leases import lease_clock
from semel.runtime.replay_cache import LONGEST, ReplayCache, outlast
from tests.core.world import SECOND, World, answered, call

MINUTE = timedelta(minutes=1)


class Process:
    """A process with a clock of its own, and a store whose clock is another."""

    def __init__(self, window: timedelta = MINUTE, room: int = 1 << 20) -> None:
        self.uptime = 4711.0
        self.world = World()
        self.cache = ReplayCache(window, room, lambda: self.uptime)

    def execute(self, body: bytes = b"made", **request: Any) -> Exchange:
        self.world.outcomes.append(answered(201, body))
        first = call(**request)
        assert self.world.serve(first).outcome == "executed"
        return first

    def read(self, of: Exchange) -> Found:
        found = self.world.store.perform(Read(of.identity))
        assert isinstance(found, Found)
        return found

    def remember(self, of: Exchange) -> None:
        self.cache.note(self.read(of), self.uptime)

    def pass_time(self, seconds: float) -> None:
        """By the process's clock and by the store's."""
        self.uptime += seconds
        self.world.now += int(seconds * SECOND)


@pytest.fixture
def process() -> Process:
    return Process()


def code(answer: Answer | None) -> str:
    assert answer is not None
    assert answer.response is not None
    return answer.response.body.decode()


def test_what_was_read_is_repeated_as_the_store_would_have_it(process: Process) -> None:
    process.remember(process.execute())
    from_memory = process.cache.answer(call())
    assert from_memory == process.world.serve(call())
    assert from_memory is not None
    assert from_memory.outcome == "replayed"


def test_what_was_not_read_is_asked_of_the_store(process: Process) -> None:
    process.execute()
    assert process.cache.answer(call()) is None


def test_another_payload_is_refused(process: Process) -> None:
    process.remember(process.execute())
    answer = process.cache.answer(call(b'{"amount": 101}'))
    assert "key-reused" in code(answer)
    assert '"amount"' in code(answer)


def test_the_same_meaning_in_other_bytes_is_the_same(process: Process) -> None:
    process.remember(process.execute())
    answer = process.cache.answer(call(b'{ "amount":100.0 }'))
    assert answer is not None
    assert answer.outcome == "replayed"


@pytest.mark.parametrize(
    "other", [{"tenant": "bob"}, {"path": "/refunds"}, {"key": b"another-key-of-some-length"}]
)
def test_it_answers_nobody_else(process: Process, other: dict[str, Any]) -> None:
    mine: dict[str, Any] = {"tenant": "ann"}
    process.remember(process.execute(**mine))
    assert process.cache.answer(call(**mine)) is not None
    assert process.cache.answer(call(**{**mine, **other})) is None


@pytest.mark.parametrize(("passed", "known"), [(59.9, True), (60.0, False), (3600.0, False)])
def test_an_answer_is_repeated_for_the_window_and_no_longer(
    process: Process, passed: float, known: bool
) -> None:
    process.remember(process.execute())
    process.pass_time(passed)
    assert (process.cache.answer(call()) is not None) is known


def test_repeating_an_answer_does_not_prolong_it(process: Process) -> None:
    process.remember(process.execute())
    for _ in range(11):
        process.pass_time(5.4)
        assert process.cache.answer(call()) is not None
    process.pass_time(5.4)
    assert process.cache.answer(call()) is None


def test_the_window_begins_before_the_store_is_asked(process: Process) -> None:
    found, asked = process.read(process.execute()), process.uptime
    process.pass_time(50)
    process.cache.note(found, asked)
    assert process.cache.answer(call()) is not None
    process.pass_time(10)
    assert process.cache.answer(call()) is None


def test_nothing_is_repeated_past_its_retention_by_the_stores_clock(process: Process) -> None:
    """The process's own clock is years away from the store's."""
    policy = ietf(retention=timedelta(seconds=10))
    process.remember(process.execute(policy=policy))
    process.pass_time(9.9)
    assert process.cache.answer(call(policy=policy)) is not None
    process.pass_time(0.1)
    assert process.cache.answer(call(policy=policy)) is None
    assert "key-expired" in code(process.world.serve(call(policy=policy)))


@pytest.mark.parametrize("state", [state for state in State if state is not State.COMPLETED])
def test_only_completed_records_are_remembered(process: Process, state: State) -> None:
    found = process.read(process.execute())
    process.cache.note(replace(found, record=replace(found.record, state=state)), process.uptime)
    assert process.cache.answer(call()) is None


def test_a_damaged_record_is_not_remembered(process: Process) -> None:
    found = process.read(process.execute())
    assert found.record.snapshot is not None
    damaged = replace(found.record, snapshot=found.record.snapshot[:-1] + b"?")
    process.cache.note(replace(found, record=damaged), process.uptime)
    assert process.cache.answer(call()) is None


@pytest.mark.parametrize(
    ("policy", "said"),
    [(ietf(), "replay-impossible"), (stripe(), "made")],
    ids=["refuse", "replay"],
)
def test_a_retired_record_is_remembered_as_one(process: Process, policy: Any, said: str) -> None:
    of = process.execute(policy=policy)
    found = process.read(of)
    retired = replace(found.record, retired_at=found.now)
    process.cache.note(replace(found, record=retired), process.uptime)
    assert said in code(process.cache.answer(call(policy=policy)))


def test_a_receipt_is_remembered_as_one(process: Process) -> None:
    process.world.outcomes.append(Streaming(200, ()))
    of = call()
    process.world.serve(of)
    process.remember(of)
    assert "body-not-kept" in code(process.cache.answer(call()))


def test_each_way_of_asking_gets_its_own_answer(process: Process) -> None:
    """Whoever asked before in another way has no part in it."""
    one, other = ietf(), ietf(replay_header="Was-Repeated")
    takes_gzip = [(b"accept-encoding", b"gzip")]
    ways: list[dict[str, Any]] = [
        {"policy": one, "headers": takes_gzip},
        {"policy": one},
        {"policy": one, "headers": [*takes_gzip, (b"origin", b"https://shop.example")]},
        {"policy": one, "headers": takes_gzip},
        {"policy": other, "headers": takes_gzip},
    ]
    packed = gzip.compress(b"made")
    process.world.outcomes.append(answered(201, packed, (b"content-encoding", b"gzip")))
    of = call()
    process.world.serve(of)
    process.remember(of)
    expected = [process.world.serve(call(**way)) for way in ways]
    assert len({repr(answer.response.headers) for answer in expected if answer.response}) == 4
    for _ in range(2):
        assert [process.cache.answer(call(**way)) for way in ways] == expected


def unchanged(request: Request, response: Response) -> Response:
    return response


def test_where_the_current_state_is_wanted_the_store_is_asked(process: Process) -> None:
    process.remember(process.execute())
    rendered = ietf(on_replay=unchanged)
    assert process.cache.answer(call(policy=rendered)) is None


def test_where_an_older_record_may_come_first_the_store_is_asked(process: Process) -> None:
    process.remember(process.execute())
    changed = ietf(previous=ietf(scope="tenant"))
    assert process.cache.answer(call(policy=changed)) is None
    assert process.cache.answer(call()) is not None


# ── how much it holds ─────────────────────────────────────────────────────────────────────────────


def held(cache: ReplayCache) -> int:
    """The bytes of all bodies that the cache can reach."""
    entries: list[Any] = [*cache._young.values(), *cache._old.values()]
    return sum(len(entry.remembered._kept.body) for entry in entries)


def numbered(found: Found, number: int) -> Found:
    identity: Any = number.to_bytes(32, "big")
    return replace(found, record=replace(found.record, identity=identity))


def test_it_holds_no_more_than_its_room(process: Process) -> None:
    found = process.read(process.execute(b"x" * 10_000))
    sizes: list[int] = []
    for number in range(500):
        process.cache.note(numbered(found, number), process.uptime)
        sizes.append(held(process.cache))
    assert max(sizes) <= 1 << 20
    assert min(sizes[100:]) > 400_000  # and it is not simply empty


def test_what_is_decoded_for_a_caller_is_not_held(process: Process) -> None:
    packed = gzip.compress(b"x" * 1_000_000)
    process.world.outcomes.append(answered(200, packed, (b"content-encoding", b"gzip")))
    of = call()
    process.world.serve(of)
    process.remember(of)
    answer = process.cache.answer(call())
    assert answer is not None
    assert answer.response is not None
    assert len(answer.response.body) == 1_000_000
    body = answer.response.body
    del answer
    gc.collect()
    assert not [each for each in gc.get_referrers(body) if isinstance(each, Response)]


def test_small_answers_are_bounded_too(process: Process) -> None:
    found = process.read(process.execute(b""))
    for number in range(5_000):
        process.cache.note(numbered(found, number), process.uptime)
    assert len(process.cache._young) + len(process.cache._old) <= 1024


def of_many_parts(number: int) -> Exchange:
    """A small request of 64 fields."""
    body = json.dumps({f"the-name-of-field-number-{n:02}": number for n in range(64)})
    return call(body=body.encode(), key=b"key-of-many-parts-%d" % number)


def test_what_it_takes_is_bounded_and_not_only_the_bodies() -> None:
    """An answer of a few bytes has headers, digests and objects, which are most of it."""
    process = Process(room=200_000)
    tracemalloc.start()
    try:
        empty, _ = tracemalloc.get_traced_memory()
        for number in range(60):
            process.world = World()  # its store is no part of the cache
            headers = [(b"x-header-%d" % n, os.urandom(8).hex().encode()) for n in range(20)]
            process.world.outcomes.append(answered(201, b"made", *headers))
            of = of_many_parts(number)
            process.world.serve(of)
            process.remember(of)
            assert process.cache.answer(of_many_parts(number)) is not None
        process.world = World()
        gc.collect()
        full, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(process.cache._old) > 5
    assert full - empty <= 200_000 * 1.2


def test_an_answer_that_would_drive_all_others_out_is_not_held(process: Process) -> None:
    process.remember(process.execute())
    process.remember(process.execute(b"x" * (1 << 20), key=b"another-key-of-some-length"))
    assert process.cache.answer(call(key=b"another-key-of-some-length")) is None
    assert process.cache.answer(call()) is not None


def test_the_youngest_answers_stay(process: Process) -> None:
    found = process.read(process.execute(b"x" * 10_000))
    for number in range(500):
        process.cache.note(numbered(found, number), process.uptime)
    process.remember(process.execute(key=b"another-key-of-some-length"))
    assert process.cache.answer(call(key=b"another-key-of-some-length")) is not None


def test_bodies_that_may_no_longer_be_repeated_are_let_go(process: Process) -> None:
    process.remember(process.execute(b"x" * 10_000))
    for key in (b"another-key-of-some-length", b"one-more-key-of-some-length"):
        process.pass_time(61)
        process.remember(process.execute(b"", key=key))
    assert held(process.cache) == 0


@pytest.mark.parametrize("window", [timedelta(0), timedelta(seconds=-1), LONGEST * 2, 60])
def test_a_window_that_makes_no_sense_is_refused(window: Any) -> None:
    with pytest.raises(ConfigurationError, match="replay_cache="):
        ReplayCache(window)


# ── the longest window of all ─────────────────────────────────────────────────────────────────────

Announce = Callable[[int], int]


@pytest.fixture
def tell() -> Announce:
    world = World()
    return lambda window: run(announce(window), world.perform)


def test_everybody_learns_of_the_longest_window(tell: Announce) -> None:
    assert [tell(5), tell(0), tell(7), tell(5), tell(7), tell(0)] == [5, 5, 7, 7, 7, 7]


def test_who_takes_an_answer_back_waits_for_the_longest_window(process: Process) -> None:
    store = process.world.store
    assert outlast(store, None) == 0
    run(announce(30 * SECOND), process.world.perform)
    assert 30 < outlast(store, None) < 31  # clocks go apart
    assert 60 < outlast(store, process.cache) < 61
    assert 60 < outlast(store, None) < 61


def test_a_window_that_cannot_be_read_is_not_taken_for_none(process: Process) -> None:
    process.world.store.perform(Register("~replay window", "soon"))
    with pytest.raises(StoreCorrupt):
        outlast(process.world.store, process.cache)


def test_a_record_is_held_without_the_bytes_it_was_decoded_from(process: Process) -> None:
    process.remember(process.execute(b"x" * 10_000))
    records: list[Record] = [entry.remembered.record for entry in process.cache._young.values()]
    assert [record.snapshot for record in records] == [None]


SLEPT = 5000
TELL = """
import time
from semel.runtime.leases import lease_clock
print(lease_clock() - time.monotonic())
"""
APART = 1_000
"""Seconds between two looks at a clock: far more than a program that is not run for a while needs,
and far less than was slept."""


def test_the_clock_goes_on_while_the_machine_sleeps() -> None:
    """In a namespace whose machine has slept: that is all that tells the two clocks apart. This one
    may have slept as well."""
    here = lease_clock() - time.monotonic()
    asleep = ["unshare", "--user", "--map-root-user", "--fork", "--time", "--boottime", str(SLEPT)]
    if subprocess.run([*asleep, "true"], capture_output=True, check=False).returncode:
        # No namespaces of time here.
        assert getattr(lease_clock, "args", None) == (time.CLOCK_BOOTTIME,)
        return
    told = subprocess.run([*asleep, sys.executable, "-c", TELL], capture_output=True, check=True)
    assert abs(float(told.stdout) - here - SLEPT) < APART
