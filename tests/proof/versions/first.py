"""What the first version leaves in a store: a record of every kind, and all that goes with them.

Made by its own code; read, and finished, by every later one.
"""

from __future__ import annotations

from semel.core import operations as ops
from semel.core.records import Fence, Identity, OnLapse, State
from semel.core.recovery import journal
from semel.core.recovery.journal import Journal, PointKind
from semel.core.stored import requests, snapshot
from semel.core.stored.requests import StoredRequest
from semel.core.stored.snapshot import Snapshot
from semel.stores.base import Store
from semel.stores.encryption import Encryption
from semel.testing.contract.records import ACT, LEASE, ORIGIN, PATIENCE, RETENTION, TOMBSTONE
from semel.testing.contract.terms import terms

HEADERS = ((b"content-type", b"application/json"), (b"x-two", b"1"), (b"x-two", b"2"))
ANSWERS = {
    "answered": Snapshot(201, HEADERS, b'{"paid": true}', schema_version="2"),
    "packed": Snapshot(200, HEADERS, b"row\n" * 8_000),
    "receipt": Snapshot(200, HEADERS, None, size=9_000_000, digest=b"d" * 32),
    "streamed": Snapshot(200, HEADERS, None, whole=False, size=77),
}
REQUEST = StoredRequest(
    *("POST", "/v1", "/jobs", b"x=1"),
    headers=((b"content-type", b"text/plain"),),
    body=b"\0body",
    key="a-key",
    principal={"id": 7},
)
JOURNAL = Journal().reaching("made", PointKind.PHASE, {"ride": 1}).intending("charged")
RECIPE = "i1 v1"
KEY = bytes(range(32))
TERMS = terms("shop", "POST /pay", retention=RETENTION, tombstone=TOMBSTONE)


def sealing() -> Encryption:
    return Encryption({"first": KEY}, "first")


def identity(name: str) -> Identity:
    return Identity(f"{name:.<32}".encode())


def fence(name: str) -> Fence:
    return Fence(f"{name:.<16}".encode())


def claim(name: str, on_lapse: OnLapse = OnLapse.UNKNOWN, by: str | None = None) -> ops.Claim:
    mine = fence(name if by is None else by)
    told = (identity(name), mine, "v1:abc", b"\0fields", ORIGIN, LEASE, on_lapse)
    return ops.Claim(*told, terms=TERMS.id)


def complete(name: str, blob: bytes) -> ops.Complete:
    return ops.Complete(
        identity(name), fence(name), blob, RETENTION, TOMBSTONE, f"resource of {name}"
    )


def leave_behind(store: Store, *, outbox: bool) -> None:
    """Every kind of record, by the operations that lead there."""
    store.perform(ops.Agree(TERMS))
    for name, answer in ANSWERS.items():
        _do(store, claim(name), complete(name, snapshot.encode(answer)))
    blob = snapshot.encode(ANSWERS["answered"])
    sealed = sealing().seal(blob, identity("sealed"), b"snapshot")
    _do(store, claim("sealed"), complete("sealed", sealed))
    _do(
        store,
        claim("refused"),
        ops.Release(identity("refused"), fence("refused"), RETENTION, "later"),
    )
    _do(store, claim("doubted"), ops.Suspend(identity("doubted"), fence("doubted"), "timed out", 0))
    given_up = ops.Suspend(identity("given up"), fence("given up"), "timed out")
    buried = ops.EvictUnknown(
        identity("given up"), fence("given up"), fence("buried"), TOMBSTONE, ACT
    )
    _do(store, claim("given up"), given_up, buried)
    _do(store, claim("stopped"))
    begun = ops.Advance(identity("begun"), fence("begun"), journal.encode(JOURNAL))
    _do(store, claim("begun", OnLapse.RESUME), begun)
    request = requests.encode(REQUEST)
    told = ("v1:abc", b"\0fields", ORIGIN, request, PATIENCE)
    _do(store, ops.Accept(identity("deferred"), fence("deferred"), *told, terms=TERMS.id))
    assert isinstance(store.perform(ops.Register("POST /pay", RECIPE)), ops.Registered)
    store.perform(ops.NoteEvent("provider", "event 1", RETENTION))
    store.perform(ops.Lead("maintenance", fence("leader"), LEASE))
    if outbox:
        _leave_effects(store)


