"""``semel outbox``: effects that wait, were delivered, or are dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from semel.cli.output import (
    FAILED,
    Coloured,
    Piece,
    ago,
    as_json,
    errors_as_sentences,
    fail,
    print_json,
    say,
    say_table,
)
from semel.cli.targets import Target, on_a_guard

if TYPE_CHECKING:
    from semel.core.operations.outbox import Effects
    from semel.core.records import Effect, Micros
    from semel.stores.base import Store

SHELVES: Final = ("waiting", "dead", "delivered")
_STEP: Final = 200


@click.group()
def outbox() -> None:
    """Effects: those that wait to be delivered, that were, and that could not be."""


@outbox.command("list")
@on_a_guard
@click.option(
    "--state", type=click.Choice(SHELVES), default="waiting", show_default=True, help="Which."
)
@click.option("--name", help="Only effects of this name.")
@click.option("--due", is_flag=True, help="Only such that could be delivered now.")
@click.option("--tried", type=click.IntRange(0), help="Only such tried this often or more.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", help="Go on behind this key, as the page before said.")
@click.option(
    "--look",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="Effects to look at, at most.",
)
@as_json
def list_(target: Target, state: str, as_json: bool, **given: Any) -> None:
    """List effects, a page at a time, in the order of their keys.

    Dead ones are retried or dropped by semel dlq.
    """
    from semel.cli.views import effect_document

    with errors_as_sentences():
        found, after, looked, now = _page(_store(target), state, **given)
    if as_json:
        effects = [effect_document(each) for each in found]
        return print_json({"effects": effects, "looked_at": looked, "after": after})
    if found:
        head = ("KEY", "NAME", "AGE", "NEXT", "TRIES", "ERROR")
        say_table(head, (_row(each, now) for each in found))
    elif after is None:
        say("there are no such effects")
    if after is not None:
        say(f"looked at {looked} effects; go on with --after {after}", err=True)
    return None


def _store(target: Target) -> Store:
    from semel.errors import ConfigurationError

    guard = target.open_guard()
    if not guard.backend.capabilities.outbox:
        raise ConfigurationError(f"{guard.backend.url} has no outbox")
    return guard.backend.blocking()


def _page(
    store: Store, state: str, *, limit: int, after: str | None, look: int, **wanted: Any
) -> tuple[list[Effect], str | None, int, Micros]:
    """The effects that fit, where to go on, how many were looked at, and the store's time."""
    from semel.core.operations.outbox import BrowseEffects, Shelf

    found: list[Effect] = []
    looked = 0
    while True:
        size = min(_STEP, look - looked)
        page: Effects = store.perform(BrowseEffects(Shelf(state), size, after))
        looked += len(page.effects)
        for each in page.effects:
            if not _fits(each, page.now, **wanted):
                continue
            if len(found) == limit:
                return found, found[-1].key, looked, page.now
            found.append(each)
        if len(page.effects) < size:
            return found, None, looked, page.now
        after = page.effects[-1].key
        if looked >= look:
            return found, after, looked, page.now


def _fits(each: Effect, now: Micros, name: str | None, due: bool, tried: int | None) -> bool:
    if due and (each.due_at is None or each.due_at > now or each.delivered_at is not None):
        return False
    return name in (None, each.name) and (tried is None or each.tries >= tried)


def _row(each: Effect, now: Micros) -> tuple[Piece, ...]:
    age, tries = ago(each.created_at, now), str(each.tries)
    return (each.key, each.name, age, _next(each, now), tries, each.error or "")


def _next(each: Effect, now: Micros) -> Piece:
    if each.dead_at is not None:
        return Coloured("dead", "bad")
    if each.delivered_at is not None:
        return f"delivered {ago(each.delivered_at, now)} ago"
    if each.leased_until is not None and each.leased_until > now:
        return "under way"
    return f"in {ago(now, each.due_at)}" if each.due_at and each.due_at > now else "due"


@outbox.command()
@click.argument("key")
@on_a_guard
@click.option("--body", is_flag=True, help="Print the payload too.")
@as_json
def show(target: Target, key: str, body: bool, as_json: bool) -> None:
    """Show the effect KEY, without its payload unless --body asks for it."""
    from semel.cli.views import effect_document, print_document
    from semel.core.operations.outbox import FindEffect

    with errors_as_sentences():
        found = _store(target).perform(FindEffect(key)).effects
        if not found:
            fail("there is no such effect", FAILED)
    shown = effect_document(found[0])
    if body:
        shown["payload"] = found[0].payload.decode("utf-8", "replace")
    print_document(shown, as_json)
