"""Encrypts what a store keeps: requests, answers, journals and payloads, with AES-256-GCM.

`Encryption` has the keys. Each record has its own key, derived from the current key and the
record's identity. Random nonces are safe for 2**32 values under one key. A record has a handful of
values; a whole store under one key would reach the limit in weeks.

`EncryptedBackend` is any store with its values encrypted. Operations that carry values are
encrypted on their way to the store; replies are decrypted on their way back. Handlers, workers,
operators, caches and transactions all use this layer, and no store knows of it. A value that cannot
be decrypted is replaced by a refusal (`core.stored.sealed`); it never passes for an answer.
"""

from __future__ import annotations

import os
import zlib
from base64 import b64decode, urlsafe_b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from functools import cache
from hmac import digest
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar, cast

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.operations.requests import StoreOperation
from semel.core.records import ABANDONED, Case, Effect, Fence, Identity, Record
from semel.core.stored import sealed as sealing
from semel.core.stored.sealed import Unopened
from semel.core.stored.snapshot import COMPRESS_OVER, is_head
from semel.errors import ConfigurationError
from semel.stores.base import (
    AsyncStore,
    AsyncTransaction,
    Backend,
    BackendWrapper,
    Store,
    Transaction,
)

R = TypeVar("R")

_NONCE: Final = 12
_KEY: Final = 32
_PURPOSE: Final = b"semel record key v1\0"


class Encryption:
    """Keys by their ids. ``current`` encrypts; the others still decrypt.

    A key has 32 bytes, raw or in base64. ``accept_plain``: values that were stored before there was
    encryption are read instead of refused.
    """

    def __init__(
        self, keys: Mapping[str, bytes | str], current: str, *, accept_plain: bool = False
    ) -> None:
        self._ciphers = _aesgcm()
        self._keys = {_id(name): _key(name, key) for name, key in keys.items()}
        if current not in keys:
            raise ConfigurationError(f"encryption: current={current!r} is none of the keys")
        self.current = current
        self._current = self._keys[current.encode()]
        self.prefix = sealing.prefix(current.encode())
        """The first bytes of values under the current key."""
        self.accept_plain = accept_plain

    def __repr__(self) -> str:
        return f"<semel.Encryption keys={', '.join(self.key_ids)} current={self.current}>"

    @property
    def key_ids(self) -> tuple[str, ...]:
        return tuple(name.decode() for name in self._keys)

    def seal(
        self, plain: bytes, subject: bytes, place: bytes, *, flags: int = 0, packed: bool = False
    ) -> bytes:
        """Encrypt. ``subject``: whose key, such as a record's identity. ``place``: the part and
        fence that the value is bound to. ``packed``: it is compressed already; after encryption
        that is no longer possible.
        """
        if not packed and len(plain) > COMPRESS_OVER:
            smaller = zlib.compress(plain, 1)
            if len(smaller) < len(plain):
                plain, flags = smaller, flags | sealing.DEFLATED
        head, nonce = self.prefix + bytes((flags,)), os.urandom(_NONCE)
        sealed: bytes = self._cipher(self._current, subject).encrypt(nonce, plain, head + place)
        return head + nonce + sealed

    def open(self, blob: bytes, subject: bytes, place: bytes) -> bytes:
        """Decrypt; raises `Unopened`."""
        sealed = sealing.parse(blob)
        if sealing.is_newer(blob, sealing.MAGIC):
            raise Unopened(sealing.NEWER, newer=True)
        if sealed is None:
            if self.accept_plain:
                return blob
            raise Unopened("is not encrypted, and plain values are not accepted")
        flags, name, end = sealed
        key = self._keys.get(name)
        if key is None:
            named = name.decode(errors="replace")
            raise Unopened(
                f"is encrypted with the key {named!r}, which this process was not given",
                keyless=True,
            )
        return self._opened(blob, self._cipher(key, subject), flags, end, place)

    def _opened(self, blob: bytes, cipher: Any, flags: int, end: int, place: bytes) -> bytes:
        nonce, rest = blob[end : end + _NONCE], blob[end + _NONCE :]
        try:
            plain: bytes = cipher.decrypt(nonce, rest, blob[:end] + place)
        except Exception as error:  # InvalidTag, or bytes that are too few
            raise Unopened("does not open: it is damaged, or was another record's") from error
        if flags & ~sealing.KNOWN:
            raise Unopened(sealing.NEWER, newer=True)
        return zlib.decompress(plain) if flags & sealing.DEFLATED else plain

    def _cipher(self, key: bytes, subject: bytes) -> Any:
        return self._ciphers(digest(key, _PURPOSE + subject, "sha256"))


@cache
def _aesgcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError as missing:
        raise ConfigurationError(
            "encryption needs cryptography; install it with: pip install 'semel[encryption]'"
        ) from missing
    return AESGCM


