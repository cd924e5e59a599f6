"""Commands as Redis reads them."""

from __future__ import annotations

from typing import Any, TypeAlias

import hiredis

Word: TypeAlias = bytes | str | int

# Its stub knows commands of one word only.
_pack: Any = hiredis.pack_command  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def pack(*words: Word) -> bytes:
    packed: bytes = _pack(words)
    return packed
