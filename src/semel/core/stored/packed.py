"""Short forms of two texts of a record: of its key, where that is a UUID, and of its fingerprint.

Both write 16 bytes out, as 36 and 22 letters. A record keeps NUL and the bytes instead. No text
that is kept has a NUL (`core/texts.py`), so what is packed is never taken for what is not. Anything
else is kept as it is, in UTF-8. What is unpacked is, letter by letter, what was packed.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from typing import Final

from semel.errors import StoreCorrupt

_UUID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_DIGEST: Final = re.compile("[A-Za-z0-9_-]{21}[AQgw]").fullmatch
"""128 bits in base64, as a fingerprint has them; the last letter has two of them."""
_LETTERS: Final = 22
_SIZE: Final = 17
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def packed_key(key: str) -> bytes:
    """NUL and 16 bytes of a UUID in its usual form, which is lower case with hyphens."""
    if len(key) == 36 and _UUID(key):
        return b"\0" + bytes.fromhex(key.replace("-", ""))
    return key.encode()


def unpacked_key(kept: bytes) -> str:
    if kept[:1] != b"\0":
        return _text(kept)
    if len(kept) != _SIZE:
        raise StoreCorrupt("a record's key cannot be read")
    digits = kept[1:].hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def packed_fingerprint(text: str) -> bytes:
    """How it was made, NUL, and 16 bytes of the digest."""
    made, dot, digest = text.partition(".")
    if not dot or len(digest) != _LETTERS or not made.isascii() or not _DIGEST(digest):
        return text.encode()
    octets = a2b_base64(digest.encode().translate(_STANDARD) + b"==")
    return b"%b\0%b" % (made.encode(), octets)


def unpacked_fingerprint(kept: bytes) -> str:
    """Every replay reads one: in one step."""
    made, nul, octets = kept.partition(b"\0")
    if not nul:
        return _text(kept)
    if len(octets) != _SIZE - 1 or not made.isascii():
        raise StoreCorrupt("a record's fingerprint cannot be read")
    digest = b2a_base64(octets, newline=False).translate(_URL_SAFE)
    return (b"%b.%b" % (made, digest[:_LETTERS])).decode()


def _text(kept: bytes) -> str:
    try:
        return kept.decode()
    except UnicodeDecodeError:
        raise StoreCorrupt("a record holds something else than text") from None
