"""A guard's store is swapped for a private one, and given back; its clock moves when told to."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.operations.requests import Read
from semel.core.records import Identity
from semel.testing import EffectSeen, PrivateStore, assert_replayed
from semel.testing.private_store import not_given_back
from tests.testing.shop import KEY, NOWHERE, Shop, flask, sql
from tests.waiting import PATIENCE

DAY = timedelta(days=1)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def store(shop: Shop) -> Iterator[PrivateStore]:
    with PrivateStore(shop.guard) as made:
        yield made


# ── the swap ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url", [NOWHERE, "redis://127.0.0.1:1/0", "memory://", "mysql://nobody@127.0.0.1:1/nowhere"]
)
def test_whatever_the_guard_was_made_with_its_records_are_in_the_private_file(url: str) -> None:
    guard = semel.Guard(url, tenant=None)
    before = guard.backend
    with PrivateStore(guard) as store:
        assert guard.once(KEY, lambda: 1, name="it").value == 1
        assert sql(store, "SELECT count(*) FROM semel_record") == [(1,)]
    assert guard.backend is before


def test_two_tests_share_nothing(shop: Shop) -> None:
    for _ in range(2):
        with PrivateStore(shop.guard):
            assert not shop.guard.once(KEY, lambda: 1, name="it").replayed


def test_everything_is_given_back(shop: Shop) -> None:
    guard = shop.guard
    others = set(threading.enumerate())
    had = (guard.backend, guard.runtime, guard.new_runtime, guard.maintenance)
    with PrivateStore(guard) as store:
        folder = Path(store.url.removeprefix("sqlite:///")).parent
        assert guard.maintenance is None
    assert (guard.backend, guard.runtime, guard.new_runtime, guard.maintenance) == had
    assert not folder.exists()
    left = set(threading.enumerate()) - others
    assert not [each.name for each in left if each.name.startswith("semel-")]
    assert not_given_back() == []


def test_no_thread_outlives_a_process_that_has_ended() -> None:
    """Where tenants have a cap, one counts their keys beside the requests."""
    guard = semel.Guard(NOWHERE, tenant=None, limits=semel.Limits(active_keys=9))
    with PrivateStore(guard) as store:
        with store.crash("before completion"):
            guard.once(KEY, lambda: 1, name="it")
        assert not [each.name for each in threading.enumerate() if each.name == "semel-census"]


def test_a_file_is_left_in_the_folder_that_was_named(shop: Shop, tmp_path: Path) -> None:
    with PrivateStore(shop.guard, folder=tmp_path):
        shop.guard.once(KEY, lambda: 1, name="it")
    assert len(list(tmp_path.rglob("semel.db"))) == 1


def test_what_the_guard_encrypts_is_encrypted_here_too() -> None:
    encryption = semel.Encryption({"k": b"0" * 32}, current="k")
    guard = semel.Guard(NOWHERE, tenant=None, encryption=encryption, replay_bodies=1 << 20)
    with PrivateStore(guard) as store:
        guard.once(KEY, lambda: "canary-of-an-answer", name="it")
        assert_replayed(
            guard.once("another-opaque-key", lambda: 1, name="it"),
            guard.once("another-opaque-key", lambda: 1, name="it"),
        )
        ((blob,), _) = sql(store, "SELECT snapshot FROM semel_record ORDER BY created_at")
        assert b"canary" not in blob


def test_guards_of_one_application_share_the_store() -> None:
    one, other = (semel.Guard(NOWHERE, tenant=None, name=name) for name in ("one", "other"))
    with PrivateStore(one, other) as store:
        for guard in (one, other):
            assert not guard.once(KEY, lambda: 1, name="it").replayed
        assert sql(store, "SELECT count(*) FROM semel_record") == [(2,)]
        with store.crash("after claim"):
            other.once("a-third-opaque-key", lambda: 1, name="it")
        assert one.once(KEY, lambda: 1, name="it").replayed


def test_a_module_that_made_its_guard_at_import_is_not_imported_anew(shop: Shop) -> None:
    _, send = flask(shop)
    for _ in range(2):
        with PrivateStore(shop.guard) as store:
            assert store.assert_once(lambda: send("/pay")).status_code == 200
    assert len(shop.provider.charged) == 2


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


def test_a_guard_that_has_served_on_its_own_store_is_refused(tmp_path: Path) -> None:
    guard = semel.Guard(f"sqlite:///{tmp_path}/own.db", tenant=None)
    guard.once(KEY, lambda: 1, name="it")
    with pytest.raises(semel.ConfigurationError, match="has served requests in this process"):
        PrivateStore(guard).__enter__()
    guard.close()
    with PrivateStore(guard):
        assert not guard.once(KEY, lambda: 1, name="it").replayed
    assert guard.once(KEY, lambda: 1, name="it").replayed
    guard.close()


def test_a_guard_that_has_a_private_store_is_refused_and_the_line_is_named(
    shop: Shop, store: PrivateStore
) -> None:
    with pytest.raises(semel.ConfigurationError, match=rf"private store of {__file__}:\d+"):
        PrivateStore(shop.guard).__enter__()
    assert len(not_given_back()) == 1
    shop.guard.once(KEY, lambda: 1, name="it")  # it still has the first


def test_a_request_that_outlives_the_test_is_told(shop: Shop) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        assert go.wait(PATIENCE)
        return 1

    def work() -> None:
        with pytest.raises(semel.Refused):  # its store is gone
            shop.guard.once(KEY, slow, name="it")

    thread, store = threading.Thread(target=work), PrivateStore(shop.guard)
    store.__enter__()
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        with pytest.raises(semel.ConfigurationError, match="still under way"):
            store.__exit__(None, None, None)
        assert not_given_back() == []
    finally:
        go.set()
        thread.join()


@pytest.mark.parametrize("given", [None, "sqlite:///x.db", object()])
def test_only_a_guard_is_taken(given: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match=r"takes a semel\.Guard"):
        PrivateStore(given)


def test_a_store_is_used_within_its_block(shop: Shop) -> None:
    store = PrivateStore(shop.guard)
    for use in (lambda: store.url, store.run_once, lambda: store.state(KEY)):
        with pytest.raises(semel.ConfigurationError, match="with PrivateStore"):
            use()


# ── the clock ─────────────────────────────────────────────────────────────────────────────────────


def test_the_clock_stands_still_and_moves_when_told_to(shop: Shop, store: PrivateStore) -> None:
    began = store.clock.now
    assert abs(began - datetime.now(UTC)) < timedelta(hours=1)
    reply = shop.guard.backend.blocking().perform(Read(Identity(bytes(32))))
    store.clock.move(timedelta(hours=2))
    later = shop.guard.backend.blocking().perform(Read(Identity(bytes(32))))
    assert later.now - reply.now == 2 * 3600 * 1_000_000
    assert store.clock.now - began == timedelta(hours=2)


def test_retention_and_tombstone_pass_with_the_clock(shop: Shop, store: PrivateStore) -> None:
    shop.guard.once(KEY, lambda: 1, name="it")
    store.clock.move(DAY)
    assert store.run_once() == {"maintain": 1}
    assert store.state(KEY) == "expired"
    with pytest.raises(semel.Refused) as refused:
        shop.guard.once(KEY, lambda: 1, name="it")
    assert refused.value.code == "key-expired"
    store.clock.move(DAY)
    assert store.run_once() == {"maintain": 1}
    assert store.state(KEY) is None
    assert not shop.guard.once(KEY, lambda: 1, name="it").replayed


@pytest.mark.parametrize("by", [timedelta(seconds=-1), 60, None])
def test_a_clock_goes_neither_back_nor_by_a_number(store: PrivateStore, by: Any) -> None:
    began = store.clock.now
    with pytest.raises(semel.ConfigurationError, match=r"does not go back|takes a timedelta"):
        store.clock.move(by)
    assert store.clock.now == began


# ── due work ──────────────────────────────────────────────────────────────────────────────────────


def test_effects_are_delivered_when_the_test_says_so(shop: Shop, store: PrivateStore) -> None:
    sql(store, "CREATE TABLE paid (row TEXT)")
    app, send = flask(shop)
    send("/atomic")
    (waiting,) = store.effects()
    assert (waiting.name, waiting.payload, waiting.state) == ("receipt", {"amount": 100}, "waiting")
    assert store.run_once(app) == {"deliver": 1}
    (delivered,) = store.effects("receipt")
    assert isinstance(delivered, EffectSeen)
    assert (delivered.state, delivered.key) == ("delivered", waiting.key)
    assert store.effects("another") == []
    assert (shop.delivered, store.run_once(app)) == ([{"amount": 100}], {})


def test_a_failed_delivery_is_tried_again_once_its_pause_is_over(store: PrivateStore) -> None:
    guard, tried = store._guards[0], []

    @guard.delivers("mail", tries=2)
    def deliver(delivery: semel.Delivery) -> None:
        tried.append(delivery.tries)
        raise ConnectionError("no")

    guard.start()
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as connection, connection:
        guard.enqueue(connection, "mail", {})
    assert store.run_once() == {"deliver": 1}
    assert store.run_once() == {}
    store.clock.move(DAY)
    store.run_once()
    assert (tried, [effect.state for effect in store.effects()]) == ([1, 2], ["dead"])


async def test_in_an_event_loop_due_work_is_awaited(shop: Shop, store: PrivateStore) -> None:
    with pytest.raises(semel.ConfigurationError, match=r"await semel_store\.arun_once"):
        store.run_once()
    assert await store.arun_once() == {}


# ── what can be asked ─────────────────────────────────────────────────────────────────────────────


def test_a_key_that_was_used_nowhere_or_twice_is_told(shop: Shop, store: PrivateStore) -> None:
    with pytest.raises(AssertionError, match="no request came with the key"):
        store.state(KEY)
    for name in ("one", "two"):
        shop.guard.once(KEY, lambda: 1, name=name)
    with pytest.raises(AssertionError, match="ONCE /one, ONCE /two: say path="):
        store.runs(KEY)
    assert (store.runs(KEY, "/one"), store.state(KEY, "/two")) == (1, "completed")


def test_a_handler_that_runs_for_every_request_is_noticed(store: PrivateStore) -> None:
    guard = store._guards[0]
    keys = iter(["a-first-opaque-key", "a-second-opaque-key"])
    with pytest.raises(AssertionError, match="not a first answer and its replay"):
        store.assert_once(lambda: guard.once(next(keys), lambda: 1, name="it"))


@pytest.mark.parametrize(
    ("again", "complaint"),
    [
        ({"status_code": 200}, "its status is 200, and was 201"),
        ({"content": b"other"}, "its body is b'other', and was b'it'"),
        ({"headers": {}}, "is False and None"),
    ],
)
def test_what_is_no_replay_is_noticed(again: dict[str, Any], complaint: str) -> None:
    def answer(replayed: str, **changes: Any) -> Any:
        marked = {"idempotent-replayed": replayed}
        given = {"status_code": 201, "content": b"it", "headers": marked, **changes}
        return type("Answer", (), given)

    assert_replayed(answer("false"), answer("true"))
    with pytest.raises(AssertionError, match=complaint):
        assert_replayed(answer("false"), answer("true", **again))


def test_only_answers_are_compared() -> None:
    with pytest.raises(TypeError, match="is no answer of a test client"):
        assert_replayed("it", "it")


# ── production ────────────────────────────────────────────────────────────────────────────────────


def test_neither_semel_nor_the_plugin_loads_it() -> None:
    """The plugin is imported in every run of pytest, also of those that do not use it."""
    script = "import sys, semel; print('semel.testing' in sys.modules)"
    plugin = "import sys, _semel_pytest; print('semel' in sys.modules)"
    for code in (script, plugin):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert ended.stdout.strip() == b"False"
