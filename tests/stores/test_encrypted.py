"""Encryption at rest: nothing that is asked of a store changes, and all that lies in it does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.delivery import delivery_of
from semel.core.operations import audit, erasure, outbox, resealing
from semel.core.operations import maintenance as upkeep
from semel.core.operations import requests as operations
from semel.core.operations.maintenance import Abandon, Browse
from semel.core.operations.outbox import BrowseEffects, Enqueue, Shelf
from semel.core.operations.requests import (
    Accept,
    Advance,
    Agree,
    Complete,
    Fetch,
    Fetched,
    Found,
    Read,
    Recall,
    Recalled,
    StoreOperation,
    Suspend,
)
from semel.core.operations.resealing import Part, Reseal
from semel.core.records import Case, Fence, Identity, State
from semel.core.recovery import journal
from semel.core.stored import requests, snapshot
from semel.core.stored import sealed as sealing
from semel.core.stored.sealed import Unopened
from semel.core.stored.snapshot import LARGE, Snapshot
from semel.errors import ConfigurationError, EncryptionKeyMissing, StoreCorrupt
from semel.stores.body_cache import with_body_cache
from semel.stores.encryption import CARRIERS, EncryptedBackend, Encryption
from semel.stores.memory import MemoryBackend
from semel.stores.sqlite import SqliteBackend
from semel.testing.contract import lists, records, work
from semel.testing.contract import outbox as outbox_contract
from semel.testing.contract.records import (
    PATIENCE,
    REQUEST,
    TERMS,
    accept,
    applied,
    claim,
    complete,
    existing,
    new_fence,
    new_identity,
    reach,
)
from tests.stores.harness import FakeClock, Harness

OLD, NEW = os.urandom(32), os.urandom(32)
ANSWER = snapshot.encode(Snapshot(201, ((b"x-name", b"bob"),), b'{"name": "bob"}'))


def encryption(**options: Any) -> Encryption:
    return Encryption({"new": NEW, "old": OLD}, "new", **options)


def harnesses(kind: str, colour: str, folder: Path) -> Iterator[Harness]:
    clock = FakeClock()
    inner: Any = MemoryBackend(clock=clock)
    if kind == "sqlite":
        inner = SqliteBackend(f"sqlite:///{folder}/records.db", timeout=120, clock=clock)
    harness = Harness(EncryptedBackend(inner, encryption()), clock.travel, 0, colour)
    try:
        yield harness
    finally:
        harness.close()


@pytest.fixture(scope="module", params=["memory-async", "sqlite-sync"])
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    """Tests use keys of their own, so they may share it."""
    kind, colour = request.param.split("-")
    yield from harnesses(kind, colour, tmp_path_factory.mktemp("sealed"))


@pytest.fixture
def quick() -> Iterator[Harness]:
    yield from harnesses("memory", "sync", Path())


class TestStateTable(records.StateTable): ...


class TestLives(records.Lives): ...


class TestPoints(work.RecoveryPoints): ...


class TestDelivering(outbox_contract.Delivering):
    @pytest.fixture
    def harness(self, quick: Harness) -> Harness:
        return quick


class TestNewestFirst(lists.NewestFirst):
    @pytest.fixture
    def harness(self, quick: Harness) -> Harness:
        quick.perform(operations.Agree(records.TERMS))
        return quick


class TestNewestEffectsFirst(lists.NewestEffectsFirst):
    @pytest.fixture
    def harness(self, quick: Harness) -> Harness:
        return quick


# ── what lies in the store ────────────────────────────────────────────────────────────────────────


def within(harness: Harness) -> Any:
    backend = harness.backend
    assert isinstance(backend, EncryptedBackend)
    return backend.inner.blocking()


def recalled(store: Any, identity: Identity) -> Case:
    found = store.perform(Recall(identity))
    assert isinstance(found, Recalled)
    return found.case


def test_nothing_that_is_kept_lies_there_in_clear(harness: Harness) -> None:
    secret = b"bob's secret " * 4
    one, fence = new_identity(), new_fence()
    harness.perform(claim(one, fence, request=secret))
    applied(harness, Advance(one, fence, secret))
    before = recalled(within(harness), one)
    applied(harness, complete(one, fence, secret))
    after = recalled(within(harness), one)
    harness.perform(Enqueue("key", None, "mail", secret))
    (effect,) = within(harness).perform(BrowseEffects(Shelf.WAITING, 9)).effects
    held = [before.request, before.journal, after.journal, after.record.snapshot, effect.payload]
    for blob in held:
        assert blob is not None
        assert b"bob" not in blob
        assert blob.startswith(sealing.prefix(b"new"))
        assert len(blob) == len(secret) + 35  # head, nonce and tag
    assert harness.perform(BrowseEffects(Shelf.WAITING, 9)).effects[0].payload == secret
    assert existing(harness, one).snapshot == secret


def _is_operation(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, StoreOperation)


def test_every_operation_that_carries_bytes_to_keep_is_sealed() -> None:
    proofs = {"identity", "seen", "fence", "after", "fields", "head", "prefix", "old", "new"}
    modules = (operations, upkeep, outbox, audit, erasure, resealing)
    named: list[Any] = [item for module in modules for item in vars(module).values()]
    carrying: set[Any] = {
        item
        for item in filter(_is_operation, named)
        for name in getattr(item, "__match_args__", ())
        if name not in proofs and "bytes" in str(item.__annotations__[name])
    }
    assert carrying == set(CARRIERS)


def test_a_large_answer_is_fetched_and_opened(harness: Harness) -> None:
    identity, fence = reach(harness, State.IN_PROGRESS)
    large = os.urandom(LARGE + 10)
    applied(harness, complete(identity, fence, large))
    head = existing(harness, identity).snapshot
    assert head is not None
    assert snapshot.is_head(head)
    assert harness.perform(Fetch(identity, fence, head)) == Fetched(large)
    within(harness).perform(
        Reseal(
            identity,
            fence,
            Part.SNAPSHOT,
            recalled(within(harness), identity).record.snapshot or b"",
            b"E1",
        )
    )
    refused = harness.perform(Fetch(identity, fence, head))
    assert isinstance(refused, Fetched)
    with pytest.raises(StoreCorrupt, match="a stored response"):
        snapshot.decode(refused.snapshot)


def test_what_is_large_is_compressed_before_it_is_encrypted(quick: Harness) -> None:
    identity, fence = new_identity(), new_fence()
    quick.perform(claim(identity, fence, request=b"again and " * 10_000))
    blob = recalled(within(quick), identity).request
    assert blob is not None
    assert len(blob) < 5_000
    assert recalled(quick.backend.blocking(), identity).request == b"again and " * 10_000


# ── what does not open ────────────────────────────────────────────────────────────────────────────


def held(harness: Harness, kept: bytes = ANSWER) -> tuple[Identity, Fence, bytes]:
    identity, fence = reach(harness, State.IN_PROGRESS)
    applied(harness, complete(identity, fence, kept))
    blob = recalled(within(harness), identity).record.snapshot
    assert blob is not None
    return identity, fence, blob


def put(harness: Harness, to: tuple[Identity, Fence, bytes], blob: bytes) -> bytes:
    identity, fence, old = to
    applied_ = within(harness).perform(Reseal(identity, fence, Part.SNAPSHOT, old, blob))
    assert isinstance(applied_, operations.Applied)
    return existing(harness, identity).snapshot or b""


def test_an_answer_moved_to_another_record_is_refused(quick: Harness) -> None:
    _, _, theirs = held(quick)
    with pytest.raises(StoreCorrupt, match="does not open: it is damaged, or was another record's"):
        snapshot.decode(put(quick, held(quick), theirs))


def test_a_request_moved_to_another_record_is_refused(quick: Harness) -> None:
    (one, fence), (other, _) = ((new_identity(), new_fence()) for _ in range(2))
    for identity in (one, other):
        quick.perform(claim(identity, fence, request=REQUEST))
    mine, theirs = (recalled(within(quick), each).request or b"" for each in (one, other))
    within(quick).perform(Reseal(one, fence, Part.REQUEST, mine, theirs))
    with pytest.raises(StoreCorrupt, match="a stored request does not open"):
        requests.decode(recalled(quick.backend.blocking(), one).request or b"")


def test_an_answer_of_an_earlier_life_of_the_key_is_refused(quick: Harness) -> None:
    identity, fence, before = held(quick)
    applied(quick, operations.Evict(identity, fence, records.ACT))
    again = new_fence()
    quick.perform(claim(identity, again))
    applied(quick, complete(identity, again, ANSWER))
    now = recalled(within(quick), identity).record.snapshot or b""
    with pytest.raises(StoreCorrupt, match="does not open"):
        snapshot.decode(put(quick, (identity, again, now), before))


def test_a_value_moved_to_another_part_is_refused(quick: Harness) -> None:
    identity, fence = new_identity(), new_fence()
    quick.perform(claim(identity, fence, request=REQUEST))
    applied(quick, Advance(identity, fence, journal.encode(journal.Journal())))
    case = recalled(within(quick), identity)
    assert case.request is not None
    assert case.journal is not None
    within(quick).perform(Reseal(identity, fence, Part.REQUEST, case.request, case.journal))
    with pytest.raises(StoreCorrupt, match="a stored request does not open"):
        requests.decode(recalled(quick.backend.blocking(), identity).request or b"")


@pytest.mark.parametrize("place", [0, 3, 6, 7, 20, -1])
def test_a_changed_byte_anywhere_is_refused(quick: Harness, place: int) -> None:
    to = held(quick)
    changed = bytearray(to[2])
    changed[place] ^= 0x80
    with pytest.raises((StoreCorrupt, EncryptionKeyMissing)):
        snapshot.decode(put(quick, to, bytes(changed)))


def test_a_plain_value_is_refused_unless_it_is_accepted(quick: Harness) -> None:
    to = held(quick)
    with pytest.raises(StoreCorrupt, match="is not encrypted, and plain values are not accepted"):
        snapshot.decode(put(quick, to, ANSWER))
    lenient = EncryptedBackend(quick.backend.inner, encryption(accept_plain=True))  # type: ignore[attr-defined]
    case = recalled(lenient.blocking(), to[0])
    assert snapshot.decode(case.record.snapshot or b"").status == 201


def test_a_key_that_is_not_given_is_named(quick: Harness) -> None:
    identity, _, blob = held(quick)
    other = EncryptedBackend(quick.backend.inner, Encryption({"old": OLD}, "old"))  # type: ignore[attr-defined]
    with pytest.raises(
        EncryptionKeyMissing, match="a stored response is encrypted with the key 'new'"
    ):
        snapshot.decode(recalled(other.blocking(), identity).record.snapshot or b"")
    with pytest.raises(EncryptionKeyMissing, match="'new', and this process has no encryption="):
        snapshot.decode(blob)


def test_one_that_does_not_open_spoils_no_list(quick: Harness) -> None:
    bad, good = held(quick), held(quick)
    put(quick, bad, b"E1 damaged")
    cases = quick.perform(Browse((State.COMPLETED,), 9)).cases
    opened = {case.record.identity: case.record.snapshot for case in cases}
    assert opened[good[0]] == ANSWER
    with pytest.raises(StoreCorrupt):
        snapshot.decode(opened[bad[0]] or b"")
    quick.perform(Enqueue("key", None, "mail", b"{}"))
    within(quick).perform(
        resealing.ResealEffect(
            "key", within(quick).perform(BrowseEffects(Shelf.WAITING, 9)).effects[0].payload, b"{}"
        )
    )
    (effect,) = quick.perform(BrowseEffects(Shelf.WAITING, 9)).effects
    with pytest.raises(StoreCorrupt, match="the payload of an effect is not encrypted"):
        delivery_of(effect)


def test_the_answer_to_abandoned_requests_opens_only_there(quick: Harness) -> None:
    identity, fence = new_identity(), new_fence()
    quick.perform(Agree(TERMS))
    quick.perform(accept(identity, fence))
    quick.travel(PATIENCE)
    assert quick.perform(Abandon(9, ANSWER)).counts
    assert existing(quick, identity).snapshot == ANSWER
    common = recalled(within(quick), identity).record.snapshot or b""
    with pytest.raises(StoreCorrupt, match="does not open"):
        snapshot.decode(put(quick, held(quick), common))


def test_a_journal_that_does_not_open_is_not_taken_for_an_empty_one(quick: Harness) -> None:
    identity, fence = new_identity(), new_fence()
    quick.perform(claim(identity, fence))
    applied(quick, Advance(identity, fence, b"J1"))
    applied(quick, Suspend(identity, fence))
    old = recalled(within(quick), identity).journal or b""
    within(quick).perform(Reseal(identity, fence, Part.JOURNAL, old, b"J1 plain"))
    with pytest.raises(StoreCorrupt, match="a journal is not encrypted"):
        journal.decode(recalled(quick.backend.blocking(), identity).journal)


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


def test_values_of_every_key_given_are_read() -> None:
    before = Encryption({"old": OLD}, "old")
    blob = before.seal(b"value", b"subject", b"place")
    assert encryption().open(blob, b"subject", b"place") == b"value"
    assert encryption().seal(b"value", b"subject", b"place") != blob
    with pytest.raises(Unopened):
        encryption().open(blob, b"subject", b"another")
    with pytest.raises(Unopened):
        encryption().open(blob, b"another", b"place")


def test_no_two_values_are_alike() -> None:
    keys = encryption()
    assert len({keys.seal(b"same", b"subject", b"place") for _ in range(64)}) == 64


def test_a_key_is_shown_by_nothing() -> None:
    keys = Encryption({"a": OLD, "b": "A" * 43 + "="}, "a")
    assert repr(keys) == "<semel.Encryption keys=a, b current=a>"
    assert "encryption" not in repr(semel.Guard("memory://", tenant=None, encryption=keys))


@pytest.mark.parametrize(
    ("keys", "current"),
    [
        ({"a": b"short"}, "a"),
        ({"a": "hunter2hunter2!!"}, "a"),
        ({"a": OLD}, "b"),
        ({}, "a"),
        ({"": OLD}, ""),
        ({"x" * 65: OLD}, "x" * 65),
        ({"é": OLD}, "é"),
    ],
)
def test_a_wrong_key_is_refused_and_not_shown(keys: dict[str, Any], current: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Encryption(keys, current)
    assert "short" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_guard_takes_nothing_else_for_encryption() -> None:
    given: Any = {"a": OLD}
    with pytest.raises(ConfigurationError, match="encryption= takes"):
        semel.Guard("memory://", tenant=None, encryption=given)


def test_accepted_requests_carry_no_plain_bytes() -> None:
    """`Accept` is no `Claim`: it is sealed by itself."""
    backend = EncryptedBackend(MemoryBackend(), encryption())
    identity, fence = new_identity(), new_fence()
    op = accept(identity, fence)
    assert isinstance(op, Accept)
    backend.blocking().perform(op)
    assert isinstance(backend, EncryptedBackend)
    assert recalled(backend.inner.blocking(), identity).request != REQUEST
    assert recalled(backend.blocking(), identity).request == REQUEST
    assert Complete in CARRIERS


# ── a cache beside it ─────────────────────────────────────────────────────────────────────────────


def test_after_a_rotation_a_cached_body_under_a_key_that_is_gone_is_fetched_anew() -> None:
    """Ids that are long leave nothing else in a head, so that it does not tell them apart."""
    store, old, new = MemoryBackend(), "2026-" + "k" * 58 + "a", "2026-" + "k" * 58 + "b"
    near = with_body_cache(store, 1_000_000)
    before = EncryptedBackend(near, Encryption({old: OLD}, old)).blocking().perform
    identity, fence, large = new_identity(), new_fence(), os.urandom(2 * LARGE)
    before(claim(identity, fence))
    before(complete(identity, fence, large))
    found = before(Read(identity))
    assert isinstance(found, Found)
    fetch = Fetch(identity, fence, found.record.snapshot or b"")
    assert before(fetch) == Fetched(large)
    both = Encryption({old: OLD, new: NEW}, new)
    guard = semel.Guard(store, tenant=None, encryption=both, maintenance=None)
    assert guard.operator().rotate(by="ann", reason="yearly").resealed == 1
    after = EncryptedBackend(near, Encryption({new: NEW}, new)).blocking().perform
    assert after(fetch) == Fetched(large)