def _leave_effects(store: Store) -> None:
    for name in ("delivered", "dead"):
        store.perform(ops.Enqueue(name, identity("answered"), "mail", b'{"to": 1}'))
        store.perform(ops.TakeEffects(fence(name), ("mail",), 1, LEASE))
    assert store.perform(
        ops.MarkDelivered("delivered", fence("delivered"), "provider's", RETENTION)
    ).applied
    assert store.perform(ops.MarkFailed("dead", fence("dead"), "refused", None)).applied
    store.perform(ops.Enqueue("waiting", identity("answered"), "mail", b'{"to": 2}', "an order"))


def _do(store: Store, *asked: ops.StoreOperation[object]) -> None:
    for op in asked:
        reply = store.perform(op)
        assert isinstance(reply, ops.Claimed | ops.Accepted | ops.Applied), reply


def finish(store: Store, *, outbox: bool) -> None:
    """What is there is what was left, byte for byte; and everything can be brought to its end."""
    for name, answer in ANSWERS.items():
        assert snapshot.decode(_fetched(store, name)) == answer, name
    opened = sealing().open(_fetched(store, "sealed"), identity("sealed"), b"snapshot")
    assert snapshot.decode(opened) == ANSWERS["answered"]
    assert _found(store, "given up") is State.EXPIRED
    _do(
        store,
        ops.Retake(identity("refused"), fence("refused"), fence("again"), LEASE),
        ops.Lapse(identity("stopped"), fence("stopped"), RETENTION),
        ops.Take(identity("deferred"), fence("deferred"), fence("worker"), LEASE),
        ops.Resume(identity("begun"), fence("begun"), fence("completer"), LEASE),
    )
    _recalled(store)
    doubted = {case.record.identity for case in store.perform(ops.Due(ops.Work.UNKNOWN, 10)).cases}
    assert doubted == {identity("doubted"), identity("stopped")}
    for name in ("doubted", "stopped"):
        told = (fence("settled"), b"it happened", RETENTION, TOMBSTONE, ACT)
        _do(store, ops.SettleHappened(identity(name), fence(name), *told))
    assert isinstance(store.perform(ops.Register("POST /pay", RECIPE)), ops.Registered)
    assert store.perform(ops.NoteEvent("provider", "event 1", None)).before
    if outbox:
        (waiting,) = store.perform(ops.TakeEffects(fence("taken"), ("mail",), 9, LEASE)).effects
        assert (waiting.key, waiting.payload) == ("waiting", b'{"to": 2}')
        assert waiting.order == "an order"


def _fetched(store: Store, name: str) -> bytes:
    reply = store.perform(claim(name, by="somebody else"))
    assert isinstance(reply, ops.Found), name
    assert reply.record.state is State.COMPLETED, name
    whole = store.perform(ops.Fetch(identity(name), fence(name), reply.record.snapshot or b""))
    assert isinstance(whole, ops.Fetched), name
    return whole.snapshot


def _found(store: Store, name: str) -> State:
    reply = store.perform(claim(name, by="somebody else"))
    assert isinstance(reply, ops.Found), name
    return reply.record.state


def _recalled(store: Store) -> None:
    begun, deferred = (store.perform(ops.Recall(identity(name))) for name in ("begun", "deferred"))
    assert isinstance(begun, ops.Recalled)
    assert isinstance(deferred, ops.Recalled)
    assert journal.decode(begun.case.journal) == JOURNAL
    assert requests.decode(deferred.case.request or b"") == REQUEST
