"""The kinds of operations that travel together: into the arrays of a statement, out of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from semel.core.contract import Claim, Claimed, Complete, Found, Read, StoreOperation, Written
from semel.errors import StoreCorrupt
from semel.stores.postgres.arrays import BYTEA, INT8, TEXT, data, number, text
from semel.stores.sql.plans import Row, claim_reply
from semel.stores.sql.rows import record_and_now, written
from semel.stores.texts import exact, shown

BIG: Final = 64 * 1024
"""An operation with more bytes than this goes alone; the statements say the same of answers."""

Cells: TypeAlias = tuple[bytes, ...]
"""The elements that one operation adds to the arrays of a statement."""


class Kind(NamedTuple):
    """How one kind of operation is done for many at once.

    ``reply``: None when the row, which another's question brought, does not answer this one.
    ``shared``: what one row says answers everybody who asked for its identity.
    """

    statement: str
    columns: tuple[tuple[str, int], ...]
    cells: Callable[[Any], Cells]
    weight: Callable[[Any], int]
    reply: Callable[[Any, Row], object | None]
    shared: bool

    def admit(self, op: StoreOperation[Any]) -> Cells | None:
        """What ``op`` adds to a batch; None when it has to go alone."""
        try:
            return self.cells(op) if self.weight(op) <= BIG else None
        except Exception:
            return None  # it cannot be written at all; alone it will say so


def _claim_cells(op: Claim) -> Cells:
    origin = op.origin
    return (
        data(op.identity),
        data(op.fence),
        text(exact(op.fingerprint)),
        data(op.fields),
        text(shown(origin.tenant)),
        text(shown(origin.method)),
        text(shown(origin.path)),
        text(shown(origin.key)),
        text(op.on_lapse.value),
        number(op.lease),
        number(op.fresh_until),
        data(op.request),
    )


def _claim_reply(op: Claim, row: Row) -> Claimed | Found | None:
    if row[1] is None:  # inserted, by the first who asked; the others have to look
        return _inserted(op, row[2], row[7], row[13])
    record, now = record_and_now((row,))
    return None if record is None else claim_reply(op, record, now)


def _inserted(op: Claim, fence: object, leased_until: object, now: object) -> Claimed | None:
    if type(leased_until) is not int or type(now) is not int:
        raise StoreCorrupt("a new record came without its times")
    return Claimed(leased_until, now) if fence == op.fence and leased_until > now else None


def _claim_weight(op: Claim) -> int:
    origin = op.origin
    texts = len(origin.path) + len(origin.key) + len(origin.tenant)
    return len(op.fields) + texts + len(op.request or b"")


def _complete_cells(op: Complete) -> Cells:
    return (
        data(op.identity),
        data(op.fence),
        data(op.snapshot),
        number(op.retention),
        number(op.tombstone),
        text(None if op.resource is None else shown(op.resource)),
    )


def _complete_weight(op: Complete) -> int:
    return len(op.snapshot) + len(op.resource or "")


def _complete_reply(op: Complete, row: Row) -> Written:
    return written((row[1:],))


def _read_cells(op: Read) -> Cells:
    return (data(op.identity),)


def _read_weight(op: Read) -> int:
    return 0


def _read_reply(op: Read, row: Row) -> Found | None:
    record, now = record_and_now((row,))
    return None if record is None else Found(record, now)


KINDS: Final[Mapping[type[StoreOperation[Any]], Kind]] = {
    Claim: Kind(
        "claim_many",
        (
            ("identity", BYTEA),
            ("fence", BYTEA),
            ("fingerprint", TEXT),
            ("fields", BYTEA),
            ("tenant", TEXT),
            ("method", TEXT),
            ("path", TEXT),
            ("key", TEXT),
            ("on_lapse", TEXT),
            ("lease", INT8),
            ("fresh_until", INT8),
            ("request", BYTEA),
        ),
        _claim_cells,
        _claim_weight,
        _claim_reply,
        shared=True,
    ),
    Complete: Kind(
        "complete_many",
        (
            ("identity", BYTEA),
            ("fence", BYTEA),
            ("snapshot", BYTEA),
            ("retention", INT8),
            ("tombstone", INT8),
            ("resource", TEXT),
        ),
        _complete_cells,
        _complete_weight,
        _complete_reply,
        shared=False,
    ),
    Read: Kind(
        "read_many",
        (("identity", BYTEA),),
        _read_cells,
        _read_weight,
        _read_reply,
        shared=True,
    ),
}
