"""The statements of the outbox and of providers' events, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from semel.core.operations.outbox import (
    BrowseEffects,
    Effects,
    EffectWritten,
    Enqueue,
    FindEffect,
    MarkDelivered,
    MarkFailed,
    Noted,
    NoteEvent,
    RenewEffects,
    Requeue,
    Shelf,
    TakeEffects,
)
from semel.core.operations.requests import StoreOperation
from semel.core.records import Fence, Micros
from semel.core.texts import exact, indexed, shown
from semel.stores.sql.plan_steps import Plan, Statement, act_params, clock_of, names
from semel.stores.sql.rows import effect, effect_state, now_in, time_and_now

Done: TypeAlias = Callable[[str | None, Fence | None, Micros | None], bool]
"""Whether state, fence and lease of an effect are the work of an earlier try."""


def _enqueue(op: Enqueue) -> Plan[EffectWritten]:
    params = {
        "key": indexed(op.key),
        "identity": op.identity,
        "name": exact(op.name),
        "payload": op.payload,
        "order_key": None if op.order is None else indexed(op.order),
        "delay": op.delay,
        "application": indexed(op.application),
    }
    rows = yield Statement("enqueue", params)
    return EffectWritten(bool(rows), (yield from clock_of(rows)))


def _take_effects(op: TakeEffects) -> Plan[Effects]:
    wanted = {"names": names(op.names), "application": op.application}
    params = {**wanted, "limit": op.limit, "fence": op.fence, "lease": op.lease}
    # Asked first: what becomes due between the two statements is then taken or announced.
    next_due, now = time_and_now((yield Statement("next_effect", wanted)))
    rows = yield Statement("take_effects", params)
    taken = tuple([effect(row[1:]) for row in sorted(rows, key=lambda row: row[0])])
    now = now_in(rows) if rows else now
    return Effects(taken, now, now if len(taken) >= op.limit else next_due)


def _renew_effects(op: RenewEffects) -> Plan[EffectWritten]:
    rows = yield Statement("renew_effects", {"fence": op.fence, "lease": op.lease})
    return EffectWritten(bool(rows), (yield from clock_of(rows)))


def _write(name: str, key: str, params: dict[str, Any], done: Done) -> Plan[EffectWritten]:
    """Compare and set; no row: already done, or another has it."""
    params["key"] = key
    rows = yield Statement(name, params)
    if rows:
        return EffectWritten(True, now_in(rows))
    state, fence, leased_until, now = effect_state((yield Statement("read_effect", {"key": key})))
    return EffectWritten(done(state, fence, leased_until), now)


def _deliver(op: MarkDelivered) -> Plan[EffectWritten]:
    params: dict[str, object] = {
        "fence": op.fence,
        "provider_id": None if op.provider_id is None else shown(op.provider_id),
        "retention": op.retention,
    }
    return _write(
        "deliver",
        op.key,
        params,
        lambda state, fence, leased_until: state == Shelf.DELIVERED and fence == op.fence,
    )


def _fail(op: MarkFailed) -> Plan[EffectWritten]:
    params: dict[str, object] = {
        "fence": op.fence,
        "error": shown(op.error),
        "again_in": op.again_in,
    }
    return _write(
        "fail",
        op.key,
        params,
        lambda state, fence, leased_until: (
            state in (Shelf.WAITING, Shelf.DEAD) and fence == op.fence and leased_until is None
        ),
    )


def _browse_effects(op: BrowseEffects) -> Plan[Effects]:
    after = "" if op.after is None else op.after
    params = {"shelf": op.shelf.value, "after": after, "limit": op.limit}
    rows = yield Statement("browse_effects", params)
    return Effects(tuple([effect(row) for row in rows]), (yield from clock_of(rows)))


def _find_effect(op: FindEffect) -> Plan[Effects]:
    rows = yield Statement("find_effect", {"key": op.key})
    return Effects(tuple([effect(row) for row in rows]), (yield from clock_of(rows)))


def _requeue(op: Requeue) -> Plan[EffectWritten]:
    if op.drop:
        return _write(
            "drop_effect",
            op.key,
            act_params(op.act),
            lambda state, fence, leased_until: state is None,
        )
    return _write(
        "requeue_effect",
        op.key,
        act_params(op.act),
        lambda state, fence, leased_until: state == Shelf.WAITING,
    )


def _note(op: NoteEvent) -> Plan[Noted]:
    which = {"source": indexed(op.source), "event": indexed(op.event)}
    if op.keep is None:
        count, now = time_and_now((yield Statement("read_event", which)))
        return Noted(bool(count), now)
    rows = yield Statement("note", {**which, "keep": op.keep})
    return Noted(not rows, (yield from clock_of(rows)))


PLANS: Final[dict[type[StoreOperation[Any]], Callable[[Any], Plan[Any]]]] = {
    Enqueue: _enqueue,
    TakeEffects: _take_effects,
    RenewEffects: _renew_effects,
    MarkDelivered: _deliver,
    MarkFailed: _fail,
    BrowseEffects: _browse_effects,
    FindEffect: _find_effect,
    Requeue: _requeue,
    NoteEvent: _note,
}
