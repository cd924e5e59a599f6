"""One behavioural suite for every adapter, under real servers with two workers and real stores.

Executions are counted by the effects log, a file that no answer can talk into anything.
"""

import http.client
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import ceil

import pytest

from tests.forms import in_proof
from tests.waiting import until
from tests.web import shop
from tests.web.client import Reply, new_key
from tests.web.served import (
    GUNICORN,
    ON_MYSQL,
    OTHERS,
    PAIRS,
    UVICORN,
    Served,
    databases_of,
    serve,
)

OUTLIVED = 2
"""Leases, one after the other, that a handler outlives."""

# How a server ends is its own way; what its store is has no part in it.
ENDED = (UVICORN, GUNICORN, *in_proof(ON_MYSQL), *OTHERS)


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def shop_(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    framework, store = request.param
    folder = tmp_path_factory.mktemp("shop")
    with serve(framework, store, folder, databases_of(request)) as served:
        yield served
        logs = served.server.logs()
    assert "never retrieved" not in logs
    assert "Task was destroyed" not in logs


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


def nonce(served: Served, key: str) -> str:
    """Of the one execution there was."""
    (effect,) = served.effects.of(key)
    return effect.nonce


# ── duplicates ────────────────────────────────────────────────────────────────────────────────────


def test_twenty_identical_requests_at_once_execute_once_and_all_learn_the_same_answer(
    shop_: Served,
) -> None:
    for _ in range(5):
        key = new_key()
        replies = shop_.client.at_once(20, "/pay", key)
        answers = [reply for reply in replies if reply.status != 409]
        refusals = [reply for reply in replies if reply.status == 409]
        assert {reply.code for reply in refusals} <= {"in-flight"}
        assert all(int(reply.one("retry-after") or "") >= 1 for reply in refusals)
        answers += [shop_.client.insist("/pay", key) for _ in refusals[:3]]
        assert {(reply.status, reply.body) for reply in answers} == {(201, answers[0].body)}
        assert nonce(shop_, key).encode() in answers[0].body
        assert sum(not reply.replayed for reply in answers) == 1


def test_duplicates_of_a_request_in_flight_are_refused_with_retry_after(
    shop_: Served, pool: ThreadPoolExecutor
) -> None:
    key, gate = new_key(), shop_.gate()
    leader = pool.submit(shop_.client.post, "/pay", key, x_gate=str(gate))
    until(lambda: shop_.effects.of(key))
    replies = shop_.client.at_once(10, "/pay", key, x_gate=str(gate))
    assert {(reply.status, reply.code, reply.one("retry-after")) for reply in replies} == {
        (409, "in-flight", "1")
    }
    gate.touch()
    assert leader.result().body == shop_.client.insist("/pay", key, x_gate=str(gate)).body
    assert nonce(shop_, key)


def test_duplicates_that_wait_all_get_the_leaders_answer(
    shop_: Served, pool: ThreadPoolExecutor
) -> None:
    key, gate = new_key(), shop_.gate()
    leader = pool.submit(shop_.client.post, "/wait", key, x_gate=str(gate))
    until(lambda: shop_.effects.of(key))
    followers = [pool.submit(shop_.client.post, "/wait", key) for _ in range(8)]
    gate.touch()
    replies = [future.result() for future in (leader, *followers)]
    assert {(reply.status, reply.body) for reply in replies} == {(201, replies[0].body)}
    assert sum(not reply.replayed for reply in replies) == 1
    assert nonce(shop_, key).encode() in replies[0].body


def test_when_the_leader_fails_each_follower_is_refused_or_runs_and_is_told_so(
    shop_: Served, pool: ThreadPoolExecutor
) -> None:
    """How many run depends on who arrives after the failure; of those who waited, one may."""
    key, gate = new_key(), shop_.gate()
    leader = pool.submit(shop_.client.post, "/fail", key, x_gate=str(gate))
    until(lambda: shop_.effects.of(key))
    followers = [pool.submit(shop_.client.post, "/fail", key) for _ in range(8)]
    gate.touch()
    assert leader.result().status == 500
    statuses = [future.result().status for future in followers]
    assert statuses.count(500) == len(shop_.effects.of(key)) - 1
    assert set(statuses) <= {409, 500}


def test_tenants_with_one_key_are_independent(shop_: Served) -> None:
    key = new_key()
    ours, theirs = (shop_.client.post("/pay", key, x_tenant=name) for name in ("a", "b"))
    again = shop_.client.post("/pay", key, x_tenant="a")
    assert len(shop_.effects.of(key)) == 2
    assert ours.body != theirs.body
    assert again.body == ours.body


def test_a_key_used_for_another_payload_is_refused_and_the_record_stands(shop_: Served) -> None:
    key = new_key()
    first = shop_.client.post("/pay", key, b'{"amount": 1}')
    other = shop_.client.post("/pay", key, b'{"amount": 2}')
    assert (other.status, other.code) == (422, "key-reused")
    assert other.problem["differing_fields"] == ["amount"]
    assert shop_.client.post("/pay", key, b'{ "amount":1.0 }').body == first.body
    assert nonce(shop_, key)


def test_a_required_key_that_is_missing_executes_nothing(shop_: Served) -> None:
    before = len(shop_.effects.of("-"))
    reply = shop_.client.post("/pay", None)
    assert (reply.status, reply.code) == (400, "missing-key")
    assert len(shop_.effects.of("-")) == before


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def replayed(served: Served, path: str) -> tuple[Reply, Reply, str]:
    key = new_key()
    first, second = served.client.post(path, key), served.client.post(path, key)
    assert (first.replayed, second.replayed) == (False, True)
    assert (second.status, second.body) == (first.status, first.body)
    assert first.one("idempotency-expires") == second.one("idempotency-expires") is not None
    assert second.one("cache-control") == "no-store"
    return first, second, nonce(served, key)


def test_repeated_headers_are_kept_and_cookies_go_only_to_the_first(shop_: Served) -> None:
    first, second, name = replayed(shop_, "/goods")
    assert first.all("link") == second.all("link") == ["</a>; rel=first", "</b>; rel=last"]
    assert first.one("x-nonce") == second.one("x-nonce") == name
    assert first.all("set-cookie") == ["session=secret", "cart=42"]
    assert second.all("set-cookie") == []
    assert len(second.all("date")) == 1


def test_an_empty_answer_is_replayed(shop_: Served) -> None:
    first, second, name = replayed(shop_, "/empty")
    assert (first.status, first.body) == (204, b"")
    assert second.one("x-nonce") == name


def test_binary_bytes_are_replayed_exactly(shop_: Served) -> None:
    first, _, name = replayed(shop_, "/binary")
    assert first.body == bytes(range(256)) + name.encode() + b"\r\n\0"


def test_five_megabytes_are_replayed_exactly(shop_: Served) -> None:
    first, _, name = replayed(shop_, "/big")
    assert first.body == random.Random(name).randbytes(shop.BIG)


def test_an_undeclared_stream_is_buffered_and_replayed(shop_: Served) -> None:
    first, _, name = replayed(shop_, "/undeclared")
    assert first.body == b"".join(shop.sell("/undeclared", name).pieces)


@pytest.mark.parametrize("path", ["/stream", "/huge"])
def test_a_body_that_is_not_kept_flows_once_and_leaves_a_receipt(shop_: Served, path: str) -> None:
    key = new_key()
    first = shop_.client.post(path, key)
    assert first.status == 200
    assert first.body == b"".join(shop.sell(path, nonce(shop_, key)).pieces)
    again = shop_.client.insist(path, key)  # a receipt is closed after the last byte
    assert (again.status, again.code) == (409, "body-not-kept")
    assert again.problem["original_status"] == 200
    assert nonce(shop_, key)


# ── accidents ─────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_outlives_its_lease_and_blocks_its_thread_runs_once(
    shop_: Served, pool: ThreadPoolExecutor
) -> None:
    """Other processes see a live lease all the while, and then its answer. Time passes as it is
    told to, in the store and for the process: far longer than one lease lasts."""
    key, gate = new_key(), shop_.gate()
    leader = pool.submit(shop_.client.post, "/outlive", key, x_gate=str(gate))
    until(lambda: shop_.effects.of(key))
    for times in range(1, 1 + OUTLIVED * ceil(shop.LEASE / shop.A_WHILE)):
        shop_.pass_time(shop.A_WHILE)
        aged = shop_.leased_until()
        shop.later(gate, times).touch()
        until(lambda aged=aged: shop_.leased_until() > aged)  # type: ignore[misc]
        duplicate = shop_.client.post("/outlive", key)
        assert (duplicate.status, duplicate.code) == (409, "in-flight")
    gate.touch()
    first, again = leader.result(), shop_.client.post("/outlive", key)
    assert (first.status, first.replayed) == (201, False)
    assert (again.body, again.replayed) == (first.body, True)
    assert nonce(shop_, key).encode() in first.body


