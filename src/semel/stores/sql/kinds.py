"""The kinds of operations that travel together: into the columns of a statement, out of its rows.

What a column looks like is up to the store; what may travel, and what a row means, is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from semel.core.contract import Claim, Complete, Found, Read, Renew, StoreOperation, Written
from semel.stores.sql.plans import Row, Statement
from semel.stores.sql.rows import record_and_now, written

BIG: Final = 64 * 1024
"""An operation with more bytes than this goes alone; the statements say the same of answers."""

Cells: TypeAlias = tuple[bytes, ...] | tuple[str, ...]
"""What one operation adds to the columns of a statement, the way its store writes it."""


class Kind(NamedTuple):
    """How one kind of operation is done for many at once.

    ``columns``: the parameters of the statement, with what the store has to know of each.
    ``reply``: None when the row, which another's question brought, does not answer this one.
    ``shared``: what one row says answers everybody who asked for its identity.
    ``column``: the cells of all rows as the value of one parameter.
    """

    statement: str
    columns: tuple[tuple[str, int], ...]
    cells: Callable[[Any], Cells]
    weight: Callable[[Any], int]
    reply: Callable[[Any, Row], object | None]
    shared: bool
    column: Callable[[int, Sequence[Any]], object]

    def admit(self, op: StoreOperation[Any]) -> Cells | None:
        """What ``op`` adds to a batch; None when it has to go alone."""
        try:
            return self.cells(op) if self.weight(op) <= BIG else None
        except Exception:
            return None  # it cannot be written at all; alone it will say so

    def gather(self, rows: Sequence[Cells]) -> Statement:
        """The statement for many, in the order of identities, which are the first cells: locks
        that everybody takes in the same order cannot deadlock."""
        ordered = sorted(rows, key=itemgetter(0))
        columns = zip(self.columns, zip(*ordered, strict=True), strict=True)
        params = {name: self.column(kind, cells) for (name, kind), cells in columns}
        return Statement(self.statement, params)


def claim_weight(op: Claim) -> int:
    origin = op.origin
    texts = len(origin.path) + len(origin.key) + len(origin.tenant)
    return len(op.fields) + texts + len(op.request or b"")


def complete_weight(op: Complete) -> int:
    return len(op.snapshot) + len(op.resource or "")


def complete_reply(op: Complete, row: Row) -> Written:
    return written((row[1:],))


def renew_weight(op: Renew) -> int:
    return 0


def renew_reply(op: Renew, row: Row) -> Written:
    return written((row[1:],))


def read_weight(op: Read) -> int:
    return 0


def read_reply(op: Read, row: Row) -> Found | None:
    record, now = record_and_now((row,))
    return None if record is None else Found(record, now)
