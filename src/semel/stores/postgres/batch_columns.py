"""The columns of a batch as arrays, in PostgreSQL's binary form: cheap, as every batch needs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Final

from semel.stores.sql.batching import ColumnWriter, batch_kinds, claims

BYTEA: Final = 17
INT8: Final = 20
TEXT: Final = 25

_HEADER: Final = Struct(">iiiii").pack
_LENGTH: Final = Struct(">i").pack
_NUMBER: Final = Struct(">iq").pack
_DIMENSIONS, _MAY_HAVE_NULLS, _LOWER_BOUND = 1, 1, 1

NULL: Final = _LENGTH(-1)


def data(values: Sequence[bytes | None]) -> bytes:
    """A bytea array."""
    return _array(BYTEA, [NULL if each is None else _LENGTH(len(each)) + each for each in values])


def text(values: Sequence[str | None]) -> bytes:
    """A text array."""
    encoded = [None if each is None else each.encode() for each in values]
    return _array(TEXT, [NULL if each is None else _LENGTH(len(each)) + each for each in encoded])


def number(values: Sequence[int | None]) -> bytes:
    """A bigint array."""
    return _array(INT8, [NULL if each is None else _NUMBER(8, each) for each in values])


def _array(kind: int, elements: Sequence[bytes]) -> bytes:
    """An array of the type whose object id is ``kind``."""
    header = _HEADER(_DIMENSIONS, _MAY_HAVE_NULLS, kind, len(elements), _LOWER_BOUND)
    return header + b"".join(elements)


_WRITE: Final = ColumnWriter(data, text, number)

KINDS: Final = batch_kinds(_WRITE, partial(claims, write=_WRITE))
