"""Values as SQL literals: neither driver sends parameters apart from the text.

Bytes and texts are hexadecimal digits or base64, so nothing in them is ever read as SQL, whatever a
session's ``sql_mode`` or character set says.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, cast

from semel.stores.sql.batches import ColumnWriter, batch_kinds

BIG: Final = 1024
"""From here on base64, which is a third longer than the bytes; hexadecimal is twice as long."""


class Literals(str):
    """Text that is SQL already; whoever makes one answers for it."""

    __slots__ = ()


_PLACEHOLDER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")


def rendered(text: str, params: Mapping[str, object]) -> str:
    """``text`` with its parameters filled in; ASCII only."""
    pieces = _pieces(text)
    filled = list(pieces)
    for place in range(1, len(pieces), 2):
        filled[place] = literal(params[pieces[place]])
    return "".join(filled)


@cache
def _pieces(text: str) -> tuple[str, ...]:
    """Text and parameter names in turn."""
    return tuple(_PLACEHOLDER.split(text))


def literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case int():
            return str(int(value))
        case Literals():
            return value
        case bytes() if len(value) > BIG:
            return f"FROM_BASE64('{b64encode(value).decode()}')"
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return f"_utf8mb4 x'{value.encode().hex()}'"
        case list():  # for IN; nothing is in an empty list, not even NULL
            return ", ".join(map(literal, cast("list[object]", value))) or "NULL"
        case tuple():
            items = cast("tuple[object, ...]", value)
            text = ", ".join(map(literal, items))
            return text if len(items) == 1 else f"({text})"
        case _:
            raise TypeError(f"no value of a statement: {type(value).__name__}")


# ── columns of a batch: lists of literals, one for each operation ─────────────────────────────────


def data(values: Sequence[bytes | None]) -> Literals:
    """A list of literals, each as `literal` has it; so are the two below."""
    texts = [
        f"x'{each.hex()}'" if each is not None and len(each) <= BIG else literal(each)
        for each in values
    ]
    return Literals(", ".join(texts))


def text(values: Sequence[str | None]) -> Literals:
    texts = ["NULL" if each is None else f"_utf8mb4 x'{each.encode().hex()}'" for each in values]
    return Literals(", ".join(texts))


def number(values: Sequence[int | None]) -> Literals:
    return Literals(", ".join(["NULL" if each is None else str(int(each)) for each in values]))


def leases(values: Sequence[int | None]) -> Literals:
    """A JSON array, which gives the rows of claims their numbers."""
    return Literals(f"'[{number(values)}]'")


KINDS: Final = batch_kinds(ColumnWriter(data, text, number, leases))
