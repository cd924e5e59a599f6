"""The kinds of operations that travel together: into the columns of a statement, out of its rows.

What a column looks like is up to the store; what may travel, and what a row means, is not. Columns
are made for all rows at once: what is done for each operation apart is what costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from semel.core.operations.requests import (
    Applied,
    Claim,
    Claimed,
    Complete,
    Found,
    Read,
    Renew,
    StoreOperation,
    Written,
)
from semel.core.records import State
from semel.core.texts import exact, shown
from semel.errors import StoreCorrupt
from semel.stores.sql.plans import Row, Statement
from semel.stores.sql.rows import record, written

BIG: Final = 64 * 1024
"""An operation with more bytes than this goes alone; the statements say the same of answers."""


Op = TypeVar("Op")

Columns: TypeAlias = Callable[[Sequence[Op]], Mapping[str, object]]
"""The parameters of a statement for some operations, in their order."""


class Kind(NamedTuple):
    """How one kind of operation is done for many at once.

    ``weight``: how many bytes an operation brings, as far as that can be many.
    ``reply``: None when the row, which another's question brought, does not answer this one.
    ``shared``: what one row says answers everybody who asked for its identity.
    """

    statement: str
    columns: Columns[Any]
    weight: Callable[[Any], int]
    reply: Callable[[Any, Row], object | None]
    shared: bool

    def gather(self, ops: Sequence[Any]) -> Statement:
        return Statement(self.statement, self.columns(ops))

    def can_gather(self, op: Any) -> bool:
        try:
            self.columns([op])
        except Exception:
            return False
        return True


# ── columns ───────────────────────────────────────────────────────────────────────────────────────


class Writer(NamedTuple):
    """How a store writes a column of bytes, of texts and of numbers, any of which may be None."""

    data: Callable[[Sequence[bytes | None]], object]
    text: Callable[[Sequence[str | None]], object]
    number: Callable[[Sequence[int | None]], object]


def claims(ops: Sequence[Claim], write: Writer) -> dict[str, object]:
    data, text, number = write
    origins = [op.origin for op in ops]
    return {
        "identity": data([op.identity for op in ops]),
        "fence": data([op.fence for op in ops]),
        "fingerprint": text(all_exact([op.fingerprint for op in ops])),
        "fields": data([op.fields for op in ops]),
        "tenant": text(all_shown([origin.tenant for origin in origins])),
        "method": text(all_shown([origin.method for origin in origins])),
        "path": text(all_shown([origin.path for origin in origins])),
        "key": text(all_shown([origin.key for origin in origins])),
        "on_lapse": text([op.on_lapse for op in ops]),
        "lease": number([op.lease for op in ops]),
        "fresh_until": number([op.fresh_until for op in ops]),
        "request": data([op.request for op in ops]),
        "terms": number([op.terms for op in ops]),
    }


def completions(ops: Sequence[Complete], write: Writer) -> dict[str, object]:
    data, text, number = write
    return {
        "identity": data([op.identity for op in ops]),
        "fence": data([op.fence for op in ops]),
        "snapshot": data([op.snapshot for op in ops]),
        "retention": number([op.retention for op in ops]),
        "tombstone": number([op.tombstone for op in ops]),
        "resource": text([None if op.resource is None else shown(op.resource) for op in ops]),
    }


def renewals(ops: Sequence[Renew], write: Writer) -> dict[str, object]:
    return {
        "identity": write.data([op.identity for op in ops]),
        "fence": write.data([op.fence for op in ops]),
        "lease": write.number([op.lease for op in ops]),
    }


def reads(ops: Sequence[Read], write: Writer) -> dict[str, object]:
    return {"identity": write.data([op.identity for op in ops])}


def all_shown(texts: Sequence[str]) -> Sequence[str]:
    """Each as `shown` has it."""
    return texts if _plain(texts) else [shown(text) for text in texts]


def all_exact(texts: Sequence[str]) -> Sequence[str]:
    """Each, if `exact` takes it."""
    return texts if _plain(texts) else [exact(text) for text in texts]


def _plain(texts: Sequence[str]) -> bool:
    """Nothing in them needs an escape: asked once for all of them."""
    said = "".join(texts)
    return said.isascii() and "\\" not in said and "\0" not in said


# ── how much, and what came of it ─────────────────────────────────────────────────────────────────


def claim_weight(op: Claim) -> int:
    origin = op.origin
    texts = len(origin.path) + len(origin.key) + len(origin.tenant)
    return len(op.fields) + texts + len(op.request or b"")


def complete_weight(op: Complete) -> int:
    return len(op.snapshot) + len(op.resource or "")


def nothing(op: Renew | Read) -> int:
    """The weight of what brings next to nothing."""
    return 0


def claim_reply(op: Claim, row: Row) -> Claimed | Found | None:
    """Of a row like that of ``claim``; its state may be NULL for a record that is new.

    A record with the operation's own fence is the work of this claim, now or by an earlier try. A
    lease that is past is not handed out again: others may already have been told that it lapsed.
    """
    state, now = row[1], row[13]
    if state == "in_progress" or state is None:
        created_at, leased_until = row[6], row[7]
        if type(created_at) is not int or type(leased_until) is not int or type(now) is not int:
            raise StoreCorrupt("a record that is held came without its times")
        if row[2] == op.fence and leased_until > now:
            return Claimed(leased_until, now, created_at)
        if state is None:  # inserted, by the first who asked; the others have to look
            return None
    return found(row)


def read_reply(op: Read, row: Row) -> Found:
    return found(row)


def found(row: Row) -> Found:
    """The record of a row like that of ``read``, and when."""
    now = row[13]
    if type(now) is not int:
        raise StoreCorrupt("the store's clock is not a number")
    return Found(record(row), now)


def written_reply(op: Complete | Renew, row: Row) -> Written:
    """Of an identity and a row like that of ``complete``."""
    _, state, leased_until, expires_at, now = row
    if state == "completed" and leased_until is None and type(expires_at) is type(now) is int:
        return Applied(State.COMPLETED, now, None, expires_at)  # as nearly all of them
    return written((row[1:],))


def kinds(write: Writer, claimed: Columns[Claim]) -> Mapping[type[StoreOperation[Any]], Kind]:
    """All of them, as a store writes them; ``claimed``: how it writes claims."""
    completed, renewed = partial(completions, write=write), partial(renewals, write=write)
    read = partial(reads, write=write)
    return {
        Claim: Kind("claim_many", claimed, claim_weight, claim_reply, shared=True),
        Complete: Kind("complete_many", completed, complete_weight, written_reply, shared=False),
        Renew: Kind("renew_many", renewed, nothing, written_reply, shared=False),
        Read: Kind("read_many", read, nothing, read_reply, shared=True),
    }
