"""What an encrypted value looks like in a store, and what is said of one that was not opened.

Layout: ``E1`` · length of the key's id · the id · flags · nonce · ciphertext and tag. Everything
before the nonce, and where the value belongs (which part, of which record), is authenticated with
it: moved elsewhere, it does not open. The encryption itself is `stores/encryption.py`.

What cannot be opened is handed on as a *refusal*: bytes that no decoder takes for a value, with the
reason. So one damaged record spoils no list, and whoever needs its bytes fails closed.
"""

from __future__ import annotations

from typing import Final

from semel.errors import EncryptionKeyMissing, SchemaTooNew, StoreCorrupt

MAGIC: Final = b"E1"
_REFUSED: Final = b"X1"
_KEYLESS: Final = b"X2"
_LATER: Final = b"X3"
_RAISED: Final = {_REFUSED: StoreCorrupt, _KEYLESS: EncryptionKeyMissing, _LATER: SchemaTooNew}

DEFLATED: Final = 1
COMMON: Final = 2
"""One answer for many records, so it is bound to none: what maintenance gives up on."""

LONGEST_ID: Final = 64

KNOWN: Final = DEFLATED | COMMON
NEWER: Final = "was written by a newer version of semel: upgrade this process"


def prefix(key_id: bytes) -> bytes:
    """How everything begins that was sealed with this key."""
    return MAGIC + bytes((len(key_id),)) + key_id


def parse(blob: bytes) -> tuple[int, bytes, int] | None:
    """flags, the key's id and where the nonce begins; None for what is not sealed."""
    if blob[:2] != MAGIC or len(blob) < 3 or len(blob) < 4 + blob[2]:
        return None
    end = 3 + blob[2]
    return blob[end], blob[3:end], end + 1


class Unopened(Exception):
    """Why a value cannot be opened: the end of a sentence about it.

    ``keyless``, ``newer``: for want of a key or of a newer version; nothing is wrong with it.
    """

    def __init__(self, reason: str, *, keyless: bool = False, newer: bool = False) -> None:
        super().__init__(reason)
        self.mark = _KEYLESS if keyless else _LATER if newer else _REFUSED


def refusal(why: Unopened) -> bytes:
    """Bytes in place of a value that was not opened."""
    return why.mark + str(why).encode()


def is_refusal(blob: bytes) -> bool:
    """It stands in place of a value that was not opened."""
    return blob[:2] in _RAISED


def is_newer(blob: bytes, magic: bytes) -> bool:
    """Whether it is a later version of the same kind: the same letter, and a higher number."""
    return blob[:1] == magic[:1] and magic[1:] < blob[1:2] <= b"9"


def demand_opened(blob: bytes, what: str, magic: bytes = b"") -> None:
    """Raise the reason why a decoder cannot read ``blob``, if it is a better one than damage.

    It may be newer, refused, or still encrypted. ``magic``: how the decoder's own bytes begin.
    """
    if is_newer(blob, magic) or is_newer(blob, MAGIC):
        raise SchemaTooNew(f"{what} {NEWER}")
    if is_refusal(blob):
        raise _RAISED[blob[:2]](f"{what} {blob[2:].decode(errors='replace')}")
    if (sealed := parse(blob)) is not None:
        named = sealed[1].decode(errors="replace")
        raise EncryptionKeyMissing(
            f"{what} is encrypted with the key {named!r}, and this process has no encryption="
        )
