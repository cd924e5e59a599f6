"""What one request means, worked out only as far as it is asked.

A retry is nearly always the same bytes again. A record therefore keeps, beside the fingerprint,
the *trace*: a keyed digest of the request as it came over the wire. Bytes that are the same mean
the same, so a replay needs no canonical form; only other bytes are compared by their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b, sha256
from typing import Final

from semel.core.fields import Difference, differing_fields, field_digests
from semel.core.fingerprint import Fingerprint, Recipe, fingerprint, frame_of, matches
from semel.core.model import Record, Request

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

    def __init__(self, request: Request, body: bytes | Iterable[bytes], recipe: Recipe) -> None:
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

    def evidence(self, salt: bytes) -> bytes:
        """What a record keeps to compare with later: salt, trace, and a digest of each field."""
        salt = salt[:_SALT]
        fingerprint = self._fingerprint or self.fingerprint
        digests = field_digests(fingerprint.fields, salt, self._recipe)
        return salt + self._trace(salt) + digests

    def match(self, record: Record) -> bool:
        """Whether the record was made by a request that means the same: the same bytes do."""
        evidence, recipe = record.fields, self._recipe
        # A function may look at more than what the trace is made of.
        traced = recipe.by is None and len(evidence) >= _SALT + _TRACE
        if traced and self._trace(evidence[:_SALT]) == evidence[_SALT : _SALT + _TRACE]:
            return True
        return matches(record.fingerprint, recipe, self.fingerprint)

    def differing(self, evidence: bytes) -> Difference:
        """How the fields differ from those the evidence was made of."""
        return differing_fields(evidence[_SALT + _TRACE :], self.fingerprint.fields, self._recipe)

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
        body, found = self._body, self._condensed
        if found is None:
            found = _condensed((body,) if isinstance(body, bytes) else body)
            self._condensed = found
        return found


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
