"""The columns of a batch as lists of literals, one literal for each operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.core.operations.requests import Claim
from semel.stores.mysql.literals import BIG, Literals, literal
from semel.stores.sql.batching import ColumnWriter, batch_kinds, claims


def data(values: Sequence[bytes | None]) -> Literals:
    """A list of literals, each as `literal` has it; so are the two below."""
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


_WRITE: Final = ColumnWriter(data, text, number)


def _claims(ops: Sequence[Claim]) -> dict[str, object]:
    """The leases as a JSON array, which gives the rows their numbers."""
    columns = claims(ops, _WRITE)
    columns["lease"] = Literals(f"'[{columns['lease']}]'")
    return columns


KINDS: Final = batch_kinds(_WRITE, _claims)
