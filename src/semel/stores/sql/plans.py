"""How each operation is carried out in SQL, without I/O: shared by every SQL store and colour.

A plan is a generator. It yields a ``Statement`` and is sent the rows; its return value is the
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
from semel.core.records import Fence, Micros, OnLapse, Record, State
from semel.core.texts import exact, indexed, shown
from semel.errors import StoreCorrupt, StoreUnavailable
from semel.stores.sql import plans_audit, plans_maintenance, plans_outbox
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
"""A claim that neither inserted nor found saw a rival come and go; five times over is an outage."""


def plan(op: StoreOperation[R]) -> Plan[R]:
    """The plan for ``op``."""
    make = cast("Callable[[StoreOperation[R]], Plan[R]] | None", _PLANS.get(type(op)))
    if make is None:
        raise TypeError(f"not an operation of a store: {type(op).__name__}")
    return make(op)


# ── claim and read ────────────────────────────────────────────────────────────────────────────────


def claim_params(op: Claim) -> dict[str, object]:
    return {**_described(op), "lease": op.lease}


def _accept_params(op: Accept) -> dict[str, object]:
    return {**_described(op), "patience": op.patience}


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
    found = yield from _insert_or_read("claim", op, claim_params(op))
    return Stale() if found is None else claim_reply(op, *found)


def _accept(op: Accept) -> Plan[Accepted | Found | Stale]:
    found = yield from _insert_or_read("accept", op, _accept_params(op))
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


def _reached(fence: Fence, *states: State) -> Done:
    return lambda record, now: (
        record is not None and record.state in states and record.fence == fence
    )


def _held(fence: Fence) -> Done:
    """A lease that is past is not handed out again."""
    return lambda record, now: (
        record is not None
        and record.state is State.IN_PROGRESS
        and record.fence == fence
        and not record.lapsed(now)
    )


def _gone(record: Record | None, now: Micros) -> bool:
    return record is None


def _never(record: Record | None, now: Micros) -> bool:
    """Asked again it would have been applied again, or may not be; no row means refused."""
    return False


def _retake(op: Retake) -> Plan[Written]:
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "lease": op.lease,
        "on_lapse": op.on_lapse.value,
    }
    return write("retake", op.identity, params, _held(op.fence))


def _take(op: Take) -> Plan[Written]:
    params: dict[str, object] = {"seen": op.seen, "fence": op.fence, "lease": op.lease}
    return write("take", op.identity, params, _held(op.fence))


def _resume(op: Resume) -> Plan[Written]:
    params: dict[str, object] = {"seen": op.seen, "fence": op.fence, "lease": op.lease}
    return write("resume", op.identity, params, _held(op.fence))


def _renew(op: Renew) -> Plan[Written]:
    params: dict[str, object] = {"fence": op.fence, "lease": op.lease}
    return write("renew", op.identity, params, _never)


def _open(op: Open) -> Plan[Written]:
    params: dict[str, object] = {"fence": op.fence, "snapshot": op.snapshot}
    return write("open", op.identity, params, _never)


def _advance(op: Advance) -> Plan[Written]:
    params: dict[str, object] = {"fence": op.fence, "journal": op.journal}
    return write("advance", op.identity, params, _never)


def complete_params(op: Complete) -> dict[str, object]:
    return {
        "fence": op.fence,
        "snapshot": op.snapshot,
        "retention": op.retention,
        "tombstone": op.tombstone,
        "resource": _shown(op.resource),
    }


def _complete(op: Complete) -> Plan[Written]:
    params = complete_params(op)
    return write("complete", op.identity, params, _reached(op.fence, State.COMPLETED))


def _release(op: Release) -> Plan[Written]:
    params: dict[str, object] = {
        "fence": op.fence,
        "retention": op.retention,
        "reason": _shown(op.reason),
        "requeue": op.requeue,
    }
    left = (State.FAILED_RETRYABLE,) if op.requeue is None else RELEASED
    return write("release", op.identity, params, _reached(op.fence, *left))


RELEASED: Final = (State.FAILED_RETRYABLE, State.PENDING)
"""Which of them, a released record is: that depends on whether its request was deferred."""


def _suspend(op: Suspend) -> Plan[Written]:
    params: dict[str, object] = {
        "fence": op.fence,
        "reason": _shown(op.reason),
        "probe_after": op.probe_after,
    }
    return write("suspend", op.identity, params, _reached(op.fence, State.UNKNOWN))


def _lapse(op: Lapse) -> Plan[Written]:
    def done(record: Record | None, now: Micros) -> bool:
        if record is None or record.fence != op.seen:
            return False
        released = record.on_lapse is OnLapse.RELEASE
        return record.state in (RELEASED if released else (State.UNKNOWN,))

    params: dict[str, object] = {"seen": op.seen, "retention": op.retention}
    return write("lapse", op.identity, params, done)


def _forget(op: Forget) -> Plan[Written]:
    return write("forget", op.identity, {"seen": op.seen}, _gone)


def _settle_happened(op: SettleHappened) -> Plan[Written]:
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "snapshot": op.snapshot,
        "retention": op.retention,
        "tombstone": op.tombstone,
        "evidence": shown(op.act.line),
        **act_params(op.act),
    }
    return write("settle_happened", op.identity, params, _reached(op.fence, State.COMPLETED))


def _settle_absent(op: SettleAbsent) -> Plan[Written]:
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "retention": op.retention,
        "evidence": shown(op.act.line),
        "journal": op.journal,
        **act_params(op.act),
    }
    return write("settle_absent", op.identity, params, _reached(op.fence, State.FAILED_RETRYABLE))


def _settle_call(op: SettleCall) -> Plan[Written]:
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "journal": op.journal,
        "evidence": shown(op.act.line),
        **act_params(op.act),
    }
    return write("settle_call", op.identity, params, _reached(op.fence, State.IN_PROGRESS))


def _inquire(op: Inquire) -> Plan[Written]:
    params: dict[str, object] = {"seen": op.seen, "tries": op.tries, "again_in": op.again_in}
    return write("inquire", op.identity, params, _never)


def _evict(op: Evict) -> Plan[Written]:
    return write("evict", op.identity, {"seen": op.seen, **act_params(op.act)}, _gone)


def _evict_unknown(op: EvictUnknown) -> Plan[Written]:
    if op.free:
        return write("free_unknown", op.identity, {"seen": op.seen, **act_params(op.act)}, _gone)
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "tombstone": op.tombstone,
        "reason": shown(op.act.line),
        **act_params(op.act),
    }
    return write("evict_unknown", op.identity, params, _reached(op.fence, State.EXPIRED))


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
    params: dict[str, object] = {
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
    Retake: _retake,
    Take: _take,
    Resume: _resume,
    Renew: _renew,
    Advance: _advance,
    Open: _open,
    Complete: _complete,
    Release: _release,
    Suspend: _suspend,
    Lapse: _lapse,
    Forget: _forget,
    SettleHappened: _settle_happened,
    SettleAbsent: _settle_absent,
    SettleCall: _settle_call,
    Inquire: _inquire,
    Evict: _evict,
    EvictUnknown: _evict_unknown,
    Register: _register,
    ReadRecipe: _read_recipe,
    Agree: _agree,
    **plans_maintenance.PLANS,
    **plans_outbox.PLANS,
    **plans_audit.PLANS,
}
