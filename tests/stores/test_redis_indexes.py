"""In Redis, every record is in the one index of its duty, whatever was done to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from semel.core.contract import Applied, Complete, StoreOperation
from semel.core.model import OnLapse, State
from semel.core.upkeep import Abandon, Reap, Retire, Sweep, Tended
from semel.stores.redis import RedisBackend
from tests.servers import ValkeyServer
from tests.stores.contract import KINDS, ORIGIN, RETENTION, claim, new_fence, new_identity, reach
from tests.stores.harness import CLEAR, TRAVEL, Harness


@contextmanager
def opened(url: str, **options: Any) -> Iterator[Harness]:
    harness = Harness(RedisBackend(url, **options), lambda duration: None, 10_000_000, "sync")
    try:
        yield harness
    finally:
        harness.close()


@pytest.fixture
def prefix(valkey: ValkeyServer) -> Iterator[str]:
    """Keys of one's own on the shared server."""
    name = f"own{os.urandom(6).hex()}"
    yield name
    valkey.ask("EVAL", CLEAR, 0, f"{name}:*")


def keys_of(server: ValkeyServer, prefix: str) -> list[bytes]:
    found: list[bytes] = server.ask("KEYS", f"{prefix}:*")
    return found


DUTIES = {
    b"pending": b"run",
    b"unknown": b"ask",
    b"completed": b"expire",
    b"failed_retryable": b"forget",
    b"expired": b"forget",
}


def audit(server: ValkeyServer, prefix: str) -> int:
    """Every record is in the one index of its duty, and the indexes have nothing else."""
    names = keys_of(server, prefix)
    entries: dict[bytes, dict[bytes, bytes]] = {}
    for name in names:
        if server.ask("TYPE", name) == b"zset":
            flat = server.ask("ZRANGE", name, 0, -1, "WITHSCORES")
            index = name.rpartition(b":")[2]
            for member, score in zip(flat[::2], flat[1::2], strict=True):
                entries.setdefault(member[-32:], {})[index] = score
    records = [name for name in names if b":record:" in name]
    for name in records:
        flat = server.ask("HGETALL", name)
        record = dict(zip(flat[::2], flat[1::2], strict=True))
        assert entries.pop(name[-32:]) == expected(record)
    assert entries == {}
    return len(records)


def expected(record: dict[bytes, bytes]) -> dict[bytes, bytes]:
    leased = b"resume" if record[b"on_lapse"] == b"resume" else b"lease"
    duty = DUTIES.get(record[b"state"], leased)
    assert record[b"duty"] == duty
    places = {duty: record.get(b"due_at", b"inf")}
    if record[b"state"] == b"pending":
        places[b"deadline"] = record[b"leased_until"]
    if record[b"state"] == b"completed" and b"resource" in record:
        places[b"made"] = b"0"
    return places


@pytest.mark.parametrize("name", KINDS)
def test_after_every_write_each_record_is_in_the_index_of_its_duty(
    valkey: ValkeyServer, prefix: str, name: str
) -> None:
    kind = KINDS[name]
    with opened(valkey.socket_url, prefix=prefix) as harness:
        made = 0
        for state in State:
            identity, fence = reach(harness, state, kind.on_lapse, deferred=kind.deferred)
            made += 1
            assert audit(valkey, prefix) == made
            past(valkey, prefix, kind.wait)
            reply = harness.perform(kind.make(identity, fence))
            made -= isinstance(reply, Applied) and reply.state is None
            assert audit(valkey, prefix) == made


def past(server: ValkeyServer, prefix: str, duration: int) -> None:
    server.ask("EVAL", TRAVEL, 0, f"{prefix}:*", duration)


def test_after_every_round_each_record_is_in_the_index_of_its_duty(
    valkey: ValkeyServer, prefix: str
) -> None:
    with opened(valkey.socket_url, prefix=prefix) as harness:
        for state in State:
            for on_lapse in OnLapse:
                reach(harness, state, on_lapse)
                reach(harness, state, on_lapse, deferred=True)
        op = claim(new_identity(), new_fence())
        harness.perform(op)
        made = Complete(op.identity, op.fence, b"", RETENTION, RETENTION, "charge/7")
        harness.perform(made)
        assert harness.perform(Retire("charge/7", ORIGIN.tenant)).count == 1
        left = audit(valkey, prefix)
        rounds: list[StoreOperation[Tended]]
        rounds = [Sweep(9, RETENTION), Abandon(9, b"", RETENTION, RETENTION), Reap(9)]
        for _ in range(8):
            past(valkey, prefix, RETENTION)
            for each in rounds:
                tended = harness.perform(each)
                left -= tended.counts.get("forget", 0)
                assert audit(valkey, prefix) == left
