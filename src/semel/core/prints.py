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
from semel.core.fingerprint import Fingerprint, Meaning, Recipe, fingerprint, matches
from semel.core.model import Record

_SALT: Final = 16
_TRACE: Final = 16
LARGE: Final = 64 * 1024
"""A body this large takes long to read: see `Prints.prepare`."""


class Prints:
    """The prints of one request under one recipe. The body must bear being read again."""

    __slots__ = ("_condensed", "_fingerprint", "_meaning", "_recipe")

    def __init__(self, meaning: Meaning, recipe: Recipe) -> None:
        self._meaning = meaning
        self._recipe = recipe
        self._fingerprint: Fingerprint | None = None
        self._condensed: tuple[bytes, bytes] | None = None

    def prepare(self) -> None:
        """Do now what may fail or take long; of a large body nothing is read after this."""
        _ = self.fingerprint, self._octets

    @property
    def chosen(self) -> bool:
        """Whether the operator's own function says what matters; it may fail."""
        return self._recipe.by is not None

    @property
    def fingerprint(self) -> Fingerprint:
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._meaning, self._recipe)
        return self._fingerprint

    def evidence(self, salt: bytes) -> bytes:
        """What a record keeps to compare with later: salt, trace, and a digest of each field."""
        salt = salt[:_SALT]
        digests = field_digests(self.fingerprint.fields, salt, self._recipe)
        return salt + self._trace(salt) + digests

    def match(self, record: Record) -> bool:
        """Whether the record was made by a request that means the same."""
        return self._same_bytes(record.fields) or matches(
            record.fingerprint, self._recipe, self.fingerprint
        )

    def differing(self, evidence: bytes) -> Difference:
        """How the fields differ from those the evidence was made of."""
        return differing_fields(evidence[_SALT + _TRACE :], self.fingerprint.fields, self._recipe)

    def _same_bytes(self, evidence: bytes) -> bool:
        if self.chosen or len(evidence) < _SALT + _TRACE:
            return False  # a function may look at more than what the trace is made of
        return self._trace(evidence[:_SALT]) == evidence[_SALT : _SALT + _TRACE]

    def _trace(self, salt: bytes) -> bytes:
        """Keyed by the salt and the current secret: a short body cannot be found by trying."""
        meaning, secrets = self._meaning, self._recipe.secrets
        key = sha256(secrets[0][1] + salt).digest() if secrets else salt
        method, path, query = meaning.method, meaning.path, meaning.query.decode("latin-1")
        kind, coding = meaning.content_type or "", meaning.content_encoding or ""
        lengths = f"{len(method)}\n{len(path)}\n{len(kind)}\n{len(coding)}\n{len(query)}\n"
        head = (lengths + method + path + kind + coding + query).encode("utf-8", "surrogatepass")
        octets, size = self._octets
        return blake2b(head + octets, digest_size=_TRACE, key=key, person=size).digest()

    @property
    def _octets(self) -> tuple[bytes, bytes]:
        if self._condensed is None:
            self._condensed = _condensed(self._meaning.body)
        return self._condensed


def _condensed(body: Iterable[bytes]) -> tuple[bytes, bytes]:
    """A body as it is, or the digest of a large one; and a word for which of them it is."""
    start, rest = b"", iter(body)
    for piece in rest:
        start += piece
        if len(start) >= LARGE:
            digest = sha256(start)
            for more in rest:
                digest.update(more)
            return digest.digest(), b"large"
    return start, b""
