"""In Redis, every record is in its index once, at its duty, after every operation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.records import DUTY_NUMBERS, Fence, Identity, OnLapse, Record, State
from semel.stores.base import due_at
from semel.stores.redis.commands import Keys, RedisCall
from semel.stores.redis.layout import HAS_MORE, RANK, Stored, stored
from semel.stores.redis.operation_retry import PLANS
from semel.stores.sql import rows
from semel.testing.contract.records import (
    ACT,
    KINDS,
    LEASE,
    ORIGIN,
    PATIENCE,
    RETENTION,
    TERMS,
    applied,
    claim,
    complete,
    new_fence,
    new_identity,
    reach,
)
from tests.servers import ValkeyServer
from tests.stores.harness import CLEAR, TRAVEL, Harness, own_redis
from tests.stores.test_redis import keys_of


@pytest.fixture
def prefix(valkey: ValkeyServer) -> Iterator[str]:
    """Keys of one's own on the shared server."""
    name = f"own{os.urandom(6).hex()}"
    yield name
    valkey.ask("EVAL", CLEAR, 0, f"{name}:*")


DUTIES = {
    State.PENDING: "run",
    State.UNKNOWN: "ask",
    State.COMPLETED: "expire",
    State.FAILED_RETRYABLE: "forget",
    State.EXPIRED: "forget",
}


def audit(server: ValkeyServer, prefix: str) -> int:
    """Every record is in the index once, at its duty; indexes and hashes have nothing else."""
    names = keys_of(server, prefix)
    entries: dict[bytes, dict[bytes, int]] = {}
    for name in names:
        if server.ask("TYPE", name) == b"zset":
            flat = server.ask("ZRANGE", name, 0, -1, "WITHSCORES")
            index = name.rpartition(b":")[2]
            for member, score in zip(flat[::2], flat[1::2], strict=True):
                entries.setdefault(member[-32:], {})[index] = int(float(score))
    records = [name for name in names if b"}:r:" in name]
    for name in records:
        beside = name.replace(b"}:r:", b"}:m:")
        flat = server.ask("HGETALL", beside)
        more = dict(zip(flat[::2], flat[1::2], strict=True))
        data = server.ask("GET", name)
        assert bool(more) is bool(data[2] & HAS_MORE)
        if more:
            names.remove(beside)
        found = stored(Identity(name[-32:]), data)
        assert entries.pop(name[-32:]) == expected(rows.record(found.row), found, more)
    assert entries == {}
    assert [name for name in names if b"}:m:" in name] == []
    return len(records)


