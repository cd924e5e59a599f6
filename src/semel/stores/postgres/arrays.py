"""PostgreSQL's binary form of one-dimensional arrays; cheap, for they carry every batch."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

BYTEA: Final = 17
INT8: Final = 20
TEXT: Final = 25

_HEADER: Final = Struct(">iiiii").pack
_LENGTH: Final = Struct(">i").pack
_NUMBER: Final = Struct(">iq").pack
_DIMENSIONS, _MAY_HAVE_NULLS, _LOWER_BOUND = 1, 1, 1

NULL: Final = _LENGTH(-1)


def data(value: bytes | None) -> bytes:
    """An element of a bytea array."""
    return NULL if value is None else _LENGTH(len(value)) + value


def text(value: str | None) -> bytes:
    """An element of a text array."""
    if value is None:
        return NULL
    encoded = value.encode()
    return _LENGTH(len(encoded)) + encoded


def number(value: int | None) -> bytes:
    """An element of a bigint array."""
    return NULL if value is None else _NUMBER(8, value)


def array(kind: int, elements: Iterable[bytes], count: int) -> bytes:
    """``count`` elements of the type whose object id is ``kind``."""
    return _HEADER(_DIMENSIONS, _MAY_HAVE_NULLS, kind, count, _LOWER_BOUND) + b"".join(elements)
