"""Operations that travel together, as arrays: one element for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from semel.core.contract import Claim, Claimed, Complete, Found, Read, Renew, StoreOperation
from semel.core.texts import exact, shown
from semel.errors import StoreCorrupt
from semel.stores.postgres.arrays import BYTEA, INT8, TEXT, array, data, number, text
from semel.stores.sql.kinds import (
    Cells,
    Kind,
    claim_weight,
    complete_reply,
    complete_weight,
    read_reply,
    read_weight,
    renew_reply,
    renew_weight,
)
from semel.stores.sql.plans import Row, claim_reply
from semel.stores.sql.rows import record_and_now


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
        number(op.terms),
    )


def _claim_reply(op: Claim, row: Row) -> Claimed | Found | None:
    if row[1] is None:  # inserted, by the first who asked; the others have to look
        return _inserted(op, row[2], row[6], row[7], row[13])
    record, now = record_and_now((row,))
    return None if record is None else claim_reply(op, record, now)


def _inserted(
    op: Claim, fence: object, created_at: object, leased_until: object, now: object
) -> Claimed | None:
    if type(created_at) is not int or type(leased_until) is not int or type(now) is not int:
        raise StoreCorrupt("a new record came without its times")
    held = fence == op.fence and leased_until > now
    return Claimed(leased_until, now, created_at) if held else None


def _complete_cells(op: Complete) -> Cells:
    return (
        data(op.identity),
        data(op.fence),
        data(op.snapshot),
        number(op.retention),
        number(op.tombstone),
        text(None if op.resource is None else shown(op.resource)),
    )


def _renew_cells(op: Renew) -> Cells:
    return (data(op.identity), data(op.fence), number(op.lease))


def _read_cells(op: Read) -> Cells:
    return (data(op.identity),)


def _column(kind: int, cells: Sequence[bytes]) -> bytes:
    return array(kind, cells, len(cells))


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
            ("terms", INT8),
        ),
        _claim_cells,
        claim_weight,
        _claim_reply,
        shared=True,
        column=_column,
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
        complete_weight,
        complete_reply,
        shared=False,
        column=_column,
    ),
    Renew: Kind(
        "renew_many",
        (("identity", BYTEA), ("fence", BYTEA), ("lease", INT8)),
        _renew_cells,
        renew_weight,
        renew_reply,
        shared=False,
        column=_column,
    ),
    Read: Kind(
        "read_many",
        (("identity", BYTEA),),
        _read_cells,
        read_weight,
        read_reply,
        shared=True,
        column=_column,
    ),
}