def _id(name: str) -> bytes:
    if not 0 < len(name) <= sealing.LONGEST_ID or not name.isascii() or not name.isprintable():
        raise ConfigurationError(
            f"encryption: a key's id is 1 to {sealing.LONGEST_ID} printable ASCII characters"
        )
    return name.encode()


def _key(name: str, given: bytes | str) -> bytes:
    """The key as bytes. The error must not show what was given."""
    key: bytes | str = given
    if isinstance(given, str):
        try:
            urlsafe = set(given) & set("-_")
            key = urlsafe_b64decode(given) if urlsafe else b64decode(given, validate=True)
        except (NotBase64, ValueError):
            key = b""
    if not isinstance(key, bytes) or len(key) != _KEY:
        raise ConfigurationError(f"encryption: the key {name!r} must have 32 bytes, or be base64")
    return key


# ── operations and replies ────────────────────────────────────────────────────────────────────────

CARRIERS: Final[Mapping[type[Any], str]] = {
    **dict.fromkeys((ops.Claim, ops.Accept), "request"),
    **dict.fromkeys((ops.Complete, ops.Open, ops.SettleHappened, ops.Abandon), "snapshot"),
    **dict.fromkeys((ops.Advance, ops.SettleAbsent, ops.SettleCall), "journal"),
    ops.Enqueue: "payload",
}
"""Every operation that carries bytes to keep, and in which field; a test proves that there are no
others."""

_BRINGERS: Final = frozenset(
    {
        *(ops.Found, ops.Lost, ops.Recalled, ops.DueRecords, ops.Fetched),
        *(ops.Effects, ops.NewestEffects),
    }
)
"""Every reply that brings such bytes."""

_COMMON: Final = b"common"
_PLACES: Final = {part: part.value.encode() for part in ops.Part}


class Sealer:
    """Encrypts what operations carry and decrypts what replies bring."""

    def __init__(self, encryption: Encryption) -> None:
        self.encryption = encryption

    def down(self, op: StoreOperation[R]) -> StoreOperation[R]:
        field = CARRIERS.get(type(op))
        plain: bytes | None = None if field is None else getattr(op, field)
        if field is None or plain is None:
            return op
        given: Any = op
        if isinstance(op, ops.Abandon):
            kept = self.seal_common(plain)
        elif isinstance(op, ops.Enqueue):
            kept = self.seal_payload(op.key, plain)
        else:
            kept = self.seal(given.identity, given.fence, ops.Part(field), plain)
        return cast("StoreOperation[R]", replace(given, **{field: kept}))

    def up(self, op: StoreOperation[R], reply: R) -> R:
        if type(reply) not in _BRINGERS:
            return reply
        opened: object = reply
        match reply:
            case ops.Found(record, now):
                opened = ops.Found(self.record(record), now)
            case ops.Lost(record, now) if record is not None:
                opened = ops.Lost(self.record(record), now)
            case ops.Recalled(case, now):
                opened = ops.Recalled(self._case(case), now)
            case ops.DueRecords():
                opened = replace(reply, cases=tuple([self._case(case) for case in reply.cases]))
            case ops.Effects() | ops.NewestEffects():
                opened = replace(reply, effects=tuple([self._effect(it) for it in reply.effects]))
            case ops.Fetched(blob):
                asked = cast("ops.Fetch", op)
                whose = ops.Exhibit(asked.identity, asked.fence, None, None, None, None)
                opened = ops.Fetched(self._part(whose, ops.Part.SNAPSHOT, blob))
            case _:
                ...  # lost, and no record is there
        return cast("R", opened)

    # ── values ───────────────────────────────────────────────────────────────────────────────────

    def seal(self, identity: Identity, fence: Fence, part: ops.Part, plain: bytes) -> bytes:
        """Encrypt one part of a record. Answers are already compressed."""
        place, packed = _place(part, fence), part is ops.Part.SNAPSHOT
        return self.encryption.seal(plain, b"record" + identity, place, packed=packed)

    def open(self, whose: Record | ops.Exhibit, part: ops.Part, blob: bytes) -> bytes:
        """Decrypt one part of a record; raises `Unopened`."""
        if part is ops.Part.SNAPSHOT and is_common(blob, whose.reason):
            return self.encryption.open(blob, _COMMON, _PLACES[part])
        return self.encryption.open(blob, b"record" + whose.identity, _place(part, whose.fence))

    def seal_common(self, plain: bytes) -> bytes:
        """Encrypt an answer that many records share."""
        place, flags = _PLACES[ops.Part.SNAPSHOT], sealing.COMMON
        return self.encryption.seal(plain, _COMMON, place, flags=flags, packed=True)

    def seal_payload(self, key: str, plain: bytes) -> bytes:
        return self.encryption.seal(plain, b"effect\0" + key.encode(), b"payload")

    def open_payload(self, key: str, blob: bytes) -> bytes:
        return self.encryption.open(blob, b"effect\0" + key.encode(), b"payload")

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
            self._part(record, ops.Part.SNAPSHOT, blob),
            record.reason,
            record.retired_at,
        )

    def _case(self, case: Case) -> Case:
        record, request, journal = case.record, case.request, case.journal
        if request is not None:
            request = self._part(record, ops.Part.REQUEST, request)
        if journal is not None:
            journal = self._part(record, ops.Part.JOURNAL, journal)
        return replace(case, record=self.record(record), request=request, journal=journal)

    def _part(self, whose: Record | ops.Exhibit, part: ops.Part, blob: bytes) -> bytes:
        try:
            return self.open(whose, part, blob)
        except Unopened as error:
            return sealing.refusal(error)

    def _effect(self, effect: Effect) -> Effect:
        try:
            return replace(effect, payload=self.open_payload(effect.key, effect.payload))
        except Unopened as error:
            return replace(effect, payload=sealing.refusal(error))


