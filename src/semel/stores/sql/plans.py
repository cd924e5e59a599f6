"""The statements of each operation, without I/O: shared by every SQL store and colour.

A plan is a generator. It yields a `Statement` and is sent the rows; its return value is the
operation's reply. An operation that succeeds takes exactly one statement; a write that changed
nothing takes a second one, a read, to tell "already done by this very fence" from "lost".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from semel.core.operations.requests import (
    Accept,
    Accepted,
    Advance,
    Agree,
    Agreed,
    Claim,
    Claimed,
    Complete,
    Conflicting,
    Evict,
    EvictUnknown,
    Fetch,
    Fetched,
    Forget,
    Found,
    Inquire,
    Lapse,
    NoRecord,
    Open,
    Read,
    ReadRecipe,
    Recall,
    Recalled,
    Recorded,
    Register,
    Registered,
    Release,
    Renew,
    Resume,
    Retake,
    SettleAbsent,
    SettleCall,
    SettleHappened,
    Stale,
    StoreOperation,
    Suspend,
    Take,
    Written,
)
from semel.core.records import Micros, OnLapse, Record, State
from semel.core.texts import exact, indexed, shown
from semel.errors import StoreCorrupt, StoreUnavailable
from semel.stores.sql import plans_maintenance, plans_outbox
from semel.stores.sql.plan_steps import Done, Plan, Statement, act_params, clock_of, write
from semel.stores.sql.rows import (
    Row,
    Rows,
    answer_and_now,
    case_and_now,
    recipe,
    record_and_now,
    terms_and_now,
)

__all__ = ["Plan", "Row", "Rows", "Statement", "plan"]

R = TypeVar("R")


CLAIM_TRIES: Final = 5
"""A claim that neither inserted nor found a record saw a rival come and go. Five times in a row
counts as an outage."""


def plan(op: StoreOperation[R]) -> Plan[R]:
    """The plan for ``op``."""
    make = cast("Callable[[StoreOperation[R]], Plan[R]] | None", _PLANS.get(type(op)))
    if make is None:
        raise TypeError(f"not an operation of a store: {type(op).__name__}")
    return make(op)


# ── claim and read ────────────────────────────────────────────────────────────────────────────────


def _described(op: Claim | Accept) -> dict[str, object]:
    origin = op.origin
    return {
        "identity": op.identity,
        "fence": op.fence,
        "fingerprint": exact(op.fingerprint),
        "fields": op.fields,
        "tenant": shown(origin.tenant),
        "method": shown(origin.method),
        "path": shown(origin.path),
        "key": shown(origin.key),
        "on_lapse": op.on_lapse.value,
        "fresh_until": op.fresh_until,
        "request": op.request,
        "terms": op.terms,
    }


def _claim(op: Claim) -> Plan[Claimed | Found | Stale]:
    found = yield from _insert_or_read("claim", op, {**_described(op), "lease": op.lease})
    return Stale() if found is None else claim_reply(op, *found)


def _accept(op: Accept) -> Plan[Accepted | Found | Stale]:
    found = yield from _insert_or_read("accept", op, {**_described(op), "patience": op.patience})
    if found is None:
        return Stale()
    record, now = found
    if record.fence == op.fence and record.state is State.PENDING:
        return Accepted(now)
    return Found(record, now)


def _insert_or_read(
    name: str, op: Claim | Accept, params: dict[str, object]
) -> Plan[tuple[Record, Micros] | None]:
    """The new or the existing record; None when the key is too old to start one."""
    for _ in range(CLAIM_TRIES):
        rows = yield Statement(name, params)
        if not rows:
            rows = yield Statement("read", {"identity": op.identity})
        record, now = record_and_now(rows)
        if record is not None:
            return record, now
        if op.fresh_until is not None and op.fresh_until < now:
            return None
    raise StoreUnavailable("the record came and went at every try to claim it", applied=False)


def claim_reply(op: Claim, record: Record, now: Micros) -> Claimed | Found:
    """Own fence, in progress: this claim was applied, now or by an earlier try.

    A lease that is past is not granted again: others may already know that it lapsed.
    """
    if record.fence == op.fence and record.state is State.IN_PROGRESS:
        leased_until = record.leased_until
        if leased_until is not None and leased_until > now:
            return Claimed(leased_until, now, record.created_at)
    return Found(record, now)


def _read(op: Read) -> Plan[Found | NoRecord]:
    record, now = record_and_now((yield Statement("read", {"identity": op.identity})))
    return NoRecord(now) if record is None else Found(record, now)


def _fetch(op: Fetch) -> Plan[Fetched | NoRecord]:
    answer, now = answer_and_now(
        (yield Statement("fetch", {"identity": op.identity, "fence": op.fence}))
    )
    return NoRecord(now) if answer is None else Fetched(answer)


def _recall(op: Recall) -> Plan[Recalled | NoRecord]:
    case, now = case_and_now((yield Statement("recall", {"identity": op.identity})))
    return NoRecord(now) if case is None else Recalled(case, now)


# ── writes ────────────────────────────────────────────────────────────────────────────────────────


def _held(op: Any, record: Record | None, now: Micros) -> bool:
    """A lease that is past is not granted again."""
    return (
        record is not None
        and record.state is State.IN_PROGRESS
        and record.fence == op.fence
        and not record.lapsed(now)
    )


def _gone(op: Any, record: Record | None, now: Micros) -> bool:
    return record is None


def _never(op: Any, record: Record | None, now: Micros) -> bool:
    """Asked again it would have been applied again, or may not be: no row means refused."""
    return False


def _lapsed(op: Lapse, record: Record | None, now: Micros) -> bool:
    if record is None or record.fence != op.seen:
        return False
    released = record.on_lapse is OnLapse.RELEASE
    return record.state in (RELEASED if released else (State.UNKNOWN,))


def _reached(*states: State) -> Done:
    return lambda op, record, now: (
        record is not None and record.state in states and record.fence == op.fence
    )


RELEASED: Final = (State.FAILED_RETRYABLE, State.PENDING)
"""A released record has one of these states: it depends on whether its request was deferred."""

_COMPLETED, _UNKNOWN, _EXPIRED = map(_reached, (State.COMPLETED, State.UNKNOWN, State.EXPIRED))
_FAILED, _IN_PROGRESS = _reached(State.FAILED_RETRYABLE), _reached(State.IN_PROGRESS)
_REQUEUED: Final = _reached(*RELEASED)

_PLAIN_WRITES: Final[dict[type[StoreOperation[Any]], tuple[str, tuple[str, ...], Done]]] = {
    Take: ("take", ("seen", "fence", "lease"), _held),
    Resume: ("resume", ("seen", "fence", "lease"), _held),
    Renew: ("renew", ("fence", "lease"), _never),
    Open: ("open", ("fence", "snapshot"), _never),
    Advance: ("advance", ("fence", "journal"), _never),
    Lapse: ("lapse", ("seen", "retention"), _lapsed),
    Forget: ("forget", ("seen",), _gone),
    Inquire: ("inquire", ("seen", "tries", "again_in"), _never),
}
"""Writes whose parameters are fields of the operation: query, fields, and when it is done."""


def _plain_write(op: Any) -> Plan[Written]:
    name, fields, done = _PLAIN_WRITES[type(op)]
    return write(name, op, {field: getattr(op, field) for field in fields}, done)


def _retake(op: Retake) -> Plan[Written]:
    params = {"seen": op.seen, "fence": op.fence, "lease": op.lease, "on_lapse": op.on_lapse.value}
    return write("retake", op, params, _held)


def _complete(op: Complete) -> Plan[Written]:
    params = {
        "fence": op.fence,
        "snapshot": op.snapshot,
        "retention": op.retention,
        "tombstone": op.tombstone,
        "resource": _shown(op.resource),
    }
    return write("complete", op, params, _COMPLETED)


def _release(op: Release) -> Plan[Written]:
    params = {
        "fence": op.fence,
        "retention": op.retention,
        "reason": _shown(op.reason),
        "requeue": op.requeue,
    }
    return write("release", op, params, _FAILED if op.requeue is None else _REQUEUED)


def _suspend(op: Suspend) -> Plan[Written]:
    params = {"fence": op.fence, "reason": _shown(op.reason), "probe_after": op.probe_after}
    return write("suspend", op, params, _UNKNOWN)


def _settle(op: SettleHappened | SettleAbsent | SettleCall) -> Plan[Written]:
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "evidence": shown(op.act.line),
        **act_params(op.act),
    }
    match op:
        case SettleHappened():
            params |= {
                "snapshot": op.snapshot,
                "retention": op.retention,
                "tombstone": op.tombstone,
            }
            return write("settle_happened", op, params, _COMPLETED)
        case SettleAbsent():
            params |= {"retention": op.retention, "journal": op.journal}
            return write("settle_absent", op, params, _FAILED)
        case SettleCall():
            params["journal"] = op.journal
            return write("settle_call", op, params, _IN_PROGRESS)


def _evict(op: Evict) -> Plan[Written]:
    return write("evict", op, {"seen": op.seen, **act_params(op.act)}, _gone)


def _evict_unknown(op: EvictUnknown) -> Plan[Written]:
    params = {"seen": op.seen, **act_params(op.act)}
    if op.free:
        return write("free_unknown", op, params, _gone)
    params |= {"fence": op.fence, "tombstone": op.tombstone, "reason": shown(op.act.line)}
    return write("evict_unknown", op, params, _EXPIRED)


def _shown(text: str | None) -> str | None:
    return None if text is None else shown(text)


# ── recipes ───────────────────────────────────────────────────────────────────────────────────────


def _register(op: Register) -> Plan[Registered | Conflicting]:
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
    recorded, previous, alive_until, now = recipe(rows)
    if recorded != op.recipe:
        return Conflicting(recorded, alive_until, now)
    return Registered(previous, alive_until, now)


def _read_recipe(op: ReadRecipe) -> Plan[Recorded]:
    rows = yield Statement("read_recipe", {"route": exact(op.route)})
    if not rows:
        return Recorded(None, None, None, (yield from clock_of(())))
    return Recorded(*recipe(rows))


def _agree(op: Agree) -> Plan[Agreed]:
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
    said, now = terms_and_now(rows)
    if said != given.text:
        raise StoreCorrupt("other terms are on record under the number of these")
    return Agreed(now)


_PLANS: Final[dict[type[StoreOperation[Any]], Callable[[Any], Plan[Any]]]] = {
    Claim: _claim,
    Accept: _accept,
    Read: _read,
    Fetch: _fetch,
    Recall: _recall,
    **dict.fromkeys(_PLAIN_WRITES, _plain_write),
    Retake: _retake,
    Complete: _complete,
    Release: _release,
    Suspend: _suspend,
    SettleHappened: _settle,
    SettleAbsent: _settle,
    SettleCall: _settle,
    Evict: _evict,
    EvictUnknown: _evict_unknown,
    Register: _register,
    ReadRecipe: _read_recipe,
    Agree: _agree,
    **plans_maintenance.PLANS,
    **plans_outbox.PLANS,
}
