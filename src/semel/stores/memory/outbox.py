"""The outbox, and the events that providers sent, in dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.core.frozen import frozen, replace
from semel.core.operations.acts import Verb
from semel.core.operations.audit import ResealEffect
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
from semel.core.records import Effect, Fence, Micros
from semel.core.texts import exact, indexed, shown
from semel.stores.memory.audit import AuditLog


@frozen
class _Slot:
    """An effect as it is kept. ``due_at``: when a worker may take it, or when it is forgotten."""

    effect: Effect
    place: int
    state: Shelf
    due_at: Micros | None
    fence: Fence | None = None
    leased_until: Micros | None = None

    def shown(self) -> Effect:
        """The effect with its current times, as a reply carries it."""
        return replace(self.effect, due_at=self.due_at, leased_until=self.leased_until)

    def taken(self, now: Micros) -> bool:
        return self.leased_until is not None and self.leased_until > now


class MemoryOutbox:
    """Effects by key; events that providers sent by their source and id."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._slots: dict[str, _Slot] = {}
        self._places = 0
        self._events: dict[tuple[str, str], Micros] = {}

    def answers(self) -> dict[type[StoreOperation[Any]], Callable[[Any, Micros], object]]:
        return {
            Enqueue: self._enqueue,
            TakeEffects: self._take,
            RenewEffects: self._renew,
            MarkDelivered: self._deliver,
            MarkFailed: self._fail,
            BrowseEffects: self._browse,
            FindEffect: self._find,
            Requeue: self._requeue,
            NoteEvent: self._note_event,
            ResealEffect: self._reseal,
        }

    def reap(self, limit: int, now: Micros) -> dict[str, int]:
        """Delete delivered effects and events whose time is over; returns how many of each."""
        effects = [
            slot.effect.key
            for slot in sorted(self._slots.values(), key=lambda slot: slot.due_at or 0)
            if slot.state is Shelf.DELIVERED and slot.due_at is not None and slot.due_at <= now
        ][:limit]
        for key in effects:
            del self._slots[key]
        events = [event for event, forget_at in self._events.items() if forget_at <= now][:limit]
        for event in events:
            del self._events[event]
        counts = {"effects": len(effects), "events": len(events)}
        return {name: count for name, count in counts.items() if count}

    def _enqueue(self, op: Enqueue, now: Micros) -> EffectWritten:
        key, order = indexed(op.key), op.order and indexed(op.order)
        if key in self._slots:
            return EffectWritten(False, now)
        self._places += 1
        effect = Effect(
            *(key, op.identity, exact(op.name), op.payload, order, 0, now),
            application=indexed(op.application),
        )
        self._slots[key] = _Slot(effect, self._places, Shelf.WAITING, now + op.delay)
        return EffectWritten(True, now)

    def _take(self, op: TakeEffects, now: Micros) -> Effects:
        waiting = [
            slot
            for slot in self._slots.values()
            if slot.state is Shelf.WAITING and slot.effect.application == op.application
        ]
        named = [
            (slot.due_at, slot.place, slot)
            for slot in waiting
            if slot.effect.name in op.names and slot.due_at is not None
        ]
        named.sort(key=lambda item: item[:2])
        free = [slot for due, _, slot in named if due <= now and _first(slot, waiting, now)]
        end, taken = now + op.lease, list[_Slot]()
        for slot in free[: op.limit]:
            effect = replace(slot.effect, tries=slot.effect.tries + 1)
            leased = replace(slot, effect=effect, fence=op.fence, leased_until=end, due_at=end)
            taken.append(self._keep(leased))
        taken.sort(key=lambda slot: slot.place)
        effects = tuple([slot.shown() for slot in taken])
        if effects and len(effects) >= op.limit:
            return Effects(effects, now, now)
        return Effects(effects, now, next((due for due, _, _ in named if due > now), None))

    def _keep(self, slot: _Slot) -> _Slot:
        self._slots[slot.effect.key] = slot
        return slot

    def _renew(self, op: RenewEffects, now: Micros) -> EffectWritten:
        held = [
            slot
            for slot in self._slots.values()
            if slot.state is Shelf.WAITING and slot.fence == op.fence and slot.taken(now)
        ]
        for slot in held:
            self._keep(replace(slot, leased_until=now + op.lease, due_at=now + op.lease))
        return EffectWritten(bool(held), now)

    def _deliver(self, op: MarkDelivered, now: Micros) -> EffectWritten:
        slot = self._slots.get(op.key)
        if slot is None or slot.fence != op.fence:
            return EffectWritten(False, now)
        if slot.state is not Shelf.DELIVERED:
            provider_id = op.provider_id and shown(op.provider_id)
            changes: dict[str, Any] = {"delivered_at": now, "provider_id": provider_id}
            effect = replace(slot.effect, **changes, error=None, dead_at=None)
            due = now + op.retention
            self._keep(
                replace(slot, effect=effect, state=Shelf.DELIVERED, leased_until=None, due_at=due)
            )
        return EffectWritten(True, now)

    def _fail(self, op: MarkFailed, now: Micros) -> EffectWritten:
        slot = self._slots.get(op.key)
        if slot is None or slot.fence != op.fence or slot.state is Shelf.DELIVERED:
            return EffectWritten(False, now)
        if slot.state is Shelf.WAITING and slot.leased_until is not None:
            dead_at = now if op.again_in is None else None
            effect = replace(slot.effect, error=shown(op.error), dead_at=dead_at)
            state = Shelf.WAITING if op.again_in is not None else Shelf.DEAD
            due_at = None if op.again_in is None else now + op.again_in
            self._keep(replace(slot, effect=effect, state=state, leased_until=None, due_at=due_at))
        return EffectWritten(True, now)

    def _browse(self, op: BrowseEffects, now: Micros) -> Effects:
        effects = [slot.shown() for slot in self._slots.values() if slot.state is op.shelf]
        effects = [effect for effect in effects if effect.key > (op.after or "")]
        effects.sort(key=lambda effect: effect.key)
        return Effects(tuple(effects[: op.limit]), now)

    def _find(self, op: FindEffect, now: Micros) -> Effects:
        slot = self._slots.get(op.key)
        return Effects(() if slot is None else (slot.shown(),), now)

    def _requeue(self, op: Requeue, now: Micros) -> EffectWritten:
        slot = self._slots.get(op.key)
        if slot is None or slot.state is not Shelf.DEAD:
            done = slot is None if op.drop else slot is not None and slot.state is Shelf.WAITING
            return EffectWritten(done, now)
        verb, after = (Verb.DROP, None) if op.drop else (Verb.RETRY, Shelf.WAITING.value)
        self._audit.note(
            verb,
            op.act,
            now,
            identity=slot.effect.identity,
            subject=op.key,
            states=(slot.state.value, after),
        )
        if op.drop:
            del self._slots[op.key]
        else:
            effect = replace(slot.effect, tries=0, dead_at=None)
            self._keep(replace(slot, effect=effect, state=Shelf.WAITING, fence=None, due_at=now))
        return EffectWritten(True, now)

    def _reseal(self, op: ResealEffect, now: Micros) -> EffectWritten:
        """Replace a payload by the same payload under another key."""
        slot = self._slots.get(op.key)
        if slot is None or slot.effect.payload != op.old:
            return EffectWritten(False, now)
        self._keep(replace(slot, effect=replace(slot.effect, payload=op.new)))
        return EffectWritten(True, now)

    def _note_event(self, op: NoteEvent, now: Micros) -> Noted:
        event = indexed(op.source), indexed(op.event)
        before = event in self._events
        if op.keep is not None and not before:
            self._events[event] = now + op.keep
        return Noted(before, now)


def _first(slot: _Slot, waiting: list[_Slot], now: Micros) -> bool:
    """Whether the effect is the oldest waiting one of its order, and no other is under way."""
    order = slot.effect.order
    others = [other for other in waiting if other.effect.order == order and other is not slot]
    return order is None or not any(
        other.place < slot.place or other.taken(now) for other in others
    )
