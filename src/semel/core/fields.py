"""Which fields of a request differ from those of the record: named, never shown.

A record keeps a short keyed digest of each field; the fingerprint itself has already decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b, sha256

from semel.core.fingerprint import Recipe
from semel.core.frozen import frozen

MAX_FIELDS = 64
MAX_NAME_BYTES = 64
MAX_NAMED = 20
_DIGEST_BYTES = 6  # enough to tell fields apart; the fingerprint itself has already decided
_FORMAT = 1
_PLAIN = Recipe()


def field_digests(fields: Mapping[str, bytes], salt: bytes, recipe: Recipe = _PLAIN) -> bytes:
    """A short keyed digest per field, to say later which ones differ; empty when there are none.

    Keyed with the salt, so that equal values in two records do not look alike, and with the
    current secret, where there is one, without which a short value could be found by trying.
    """
    if not fields:
        return b""
    key_id, secret = recipe.secrets[0] if recipe.secrets else ("", b"")
    labelled = sorted(_labelled(fields).items())
    keyed = blake2b(_field_key(secret, salt), digest_size=_DIGEST_BYTES)
    cut = bytes((_FORMAT, len(labelled) > MAX_FIELDS))
    pieces = [cut, _counted(key_id.encode()), _counted(salt)]
    for label, value in labelled[:MAX_FIELDS]:
        digest = keyed.copy()  # `_field_digest`, with the key taken in once
        digest.update(value)
        pieces += (_COUNTS[len(label)], label, digest.digest())
    return b"".join(pieces)


def differing_fields(
    stored: bytes, mine: Mapping[str, bytes], recipe: Recipe = _PLAIN
) -> tuple[str, ...]:
    """The names of fields added, removed or changed; none when `stored` cannot be read."""
    read = _read_digests(stored)
    secret = None if read is None else {"": b"", **dict(recipe.secrets)}.get(read.key_id)
    if read is None or secret is None:
        return ()
    key = _field_key(secret, read.salt)
    theirs = read.digests
    ours = {label: _field_digest(key, value) for label, value in _labelled(mine).items()}
    # What was cut off then is not known now: only look as far as both can see.
    last = max(theirs) if read.cut else None
    differing = {
        label
        for label in theirs.keys() | ours.keys()
        if theirs.get(label) != ours.get(label) and (last is None or label <= last)
    }
    return tuple(label.decode("utf-8", "replace") for label in sorted(differing)[:MAX_NAMED])


def _labelled(fields: Mapping[str, bytes]) -> dict[bytes, bytes]:
    """Fields by the start of their name; names that start alike share an entry."""
    labelled = {name.encode("utf-8", "backslashreplace"): fields[name] for name in fields}
    if max(map(len, labelled), default=0) > MAX_NAME_BYTES:
        labelled = {_label(name): value for name, value in fields.items()}
    if len(labelled) < len(fields):
        labelled = dict.fromkeys(labelled, b"")
        for name in sorted(fields):
            labelled[_label(name)] += fields[name]
    return labelled


def _label(name: str) -> bytes:
    label = name.encode("utf-8", "backslashreplace")
    if len(label) <= MAX_NAME_BYTES:
        return label
    return label[:MAX_NAME_BYTES].decode("utf-8", "ignore").encode()


def _field_key(secret: bytes, salt: bytes) -> bytes:
    return sha256(b"semel f1\n" + len(secret).to_bytes(8, "big") + secret + salt).digest()


def _field_digest(key: bytes, value: bytes) -> bytes:
    return blake2b(key + value, digest_size=_DIGEST_BYTES).digest()


_COUNTS = tuple([bytes((count,)) for count in range(256)])


def _counted(data: bytes) -> bytes:
    return _COUNTS[len(data)] + data


@frozen
class _Digests:
    cut: bool
    key_id: str
    salt: bytes
    digests: dict[bytes, bytes]


def _read_digests(stored: bytes) -> _Digests | None:
    if len(stored) < 4 or stored[0] != _FORMAT:
        return None
    key_id, at = _take(stored, 2)
    salt, at = _take(stored, at)
    digests: dict[bytes, bytes] = {}
    while at < len(stored):
        label, at = _take(stored, at)
        digests[label] = stored[at : at + _DIGEST_BYTES]
        at += _DIGEST_BYTES
    if at != len(stored) or not digests:  # cut short
        return None
    return _Digests(bool(stored[1]), key_id.decode("latin-1"), salt, digests)


def _take(stored: bytes, at: int) -> tuple[bytes, int]:
    """A counted piece and where it ends, which is past the end of what was cut short."""
    end = at + 1 + (stored[at] if at < len(stored) else 0)
    return stored[at + 1 : end], end
