"""The statements of each operation, without I/O: shared by every SQL store and colour.

A plan is a generator. It yields a `Statement` and is sent the rows; its return value is the
operation's reply. An operation that succeeds takes exactly one statement; a write that changed
nothing takes a second one, a read, to tell "already done by this very fence" from "lost".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from semel.core import operations as ops
from semel.core.records import ON_LAPSE_NUMBERS, Micros, OnLapse, Record, State
from semel.core.stored.packed import packed_fingerprint, packed_key
from semel.core.texts import described, exact, indexed, shown
from semel.errors import StoreCorrupt, StoreUnavailable
from semel.stores.sql import plans_maintenance
from semel.stores.sql import rows as read
from semel.stores.sql.rows import Row, Rows
from semel.stores.sql.statements import Done, Plan, Statement, act_params, clock_of, write

__all__ = ["Plan", "Row", "Rows", "Statement", "plan"]

R = TypeVar("R")
C = TypeVar("C", ops.Claim, ops.Accept)

CLAIM_TRIES: Final = 5
"""A claim that neither inserted nor found a record saw a rival come and go. Five times in a row
counts as an outage."""


def plan(op: ops.StoreOperation[R]) -> Plan[R]:
    """The plan for ``op``."""
    make = cast("Callable[[ops.StoreOperation[R]], Plan[R]] | None", _PLANS.get(type(op)))
    if make is None:
        raise TypeError(f"not an operation of a store: {type(op).__name__}")
    return make(op)


# ── claim and read ────────────────────────────────────────────────────────────────────────────────


def _described(op: ops.Claim | ops.Accept) -> dict[str, object]:
    at = op.origin
    fingerprint, tenant, method, path, key = described(
        op.fingerprint, at.tenant, at.method, at.path, at.key
    )
    return {
        "identity": op.identity,
        "fence": op.fence,
        "fingerprint": packed_fingerprint(fingerprint),
        "fields": op.fields,
        "tenant": tenant,
        "method": method,
        "path": path,
        "key": packed_key(key),
        "on_lapse": ON_LAPSE_NUMBERS[op.on_lapse],
        "fresh_until": op.fresh_until,
        "request": op.request,
        "terms": op.terms,
    }


def _claim(op: ops.Claim) -> Plan[ops.Claimed | ops.Found | ops.Stale]:
    return _insert_or_read("claim", op, {**_described(op), "lease": op.lease}, claim_reply)


def _accept(op: ops.Accept) -> Plan[ops.Accepted | ops.Found | ops.Stale]:
    params = {**_described(op), "patience": op.patience}
    return _insert_or_read("accept", op, params, _accept_reply)


def _accept_reply(op: ops.Accept, record: Record, now: Micros) -> ops.Accepted | ops.Found:
    if record.fence == op.fence and record.state is State.PENDING:
        return ops.Accepted(now)
    return ops.Found(record, now)


def _insert_or_read(
    name: str, op: C, params: dict[str, object], reply: Callable[[C, Record, Micros], R]
) -> Plan[R | ops.Stale]:
    """``reply`` to the new or the existing record; Stale when the key is too old to start one."""
    for _ in range(CLAIM_TRIES):
        rows = yield Statement(name, params)
        if not rows:
            rows = yield Statement("read", {"identity": op.identity})
        record, now = read.record_and_now(rows)
        if record is not None:
            return reply(op, record, now)
        if op.fresh_until is not None and op.fresh_until < now:
            return ops.Stale()
    raise StoreUnavailable("the record came and went at every try to claim it", applied=False)


def claim_reply(op: ops.Claim, record: Record, now: Micros) -> ops.Claimed | ops.Found:
    """Own fence, in progress: this claim was applied, now or by an earlier try.

    A lease that is past is not granted again: others may already know that it lapsed.
    """
    if record.fence == op.fence and record.state is State.IN_PROGRESS:
        leased_until = record.leased_until
        if leased_until is not None and leased_until > now:
            return ops.Claimed(leased_until, now, record.created_at)
    return ops.Found(record, now)


def _read(op: ops.Read) -> Plan[ops.Found | ops.NoRecord]:
    record, now = read.record_and_now((yield Statement("read", {"identity": op.identity})))
    return ops.NoRecord(now) if record is None else ops.Found(record, now)


def _fetch(op: ops.Fetch) -> Plan[ops.Fetched | ops.NoRecord]:
    params = {"identity": op.identity, "fence": op.fence}
    now, answer = read.ANSWER.only((yield Statement("fetch", params)))
    return ops.NoRecord(now) if answer is None else ops.Fetched(answer)


def _recall(op: ops.Recall) -> Plan[ops.Recalled | ops.NoRecord]:
    case, now = read.case_and_now((yield Statement("recall", {"identity": op.identity})))
    return ops.NoRecord(now) if case is None else ops.Recalled(case, now)


# ── writes: when one is done, and what it writes ──────────────────────────────────────────────────

RELEASED: Final = (State.FAILED_RETRYABLE, State.PENDING)
"""A released record has one of these states: it depends on whether its request was deferred."""


def _reached(*states: State) -> Done:
    return lambda op, record, now: (
        record is not None and record.state in states and record.fence == op.fence
    )


_IN_PROGRESS: Final = _reached(State.IN_PROGRESS)
_COMPLETED: Final = _reached(State.COMPLETED)
_UNKNOWN: Final = _reached(State.UNKNOWN)
_FAILED: Final = _reached(State.FAILED_RETRYABLE)
_EXPIRED: Final = _reached(State.EXPIRED)
_REQUEUED: Final = _reached(*RELEASED)


def _released(op: ops.Release, record: Record | None, now: Micros) -> bool:
    return (_FAILED if op.requeue is None else _REQUEUED)(op, record, now)


def _held(op: Any, record: Record | None, now: Micros) -> bool:
    """A lease that is past is not granted again."""
    return record is not None and _IN_PROGRESS(op, record, now) and not record.lapsed(now)


def _lapsed(op: ops.Lapse, record: Record | None, now: Micros) -> bool:
    if record is None or record.fence != op.seen:
        return False
    released = record.on_lapse is OnLapse.RELEASE
    return record.state in (RELEASED if released else (State.UNKNOWN,))


def _erased(op: ops.Erase, record: Record | None, now: Micros) -> bool:
    return record is not None and record.state is State.EXPIRED and record.fence == op.seen


def _gone(op: Any, record: Record | None, now: Micros) -> bool:
    return record is None


def _never(op: Any, record: Record | None, now: Micros) -> bool:
    """Asked again it would have been applied again, or may not be: no row means refused."""
    return False


_TAKEN: Final = ("seen", "fence", "lease")
_ACT: Final = ("actor", "why")
_SETTLED: Final = ("seen", "fence", "evidence", *_ACT)

_WRITES: Final[Mapping[type[ops.StoreOperation[Any]], tuple[str, tuple[str, ...], Done]]] = {
    ops.Take: ("take", _TAKEN, _held),
    ops.Resume: ("resume", _TAKEN, _held),
    ops.Retake: ("retake", (*_TAKEN, "on_lapse"), _held),
    ops.Renew: ("renew", ("fence", "lease"), _never),
    ops.Open: ("open", ("fence", "snapshot"), _never),
    ops.Advance: ("advance", ("fence", "journal"), _never),
    ops.Release: ("release", ("fence", "retention", "reason", "requeue"), _released),
    ops.Suspend: ("suspend", ("fence", "reason", "probe_after"), _UNKNOWN),
    ops.Lapse: ("lapse", ("seen", "retention"), _lapsed),
    ops.Forget: ("forget", ("seen",), _gone),
    ops.Inquire: ("inquire", ("seen", "tries", "again_in"), _never),
    ops.SettleHappened: (
        "settle_happened",
        (*_SETTLED, "snapshot", "retention", "tombstone"),
        _COMPLETED,
    ),
    ops.SettleAbsent: ("settle_absent", (*_SETTLED, "retention", "journal"), _FAILED),
    ops.SettleCall: ("settle_call", (*_SETTLED, "journal"), _IN_PROGRESS),
    ops.Evict: ("evict", ("seen", *_ACT), _gone),
    ops.Erase: ("erase", ("seen", *_ACT), _erased),
}
"""Query, parameters, and when it is done."""

_MADE: Final[Mapping[str, Callable[[Any], object]]] = {
    "on_lapse": lambda op: ON_LAPSE_NUMBERS[op.on_lapse],
    "reason": lambda op: None if op.reason is None else shown(op.reason),
    "evidence": lambda op: shown(op.act.line),
    "actor": lambda op: shown(op.act.by),
    "why": lambda op: shown(op.act.reason),
}
"""Parameters that are not a field of the operation as it is."""


def _write(op: Any) -> Plan[ops.Written]:
    name, taken, done = _WRITES[type(op)]
    params = {each: _MADE[each](op) if each in _MADE else getattr(op, each) for each in taken}
    return write(name, op, params, done)


def _complete(op: ops.Complete) -> Plan[ops.Written]:
    params = {
        "fence": op.fence,
        "snapshot": op.snapshot,
        "retention": op.retention,
        "tombstone": op.tombstone,
        "resource": None if op.resource is None else shown(op.resource),
    }
    return write("complete", op, params, _COMPLETED)


def _evict_unknown(op: ops.EvictUnknown) -> Plan[ops.Written]:
    params = {"seen": op.seen, **act_params(op.act)}
    if op.free:
        return write("free_unknown", op, params, _gone)
    params |= {"fence": op.fence, "tombstone": op.tombstone, "reason": shown(op.act.line)}
    return write("evict_unknown", op, params, _EXPIRED)


def _reseal(op: ops.Reseal) -> Plan[ops.Written]:
    params = {"seen": op.seen, "old": op.old, "new": op.new}
    return write(f"reseal_{op.part}", op, params, _never)


# ── recipes ───────────────────────────────────────────────────────────────────────────────────────


def _register(op: ops.Register) -> Plan[ops.Registered | ops.Conflicting]:
    params = {
        "route": exact(op.route),
        "recipe": exact(op.recipe),
        "previous": None if op.previous is None else exact(op.previous),
        "alive": op.alive,
    }
    rows = yield Statement("register", params)
    if not rows:
        rows = yield Statement("read_recipe", {"route": op.route})
    if not rows:
        raise StoreUnavailable("the recipe vanished while it was compared", applied=False)
    recorded, previous, alive_until, now = read.RECIPE.only(rows)
    if recorded != op.recipe:
        return ops.Conflicting(recorded, alive_until, now)
    return ops.Registered(previous, alive_until, now)


def _read_recipe(op: ops.ReadRecipe) -> Plan[ops.Recorded]:
    rows = yield Statement("read_recipe", {"route": exact(op.route)})
    if not rows:
        return ops.Recorded(None, None, None, (yield from clock_of(())))
    return ops.Recorded(*read.RECIPE.only(rows))


def _agree(op: ops.Agree) -> Plan[ops.Agreed]:
    given = op.terms
    params = {
        "id": given.id,
        "application": indexed(given.application),
        "route": indexed(given.route),
        "retention": given.retention,
        "tombstone": given.tombstone,
        "said": exact(given.text),
    }
    rows = yield Statement("agree", params)
    if not rows:
        rows = yield Statement("read_terms", {"id": given.id})
    said, now = read.TERMS.only(rows)
    if said != given.text:
        raise StoreCorrupt("other terms are on record under the number of these")
    return ops.Agreed(now)


_PLANS: Final[dict[type[ops.StoreOperation[Any]], Callable[[Any], Plan[Any]]]] = {
    ops.Claim: _claim,
    ops.Accept: _accept,
    ops.Read: _read,
    ops.Fetch: _fetch,
    ops.Recall: _recall,
    **dict.fromkeys(_WRITES, _write),
    ops.Complete: _complete,
    ops.EvictUnknown: _evict_unknown,
    ops.Reseal: _reseal,
    ops.Register: _register,
    ops.ReadRecipe: _read_recipe,
    ops.Agree: _agree,
    **plans_maintenance.PLANS,
}
