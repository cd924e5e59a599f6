"""The keys that encrypt stored requests, answers, journals and payloads, with AES-256-GCM.

Each record has its own key, derived from the current key and the record's identity. Random nonces
are safe for 2**32 values under one key. A record has a handful of values; a whole store under one
key would reach the limit in weeks.
"""

from __future__ import annotations

import os
import zlib
from base64 import b64decode, urlsafe_b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from functools import cache
from hmac import digest
from typing import Any, Final

from semel.core.stored import sealed as sealing
from semel.core.stored.sealed import Unopened
from semel.core.stored.snapshot import COMPRESS_OVER
from semel.errors import ConfigurationError

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
