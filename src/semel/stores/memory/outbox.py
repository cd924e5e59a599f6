"""The outbox, the events that providers sent, and the audit log of what operators did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.operations.outbox import Shelf
from semel.core.records import Effect, Fence, Identity, Micros
from semel.core.texts import exact, indexed, shown
from semel.errors import ConfigurationError
from semel.stores.options import whole

Answers: TypeAlias = dict[type[ops.StoreOperation[Any]], Callable[[Any, Micros], object]]
"""What performs each kind of operation: it takes the operation and the time."""


class _Slot(NamedTuple):
    """An effect as it is kept. ``place``: its number in the order in which effects came."""

    effect: Effect
    place: int
    state: Shelf
    fence: Fence | None

    @property
    def rank(self) -> tuple[Micros, int]:
        """What a shelf is ordered by; on that of the dead the order of writing alone."""
        return self.effect.due_at or 0, self.place

    def taken(self, now: Micros) -> bool:
        return self.effect.leased_until is not None and self.effect.leased_until > now


class MemoryOutbox:
    """Effects by key; events that providers sent by source and id; the audit, oldest first."""

    def __init__(self) -> None:
        self._audit: list[ops.AuditEntry] = []
        self._slots: dict[str, _Slot] = {}
        self._places = 0
        self._events: dict[tuple[str, str], Micros] = {}

    def answers(self) -> Answers:
        return {
            ops.Enqueue: self._enqueue,
            ops.TakeEffects: self._take,
            ops.RenewEffects: self._renew,
            ops.MarkDelivered: self._deliver,
            ops.MarkFailed: self._fail,
            ops.BrowseEffects: self._browse,
            ops.ListNewestEffects: self._newest,
            ops.CountEffects: self._count,
            ops.FindEffect: self._find,
            ops.Requeue: self._requeue,
            ops.NoteEvent: self._note_event,
            ops.ResealEffect: self._reseal,
            ops.Remark: self._remark,
            ops.BrowseAudit: self._browse_audit,
        }

    def reap(self, limit: int, now: Micros) -> dict[str, int]:
        """Delete delivered effects and events whose time is over; returns how many of each."""
        over = sorted(
            (due, key)
            for key, slot in self._slots.items()
            if slot.state is Shelf.DELIVERED
            and (due := slot.effect.due_at) is not None
            and due <= now
        )[:limit]
        for _, key in over:
            del self._slots[key]
        events = [event for event, forget_at in self._events.items() if forget_at <= now][:limit]
        for event in events:
            del self._events[event]
        counts = {"effects": len(over), "events": len(events)}
        return {name: count for name, count in counts.items() if count}

    def _change(self, slot: _Slot, state: Shelf, fence: Fence | None, **changes: Any) -> None:
        effect = replace(slot.effect, **changes)
        self._slots[effect.key] = _Slot(effect, slot.place, state, fence)

    def _enqueue(self, op: ops.Enqueue, now: Micros) -> ops.EffectWritten:
        key, order = indexed(op.key), op.order and indexed(op.order)
        if key in self._slots:
            return ops.EffectWritten(False, now)
        self._places += 1
        effect = Effect(
            *(key, op.identity, exact(op.name), op.payload, order, 0, now),
            due_at=now + op.delay,
            application=indexed(op.application),
        )
        self._slots[key] = _Slot(effect, self._places, Shelf.WAITING, None)
        return ops.EffectWritten(True, now)

    def _take(self, op: ops.TakeEffects, now: Micros) -> ops.Effects:
        waiting = [
            slot
            for slot in self._slots.values()
            if slot.state is Shelf.WAITING and slot.effect.application == op.application
        ]
        named = [
            (slot.effect.due_at, slot.place, slot)
            for slot in waiting
            if slot.effect.name in op.names and slot.effect.due_at is not None
        ]
        named.sort(key=lambda item: item[:2])
        free = [slot for due, _, slot in named if due <= now and _first(slot, waiting, now)]
        taken, end = free[: op.limit], now + op.lease
        for slot in taken:
            tries = slot.effect.tries + 1
            self._change(slot, slot.state, op.fence, tries=tries, leased_until=end, due_at=end)
        taken.sort(key=lambda slot: slot.place)
        effects = tuple([self._slots[slot.effect.key].effect for slot in taken])
        if effects and len(effects) >= op.limit:
            return ops.Effects(effects, now, now)
        return ops.Effects(effects, now, next((due for due, _, _ in named if due > now), None))

    def _renew(self, op: ops.RenewEffects, now: Micros) -> ops.EffectWritten:
        held = [
            slot
            for slot in self._slots.values()
            if slot.state is Shelf.WAITING and slot.fence == op.fence and slot.taken(now)
        ]
        end = now + op.lease
        for slot in held:
            self._change(slot, slot.state, slot.fence, leased_until=end, due_at=end)
        return ops.EffectWritten(bool(held), now)

    def _deliver(self, op: ops.MarkDelivered, now: Micros) -> ops.EffectWritten:
        slot = self._slots.get(op.key)
        if slot is None or slot.fence != op.fence:
            return ops.EffectWritten(False, now)
        if slot.state is not Shelf.DELIVERED:
            self._change(
                *(slot, Shelf.DELIVERED, slot.fence),
                delivered_at=now,
                provider_id=op.provider_id and shown(op.provider_id),
                error=None,
                dead_at=None,
                leased_until=None,
                due_at=now + op.retention,
            )
        return ops.EffectWritten(True, now)

    def _fail(self, op: ops.MarkFailed, now: Micros) -> ops.EffectWritten:
        slot = self._slots.get(op.key)
        if slot is None or slot.fence != op.fence or slot.state is Shelf.DELIVERED:
            return ops.EffectWritten(False, now)
        if slot.state is Shelf.WAITING and slot.effect.leased_until is not None:
            dead = op.again_in is None
            self._change(
                *(slot, Shelf.DEAD if dead else Shelf.WAITING, slot.fence),
                error=shown(op.error),
                dead_at=now if dead else None,
                leased_until=None,
                due_at=None if op.again_in is None else now + op.again_in,
            )
        return ops.EffectWritten(True, now)

    def _browse(self, op: ops.BrowseEffects, now: Micros) -> ops.Effects:
        effects = [slot.effect for slot in self._slots.values() if slot.state is op.shelf]
        effects = [effect for effect in effects if effect.key > (op.after or "")]
        effects.sort(key=lambda effect: effect.key)
        return ops.Effects(tuple(effects[: op.limit]), now)

    def _newest(self, op: ops.ListNewestEffects, now: Micros) -> ops.NewestEffects:
        slots = [slot for slot in self._slots.values() if slot.state is op.shelf]
        if (before := op.before) is not None:
            end = before.due_at or 0, before.number
            slots = [slot for slot in slots if slot.rank < end]
        page = sorted(slots, key=lambda slot: slot.rank, reverse=True)[: op.limit]
        name = op.name and shown(op.name)
        places = [ops.EffectPlace(slot.effect.due_at, slot.place) for slot in page]
        named = [n for n, slot in enumerate(page) if name in (None, slot.effect.name)]
        return ops.NewestEffects(
            tuple([page[n].effect for n in named]),
            tuple([places[n] for n in named]),
            len(page),
            places[-1] if page and len(page) < len(slots) else None,
            now,
        )

    def _count(self, op: ops.CountEffects, now: Micros) -> ops.EffectCounts:
        def counted(shelf: Shelf) -> ops.KindCount:
            slots = sorted(
                (slot for slot in self._slots.values() if slot.state is shelf),
                key=lambda slot: slot.rank,
            )
            made = [slot.effect.created_at for slot in slots[: op.limit]]
            return ops.KindCount(len(made), min(made, default=None))

        return ops.EffectCounts(counted(Shelf.WAITING), counted(Shelf.DEAD), now)

    def _find(self, op: ops.FindEffect, now: Micros) -> ops.Effects:
        slot = self._slots.get(op.key)
        return ops.Effects(() if slot is None else (slot.effect,), now)

    def _requeue(self, op: ops.Requeue, now: Micros) -> ops.EffectWritten:
        slot = self._slots.get(op.key)
        if slot is None or slot.state is not Shelf.DEAD:
            done = slot is None if op.drop else slot is not None and slot.state is Shelf.WAITING
            return ops.EffectWritten(done, now)
        if op.died_at not in (None, slot.effect.dead_at):
            return ops.EffectWritten(False, now)
        self.note(
            ops.Verb.DROP if op.drop else ops.Verb.RETRY,
            op.act,
            now,
            identity=slot.effect.identity,
            subject=op.key,
            states=(slot.state.value, None if op.drop else Shelf.WAITING.value),
        )
        if op.drop:
            del self._slots[op.key]
        else:
            self._change(slot, Shelf.WAITING, None, tries=0, dead_at=None, due_at=now)
        return ops.EffectWritten(True, now)

    def _reseal(self, op: ops.ResealEffect, now: Micros) -> ops.EffectWritten:
        """Replace a payload by the same payload under another key."""
        slot = self._slots.get(op.key)
        if slot is None or slot.effect.payload != op.old:
            return ops.EffectWritten(False, now)
        self._change(slot, slot.state, slot.fence, payload=op.new)
        return ops.EffectWritten(True, now)

    def _note_event(self, op: ops.NoteEvent, now: Micros) -> ops.Noted:
        event = indexed(op.source), indexed(op.event)
        before = event in self._events
        if op.keep is not None and not before:
            self._events[event] = now + op.keep
        return ops.Noted(before, now)

    # ── the audit log ────────────────────────────────────────────────────────────────────────────

    def note(
        self,
        verb: ops.Verb,
        act: ops.Act,
        now: Micros,
        *,
        identity: Identity | None = None,
        subject: str | None = None,
        states: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Append an entry. ``states``: of the record or effect, before and after."""
        place = str(len(self._audit) + 1)
        by, reason = shown(act.by), shown(act.reason)
        entry = ops.AuditEntry(place, now, verb.value, by, reason, identity, subject, *states)
        self._audit.append(entry)

    def _remark(self, op: ops.Remark, now: Micros) -> ops.Remarked:
        self.note(op.verb, op.act, now, subject=shown(op.subject))
        return ops.Remarked(now)

    def _browse_audit(self, op: ops.BrowseAudit, now: Micros) -> ops.AuditEntries:
        """A page of entries, newest first, before the place ``op.before``."""
        place = len(self._audit) + 1 if op.before is None else whole(op.before)
        if place is None:
            raise ConfigurationError("this is no place in the audit of this store")
        end = max(0, place - 1)
        return ops.AuditEntries(tuple(self._audit[:end][::-1][: op.limit]), now)


def _first(slot: _Slot, waiting: list[_Slot], now: Micros) -> bool:
    """Whether the effect is the oldest waiting one of its order, and no other is under way."""
    order = slot.effect.order
    others = [other for other in waiting if other.effect.order == order and other is not slot]
    return order is None or not any(
        other.place < slot.place or other.taken(now) for other in others
    )
