"""Dead letters and the outbox: effects that wait, were delivered, or could not be."""

from __future__ import annotations

from typing import Final

from semel.console.acts import MOST, ActItem, ActPage, chosen, confirm, is_confirmed, outcomes
from semel.console.requests import ConsoleRefusal, Fields
from semel.console.screens.key import EffectRow, effect_row
from semel.console.view import View
from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Effect, Micros
from semel.errors import ConfigurationError, StoreError
from semel.operators.approvals import ActResult, Intent, Irreversible
from semel.operators.bulk import retry_each
from semel.operators.lists import LOOK, QUICK_LOOK, EffectFilter, EffectPage, effect_page

PAGE: Final = 100
_STATES: Final = (ops.Shelf.DEAD, ops.Shelf.WAITING, ops.Shelf.DELIVERED)


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
    by_due: bool = False
    """So many wait that they stand by when they may be tried."""


def show(view: View) -> OutboxPage:
    """A page of effects: the dead ones unless others are asked for."""
    state = view.query.text("state") or ops.Shelf.DEAD.value
    states = tuple(shelf.value for shelf in _STATES)
    two = Irreversible.DROP in view.approvals.rule.acts
    if state not in states:
        raise ConsoleRefusal(400, f"There are no effects that are {state!r}.")
    if not view.guard.backend.capabilities.outbox:
        return OutboxPage(False, state, states, (), (), 0, None, two)
    found = _page(view, ops.Shelf(state))
    rows = tuple(effect_row(each, found.now) for each in found.effects)
    names = {each.name for each in found.effects} | set(view.guard.registry.deliverers)
    told = (tuple(sorted(names)), found.looked, found.after, two, found.by_due)
    return OutboxPage(True, state, states, rows, *told)


def _page(view: View, shelf: ops.Shelf) -> EffectPage:
    store, after = view.guard.backend.blocking(), view.query.text("after")
    try:
        return effect_page(store, shelf, _filter(view.query), PAGE, after, QUICK_LOOK)
    except ConfigurationError:
        raise ConsoleRefusal(400, "There is no such page.") from None


def _filter(given: Fields) -> EffectFilter:
    tried = given.text("tried") or "0"
    if not tried.isdecimal() or len(tried) > 9:
        raise ConsoleRefusal(400, "How often it was tried is a number.")
    return EffectFilter(given.text("name"), tried=int(tried), error=given.text("error"))


# ── acts ──────────────────────────────────────────────────────────────────────────────────────────


def retry(view: View) -> ActPage:
    """Try dead effects again: those selected, or all that fit; the list is frozen when shown."""
    if is_confirmed(view):
        said = {"by": view.user.name, "reason": view.reason()}
        results = retry_each(view.operator, map(_death, chosen(view)), **said)
        told = (ActItem(each.name, None, each.said, each.done) for each in results)
        return outcomes(told, "outbox")
    items, rest = _listed(view)
    return confirm(
        *(view, f"Try {_count(len(items))} again?", "Try again", "outbox"),
        warning=f"Each is delivered again from now on, with all its tries and the same key.{rest}",
        items=items,
    )


def drop(view: View) -> ActPage:
    """Delete dead effects: they are never delivered. By two persons where that is the rule."""
    if is_confirmed(view):
        return outcomes([_dropped(view, each) for each in chosen(view)], "outbox")
    items, rest = _listed(view)
    return confirm(
        *(view, f"Delete {_count(len(items))} for good?", "Delete", "outbox"),
        warning="They will never be delivered. Who waits for them must learn it in another way."
        + rest,
        items=items,
    )


def _listed(view: View) -> tuple[tuple[ActItem, ...], str]:
    """What the act is about, each with its death; and a sentence where more fit than one act is
    about. Those that fit are found as the page finds them, so it has shown what is listed here."""
    store, rest = view.guard.backend.blocking(), ""
    if view.form.get("every"):
        page = effect_page(store, ops.Shelf.DEAD, _filter(view.form), MOST, look=LOOK)
        found = list(page.effects)
        if page.after is not None:
            rest = " These are the newest that fit; there are more, for another act."
    else:
        keys = (_death(item)[0] for item in chosen(view))
        read = (each for key in keys for each in store.perform(ops.FindEffect(key)).effects)
        found = [each for each in read if each.dead_at is not None]
    if not found:
        raise ConsoleRefusal(409, "None of them is a dead letter any more.")
    items = (
        ActItem(each.key, None, _said(each), value=f"{each.dead_at}:{each.key}") for each in found
    )
    return tuple(items), rest


def _death(item: str) -> tuple[str, Micros]:
    """An effect's key, and when it died, as a form has them; 0: that is not said."""
    at, _, key = item.partition(":")
    return key, int(at) if at.isdecimal() and len(at) < 19 else 0


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