def test_a_client_that_leaves_does_not_stop_its_request(shop_: Served) -> None:
    key, gate = new_key(), shop_.gate()
    connection = shop_.client.post_and_leave("/pay", key, x_gate=str(gate))
    until(lambda: shop_.effects.of(key))
    connection.close()
    assert shop_.client.post("/pay", key).code == "in-flight"
    gate.touch()
    again = shop_.client.insist("/pay", key)
    assert (again.status, again.replayed) == (201, True)
    assert nonce(shop_, key).encode() in again.body


def test_a_client_that_sends_half_a_body_executes_nothing(shop_: Served) -> None:
    key = new_key()
    connection = shop_.client.post_half("/pay", key)
    connection.close()
    reply = shop_.client.insist("/pay", key)
    assert (reply.status, reply.replayed) == (201, False)
    assert nonce(shop_, key)


def test_a_worker_killed_in_its_handler_leaves_the_outcome_unknown(
    shop_: Served, pool: ThreadPoolExecutor
) -> None:
    key, gate = new_key(), shop_.gate()
    leader: Future[Reply] = pool.submit(shop_.client.post, "/pay", key, x_gate=str(gate))
    (effect,) = until(lambda: shop_.effects.of(key))
    os.kill(effect.pid, signal.SIGKILL)
    with pytest.raises((http.client.HTTPException, OSError)):
        leader.result()
    assert shop_.client.post("/pay", key).code == "in-flight"
    shop_.pass_time(shop.LEASE)
    again = shop_.client.insist("/pay", key)
    assert (again.status, again.code) == (409, "outcome-unknown")
    assert shop_.client.post("/pay", key).code == "outcome-unknown"
    assert nonce(shop_, key)


@pytest.mark.parametrize("shop_", ENDED, ids="-".join, indirect=True)
def test_a_graceful_end_waits_for_work_whose_client_has_left(shop_: Served) -> None:
    """The last one: the server is started anew."""
    key, gate = new_key(), shop_.gate()
    connection = shop_.client.post_and_leave("/pay", key, x_gate=str(gate))
    (effect,) = until(lambda: shop_.effects.of(key))
    connection.close()
    shop_.server.child.send(signal.SIGTERM)
    told = f"Terminated child process [{effect.pid}]" if shop_.awaited else "Handling signal: term"
    until(lambda: told in shop_.server.logs())
    gate.touch()
    shop_.server.stop()
    shop_.server.start()
    again = shop_.client.insist("/pay", key)
    assert (again.status, again.replayed) == (201, True)
    assert nonce(shop_, key).encode() in again.body
