"""How each operation is carried out in SQL, without I/O: shared by every SQL store and colour.

A plan is a generator. It yields a ``Statement`` and is sent the rows; its return value is the
operation's reply. An operation that succeeds takes exactly one statement; a write that changed
nothing takes a second one, a read, to tell "already done by this very fence" from "lost".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from semel.core.contract import (
    Applied,
    Claim,
    Claimed,
    Complete,
    Conflicting,
    Evict,
    EvictUnknown,
    Forget,
    Found,
    Lapse,
    Lost,
    NoRecord,
    Open,
    Read,
    Register,
    Registered,
    Release,
    Renew,
    Retake,
    SettleAbsent,
    SettleHappened,
    Stale,
    StoreOperation,
    Suspend,
    Written,
)
from semel.core.model import Fence, Identity, Micros, OnLapse, Record, State
from semel.errors import StoreUnavailable
from semel.stores.sql.rows import Row, Rows, recipe, record_and_now, written
from semel.stores.texts import exact, shown

__all__ = ["Plan", "Row", "Rows", "Statement", "plan"]

R = TypeVar("R")


class Statement(NamedTuple):
    """One query of the dialect, by name, and its parameters (the clock is added by the store)."""

    name: str
    params: Mapping[str, object]


Plan: TypeAlias = Generator[Statement, Rows, R]

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
        "lease": op.lease,
        "fresh_until": op.fresh_until,
    }


def _claim(op: Claim) -> Plan[Claimed | Found | Stale]:
    params = claim_params(op)
    for _ in range(CLAIM_TRIES):
        rows = yield Statement("claim", params)
        if not rows:
            rows = yield Statement("read", {"identity": op.identity})
        record, now = record_and_now(rows)
        if record is not None:
            return claim_reply(op, record, now)
        if op.fresh_until is not None and op.fresh_until < now:
            return Stale()
    raise StoreUnavailable("the record came and went at every try to claim it", applied=False)


def claim_reply(op: Claim, record: Record, now: Micros) -> Claimed | Found:
    """Own fence, in progress: this claim was applied, now or by an earlier try.

    A lease that is past is not handed out again: others may already have been told that it lapsed.
    """
    if record.fence == op.fence and record.state is State.IN_PROGRESS:
        leased_until = record.leased_until
        if leased_until is not None and leased_until > now:
            return Claimed(leased_until, now)
    return Found(record, now)


def _read(op: Read) -> Plan[Found | NoRecord]:
    record, now = record_and_now((yield Statement("read", {"identity": op.identity})))
    return NoRecord(now) if record is None else Found(record, now)


# ── writes ────────────────────────────────────────────────────────────────────────────────────────

Done: TypeAlias = Callable[[Record | None, Micros], bool]
"""Whether what a read found is the work of an earlier try of the same operation."""


def _write(name: str, identity: Identity, params: dict[str, object], done: Done) -> Plan[Written]:
    params["identity"] = identity
    rows = yield Statement(name, params)
    if rows:
        return written(rows)
    record, now = record_and_now((yield Statement("read", {"identity": identity})))
    if not done(record, now):
        return Lost(record, now)
    if record is None:
        return Applied(None, now)
    return Applied(record.state, now, record.leased_until, record.expires_at)


def _reached(state: State, fence: Fence) -> Done:
    return lambda record, now: (
        record is not None and record.state is state and record.fence == fence
    )


def _gone(record: Record | None, now: Micros) -> bool:
    return record is None


def _never(record: Record | None, now: Micros) -> bool:
    """Asked again it would have been applied again; no row means refused."""
    return False


def _retake(op: Retake) -> Plan[Written]:
    def done(record: Record | None, now: Micros) -> bool:
        held = record is not None and record.fence == op.fence and not record.lapsed(now)
        return held and record is not None and record.state is State.IN_PROGRESS

    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "lease": op.lease,
        "on_lapse": op.on_lapse.value,
    }
    return _write("retake", op.identity, params, done)


def _renew(op: Renew) -> Plan[Written]:
    params: dict[str, object] = {"fence": op.fence, "lease": op.lease}
    return _write("renew", op.identity, params, _never)


def _open(op: Open) -> Plan[Written]:
    params: dict[str, object] = {"fence": op.fence, "snapshot": op.snapshot}
    return _write("open", op.identity, params, _never)


def _complete(op: Complete) -> Plan[Written]:
    params: dict[str, object] = {
        "fence": op.fence,
        "snapshot": op.snapshot,
        "retention": op.retention,
        "tombstone": op.tombstone,
    }
    return _write("complete", op.identity, params, _reached(State.COMPLETED, op.fence))


def _release(op: Release) -> Plan[Written]:
    params: dict[str, object] = {
        "fence": op.fence,
        "retention": op.retention,
        "reason": _reason(op.reason),
    }
    return _write("release", op.identity, params, _reached(State.FAILED_RETRYABLE, op.fence))


def _suspend(op: Suspend) -> Plan[Written]:
    params: dict[str, object] = {"fence": op.fence, "reason": _reason(op.reason)}
    return _write("suspend", op.identity, params, _reached(State.UNKNOWN, op.fence))


def _lapse(op: Lapse) -> Plan[Written]:
    def done(record: Record | None, now: Micros) -> bool:
        if record is None or record.fence != op.seen:
            return False
        released = record.on_lapse is OnLapse.RELEASE
        return record.state is (State.FAILED_RETRYABLE if released else State.UNKNOWN)

    params: dict[str, object] = {"seen": op.seen, "retention": op.retention}
    return _write("lapse", op.identity, params, done)


def _forget(op: Forget) -> Plan[Written]:
    return _write("forget", op.identity, {"seen": op.seen}, _gone)


def _settle_happened(op: SettleHappened) -> Plan[Written]:
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "snapshot": op.snapshot,
        "retention": op.retention,
        "tombstone": op.tombstone,
        "evidence": shown(op.evidence),
    }
    return _write("settle_happened", op.identity, params, _reached(State.COMPLETED, op.fence))


def _settle_absent(op: SettleAbsent) -> Plan[Written]:
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "retention": op.retention,
        "evidence": shown(op.evidence),
    }
    return _write("settle_absent", op.identity, params, _reached(State.FAILED_RETRYABLE, op.fence))


def _evict(op: Evict) -> Plan[Written]:
    return _write("evict", op.identity, {"seen": op.seen}, _gone)


def _evict_unknown(op: EvictUnknown) -> Plan[Written]:
    if op.free:
        return _write("free_unknown", op.identity, {"seen": op.seen}, _gone)
    params: dict[str, object] = {
        "seen": op.seen,
        "fence": op.fence,
        "tombstone": op.tombstone,
        "reason": shown(op.reason),
    }
    return _write("evict_unknown", op.identity, params, _reached(State.EXPIRED, op.fence))


def _reason(reason: str | None) -> str | None:
    return None if reason is None else shown(reason)


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


_PLANS: Final[dict[type[StoreOperation[Any]], Callable[[Any], Plan[Any]]]] = {
    Claim: _claim,
    Read: _read,
    Retake: _retake,
    Renew: _renew,
    Open: _open,
    Complete: _complete,
    Release: _release,
    Suspend: _suspend,
    Lapse: _lapse,
    Forget: _forget,
    SettleHappened: _settle_happened,
    SettleAbsent: _settle_absent,
    Evict: _evict,
    EvictUnknown: _evict_unknown,
    Register: _register,
}
