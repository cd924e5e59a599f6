"""Operations that travel together, as lists of literals: one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.core.operations.requests import Claim
from semel.stores.mysql.literals import Literals, data, number, text
from semel.stores.sql.batch_columns import Writer, claims, kinds

_WRITE: Final = Writer(data, text, number)


def _claims(ops: Sequence[Claim]) -> dict[str, object]:
    """The leases as a JSON array, which gives the rows their numbers."""
    columns = claims(ops, _WRITE)
    columns["lease"] = Literals(f"'[{columns['lease']}]'")
    return columns


KINDS: Final = kinds(_WRITE, _claims)
