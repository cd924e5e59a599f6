"""Dead letters and the outbox: effects that wait, were delivered, or could not be."""

from __future__ import annotations

import re
from typing import Final

from semel.console.acts import MOST, ActItem, ActPage, chosen, confirm, is_confirmed, outcomes
from semel.console.requests import ConsoleRefusal, Fields
from semel.console.screens.key import EffectRow, effect_row
from semel.console.view import View
from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Effect, Micros
from semel.errors import StoreError
from semel.operators.approvals import ActResult, Intent, Irreversible
from semel.operators.bulk import DeadFilter, dead_effects, retry_each

PAGE: Final = 100
LOOK: Final = 2_000
"""Effects that a page looks at."""
_SHELVES: Final = (ops.Shelf.DEAD, ops.Shelf.WAITING, ops.Shelf.DELIVERED)


@frozen
class OutboxPage:
    """``state``: which effects; ``next``: where the next page begins."""

    outbox: bool
    """The store has one."""
    state: str
    states: tuple[str, ...]
    rows: tuple[EffectRow, ...]
    names: tuple[str, ...]
    looked: int
    next: str | None
    two_person: bool
    """Dropping needs a second person."""


def show(view: View) -> OutboxPage:
    """A page of effects: the dead ones unless others are asked for."""
    wanted = view.query.text("state") or ops.Shelf.DEAD.value
    states = tuple(
        shelf.value for shelf in (ops.Shelf.DEAD, ops.Shelf.WAITING, ops.Shelf.DELIVERED)
    )
    two = Irreversible.DROP in view.approvals.rule.acts
    if wanted not in states:
        raise ConsoleRefusal(400, f"There are no effects that are {wanted!r}.")
    if not view.guard.backend.capabilities.outbox:
        return OutboxPage(False, wanted, states, (), (), 0, None, two)
    found, looked, following, now = _page(view, ops.Shelf(wanted))
    rows = tuple(effect_row(each, now) for each in found)
    names = tuple(sorted({each.name for each in found} | set(view.guard.registry.deliverers)))
    return OutboxPage(True, wanted, states, rows, names, looked, following, two)


def _page(view: View, shelf: ops.Shelf) -> tuple[list[Effect], int, str | None, Micros]:
    """Effects that fit, newest first: at most `LOOK` are read for it."""
    fits = _filter(view.query).fits
    before = _place(view.query.text("after"))
    store, found, looked = view.guard.backend.blocking(), list[Effect](), 0
    while True:
        name = view.query.text("name")
        page = store.perform(ops.ListNewestEffects(shelf, PAGE, name, before))
        found += filter(fits, page.effects)
        looked, before = looked + page.looked, page.until
        if before is None or len(found) >= PAGE or looked >= LOOK:
            following = None if before is None else f"{before.due_at or ''}-{before.number}"
            return found, looked, following, page.now


def _place(text: str | None) -> ops.EffectPlace | None:
    if text is None:
        return None
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ConsoleRefusal(400, "There is no such page.")
    return ops.EffectPlace(int(found[1]) if found[1] else None, int(found[2]))


_PLACE: Final = re.compile("([0-9]{0,18})-([0-9]{1,18})", re.ASCII)
"""Not more digits than a database's whole numbers have."""


def _filter(given: Fields) -> DeadFilter:
    tried = given.text("tried") or "0"
    if not tried.isdecimal() or len(tried) > 9:
        raise ConsoleRefusal(400, "How often it was tried is a number.")
    return DeadFilter(given.text("name"), given.text("error"), int(tried))


# ── acts ──────────────────────────────────────────────────────────────────────────────────────────


def retry(view: View) -> ActPage:
    """Try dead effects again: those selected, or all that fit; the list is frozen when shown."""
    if is_confirmed(view):
        said = {"by": view.user.name, "reason": view.reason()}
        names = [each.partition(":")[2] for each in chosen(view)]
        results = retry_each(view.operator, names, **said)
        told = (ActItem(each.name, None, each.said, each.done) for each in results)
        return outcomes(told, "outbox")
    items = _listed(view)
    return confirm(
        *(view, f"Try {_count(len(items))} again?", "Try again", "outbox"),
        warning="Each is delivered again from now on, with all its tries and the same key.",
        items=items,
    )


def drop(view: View) -> ActPage:
    """Delete dead effects: they are never delivered. By two persons where that is the rule."""
    if is_confirmed(view):
        return outcomes([_dropped(view, each) for each in chosen(view)], "outbox")
    items = _listed(view)
    return confirm(
        *(view, f"Delete {_count(len(items))} for good?", "Delete", "outbox"),
        warning="They will never be delivered. Who waits for them must learn it in another way.",
        items=items,
    )


def _listed(view: View) -> tuple[ActItem, ...]:
    """What the act is about, with what is known of each at this moment."""
    if view.form.get("every"):
        found = dead_effects(view.operator, _filter(view.form))[:MOST]
    else:
        found = [each for name in chosen(view) for each in _dead(view, name)]
    if not found:
        raise ConsoleRefusal(409, "None of them is a dead letter any more.")
    return tuple(
        ActItem(each.key, None, _said(each), value=f"{each.dead_at}:{each.key}") for each in found
    )


def _said(effect: Effect) -> str:
    tries = "one try" if effect.tries == 1 else f"{effect.tries} tries"
    return f"{effect.name}, {tries}: {effect.error or 'no error is on record'}"


def _dropped(view: View, item: str) -> ActItem:
    """One of them; what fails does not keep the others from being deleted."""
    seen, _, name = item.partition(":")
    try:
        said = {"by": view.user.name, "reason": view.reason()}
        result = view.approvals.act(Intent(Irreversible.DROP, name, seen), **said)
    except StoreError as error:
        result = ActResult(False, f"not deleted: {error}")
    return ActItem(name, None, result.said, None if result.proposal else result.done)


def _count(count: int) -> str:
    return "one effect" if count == 1 else f"{count:,} effects"


def _dead(view: View, name: str) -> list[Effect]:
    found = view.guard.backend.blocking().perform(ops.FindEffect(name.partition(":")[2])).effects
    return [each for each in found if each.dead_at is not None]
