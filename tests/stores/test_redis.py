"""Properties of the Redis store alone; the contract suite tests what all stores share."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import semel
from semel.core import operations as ops
from semel.core.records import Identity, OnLapse, State
from semel.errors import ConfigurationError, StoreCorrupt, StoreUnavailable
from semel.stores.base import Backend, Capabilities, Finding
from semel.stores.redis import RedisBackend, connection, pool_async
from semel.stores.redis.commands import Keys, script
from semel.stores.redis.connection import PIPELINE_LIMIT
from semel.stores.redis.errors import RedisFault
from semel.stores.redis.operation_retry import SINGLE_SERVER_TRIES
from semel.stores.redis.pool_sync import RedisConnection, SyncBatch
from semel.stores.redis.settings import OPTIONS, NodeAddress, RedisSettings, parse
from semel.testing.contract.records import (
    ORIGIN,
    accept,
    claim,
    complete,
    new_fence,
    new_identity,
    reach,
)
from semel.testing.contract.terms import terms
from tests.servers import ValkeyServer
from tests.stores.harness import Harness, own_redis
from tests.stores.relay import Relay, about
from tests.stores.together import forked, raced
from tests.waiting import PATIENCE, auntil, until

SOON = 0.3
"""Seconds of a deadline that a test waits for. What must succeed is tried again."""
HOUR = 3600.0

COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])


@pytest.fixture
def own_server() -> Iterator[ValkeyServer]:
    """A server that the test may stop, kill, freeze and set up."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def prefix(valkey: ValkeyServer) -> Iterator[str]:
    """Keys of one's own on the shared server."""
    name = f"own{os.urandom(6).hex()}"
    yield name
    for key in keys_of(valkey, name):
        valkey.ask("UNLINK", key)


def keys_of(server: ValkeyServer, prefix: str) -> list[bytes]:
    found: list[bytes] = server.ask("KEYS", f"{prefix}:*")
    return found


@contextmanager
def both(url: str, **options: Any) -> Iterator[list[Harness]]:
    """One in each colour."""
    with own_redis(url, "sync", **options) as one, own_redis(url, "async", **options) as other:
        yield [one, other]


def in_doubt(harness: Harness, op: ops.StoreOperation[Any]) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        harness.perform(op)
    assert refused.value.applied is None


def replied(harness: Harness, op: ops.StoreOperation[Any]) -> Any:
    """The reply; tried again with the same fence where a short time limit was too short."""

    def ask() -> object:
        try:
            return harness.perform(op)
        except StoreUnavailable:
            return None

    return until(ask)


def not_done(harness: Harness, op: ops.StoreOperation[Any]) -> str:
    """What was said of it."""
    with pytest.raises(StoreUnavailable) as refused:
        harness.perform(op)
    assert refused.value.applied is False
    return str(refused.value)


