"""Operations that travel together, as lists of literals: one for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from semel.core.contract import Claim, Claimed, Complete, Found, Read, Renew, StoreOperation
from semel.stores.mysql.literals import Literals, literal
from semel.stores.sql.kinds import (
    Kind,
    claim_weight,
    complete_reply,
    complete_weight,
    read_reply,
    read_weight,
    renew_reply,
    renew_weight,
)
from semel.stores.sql.plans import Row, claim_params, claim_reply, complete_params
from semel.stores.sql.rows import record_and_now

LIST, JSON = 0, 1

_CLAIM: Final = (
    ("identity", LIST),
    ("fence", LIST),
    ("fingerprint", LIST),
    ("fields", LIST),
    ("tenant", LIST),
    ("method", LIST),
    ("path", LIST),
    ("key", LIST),
    ("on_lapse", LIST),
    ("lease", JSON),
    ("fresh_until", LIST),
    ("request", LIST),
    ("terms", LIST),
)
_COMPLETE: Final = (
    ("identity", LIST),
    ("fence", LIST),
    ("snapshot", LIST),
    ("retention", LIST),
    ("tombstone", LIST),
    ("resource", LIST),
)


def _claim_cells(op: Claim) -> tuple[str, ...]:
    params = claim_params(op)
    return tuple([literal(params[name]) for name, _ in _CLAIM])


def _claim_reply(op: Claim, row: Row) -> Claimed | Found | None:
    record, now = record_and_now((row,))
    return None if record is None else claim_reply(op, record, now)


def _complete_cells(op: Complete) -> tuple[str, ...]:
    params = {**complete_params(op), "identity": op.identity}
    return tuple([literal(params[name]) for name, _ in _COMPLETE])


def _renew_cells(op: Renew) -> tuple[str, ...]:
    return (literal(op.identity), literal(op.fence), literal(op.lease))


def _read_cells(op: Read) -> tuple[str, ...]:
    return (literal(op.identity),)


def _column(kind: int, cells: Sequence[str]) -> Literals:
    return Literals(f"'[{','.join(cells)}]'" if kind == JSON else ", ".join(cells))


KINDS: Final[Mapping[type[StoreOperation[Any]], Kind]] = {
    Claim: Kind(
        "claim_many",
        _CLAIM,
        _claim_cells,
        claim_weight,
        _claim_reply,
        shared=True,
        column=_column,
    ),
    Complete: Kind(
        "complete_many",
        _COMPLETE,
        _complete_cells,
        complete_weight,
        complete_reply,
        shared=False,
        column=_column,
    ),
    Renew: Kind(
        "renew_many",
        (("identity", LIST), ("fence", LIST), ("lease", LIST)),
        _renew_cells,
        renew_weight,
        renew_reply,
        shared=False,
        column=_column,
    ),
    Read: Kind(
        "read_many",
        (("identity", LIST),),
        _read_cells,
        read_weight,
        read_reply,
        shared=True,
        column=_column,
    ),
}