def expected(record: Record, found: Stored, more: dict[bytes, bytes]) -> dict[bytes, int]:
    leased = "resume" if record.on_lapse is OnLapse.RESUME else "lease"
    due = due_at(record, found.due_at)
    at = RANK - 1 if due is None else -(-due // 1000)
    places = {b"due": DUTY_NUMBERS[DUTIES.get(record.state, leased)] * RANK + at}
    if record.state is State.PENDING:
        assert record.leased_until is not None
        places[b"deadline"] = record.leased_until
    if record.state is State.COMPLETED and b"resource" in more:
        places[b"made"] = 0
    return places


@pytest.mark.parametrize("name", KINDS)
def test_after_every_write_each_record_is_in_the_index_of_its_duty(
    valkey: ValkeyServer, prefix: str, name: str
) -> None:
    kind = KINDS[name]
    with own_redis(valkey.socket_url, prefix=prefix) as harness:
        made = 0
        for state in State:
            identity, fence = reach(harness, state, kind.on_lapse, deferred=kind.deferred)
            made += 1
            assert audit(valkey, prefix) == made
            past(valkey, prefix, kind.wait)
            reply = harness.perform(kind.make(identity, fence))
            made -= isinstance(reply, ops.Applied) and reply.state is None
            assert audit(valkey, prefix) == made


def past(server: ValkeyServer, prefix: str, duration: int) -> None:
    server.ask("EVAL", TRAVEL, 0, f"{prefix}:*", duration)


def test_after_every_round_each_record_is_in_the_index_of_its_duty(
    valkey: ValkeyServer, prefix: str
) -> None:
    with own_redis(valkey.socket_url, prefix=prefix) as harness:
        harness.perform(ops.Agree(TERMS))
        for state in State:
            for on_lapse in OnLapse:
                reach(harness, state, on_lapse)
                reach(harness, state, on_lapse, deferred=True)
        op = claim(new_identity(), new_fence())
        harness.perform(op)
        made = ops.Complete(op.identity, op.fence, b"", RETENTION, RETENTION, "charge/7")
        harness.perform(made)
        assert harness.perform(ops.Retire("charge/7", ORIGIN.tenant)).count == 1
        left = audit(valkey, prefix)
        rounds: list[ops.StoreOperation[ops.Tended]]
        rounds = [ops.Sweep(9), ops.Abandon(9, b""), ops.Reap(9)]
        for _ in range(8):
            past(valkey, prefix, RETENTION)
            for each in rounds:
                tended = harness.perform(each)
                left -= tended.counts.get("forget", 0)
                assert audit(valkey, prefix) == left


# ── between finding and changing ──────────────────────────────────────────────────────────────────


LOOKS = ("glimpse", "purge_events")
"""Scripts that change no record."""


def interrupted(
    server: ValkeyServer,
    prefix: str,
    op: ops.StoreOperation[ops.Tended],
    meanwhile: Callable[[], None],
) -> ops.Tended:
    """A round, by hand: ``meanwhile`` happens when it knows what is due and has done nothing."""
    steps = PLANS[type(op)](op, Keys(prefix))
    calls = next(steps)
    while True:
        if any(call.script and call.script.name not in LOOKS for call in calls):
            meanwhile()
        try:
            calls = steps.send([raw(server, call) for call in calls])
        except StopIteration as done:
            tended: ops.Tended = done.value
            return tended


def raw(server: ValkeyServer, call: RedisCall) -> Any:
    return server.ask(*call.full())


def waiting(harness: Harness, identity: Identity, fence: Fence) -> None:
    """A deferred request from its queue, through a run that failed, back into the queue."""
    first, second = new_fence(), new_fence()
    for op in (
        ops.Take(identity, fence, first, LEASE),
        ops.Release(identity, first, RETENTION),
        ops.Retake(identity, first, second, LEASE),
        ops.Release(identity, second, RETENTION, requeue=0),
    ):
        applied(harness, op)


def begun_anew(harness: Harness, identity: Identity, fence: Fence, end: State) -> None:
    """A settled record goes, and its key starts another epoch."""
    applied(harness, ops.Evict(identity, fence, ACT))
    other = new_fence()
    harness.perform(claim(identity, other))
    ends: dict[State, ops.StoreOperation[ops.Written]] = {
        State.COMPLETED: complete(identity, other),
        State.FAILED_RETRYABLE: ops.Release(identity, other, RETENTION),
    }
    applied(harness, ends[end])


@pytest.mark.parametrize("state", [State.PENDING, State.COMPLETED, State.FAILED_RETRYABLE])
def test_what_changed_after_it_was_found_due_is_left_alone(
    valkey: ValkeyServer, prefix: str, state: State
) -> None:
    rounds: dict[State, ops.StoreOperation[ops.Tended]] = {
        State.PENDING: ops.Abandon(9, b""),
        State.COMPLETED: ops.Reap(9),
        State.FAILED_RETRYABLE: ops.Reap(9),
    }
    with own_redis(valkey.socket_url, prefix=prefix) as harness:
        identity, fence = reach(harness, state)
        past(valkey, prefix, PATIENCE)
        done: list[State] = []

        def meanwhile() -> None:
            if state is State.PENDING:
                waiting(harness, identity, fence)
            else:
                begun_anew(harness, identity, fence, state)
            done.append(state)

        assert interrupted(valkey, prefix, rounds[state], meanwhile).counts == {}
        assert done == [state]
        left = harness.record(identity)
        assert left is not None
        assert left.state is state
