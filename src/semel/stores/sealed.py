"""Any store, with what it keeps encrypted: the one place where values are sealed and opened.

The operations that carry requests, answers, journals or payloads go down sealed, and replies come
up opened; so handlers, workers, operators, caches and transactions all share it, and no store knows
of it. What does not open stays closed: `core/sealing.py` says how that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias, TypeVar, cast

from semel.core import sealing
from semel.core.contract import (
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
from semel.core.custody import Exhibit, Part
from semel.core.frozen import replace
from semel.core.model import Case, Effect, Fence, Identity, Record
from semel.core.outbox import Effects, Enqueue
from semel.core.sealing import Unopened
from semel.core.snapshot import is_head
from semel.core.upkeep import Abandon, Listed
from semel.errors import ConfigurationError
from semel.stores.base import (
    AsyncStore,
    AsyncTransaction,
    Backend,
    Capabilities,
    Examined,
    Finding,
    Store,
    Transaction,
    Transactional,
)
from semel.stores.encryption import Encryption

R = TypeVar("R")

Make: TypeAlias = Callable[["Sealer", Any], Any]

_ABANDONED: Final = "nobody ran it in time"
"""The reason of records that share one answer: only there one that is bound to none is opened."""

_COMMON: Final = b"common"


def sealed(backend: Backend, encryption: Encryption) -> Backend:
    """``backend``, encrypted."""
    if not isinstance(encryption, Encryption):
        raise ConfigurationError("encryption= takes semel.Encryption(keys, current=…), or None")
    kind = _ExaminedBackend if isinstance(backend, Examined) else SealedBackend
    return kind(backend, Sealer(encryption))


class Sealer:
    """Seals what operations carry and opens what replies bring."""

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
        """Answers are compressed already."""
        place, packed = _place(part, fence), part is Part.SNAPSHOT
        return self.encryption.seal(plain, b"record" + identity, place, packed=packed)

    def reopen(self, found: Exhibit, part: Part, blob: bytes) -> tuple[bytes, bool]:
        """The plain value, and whether it is bound to no record; raises `Unopened`."""
        if _is_common(blob, part, found.reason):
            return self.encryption.open(blob, _COMMON, part.value.encode()), True
        place = _place(part, found.fence)
        return self.encryption.open(blob, b"record" + found.identity, place), False

    def seal_common(self, plain: bytes) -> bytes:
        """For many records at once."""
        place, flags = Part.SNAPSHOT.value.encode(), sealing.COMMON
        return self.encryption.seal(plain, _COMMON, place, flags=flags, packed=True)

    def seal_payload(self, key: str, plain: bytes) -> bytes:
        return self.encryption.seal(plain, b"effect\0" + key.encode(), b"payload")

    def open_payload(self, key: str, blob: bytes) -> bytes:
        return self.encryption.open(blob, b"effect\0" + key.encode(), b"payload")

    # ── replies ──────────────────────────────────────────────────────────────────────────────────

    def _part(self, record: Record, part: Part, blob: bytes | None) -> bytes | None:
        if blob is None:
            return None
        found = Exhibit(record.identity, record.fence, record.reason, None, None, None)
        try:
            return self.reopen(found, part, blob)[0]
        except Unopened as error:
            return sealing.refusal(error)

    def record(self, record: Record) -> Record:
        blob = record.snapshot
        if blob is None or is_head(blob):
            return record
        return replace(record, snapshot=self._part(record, Part.SNAPSHOT, blob))

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
            return Fetched(self.reopen(found, Part.SNAPSHOT, reply.snapshot)[0])
        except Unopened as error:
            return Fetched(sealing.refusal(error))

    def effect(self, effect: Effect) -> Effect:
        try:
            return replace(effect, payload=self.open_payload(effect.key, effect.payload))
        except Unopened as error:
            return replace(effect, payload=sealing.refusal(error))


def _place(part: Part, fence: Fence) -> bytes:
    """An answer belongs to one life of a key, which its fence names; requests and journals are kept
    when a retry takes the record over."""
    return part.value.encode() + (fence if part is Part.SNAPSHOT else b"")


def _is_common(blob: bytes, part: Part, reason: str | None) -> bool:
    if part is not Part.SNAPSHOT or reason != _ABANDONED:
        return False
    parsed = sealing.parse(blob)
    return parsed is not None and bool(parsed[0] & sealing.COMMON)


# ── operations ────────────────────────────────────────────────────────────────────────────────────


def _request(sealer: Sealer, op: Claim | Accept) -> Claim | Accept:
    if op.request is None:
        return op
    return replace(op, request=sealer.seal(op.identity, op.fence, Part.REQUEST, op.request))


def _snapshot(sealer: Sealer, op: Complete | Open | SettleHappened) -> Any:
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
    Complete: _snapshot,
    Open: _snapshot,
    SettleHappened: _snapshot,
    Advance: _journal,
    SettleAbsent: _journal,
    SettleCall: _journal,
    Abandon: _abandon,
    Enqueue: _payload,
}
"""Every operation that carries bytes to keep; a test knows that there are no others."""


# ── replies ───────────────────────────────────────────────────────────────────────────────────────


def _found(sealer: Sealer, reply: Found) -> Found:
    return Found(sealer.record(reply.record), reply.now)


def _lost(sealer: Sealer, reply: Lost) -> Lost:
    return reply if reply.record is None else Lost(sealer.record(reply.record), reply.now)


def _recalled(sealer: Sealer, reply: Recalled) -> Recalled:
    return Recalled(sealer.case(reply.case), reply.now)


def _listed(sealer: Sealer, reply: Listed) -> Listed:
    return replace(reply, cases=tuple([sealer.case(case) for case in reply.cases]))


def _effects(sealer: Sealer, reply: Effects) -> Effects:
    return replace(reply, effects=tuple([sealer.effect(each) for each in reply.effects]))


def _fetched(sealer: Sealer, reply: Fetched) -> Fetched:
    raise TypeError("only who fetched it knows whose answer it is")


_UP: Final[Mapping[type[Any], Make]] = {
    Found: _found,
    Lost: _lost,
    Recalled: _recalled,
    Listed: _listed,
    Effects: _effects,
    Fetched: _fetched,
}


# ── stores ────────────────────────────────────────────────────────────────────────────────────────


class _SealedStore:
    def __init__(self, inner: Store, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    def perform(self, op: StoreOperation[R], /) -> R:
        sealer = self._sealer
        return sealer.up(op, self._inner.perform(sealer.down(op)))


class _AsyncSealedStore:
    def __init__(self, inner: AsyncStore, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    async def perform(self, op: StoreOperation[R], /) -> R:
        sealer = self._sealer
        return sealer.up(op, await self._inner.perform(sealer.down(op)))


class _SealedTransaction(_SealedStore):
    """The rest of a transaction is its own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _AsyncSealedTransaction(_AsyncSealedStore):
    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SealedBackend:
    """A backend like the one within, which keeps nothing in clear that is encrypted.

    Whether it has transactions says the one within, by its capabilities.
    """

    def __init__(self, inner: Backend, sealer: Sealer) -> None:
        self.inner = inner
        self.sealer = sealer

    def __getattr__(self, name: str) -> Any:
        """What only some backends have; a store in the caller's transaction is sealed as well."""
        found = getattr(self.inner, name)
        return self._on(found) if name == "on" else found

    def _on(self, on: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def joined(connection: Any) -> Any:
            store = on(connection)
            awaited = iscoroutinefunction(store.perform)
            return (_AsyncSealedStore if awaited else _SealedStore)(store, self.sealer)

        return joined

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def blocking(self) -> Store:
        return _SealedStore(self.inner.blocking(), self.sealer)

    def awaited(self) -> AsyncStore:
        return _AsyncSealedStore(self.inner.awaited(), self.sealer)

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        begun: Any = self._transactional.begin(identity, limit)
        if begun is None:
            return None
        return cast("Transaction", _SealedTransaction(begun, self.sealer))

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        begun: Any = await self._transactional.abegin(identity, limit)
        if begun is None:
            return None
        return cast("AsyncTransaction", _AsyncSealedTransaction(begun, self.sealer))

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        return self._seen(self._transactional.ascertain(identity))

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return self._seen(await self._transactional.aascertain(identity))

    def _seen(self, reply: Found | NoRecord) -> Found | NoRecord:
        return _found(self.sealer, reply) if isinstance(reply, Found) else reply

    @property
    def _transactional(self) -> Transactional:
        return cast("Transactional", self.inner)

    def migrate(self) -> int:
        return self.inner.migrate()

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()


class _ExaminedBackend(SealedBackend):
    def examine(self) -> tuple[Finding, ...]:
        return cast("Examined", self.inner).examine()
