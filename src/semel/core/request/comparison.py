"""What one request means, worked out only as far as it is asked.

A retry is nearly always the same bytes again. A record therefore keeps, beside the fingerprint,
the *trace*: a keyed digest of the request as it came over the wire. Bytes that are the same mean
the same, so a replay needs no canonical form; only other bytes are compared by their meaning.

It keeps *field digests* as well, so that a refusal can name the fields that differ, and never show
them. The name of a field may be data: the keys of an object may be card numbers, and a form without
a "=" is all name. So no names are kept, but a short keyed digest of each field, its name and value
in one. A refusal names fields of the request that is refused, where they look like names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b, sha256
from itertools import islice
from typing import Final, NamedTuple

from semel.core.frozen import frozen
from semel.core.records import Identity, Record, Request
from semel.core.request.fingerprint import (
    MAX_FIELDS,
    Fingerprint,
    FingerprintRule,
    fingerprint,
    frame_of,
    matches,
)

_SALT: Final = 16
_TRACE: Final = 16
LARGE: Final = 64 * 1024
"""A body this large takes long to read: see `Prints.prepare`. It is never given as bytes."""


class Prints:
    """The prints of one request under one recipe.

    The body is what came, where that is little; of more it is something that can be iterated again
    and again.
    """

    __slots__ = ("_body", "_condensed", "_fingerprint", "_frame", "_recipe", "_request")

    def __init__(
        self, request: Request, body: bytes | Iterable[bytes], recipe: FingerprintRule
    ) -> None:
        self._request = request
        self._body = body
        self._recipe = recipe
        self._frame = frame_of(request)
        self._fingerprint: Fingerprint | None = None
        self._condensed: tuple[bytes, bytes] | None = None

    def prepare(self) -> None:
        """Do now what may fail or take long; of a large body nothing is read after this."""
        _ = self.fingerprint, self._octets()

    @property
    def fingerprint(self) -> Fingerprint:
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._request, self._body, self._recipe, self._frame)
        return self._fingerprint

    def evidence(self, identity: Identity) -> bytes:
        """What a record keeps to compare with later: the trace, and a digest of each field.

        Both are salted with the record's identity, which no other record has.
        """
        salt = identity[:_SALT]
        fingerprint = self._fingerprint or self.fingerprint
        return self._trace(salt) + field_digests(fingerprint.fields, salt, self._recipe)

    def match(self, record: Record) -> bool:
        """Whether the record was made by a request that means the same: the same bytes do."""
        evidence, recipe = record.fields, self._recipe
        # A function may look at more than what the trace is made of.
        traced = recipe.by is None and len(evidence) >= _TRACE
        if traced and self._trace(record.identity[:_SALT]) == evidence[:_TRACE]:
            return True
        return matches(record.fingerprint, recipe, self.fingerprint)

    def differing(self, record: Record) -> FieldDifference:
        """How the fields differ from those of the request that made the record."""
        stored, salt = record.fields[_TRACE:], record.identity[:_SALT]
        return differing_fields(stored, self.fingerprint.fields, salt, self._recipe)

    def _trace(self, salt: bytes) -> bytes:
        """Keyed by the salt and the current secret: a short body cannot be found by trying."""
        body, secrets, size = self._body, self._recipe.secrets, b""
        key = sha256(secrets[0][1] + salt).digest() if secrets else salt
        if type(body) is not bytes:
            body, size = self._octets()
        sent = self._frame.before_bytes + body
        return blake2b(sent, digest_size=_TRACE, key=key, person=size).digest()

    def _octets(self) -> tuple[bytes, bytes]:
        """The body as it is, or the digest of a large one; and a word for which of them it is."""
        if self._condensed is None:
            body = self._body
            self._condensed = _condensed((body,) if isinstance(body, bytes) else body)
        return self._condensed


def _condensed(body: Iterable[bytes]) -> tuple[bytes, bytes]:
    start, rest = b"", iter(body)
    for piece in rest:
        start += piece
        if len(start) >= LARGE:
            digest = sha256(start)
            for more in rest:
                digest.update(more)
            return digest.digest(), b"large"
    return start, b""


# --- which fields differ

MAX_NAMED: Final = 20
_DIGEST_BYTES: Final = 4  # enough to tell fields apart; the fingerprint itself has already decided
_FORMAT: Final = 4
_CUT: Final = 128
"""Added to the format: there were more fields."""
_PLAIN: Final = FingerprintRule()
_NAME: Final = re.compile(r"[^\W\d][\w.\[\]-]{0,63}")
"""What a programmer calls a field; numbers, addresses and JSON are none."""


@frozen
class FieldDifference:
    """The names of fields that were added or changed, and by how many there are fewer now."""

    named: tuple[str, ...] = ()
    missing: int = 0


def field_digests(
    fields: Mapping[str, bytes], salt: bytes, recipe: FingerprintRule = _PLAIN
) -> bytes:
    """A short keyed digest per field, to say later which ones differ; empty when there are none.

    ``fields`` are octets that tell name and value. The digests are keyed with the salt, so that
    equal fields in two records do not look alike, and with the current secret, where there is one,
    without which a short value could be found by trying.
    """
    if not fields:
        return b""
    key_id, secret = recipe.secrets[0] if recipe.secrets else ("", b"")
    cut = len(fields) > MAX_FIELDS
    head = b"%c%c%b" % (_FORMAT | _CUT * cut, len(key_id), key_id.encode())
    digests, keyed = [head], _keyed(secret, salt)
    for octets in islice(fields.values(), MAX_FIELDS) if cut else fields.values():
        digest = keyed.copy()
        digest.update(octets)
        digests.append(digest.digest())
    return b"".join(digests)


def differing_fields(
    stored: bytes, mine: Mapping[str, bytes], salt: bytes, recipe: FingerprintRule = _PLAIN
) -> FieldDifference:
    """How these fields differ from the stored ones; in nothing when `stored` cannot be read."""
    read = _read_digests(stored)
    secret = None if read is None else {"": b"", **dict(recipe.secrets)}.get(read.key_id)
    if read is None or secret is None:
        return FieldDifference()
    ours: dict[str, bytes] = {}
    keyed = _keyed(secret, salt)
    for name, octets in mine.items():
        digest = keyed.copy()
        digest.update(octets)
        ours[name] = digest.digest()
    names = list(ours)
    if read.cut:
        # Behind the last one that was there then, others may have been cut off.
        there = [at for at, name in enumerate(names) if ours[name] in read.digests]
        names = names[: there[-1]] if there else []
    differing = [name for name in names if ours[name] not in read.digests]
    fewer = 0 if read.cut else max(0, len(read.digests) - len(ours))
    return FieldDifference(
        tuple([name for name in differing if _NAME.fullmatch(name)][:MAX_NAMED]), fewer
    )


def _keyed(secret: bytes, salt: bytes) -> blake2b:
    """The key is taken in once, for all fields; the salt is the whole key where nobody has more."""
    if secret:
        salt = sha256(b"semel f1\n" + len(secret).to_bytes(8, "big") + secret + salt).digest()
    return blake2b(salt, digest_size=_DIGEST_BYTES)


class _Digests(NamedTuple):
    cut: bool
    key_id: str
    digests: frozenset[bytes]


def _read_digests(stored: bytes) -> _Digests | None:
    if len(stored) < 2 or stored[0] & ~_CUT != _FORMAT:
        return None
    at = 2 + stored[1]
    size = len(stored) - at
    if size <= 0 or size % _DIGEST_BYTES:  # cut short
        return None
    digests = [
        stored[start : start + _DIGEST_BYTES] for start in range(at, len(stored), _DIGEST_BYTES)
    ]
    return _Digests(bool(stored[0] & _CUT), stored[2:at].decode("latin-1"), frozenset(digests))
