"""Which fields of a request differ from those of the record: named, never shown.

The name of a field may be data: the keys of an object may be card numbers, and a form without a
"=" is all name. So a record keeps no names, but a short keyed digest of each field, its name and
value in one. A refusal names fields of the request that is refused, where they look like names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b, sha256
from itertools import islice
from typing import Final

from semel.core.fingerprint import MAX_FIELDS, Recipe
from semel.core.frozen import frozen

MAX_NAMED: Final = 20
_DIGEST_BYTES: Final = 6  # enough to tell fields apart; the fingerprint itself has already decided
_FORMAT: Final = 3
_PLAIN: Final = Recipe()
_NAME: Final = re.compile(r"[^\W\d][\w.\[\]-]{0,63}")
"""What a programmer calls a field; numbers, addresses and JSON are none."""


@frozen
class Difference:
    """The names of fields that were added or changed, and by how many there are fewer now."""

    named: tuple[str, ...] = ()
    missing: int = 0


def field_digests(fields: Mapping[str, bytes], salt: bytes, recipe: Recipe = _PLAIN) -> bytes:
    """A short keyed digest per field, to say later which ones differ; empty when there are none.

    ``fields`` are octets that tell name and value. The digests are keyed with the salt, so that
    equal fields in two records do not look alike, and with the current secret, where there is one,
    without which a short value could be found by trying.
    """
    if not fields:
        return b""
    key_id, secret = recipe.secrets[0] if recipe.secrets else ("", b"")
    cut = len(fields) > MAX_FIELDS
    head = b"%c%c%c%b%c%b" % (_FORMAT, cut, len(key_id), key_id.encode(), len(salt), salt)
    parts, keyed = [head], _keyed(secret, salt).copy
    for octets in islice(fields.values(), MAX_FIELDS) if cut else fields.values():
        digest = keyed()
        digest.update(octets)
        parts.append(digest.digest())
    return b"".join(parts)


def differing_fields(
    stored: bytes, mine: Mapping[str, bytes], recipe: Recipe = _PLAIN
) -> Difference:
    """How these fields differ from the stored ones; in nothing when `stored` cannot be read."""
    read = _read_digests(stored)
    secret = None if read is None else {"": b"", **dict(recipe.secrets)}.get(read.key_id)
    if read is None or secret is None:
        return Difference()
    ours = _digests(mine, _keyed(secret, read.salt))
    names = list(ours)
    if read.cut:
        # Behind the last one that was there then, others may have been cut off.
        there = [at for at, name in enumerate(names) if ours[name] in read.digests]
        names = names[: there[-1]] if there else []
    differing = [name for name in names if ours[name] not in read.digests]
    fewer = 0 if read.cut else max(0, len(read.digests) - len(ours))
    return Difference(
        tuple([name for name in differing if _NAME.fullmatch(name)][:MAX_NAMED]), fewer
    )


def _digests(fields: Mapping[str, bytes], keyed: blake2b) -> dict[str, bytes]:
    digests: dict[str, bytes] = {}
    for name, octets in fields.items():
        digest = keyed.copy()
        digest.update(octets)
        digests[name] = digest.digest()
    return digests


def _keyed(secret: bytes, salt: bytes) -> blake2b:
    """The key is taken in once, for all fields; the salt is the whole key where nobody has more."""
    if secret:
        salt = sha256(b"semel f1\n" + len(secret).to_bytes(8, "big") + secret + salt).digest()
    return blake2b(salt, digest_size=_DIGEST_BYTES)


@frozen
class _Digests:
    cut: bool
    key_id: str
    salt: bytes
    digests: frozenset[bytes]


def _read_digests(stored: bytes) -> _Digests | None:
    if len(stored) < 4 or stored[0] != _FORMAT:
        return None
    key_id, at = _take(stored, 2)
    salt, at = _take(stored, at)
    size = len(stored) - at
    if size <= 0 or size % _DIGEST_BYTES:  # cut short
        return None
    digests = [
        stored[start : start + _DIGEST_BYTES] for start in range(at, len(stored), _DIGEST_BYTES)
    ]
    return _Digests(bool(stored[1]), key_id.decode("latin-1"), salt, frozenset(digests))


def _take(stored: bytes, at: int) -> tuple[bytes, int]:
    """A counted piece and where it ends, which is past the end of what was cut short."""
    end = at + 1 + (stored[at] if at < len(stored) else 0)
    return stored[at + 1 : end], end
