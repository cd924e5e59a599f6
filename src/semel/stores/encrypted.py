"""Any store with its values encrypted: the one place where values are encrypted and decrypted.

Operations that carry requests, answers, journals or payloads are encrypted on their way to the
store; replies are decrypted on their way back. Handlers, workers, operators, caches and
transactions all use this layer, and no store knows of it. A value that cannot be decrypted is
replaced by a refusal (`core.stored.sealed`); it never passes for an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias, TypeVar, cast

from semel.core.frozen import replace
from semel.core.operations.audit import Exhibit, Part
from semel.core.operations.maintenance import Abandon, DueRecords
from semel.core.operations.outbox import Effects, Enqueue
from semel.core.operations.requests import (
    Accept,
    Advance,
    Claim,
    Complete,
    Fetch,
    Fetched,
    Found,
    Lost,
    NoRecord,
    Open,
    Recalled,
    SettleAbsent,
    SettleCall,
    SettleHappened,
    StoreOperation,
)
from semel.core.records import Case, Effect, Fence, Identity, Record
from semel.core.stored import sealed as sealing
from semel.core.stored.sealed import Unopened
from semel.core.stored.snapshot import is_head
from semel.errors import ConfigurationError
from semel.stores.base import AsyncStore, AsyncTransaction, Backend, Store, Transaction
from semel.stores.encryption import Encryption
from semel.stores.wrapper import BackendWrapper

R = TypeVar("R")

Make: TypeAlias = Callable[["Sealer", Any], Any]

_ABANDONED: Final = "nobody ran it in time"
"""The reason of records that share one answer, which is bound to no record. Only records with this
reason may have such an answer."""

_COMMON: Final = b"common"


def sealed(backend: Backend, encryption: Encryption) -> Backend:
    """``backend`` with its values encrypted."""
    if not isinstance(encryption, Encryption):
        raise ConfigurationError("encryption= takes semel.Encryption(keys, current=…), or None")
    return EncryptedBackend(backend, Sealer(encryption))


class Sealer:
    """Encrypts what operations carry and decrypts what replies bring."""

    def __init__(self, encryption: Encryption) -> None:
        self.encryption = encryption

    def down(self, op: StoreOperation[R]) -> StoreOperation[R]:
        make = _DOWN.get(type(op))
        return op if make is None else cast("StoreOperation[R]", make(self, op))

    def up(self, op: StoreOperation[R], reply: R) -> R:
        make = _UP.get(type(reply))
        if make is None:
            return reply
        if type(op) is Fetch and isinstance(reply, Fetched):
            return cast("R", self._fetched(op, reply))
        return cast("R", make(self, reply))

    # ── values ───────────────────────────────────────────────────────────────────────────────────

    def seal(self, identity: Identity, fence: Fence, part: Part, plain: bytes) -> bytes:
        """Encrypt one part of a record. Answers are already compressed."""
        place, packed = _place(part, fence), part is Part.SNAPSHOT
        return self.encryption.seal(plain, b"record" + identity, place, packed=packed)

    def open(self, whose: Record | Exhibit, part: Part, blob: bytes) -> bytes:
        """Decrypt one part of a record; raises `Unopened`."""
        if part is Part.SNAPSHOT and is_common(blob, whose.reason):
            return self.encryption.open(blob, _COMMON, _PLACES[part])
        return self.encryption.open(blob, b"record" + whose.identity, _place(part, whose.fence))

    def seal_common(self, plain: bytes) -> bytes:
        """Encrypt an answer that many records share."""
        place, flags = _PLACES[Part.SNAPSHOT], sealing.COMMON
        return self.encryption.seal(plain, _COMMON, place, flags=flags, packed=True)

    def seal_payload(self, key: str, plain: bytes) -> bytes:
        return self.encryption.seal(plain, b"effect\0" + key.encode(), b"payload")

    def open_payload(self, key: str, blob: bytes) -> bytes:
        return self.encryption.open(blob, b"effect\0" + key.encode(), b"payload")

    # ── replies ──────────────────────────────────────────────────────────────────────────────────

    def _part(self, record: Record, part: Part, blob: bytes | None) -> bytes | None:
        if blob is None:
            return None
        try:
            return self.open(record, part, blob)
        except Unopened as error:
            return sealing.refusal(error)

    def record(self, record: Record) -> Record:
        blob = record.snapshot
        if blob is None or is_head(blob):
            return record
        # Written out for speed: every replay passes here.
        return Record(
            record.identity,
            record.state,
            record.fence,
            record.fingerprint,
            record.fields,
            record.on_lapse,
            record.created_at,
            record.leased_until,
            record.expires_at,
            record.forget_at,
            self._part(record, Part.SNAPSHOT, blob),
            record.reason,
            record.retired_at,
        )

    def case(self, case: Case) -> Case:
        record = case.record
        return replace(
            case,
            record=self.record(record),
            request=self._part(record, Part.REQUEST, case.request),
            journal=self._part(record, Part.JOURNAL, case.journal),
        )

    def _fetched(self, op: Fetch, reply: Fetched) -> Fetched:
        found = Exhibit(op.identity, op.fence, None, None, None, None)
        try:
            return Fetched(self.open(found, Part.SNAPSHOT, reply.snapshot))
        except Unopened as error:
            return Fetched(sealing.refusal(error))

    def effect(self, effect: Effect) -> Effect:
        try:
            return replace(effect, payload=self.open_payload(effect.key, effect.payload))
        except Unopened as error:
            return replace(effect, payload=sealing.refusal(error))


_PLACES: Final = {part: part.value.encode() for part in Part}


def _place(part: Part, fence: Fence) -> bytes:
    """The associated data. An answer is bound to its fence; requests and journals are not, because
    a retry that takes the record over keeps them."""
    place = _PLACES[part]
    return place + fence if part is Part.SNAPSHOT else place


def is_common(blob: bytes, reason: str | None) -> bool:
    """Whether the answer is shared by many records, and a record with this reason may have it."""
    if reason != _ABANDONED:
        return False
    parsed = sealing.parse(blob)
    return parsed is not None and bool(parsed[0] & sealing.COMMON)


# ── operations ────────────────────────────────────────────────────────────────────────────────────


def _request(sealer: Sealer, op: Claim | Accept) -> Claim | Accept:
    if op.request is None:
        return op
    return replace(op, request=sealer.seal(op.identity, op.fence, Part.REQUEST, op.request))


def _complete(sealer: Sealer, op: Complete) -> Complete:
    kept = sealer.seal(op.identity, op.fence, Part.SNAPSHOT, op.snapshot)
    return Complete(op.identity, op.fence, kept, op.retention, op.tombstone, op.resource)


def _snapshot(sealer: Sealer, op: Open | SettleHappened) -> Any:
    kept = sealer.seal(op.identity, op.fence, Part.SNAPSHOT, op.snapshot)
    return replace(op, snapshot=kept)


def _journal(sealer: Sealer, op: Advance | SettleAbsent | SettleCall) -> Any:
    if op.journal is None:
        return op
    return replace(op, journal=sealer.seal(op.identity, op.fence, Part.JOURNAL, op.journal))


def _abandon(sealer: Sealer, op: Abandon) -> Abandon:
    return replace(op, snapshot=sealer.seal_common(op.snapshot))


def _payload(sealer: Sealer, op: Enqueue) -> Enqueue:
    return replace(op, payload=sealer.seal_payload(op.key, op.payload))


_DOWN: Final[Mapping[type[Any], Make]] = {
    Claim: _request,
    Accept: _request,
    Complete: _complete,
    Open: _snapshot,
    SettleHappened: _snapshot,
    Advance: _journal,
    SettleAbsent: _journal,
    SettleCall: _journal,
    Abandon: _abandon,
    Enqueue: _payload,
}
"""Every operation that carries bytes to keep; a test proves that there are no others."""


# ── replies ───────────────────────────────────────────────────────────────────────────────────────


def _found(sealer: Sealer, reply: Found) -> Found:
    return Found(sealer.record(reply.record), reply.now)


def _lost(sealer: Sealer, reply: Lost) -> Lost:
    return reply if reply.record is None else Lost(sealer.record(reply.record), reply.now)


def _recalled(sealer: Sealer, reply: Recalled) -> Recalled:
    return Recalled(sealer.case(reply.case), reply.now)


def _listed(sealer: Sealer, reply: DueRecords) -> DueRecords:
    return replace(reply, cases=tuple([sealer.case(case) for case in reply.cases]))


def _effects(sealer: Sealer, reply: Effects) -> Effects:
    return replace(reply, effects=tuple([sealer.effect(each) for each in reply.effects]))


def _fetched(sealer: Sealer, reply: Fetched) -> Fetched:
    raise TypeError("a fetched answer needs its operation to be opened")


_UP: Final[Mapping[type[Any], Make]] = {
    Found: _found,
    Lost: _lost,
    Recalled: _recalled,
    DueRecords: _listed,
    Effects: _effects,
    Fetched: _fetched,
}


# ── stores ────────────────────────────────────────────────────────────────────────────────────────


def _fetch_anew(op: StoreOperation[R], reply: R) -> StoreOperation[R] | None:
    """The same fetch without a head, which only the store answers: a body that cannot be decrypted
    may come from a cache. None when the reply is good."""
    if not isinstance(reply, Fetched) or not sealing.is_refusal(reply.snapshot):
        return None
    return cast("StoreOperation[R]", replace(cast("Fetch", op), head=b""))


class _SealedStore:
    def __init__(self, inner: Store, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    def perform(self, op: StoreOperation[R], /) -> R:
        sealer = self._sealer
        reply = sealer.up(op, self._inner.perform(sealer.down(op)))
        if (anew := _fetch_anew(op, reply)) is not None:
            return sealer.up(op, self._inner.perform(anew))
        return reply


class _AsyncSealedStore:
    def __init__(self, inner: AsyncStore, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    async def perform(self, op: StoreOperation[R], /) -> R:
        sealer = self._sealer
        reply = sealer.up(op, await self._inner.perform(sealer.down(op)))
        if (anew := _fetch_anew(op, reply)) is not None:
            return sealer.up(op, await self._inner.perform(anew))
        return reply


class _SealedTransaction(_SealedStore):
    """Everything but ``perform`` is the inner transaction's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _AsyncSealedTransaction(_AsyncSealedStore):
    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class EncryptedBackend(BackendWrapper):
    """A backend around another that stores its values encrypted."""

    def __init__(self, inner: Backend, sealer: Sealer) -> None:
        super().__init__(inner)
        self.sealer = sealer

    def __getattr__(self, name: str) -> Any:
        """``on`` is wrapped: a store in the caller's own transaction encrypts as well."""
        found = super().__getattr__(name)
        return self._on(found) if name == "on" else found

    def _on(self, on: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def joined(connection: Any) -> Any:
            store = on(connection)
            awaited = iscoroutinefunction(store.perform)
            return (_AsyncSealedStore if awaited else _SealedStore)(store, self.sealer)

        return joined

    def blocking(self) -> Store:
        return _SealedStore(self.inner.blocking(), self.sealer)

    def awaited(self) -> AsyncStore:
        return _AsyncSealedStore(self.inner.awaited(), self.sealer)

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        begun: Any = super().begin(identity, limit)
        if begun is None:
            return None
        return cast("Transaction", _SealedTransaction(begun, self.sealer))

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        begun: Any = await super().abegin(identity, limit)
        if begun is None:
            return None
        return cast("AsyncTransaction", _AsyncSealedTransaction(begun, self.sealer))

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        return self._seen(super().ascertain(identity))

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return self._seen(await super().aascertain(identity))

    def _seen(self, reply: Found | NoRecord) -> Found | NoRecord:
        return _found(self.sealer, reply) if isinstance(reply, Found) else reply