# ── URLs and settings ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "seeds", "db"),
    [
        ("redis://", ["localhost:6379"], 0),
        ("redis://db.example/3", ["db.example:6379"], 3),
        ("rediss://db.example:7000", ["db.example:7000"], 0),
        ("redis://[::1]:7000", ["[::1]:7000"], 0),
        ("redis+unix:///run/redis.sock#2", ["/run/redis.sock"], 2),
        ("rediscluster://a:1,b:2,c", ["a:1", "b:2", "c:6379"], 0),
    ],
)
def test_a_url_says_where_to_connect(url: str, seeds: list[str], db: int) -> None:
    settings = parse(url, {})
    assert [str(seed) for seed in settings.seeds] == seeds
    assert settings.db == db
    assert settings.tls == url.startswith("rediss:")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://a,b", "rediscluster"),
        ("redis://a/shop", "number"),
        ("redis://a:99999", "port"),
        ("redis://a:x", "host:port"),
        ("rediscluster://a:1/2", "one database"),
        ("redis+unix://relative", "path"),
        ("redis://a?color=red", "unknown option 'color'"),
        ("redis://a?timeout=0", "timeout"),
        ("redis://a?prefix={x}", "prefix"),
        ("redis://a?durability=yes", "durability"),
        ("redis://a?allow_eviction=perhaps", "allow_eviction"),
        ("redis://a?wait_replicas=-1", "wait_replicas"),
        ("redis://a?wait_replicas=1&timeout=1&wait_timeout=2", "less than timeout"),
        ("redis://a?ca_file=x.pem", "TLS"),
        ("rediss://a?key_file=x.pem", "cert_file"),
        ("http://a", "starts with"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(url: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        RedisBackend(url)


@COLOURS
@pytest.mark.parametrize("user", ["", "ann"])
def test_a_password_is_in_no_repr_no_url_and_no_error(colour: str, user: str) -> None:
    with own_redis(f"redis://{user}:s3cr3t@127.0.0.1:1/0", colour, timeout=SOON) as harness:
        backend = harness.backend
        with pytest.raises(StoreUnavailable) as refused:
            harness.perform(ops.Read(new_identity()))
        settings = backend._settings if isinstance(backend, RedisBackend) else None
        for text in (repr(backend), backend.url, str(refused.value), repr(settings)):
            assert "s3cr3t" not in text


def test_keywords_win_over_the_url() -> None:
    settings = parse("redis://a?timeout=2&prefix=x", {"timeout": timedelta(seconds=3)})
    assert (settings.timeout, settings.prefix) == (3.0, "x")


def test_every_option_can_be_given_both_ways() -> None:
    assert set(OPTIONS) <= {each.name for each in fields(RedisSettings)}


@COLOURS
def test_user_and_password_are_shown_to_the_server(own_server: ValkeyServer, colour: str) -> None:
    own_server.ask("ACL", "SETUSER", "shop", "on", ">s3cr3t%", "~*", "+@all")
    own_server.ask("ACL", "SETUSER", "default", ">other")
    where = f"127.0.0.1:{own_server.port}/1"
    with own_redis(f"redis://shop:s3cr3t%25@{where}", colour) as harness:
        assert isinstance(harness.perform(claim(new_identity(), new_fence())), ops.Claimed)
    for wrong in (f"redis://shop:wrong@{where}", f"redis://{where}"):
        with own_redis(wrong, colour) as harness, pytest.raises(ConfigurationError) as refused:
            harness.perform(ops.Read(new_identity()))
        assert "wrong" not in str(refused.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by nobody else."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=relay"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return cert, key


@COLOURS
def test_tls_is_spoken_and_the_certificate_is_checked(
    valkey: ValkeyServer, prefix: str, colour: str, certificate: tuple[Path, Path]
) -> None:
    """The server at hand has no TLS of its own: a relay speaks it for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with Relay(valkey.port, context) as relay:
        url = relay.url.replace("redis:", "rediss:") + f"?prefix={prefix}&timeout={PATIENCE}"
        with own_redis(f"{url}&ca_file={certificate[0]}", colour) as harness:
            given = [claim(new_identity(), new_fence()) for _ in range(8)]
            assert all(isinstance(reply, ops.Claimed) for reply in harness.race(given))
            snapshot = os.urandom(1_000_000)
            assert isinstance(
                harness.perform(complete(given[0].identity, given[0].fence, snapshot)), ops.Applied
            )
            fetched = harness.perform(ops.Fetch(given[0].identity, given[0].fence, b""))
            assert fetched == ops.Fetched(snapshot)
        with own_redis(url, colour) as harness:
            not_done(harness, ops.Read(new_identity()))
    with (
        pytest.raises(ConfigurationError, match="TLS"),
        own_redis(f"{url}&ca_file=/none") as harness,
    ):
        harness.perform(ops.Read(new_identity()))


def test_what_a_user_may_not_do_is_a_wrong_setting(own_server: ValkeyServer) -> None:
    own_server.ask("ACL", "SETUSER", "shop", "on", ">p", "~*", "+@all", "-@scripting")
    url = f"redis://shop:p@127.0.0.1:{own_server.port}/0"
    with own_redis(url) as harness, pytest.raises(ConfigurationError, match="NOPERM"):
        harness.perform(ops.Read(new_identity()))


def test_databases_and_prefixes_are_apart(valkey: ValkeyServer, prefix: str) -> None:
    op = claim(new_identity(), new_fence())
    with own_redis(valkey.socket_url, prefix=prefix) as harness:
        assert isinstance(harness.perform(op), ops.Claimed)
    with own_redis(valkey.socket_url, prefix=f"{prefix}-2") as harness:
        assert isinstance(harness.perform(ops.Read(op.identity)), ops.NoRecord)
    with own_redis(f"{valkey.socket_url}#1", prefix=prefix) as harness:
        assert isinstance(harness.perform(ops.Read(op.identity)), ops.NoRecord)


# ── what it can and cannot do ─────────────────────────────────────────────────────────────────────


def test_it_promises_neither_durability_nor_transactions(valkey: ValkeyServer) -> None:
    able = RedisBackend(valkey.url).capabilities
    assert able == Capabilities(durable=False, shared=True, transactions=False, outbox=False)
    assert isinstance(RedisBackend(valkey.url), Backend)


def test_without_an_outbox_no_effect_is_dead(valkey: ValkeyServer) -> None:
    assert list(semel.Guard(valkey.url, tenant=None).operator().list_dead()) == []


def test_a_function_runs_once(valkey: ValkeyServer, prefix: str) -> None:
    guard = semel.Guard(f"{valkey.url}?prefix={prefix}", tenant=None, maintenance=None)
    ran: list[int] = []
    for _ in range(2):
        once = guard.once("an-opaque-key-of-some-length", lambda: ran.append(1), name="job")
        assert once is not None
    assert ran == [1]
    guard.close()


# ── what is checked before it is used ─────────────────────────────────────────────────────────────


@COLOURS
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_evicts_keys_is_refused(
    own_server: ValkeyServer, colour: str, policy: str
) -> None:
    own_server.configure(maxmemory="100mb", maxmemory_policy=policy)
    op = claim(new_identity(), new_fence())
    refused = pytest.raises(StoreUnavailable, match=f"{policy} drops keys")
    with own_redis(own_server.url, colour) as harness, refused:
        harness.perform(op)
    assert own_server.ask("DBSIZE") == 0
    with own_redis(f"{own_server.url}?allow_eviction=yes", colour) as harness:
        assert isinstance(harness.perform(op), ops.Claimed)


@pytest.mark.parametrize(
    ("policy", "limit"), [("noeviction", "100mb"), ("volatile-lru", "100mb"), ("allkeys-lru", "0")]
)
def test_what_evicts_nothing_of_ours_is_used(
    own_server: ValkeyServer, policy: str, limit: str
) -> None:
    own_server.configure(maxmemory=limit, maxmemory_policy=policy)
    with own_redis(own_server.url) as harness:
        assert isinstance(harness.perform(claim(new_identity(), new_fence())), ops.Claimed)


@COLOURS
@pytest.mark.parametrize("save", ["", "60 1000"])
def test_a_server_that_forgets_in_a_restart_is_refused(
    own_server: ValkeyServer, colour: str, save: str
) -> None:
    own_server.configure(appendonly="no", save=save)
    op = claim(new_identity(), new_fence())
    refused = pytest.raises(StoreUnavailable, match="appendonly is off")
    with own_redis(own_server.url, colour) as harness, refused:
        harness.perform(op)
    assert own_server.ask("DBSIZE") == 0
    with own_redis(f"{own_server.url}?durability=best-effort", colour) as harness:
        assert isinstance(harness.perform(op), ops.Claimed)


@COLOURS
@pytest.mark.parametrize(
    ("wrong", "right", "why"),
    [
        ({"appendonly": "no"}, {"appendonly": "yes"}, "appendonly is off"),
        (
            {"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"},
            {"maxmemory": "0", "maxmemory_policy": "noeviction"},
            "allkeys-lru drops keys",
        ),
    ],
    ids=["persistence", "eviction"],
)
def test_a_server_that_begins_to_forget_is_refused_on_open_links(
    own_server: ValkeyServer,
    colour: str,
    wrong: dict[str, str],
    right: dict[str, str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("pool_sync", "pool_async"):
        monkeypatch.setattr(f"semel.stores.redis.{module}.CHECK_AGAIN", 0.0)
    op = claim(new_identity(), new_fence())
    with own_redis(own_server.url, colour) as harness:
        assert isinstance(harness.perform(claim(new_identity(), new_fence())), ops.Claimed)
        own_server.configure(**wrong)
        with pytest.raises(StoreUnavailable, match=why) as refused:
            harness.perform(op)
        assert refused.value.applied is False
        own_server.configure(**right)
        assert isinstance(harness.perform(ops.Read(op.identity)), ops.NoRecord)
        assert isinstance(harness.perform(op), ops.Claimed)


def forbid(server: ValkeyServer, *commands: str) -> str:
    rules = [f"-{command}" for command in commands]
    server.ask("ACL", "SETUSER", "shop", "on", ">p", "~*", "+@all", *rules)
    return f"redis://shop:p@127.0.0.1:{server.port}/0"


def _sentence(finding: Finding) -> str:
    """Without the address of the server."""
    return re.sub(r"^127\.0\.0\.1:\d+: ", "", finding.text)


def findings(url: str, **options: Any) -> str:
    backend = RedisBackend(url, **{"timeout": PATIENCE, **options})
    try:
        return "\n".join(f"{each.severity}: {_sentence(each)}" for each in backend.examine())
    finally:
        backend.close()


def test_where_config_is_forbidden_info_is_asked(own_server: ValkeyServer) -> None:
    url = forbid(own_server, "config")
    said = findings(url)
    assert "unchecked: CONFIG is forbidden" in said
    own_server.configure(maxmemory="100mb", maxmemory_policy="allkeys-lru", appendonly="no")
    said = findings(url)
    assert "refused: maxmemory-policy allkeys-lru" in said
    assert "refused: appendonly is off" in said
    with own_redis(url) as harness, pytest.raises(StoreUnavailable, match="drops keys"):
        harness.perform(ops.Read(new_identity()))


def test_what_could_not_be_checked_is_said(
    own_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = forbid(own_server, "config", "info")
    said = findings(url)
    assert said.count("unchecked") == 3
    with own_redis(url) as harness:
        assert isinstance(harness.perform(claim(new_identity(), new_fence())), ops.Claimed)
        assert "not known" in caplog.text


def test_an_examination_says_what_cannot_be_promised(own_server: ValkeyServer) -> None:
    said = findings(own_server.url)
    assert "may lose keys it has acknowledged" in said
    assert "warning: appendfsync is not always" in said
    assert "wait_replicas" not in said
    own_server.configure(appendfsync="always")
    assert "appendfsync" not in findings(own_server.url)
    assert "but 0 are connected" in findings(own_server.url, wait_replicas=1)
    own_server.stop()
    assert "refused: cannot connect" in findings(own_server.url)


@pytest.mark.parametrize("version", ["6.2.7", "5.0"])
def test_an_old_server_is_refused(version: str) -> None:
    found = list(connection.examine(parse("redis://", {}), {"redis_version": version}, None))
    assert "too old" in found[0].text
    assert found[0].severity == "refused"


def test_a_replica_decides_nothing(own_server: ValkeyServer) -> None:
    with ValkeyServer() as replica:
        replica.follow(own_server)
        with own_redis(own_server.url) as harness:
            identity, _ = reach(harness, State.COMPLETED)
        with both(replica.url) as harnesses:
            for harness in harnesses:
                not_done(harness, ops.Read(identity))
                not_done(harness, claim(identity, new_fence()))


def test_a_server_that_becomes_a_replica_is_left_at_once(own_server: ValkeyServer) -> None:
    """Also reads are refused: what it says may be old."""
    with ValkeyServer() as other, both(own_server.url) as harnesses:
        kept = [reach(harness, State.COMPLETED)[0] for harness in harnesses]
        own_server.follow(other)
        for harness, identity in zip(harnesses, kept, strict=True):
            not_done(harness, ops.Read(identity))
            not_done(harness, claim(new_identity(), new_fence()))
        own_server.ask("REPLICAOF", "NO", "ONE")
        for harness in harnesses:
            assert isinstance(harness.perform(claim(new_identity(), new_fence())), ops.Claimed)


# ── memory and time ───────────────────────────────────────────────────────────────────────────────


def test_no_key_of_ours_ever_has_a_time_to_live(valkey: ValkeyServer, prefix: str) -> None:
    with own_redis(valkey.socket_url, prefix=prefix) as harness:
        for state in State:
            for on_lapse in OnLapse:
                reach(harness, state, on_lapse)
                reach(harness, state, on_lapse, deferred=True)
    made = keys_of(valkey, prefix)
    assert len(made) > 2 * len(State) * len(OnLapse)
    assert {valkey.ask("TTL", key) for key in made} == {-1}


@COLOURS
def test_out_of_memory_nothing_begins_and_what_began_ends(
    own_server: ValkeyServer, colour: str
) -> None:
    with own_redis(own_server.url, colour) as harness:
        identity, fence = reach(harness, State.IN_PROGRESS)
        own_server.configure(maxmemory="1mb", maxmemory_policy="noeviction")
        not_done(harness, claim(new_identity(), new_fence()))
        assert isinstance(harness.perform(complete(identity, fence)), ops.Applied)
        assert isinstance(harness.perform(ops.Read(identity)), ops.Found)


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────

SIXTEEN_MEGABYTES = 16 * 1024 * 1024


@COLOURS
def test_every_byte_comes_back(valkey: ValkeyServer, prefix: str, colour: str) -> None:
    every = bytes(range(256))
    with own_redis(valkey.socket_url, colour, prefix=prefix) as harness:
        for first in range(0, 256, 5):
            identity = Identity((every[first:] + every)[:32])
            fence = new_fence()
            assert isinstance(harness.perform(claim(identity, fence)), ops.Claimed)
            assert isinstance(harness.perform(complete(identity, fence, every)), ops.Applied)
            found = harness.record(identity)
            assert found is not None
            assert (found.identity, found.fence, found.snapshot) == (identity, fence, every)


@COLOURS
def test_sixteen_megabytes_come_back_and_hold_up_nobody_for_long(
    valkey: ValkeyServer, prefix: str, colour: str
) -> None:
    snapshot = os.urandom(SIXTEEN_MEGABYTES // 2) + bytes(SIXTEEN_MEGABYTES // 2)
    with own_redis(valkey.url, colour, prefix=prefix, timeout=PATIENCE) as harness:
        held = [reach(harness, State.IN_PROGRESS) for _ in range(4)]
        given: list[ops.StoreOperation[Any]] = [complete(*held[0], snapshot)]
        given += [complete(identity, fence, b"small") for identity, fence in held[1:]]
        assert all(isinstance(reply, ops.Applied) for reply in harness.race(given))
        assert harness.perform(ops.Fetch(*held[0], b"")) == ops.Fetched(snapshot)


@COLOURS
def test_what_is_no_record_of_ours_is_corrupt(
    valkey: ValkeyServer, prefix: str, colour: str
) -> None:
    with own_redis(valkey.socket_url, colour, prefix=prefix) as harness:
        identity, fence = reach(harness, State.IN_PROGRESS)
        (key,) = [key for key in keys_of(valkey, prefix) if b"}:r:" in key]
        valkey.ask("SETRANGE", key, 27, bytes(8))  # its leased_until
        with pytest.raises(StoreCorrupt):
            harness.perform(claim(identity, new_fence()))
        valkey.ask("DEL", key)
        valkey.ask("SET", key, "another program's")
        with pytest.raises(StoreCorrupt):
            harness.perform(complete(identity, fence))


# ── scripts ───────────────────────────────────────────────────────────────────────────────────────


@COLOURS
def test_flushed_scripts_are_sent_again(own_server: ValkeyServer, colour: str) -> None:
    with own_redis(own_server.url, colour) as harness:
        identity, fence = reach(harness, State.IN_PROGRESS)
        own_server.ask("SCRIPT", "FLUSH")
        assert isinstance(harness.perform(complete(identity, fence)), ops.Applied)
        own_server.ask("SCRIPT", "FLUSH")
        given = [claim(new_identity(), new_fence()) for _ in range(32)]
        assert all(isinstance(reply, ops.Claimed) for reply in harness.race(given))
        assert own_server.ask("SCRIPT", "EXISTS", script("claim").digest) == [1]


@COLOURS
def test_a_flushed_store_refuses_the_completion_of_what_it_lost(
    own_server: ValkeyServer, colour: str
) -> None:
    with own_redis(own_server.url, colour) as harness:
        identity, fence = reach(harness, State.IN_PROGRESS)
        own_server.ask("FLUSHALL")
        reply = harness.perform(complete(identity, fence))
        assert isinstance(reply, ops.Lost)
        assert reply.record is None


# ── connections that break ────────────────────────────────────────────────────────────────────────


@COLOURS
def test_a_lost_answer_is_asked_for_again_with_the_same_fence(
    own_server: ValkeyServer, colour: str
) -> None:
    with Relay(own_server.port) as relay, own_redis(relay.url, colour) as harness:
        reach(harness, State.COMPLETED)  # the scripts are known from here on
        op = claim(new_identity(), new_fence())
        relay.drop = about(op.fence)
        assert isinstance(harness.perform(op), ops.Claimed)
        assert relay.dropped == 1
        answer = os.urandom(20)
        relay.drop = about(answer)
        assert isinstance(harness.perform(complete(op.identity, op.fence, answer)), ops.Applied)
        assert relay.dropped == 2
        assert [answer in message for message in relay.messages].count(True) == 2
        found = harness.record(op.identity)
        assert found is not None
        assert found.snapshot == answer


@COLOURS
def test_an_answer_that_stays_away_is_a_doubt(own_server: ValkeyServer, colour: str) -> None:
    with Relay(own_server.port) as relay, own_redis(relay.url, colour) as harness:
        reach(harness, State.COMPLETED)  # the scripts are known from here on
        identity, fence = reach(harness, State.IN_PROGRESS)
        op = complete(identity, fence)

        def once_and_for_all(message: bytes) -> bool:
            mine = bytes(fence) in message
            if mine:
                relay.shut()
            return mine

        relay.drop = once_and_for_all
        in_doubt(harness, op)
    with own_redis(own_server.url, colour) as harness:
        found = harness.record(identity)
        assert found is not None
        assert found.state is State.COMPLETED


@COLOURS
def test_what_cannot_be_sent_did_not_happen(own_server: ValkeyServer, colour: str) -> None:
    with own_redis(own_server.url, colour) as harness:
        identity, fence = reach(harness, State.IN_PROGRESS)
        own_server.kill()
        not_done(harness, claim(new_identity(), new_fence()))
        own_server.start()
        assert isinstance(harness.perform(complete(identity, fence)), ops.Applied)


@COLOURS
def test_a_killed_server_that_comes_back_is_used_again(
    own_server: ValkeyServer, colour: str
) -> None:
    """appendfsync always: nothing that was acknowledged is lost."""
    own_server.configure(appendfsync="always")
    with own_redis(own_server.url, colour) as harness:
        stop = threading.Event()
        acknowledged: list[ops.Claim] = []

        def work() -> None:
            while not stop.is_set():
                op = claim(new_identity(), new_fence())
                try:
                    harness.perform(op)
                except StoreUnavailable:
                    continue
                acknowledged.append(op)

        def reached(goal: int) -> bool:
            return len(acknowledged) >= goal

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for goal in (50, 200):
            until(partial(reached, goal))
            own_server.kill()
            own_server.start()
        stop.set()
        for thread in threads:
            thread.join()
        for op in acknowledged:
            found = harness.record(op.identity)
            assert found is not None
            assert found.fence == op.fence


@COLOURS
def test_a_silent_server_costs_the_time_limit_and_no_more(
    own_server: ValkeyServer, colour: str
) -> None:
    with own_redis(own_server.url, colour) as harness:
        identity, fence = reach(harness, State.IN_PROGRESS)
    with own_redis(own_server.url, colour, timeout=SOON) as harness:
        replied(harness, ops.Read(identity))
        with own_server.frozen():  # until this is over
            before = monotonic()
            in_doubt(harness, complete(identity, fence))
            assert monotonic() - before > SOON * 0.9
        assert isinstance(replied(harness, complete(identity, fence)), ops.Applied)


@COLOURS
def test_many_who_wait_for_a_silent_server_are_all_told(
    own_server: ValkeyServer, colour: str
) -> None:
    with own_redis(own_server.url, colour, timeout=SOON) as harness:
        replied(harness, ops.Read(new_identity()))
        given = [claim(new_identity(), new_fence()) for _ in range(16)]
        with own_server.frozen():
            told = told_by(harness, given)
        assert all(isinstance(each, StoreUnavailable) for each in told)
        assert all(isinstance(replied(harness, op), ops.Claimed) for op in given)


def told_by(harness: Harness, given: list[ops.Claim]) -> list[Exception | None]:
    told: list[Exception | None] = [None] * len(given)

    def ask(number: int) -> None:
        try:
            harness.perform(given[number])
        except Exception as error:
            told[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


@COLOURS
def test_a_server_that_speaks_another_language_is_unavailable(colour: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                end, _ = listener.accept()
                with end:
                    end.recv(1000)
                    end.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    end.recv(1000)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        with own_redis(f"redis://127.0.0.1:{port}", colour, timeout=1) as harness:
            not_done(harness, claim(new_identity(), new_fence()))


@COLOURS
@pytest.mark.parametrize("asked", [False, True])
def test_a_server_that_hangs_up_at_once_is_unavailable_at_once(colour: str, asked: bool) -> None:
    """It is not tried until the time limit. ``asked``: it hangs up during the handshake."""
    tries: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    end, peer = listener.accept()
                    tries.append(peer)
                    if asked:
                        end.recv(1000)
                    end.close()

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        with own_redis(f"redis://127.0.0.1:{port}", colour, timeout=PATIENCE) as harness:
            assert "time" not in not_done(harness, claim(new_identity(), new_fence()))
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    assert len(tries) <= SINGLE_SERVER_TRIES


@pytest.mark.parametrize("callers", [1, 2])
async def test_what_is_given_up_before_it_left_is_never_done(
    own_server: ValkeyServer, callers: int
) -> None:
    backend = RedisBackend(own_server.url, timeout=PATIENCE)
    store = backend.awaited()
    assert isinstance(await store.perform(claim(new_identity(), new_fence())), ops.Claimed)
    op = claim(new_identity(), new_fence())
    asked = [asyncio.ensure_future(store.perform(op)) for _ in range(callers)]
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(await store.perform(ops.Read(op.identity)), ops.NoRecord)
    await backend.aclose()


async def test_a_cancelled_caller_leaves_at_once_and_the_link_stays(
    own_server: ValkeyServer,
) -> None:
    backend = RedisBackend(own_server.url, timeout=PATIENCE)
    store = backend.awaited()
    await store.perform(ops.Read(new_identity()))
    op = claim(new_identity(), new_fence())
    with own_server.frozen():
        task = asyncio.ensure_future(store.perform(op))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert isinstance(await store.perform(op), ops.Claimed)
    assert (await store.perform(ops.Read(op.identity))) is not None
    clients = own_server.ask("CLIENT", "LIST").count(b"cmd=evalsha")
    await backend.aclose()
    assert clients == 1


async def test_a_first_try_that_failed_goes_on_and_is_given_up_with_its_caller(
    own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RedisBackend(own_server.url, timeout=PATIENCE)
    store = backend.awaited()
    began, given_up = asyncio.Event(), asyncio.Event()

    async def waits(*_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    with monkeypatch.context() as patched:
        patched.setattr(pool_async.AsyncRedisPool, "_retry", waits)
        task = asyncio.ensure_future(
            store.perform(ops.Read(new_identity()))
        )  # nobody knows the script
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(given_up.wait(), PATIENCE)
    assert isinstance(await store.perform(ops.Read(new_identity())), ops.NoRecord)
    await backend.aclose()


async def test_when_the_server_falls_silent_each_is_told_once_and_the_next_link_is_left_alone(
    own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RedisBackend(own_server.url, timeout=SOON)
    store = backend.awaited()
    retried: list[pool_async.FirstTry] = []
    retry = pool_async.AsyncRedisPool.retry

    def noted(
        pool: pool_async.AsyncRedisPool, tried: pool_async.FirstTry, fault: RedisFault
    ) -> None:
        retried.append(tried)
        retry(pool, tried, fault)

    monkeypatch.setattr(pool_async.AsyncRedisPool, "retry", noted)
    with suppress(StoreUnavailable):
        await store.perform(ops.Read(new_identity()))
    given = [claim(new_identity(), new_fence()) for _ in range(9)]
    with own_server.frozen():
        told = await asyncio.gather(*map(store.perform, given), return_exceptions=True)
    assert {type(each) for each in told} == {StoreUnavailable}
    assert len({id(each) for each in retried}) == len(retried)
    for op in given:
        while True:
            with suppress(StoreUnavailable):
                assert isinstance(await store.perform(op), ops.Claimed)
                break
    await backend.aclose()


async def test_a_store_that_was_closed_opens_again_and_is_closed_again(
    own_server: ValkeyServer,
) -> None:
    backend = RedisBackend(own_server.url, timeout=PATIENCE)
    store = backend.awaited()
    for _ in range(2):
        assert isinstance(await store.perform(ops.Read(new_identity())), ops.NoRecord)
        await backend.aclose()
        await auntil(lambda: own_server.ask("CLIENT", "LIST").count(b"cmd=eval") == 0)


def test_one_store_serves_several_loops_each_over_a_link_of_its_own(
    own_server: ValkeyServer,
) -> None:
    backend = RedisBackend(own_server.url, timeout=PATIENCE)
    store = backend.awaited()

    async def one() -> None:
        assert isinstance(await store.perform(ops.Read(new_identity())), ops.NoRecord)

    with asyncio.Runner() as first, asyncio.Runner() as second:
        for runner in (first, second, first):
            runner.run(one())
        assert own_server.ask("CLIENT", "LIST").count(b"cmd=eval") == 2
        for runner in (first, second):
            runner.run(backend.aclose())


# ── pipelines ─────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_asked_at_once_travels_together(
    own_server: ValkeyServer,
) -> None:
    with Relay(own_server.port) as relay:
        backend = RedisBackend(relay.url, timeout=PATIENCE)
        store = backend.awaited()
        await store.perform(ops.Read(new_identity()))
        relay.messages.clear()
        given = [claim(new_identity(), new_fence()) for _ in range(20)]
        replies = await asyncio.gather(*(store.perform(op) for op in given))
        assert all(isinstance(reply, ops.Claimed) for reply in replies)
        assert len(relay.messages) < 10
        assert relay.connections == 1
        await backend.aclose()


@COLOURS
def test_an_error_of_one_does_not_touch_the_others(
    valkey: ValkeyServer, prefix: str, colour: str
) -> None:
    with own_redis(valkey.socket_url, colour, prefix=prefix) as harness:
        bad, _ = reach(harness, State.COMPLETED)
        (key,) = [key for key in keys_of(valkey, prefix) if bytes(bad) in key]
        valkey.ask("DEL", key)
        valkey.ask("SET", key, "another program's")
        given = [claim(new_identity(), new_fence()) for _ in range(15)]
        given.insert(7, claim(bad, new_fence()))
        told = told_by(harness, given)
        assert isinstance(told.pop(7), StoreCorrupt)
        assert told == [None] * 15


def test_one_alone_does_not_wait_to_be_joined(valkey: ValkeyServer, prefix: str) -> None:
    """It takes one turn of the loop and one round trip: the only timer is that of the deadline."""
    timers: list[float] = []

    async def one() -> None:
        backend = RedisBackend(f"{valkey.url}?prefix={prefix}", timeout=HOUR)
        store = backend.awaited()
        await store.perform(ops.Read(new_identity()))
        loop = asyncio.get_running_loop()
        real = loop.call_later

        def noted(delay: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(delay)
            return real(delay, *rest, **more)

        loop.call_later = noted  # type: ignore[method-assign, assignment]
        await store.perform(ops.Read(new_identity()))
        loop.call_later = real  # type: ignore[method-assign]
        await backend.aclose()

    asyncio.run(one())
    assert len(timers) <= 1
    assert all(delay > HOUR / 2 for delay in timers)
    assert PIPELINE_LIMIT > 1


# ── replicas that are waited for ──────────────────────────────────────────────────────────────────


@pytest.fixture
def pair() -> Iterator[tuple[ValkeyServer, ValkeyServer, Relay]]:
    """A primary and its replica, which follows through a relay that can be cut."""
    with ValkeyServer() as primary, ValkeyServer() as replica, Relay(primary.port) as relay:
        replica.ask("REPLICAOF", "127.0.0.1", relay.port)
        replica.await_link()
        yield primary, replica, relay


AMPLY: dict[str, Any] = {"timeout": PATIENCE, "wait_replicas": 1, "wait_timeout": PATIENCE / 2}
IN_VAIN: dict[str, Any] = {"timeout": PATIENCE, "wait_replicas": 1, "wait_timeout": 0.05}
"""For a replica that does not hear of it."""


def test_a_replica_that_is_waited_for_has_it(
    pair: tuple[ValkeyServer, ValkeyServer, Relay],
) -> None:
    primary, replica, _ = pair
    given = [claim(new_identity(), new_fence()) for _ in range(40)]
    with both(primary.url, **AMPLY) as harnesses:
        for harness, mine in zip(harnesses, (given[:20], given[20:]), strict=True):
            assert all(isinstance(reply, ops.Claimed) for reply in harness.race(mine))
    primary.kill()
    replica.ask("REPLICAOF", "NO", "ONE")
    with both(replica.url) as harnesses:
        for harness in harnesses:
            assert all(harness.record(op.identity) is not None for op in given)


def test_without_waiting_a_cut_link_loses_keys_silently(
    pair: tuple[ValkeyServer, ValkeyServer, Relay],
) -> None:
    """The control: this is what `wait_replicas` is for."""
    primary, replica, relay = pair
    with both(primary.url) as harnesses:
        for harness in harnesses:
            harness.perform(ops.Read(new_identity()))
        relay.close()
        given = [claim(new_identity(), new_fence()) for _ in harnesses]
        for harness, op in zip(harnesses, given, strict=True):
            assert isinstance(harness.perform(op), ops.Claimed)
    primary.kill()
    replica.ask("REPLICAOF", "NO", "ONE")
    with both(replica.url) as harnesses:
        for harness in harnesses:
            assert all(harness.record(op.identity) is None for op in given)


def test_what_no_replica_has_is_in_doubt_and_never_a_success(
    pair: tuple[ValkeyServer, ValkeyServer, Relay],
) -> None:
    primary, _, relay = pair
    with both(primary.url, **AMPLY) as harnesses:
        held = [reach(harness, State.IN_PROGRESS) for harness in harnesses]
    relay.close()
    with both(primary.url, **IN_VAIN) as harnesses:
        for harness, (identity, fence) in zip(harnesses, held, strict=True):
            in_doubt(harness, complete(identity, fence))
            in_doubt(harness, claim(new_identity(), new_fence()))
            told = told_by(harness, [claim(new_identity(), new_fence()) for _ in range(4)])
            assert all(isinstance(each, StoreUnavailable) and each.applied is None for each in told)


def test_asked_again_it_is_still_in_doubt_while_no_replica_has_it(
    pair: tuple[ValkeyServer, ValkeyServer, Relay],
) -> None:
    """On a new link too, which has written nothing itself: neither "already done" nor what it reads
    there may be taken for safe."""
    primary, replica, _ = pair
    with (
        both(primary.url, **AMPLY) as patient,
        both(primary.url, **IN_VAIN) as harnesses,
        both(primary.url, **IN_VAIN) as others,
    ):
        held = [reach(harness, State.IN_PROGRESS) for harness in patient]
        with replica.frozen():  # it stays connected, and hears nothing
            for harness, other, (identity, fence) in zip(harnesses, others, held, strict=True):
                in_doubt(harness, complete(identity, fence))
                in_doubt(other, complete(identity, fence))
                in_doubt(other, ops.Read(identity))
                in_doubt(other, claim(identity, new_fence()))
        for harness, (identity, fence) in zip(patient, held, strict=True):
            assert isinstance(harness.perform(complete(identity, fence)), ops.Applied)


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("racer", ["sync", "async"])
def test_of_processes_that_race_one_wins_each_key(
    valkey: ValkeyServer, prefix: str, racer: str
) -> None:
    wanted = [claim(new_identity(), new_fence()) for _ in range(200)]
    won = raced(f"{valkey.url}?prefix={prefix}", wanted, wanted, colours=("sync", racer))
    assert sorted(won) == sorted(op.identity for op in wanted)


def test_a_forked_child_uses_links_of_its_own(valkey: ValkeyServer, prefix: str) -> None:
    with own_redis(valkey.url, prefix=prefix) as harness:
        mine = claim(new_identity(), new_fence())
        harness.perform(mine)

        def read() -> None:
            found = harness.perform(ops.Read(mine.identity))
            assert isinstance(found, ops.Found)
            assert found.record.fence == mine.fence

        def read_often() -> None:
            for _ in range(200):
                read()

        assert forked(read, meanwhile=read_often) == 0


def test_loops_that_come_and_go_each_have_a_link(own_server: ValkeyServer) -> None:
    backend = RedisBackend(own_server.url, timeout=PATIENCE)

    async def one() -> object:
        reply = await backend.awaited().perform(claim(new_identity(), new_fence()))
        await backend.aclose()
        return reply

    for _ in range(3):
        assert isinstance(asyncio.run(one()), ops.Claimed)


# ── maintenance ───────────────────────────────────────────────────────────────────────────────────


def test_a_backlog_past_its_deadline_hides_no_work(valkey: ValkeyServer, prefix: str) -> None:
    with own_redis(valkey.socket_url, prefix=prefix) as harness:
        for _ in range(30):
            harness.perform(accept(new_identity(), new_fence(), patience=1))
        alive = accept(new_identity(), new_fence())
        harness.perform(alive)
        listed = harness.perform(ops.Due(ops.Work.PENDING, 2))
        assert [case.record.identity for case in listed.cases] == [alive.identity]


@COLOURS
def test_many_records_are_listed_swept_and_reaped_in_bounded_rounds(
    valkey: ValkeyServer, prefix: str, colour: str
) -> None:
    made, short = 1500, terms(retention=1)
    with own_redis(valkey.socket_url, "async", prefix=prefix, timeout=PATIENCE) as harness:
        harness.perform(ops.Agree(short))
        told = ("v1:", b"", ORIGIN, 1, OnLapse.RELEASE)
        harness.race(
            [ops.Claim(new_identity(), new_fence(), *told, terms=short.id) for _ in range(made)]
        )
    with own_redis(valkey.socket_url, colour, prefix=prefix, timeout=PATIENCE) as harness:
        seen: list[Identity] = []
        while True:
            page = harness.perform(ops.Browse(tuple(State), 700, seen[-1] if seen else None)).cases
            seen += [case.record.identity for case in page]
            if len(page) < 700:
                break
        assert len(seen) == len({*seen}) == made
        assert seen == sorted(seen)
        swept = 0
        while True:
            tended = harness.perform(ops.Sweep(600))
            assert sum(tended.counts.values()) <= 600
            swept += sum(tended.counts.values())
            if not tended.more:
                break
        assert swept == made
        gone = 0
        while True:
            tended = harness.perform(ops.Reap(600))
            gone += tended.counts.get("forget", 0)
            if not tended.more:
                break
        assert gone == made
    assert [key.rpartition(b":")[0][-6:] for key in keys_of(valkey, prefix)] == [b":terms"]


class Interrupting(threading.Event):
    """An event whose waiter is interrupted, by a signal for example."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def wait(self, timeout: float | None = None) -> bool:
        self._meanwhile()
        raise KeyboardInterrupt


@pytest.mark.parametrize("chosen", [False, True])
def test_a_waiting_thread_that_is_interrupted_leads_nobody(chosen: bool) -> None:
    """Those behind it would wait for it until their time is up, and so would all after them."""
    address = NodeAddress("127.0.0.1", 1)
    link = RedisConnection(parse("redis://127.0.0.1:1", {}), Keys("semel"), address)
    first, second = (SyncBatch([], monotonic() + PATIENCE) for _ in range(2))
    link._led = True  # by a thread that is in the middle of it

    def meanwhile() -> None:
        link._queue.append(second)
        if chosen:
            link._pass_on()  # that thread is done

    first.event = Interrupting(meanwhile)
    with pytest.raises(KeyboardInterrupt):
        link.send(first)
    assert link._queue == [second]
    assert (second.leads, second.event.is_set()) == (chosen, chosen)
    assert link._led is True
