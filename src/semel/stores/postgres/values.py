"""Values as PostgreSQL has them: parameters, columns of a batch, and cells of a row."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

from psycopg import pq
from psycopg.adapt import AdaptersMap
from psycopg.types.numeric import Int2BinaryLoader, Int4BinaryLoader, Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader

from semel.stores.sql.batches import ColumnWriter, batch_kinds

TEXT_FORMAT, BINARY = pq.Format.TEXT.value, pq.Format.BINARY.value

BYTEA: Final = 17
INT8: Final = 20
INT2: Final = 21
INT4: Final = 23
TEXT: Final = 25

Values: TypeAlias = list[bytes | None]


def encoded(values: Sequence[object]) -> tuple[Values, list[int]]:
    """Bytes travel as they are, all else as text, so that the server chooses the type."""
    return (
        [
            value if value is None or type(value) is bytes else str(value).encode()
            for value in values
        ],
        [BINARY if type(value) is bytes else TEXT_FORMAT for value in values],
    )


class _Loaders:
    """How columns become Python values. Our own: an application may have changed psycopg's."""

    connection = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap()
        self.adapters.register_loader(BYTEA, ByteaBinaryLoader)
        self.adapters.register_loader(TEXT, TextBinaryLoader)
        self.adapters.register_loader(INT8, Int8BinaryLoader)
        self.adapters.register_loader(INT4, Int4BinaryLoader)
        self.adapters.register_loader(INT2, Int2BinaryLoader)


LOADERS: Final = _Loaders()


# ── columns of a batch: arrays in binary form, which is cheap, as every batch needs it ────────────

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


KINDS: Final = batch_kinds(ColumnWriter(data, text, number, number))
