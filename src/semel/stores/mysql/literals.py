"""Values as SQL. Neither driver has a protocol for them, so they are written into the text.

As hexadecimal digits or base64: nothing in them is ever read as SQL, whatever a session's
``sql_mode`` or character set says.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, cast

BIG: Final = 1024
"""From here on base64, which takes a third more room than the bytes and not twice as much."""


class Literals(str):
    """SQL already; whoever makes one answers for it."""

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
    """Text and names of parameters in turn."""
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
        case list():
            return _listed(cast("list[object]", value))
        case tuple():
            return _row(cast("tuple[object, ...]", value))
        case _:
            raise TypeError(f"no value of a statement: {type(value).__name__}")


def data(values: Sequence[bytes | None]) -> Literals:
    """Bytes, as a list of literals: the same as `literal` of each, as for the others below."""
    return Literals(
        ", ".join(
            [
                f"x'{each.hex()}'" if each is not None and len(each) <= BIG else literal(each)
                for each in values
            ]
        )
    )


def text(values: Sequence[str | None]) -> Literals:
    texts = ["NULL" if each is None else f"_utf8mb4 x'{each.encode().hex()}'" for each in values]
    return Literals(", ".join(texts))


def number(values: Sequence[int | None]) -> Literals:
    return Literals(", ".join(["NULL" if each is None else str(int(each)) for each in values]))


def _listed(values: list[object]) -> str:
    """For IN. Nothing is in an empty list, not even NULL."""
    return ", ".join(map(literal, values)) or "NULL"


def _row(cells: tuple[object, ...]) -> str:
    text = ", ".join(map(literal, cells))
    return text if len(cells) == 1 else f"({text})"