def _place(part: ops.Part, fence: Fence) -> bytes:
    """The associated data. An answer is bound to its fence; requests and journals are not, because
    a retry that takes the record over keeps them."""
    place = _PLACES[part]
    return place + fence if part is ops.Part.SNAPSHOT else place


def is_common(blob: bytes, reason: str | None) -> bool:
    """Whether many records share the answer, which is bound to none of them, and a record with this
    reason may have it: only one that was abandoned may."""
    if reason != ABANDONED:
        return False
    parsed = sealing.parse(blob)
    return parsed is not None and bool(parsed[0] & sealing.COMMON)


# ── stores ────────────────────────────────────────────────────────────────────────────────────────


def _fetch_anew(op: StoreOperation[R], reply: R) -> StoreOperation[R] | None:
    """The same fetch without a head, which only the store answers: a body that cannot be decrypted
    may come from a cache. None when the reply is good."""
    if not isinstance(reply, ops.Fetched) or not sealing.is_refusal(reply.snapshot):
        return None
    return cast("StoreOperation[R]", replace(cast("ops.Fetch", op), head=b""))


class _Sealed:
    """A store, or a transaction: everything but ``perform`` is that of the inner one."""

    def __init__(self, inner: Any, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _SealedStore(_Sealed):
    """For threads."""

    _inner: Store

    # Twin of _AsyncSealedStore.perform, by tools.twins
    def perform(self, op: StoreOperation[R], /) -> R:
        sealer = self._sealer
        reply = sealer.up(op, self._inner.perform(sealer.down(op)))
        if (anew := _fetch_anew(op, reply)) is not None:
            return sealer.up(op, self._inner.perform(anew))
        return reply


class _AsyncSealedStore(_Sealed):
    """For event loops."""

    _inner: AsyncStore

    async def perform(self, op: StoreOperation[R], /) -> R:
        sealer = self._sealer
        reply = sealer.up(op, await self._inner.perform(sealer.down(op)))
        if (anew := _fetch_anew(op, reply)) is not None:
            return sealer.up(op, await self._inner.perform(anew))
        return reply


class EncryptedBackend(BackendWrapper):
    """A backend around another that stores its values encrypted."""

    def __init__(self, inner: Backend, encryption: Encryption) -> None:
        if not isinstance(encryption, Encryption):
            raise ConfigurationError("encryption= takes semel.Encryption(keys, current=…), or None")
        super().__init__(inner)
        self.sealer = Sealer(encryption)

    def __getattr__(self, name: str) -> Any:
        """``on`` is wrapped: a store in the caller's own transaction encrypts as well."""
        found = super().__getattr__(name)
        if name != "on":
            return found

        def joined(connection: Any) -> Any:
            store = found(connection)
            awaited = iscoroutinefunction(store.perform)
            return (_AsyncSealedStore if awaited else _SealedStore)(store, self.sealer)

        return joined

    def blocking(self) -> Store:
        return _SealedStore(self.inner.blocking(), self.sealer)

    def awaited(self) -> AsyncStore:
        return _AsyncSealedStore(self.inner.awaited(), self.sealer)

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        begun: Any = super().begin(identity, limit)
        return None if begun is None else cast("Transaction", _SealedStore(begun, self.sealer))

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        begun: Any = await super().abegin(identity, limit)
        if begun is None:
            return None
        return cast("AsyncTransaction", _AsyncSealedStore(begun, self.sealer))

    def ascertain(self, identity: Identity) -> ops.Found | ops.NoRecord:
        return self.sealer.up(ops.Read(identity), super().ascertain(identity))

    async def aascertain(self, identity: Identity) -> ops.Found | ops.NoRecord:
        return self.sealer.up(ops.Read(identity), await super().aascertain(identity))
