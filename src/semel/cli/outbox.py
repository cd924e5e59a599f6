"""``semel outbox``: effects that wait, were delivered or could not be; ``semel dlq``: dead letters.

Nothing tries a dead letter, or asks about it, again by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from semel.cli import output, targets
from semel.cli.targets import Target
from semel.cli.views import case_document, effect_document, print_document
from semel.core.operations.outbox import FindEffect, Shelf
from semel.core.records import Case, Effect, Micros
from semel.errors import ConfigurationError
from semel.operators.bulk import dead_effects, retry_each
from semel.operators.lists import EffectFilter, effect_page
from semel.stores.base import Store

if TYPE_CHECKING:
    from semel.operators.operator import Operator

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def outbox() -> None:
    """Effects: those that wait to be delivered, that were, and that could not be."""


@outbox.command("list")
@output.listed
@targets.on_a_guard
@click.option(
    "--state",
    type=click.Choice([shelf.value for shelf in Shelf]),
    default="waiting",
    show_default=True,
    help="Which.",
)
@click.option("--name", help="Only effects of this name.")
@click.option("--due", is_flag=True, help="Only such that could be delivered now.")
@click.option("--tried", type=click.IntRange(0), help="Only such tried this often or more.")
@targets.paged("Effects")
@output.as_json
def list_(
    target: Target,
    state: str,
    limit: int,
    after: str | None,
    look: int,
    as_json: bool,
    **filters: Any,
) -> None:
    """List effects, a page at a time, newest first.

    Dead ones are retried or dropped by semel dlq.
    """
    wanted = EffectFilter(**filters)
    found = effect_page(_store(target), Shelf(state), wanted, limit, after, look)
    head = ("KEY", "NAME", "AGE", "NEXT", "TRIES", "ERROR")
    rows = (_row(each, found.now) for each in found.effects)
    documents = map(effect_document, found.effects)
    output.print_page(as_json, "effects", documents, head, rows, found.looked, found.after)
    if found.by_due and not as_json:
        output.say("too many wait to be sorted: they stand by when they may be tried", err=True)


def _store(target: Target) -> Store:
    guard = target.open_guard()
    if not guard.backend.capabilities.outbox:
        raise ConfigurationError(f"{guard.backend.url} has no outbox")
    return guard.backend.blocking()


def _row(each: Effect, now: Micros) -> tuple[output.Piece, ...]:
    coming: output.Piece = "due"
    if each.dead_at is not None:
        coming = output.Coloured("dead", "bad")
    elif each.delivered_at is not None:
        coming = f"delivered {output.ago(each.delivered_at, now)} ago"
    elif each.leased_until is not None and each.leased_until > now:
        coming = "under way"
    elif each.due_at and each.due_at > now:
        coming = f"in {output.ago(now, each.due_at)}"
    age, tries = output.ago(each.created_at, now), str(each.tries)
    return (each.key, each.name, age, coming, tries, each.error or "")


@outbox.command()
@click.argument("key")
@targets.on_a_guard
@click.option("--body", is_flag=True, help="Print the payload too.")
@output.as_json
def show(target: Target, key: str, body: bool, as_json: bool) -> None:
    """Show the effect KEY, without its payload unless --body asks for it."""
    found = _store(target).perform(FindEffect(key)).effects
    if not found:
        output.fail("there is no such effect", output.FAILED)
    shown = effect_document(found[0])
    if body:
        shown["payload"] = found[0].payload.decode("utf-8", "replace")
    print_document(shown, as_json)


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────


@click.group()
def dlq() -> None:
    """Dead letters: effects that were not delivered, unknown outcomes nobody asks about."""


def _of_the_dead(command: F) -> F:
    """Add the filters of dead effects; the command gets them as ``wanted``."""

    @click.option("--name", help="Only effects of this name.")
    @click.option("--error", help="Only such whose last error has this in it.")
    @click.option("--tried", type=click.IntRange(0), help="Only such tried this often or more.")
    @targets.since
    @wraps(command)
    def with_filters(*given: Any, **named: Any) -> object:
        fields = ("name", "error", "tried", "since")
        return command(*given, wanted={field: named.pop(field) for field in fields}, **named)

    return cast("F", with_filters)


def _dead(opened: Operator, wanted: dict[str, Any]) -> list[Effect]:
    """The dead effects that fit, newest first."""
    since: targets.Since | None = wanted["since"]
    then = 0 if since is None else since.moment(opened.now())
    fields = {field: wanted[field] for field in ("name", "error", "tried")}
    return dead_effects(opened, EffectFilter(**fields), then)


@dlq.command("list")
@output.listed
@targets.on_a_guard
@_of_the_dead
@targets.paged_by_time(1000)
@output.as_json
def list_dead(target: Target, as_json: bool, wanted: dict[str, Any], **page: Any) -> None:
    """List the dead letters, newest first. Filters by name, error and tries leave records out."""
    found = _dead_letters(target.operator(), wanted)
    listed, after = targets.page_by_time(found, _named, **page)
    if as_json:
        effects = [effect_document(each) for each in listed if isinstance(each, Effect)]
        records = [case_document(each) for each in listed if isinstance(each, Case)]
        return output.print_json({"effects": effects, "records": records, "after": after})
    head = ("KIND", "ID", "NAME", "TRIES", "SINCE", "ERROR")
    output.say_table(head, map(_letter_row, listed), "there are no dead letters")
    return output.say_more("", after)


def _dead_letters(opened: Operator, wanted: dict[str, Any]) -> list[Effect | Case]:
    letters: list[Effect | Case] = [*_dead(opened, wanted)]
    if not any(wanted[field] for field in ("name", "error", "tried")):
        chosen = {**dict.fromkeys(("tenant", "method", "path", "older")), "dead": True}
        listed = targets.chosen_cases(opened, {**chosen, "since": wanted["since"]})
        letters += [case for case, _ in listed]
    return letters


def _named(letter: Effect | Case) -> tuple[Micros, str]:
    """Since when it is dead, as far as that is known, and its name."""
    if isinstance(letter, Effect):
        return letter.dead_at or 0, letter.key
    return letter.record.created_at, letter.record.identity.hex()


def _letter_row(letter: Effect | Case) -> tuple[str, ...]:
    at, name = _named(letter)
    since, tries = output.moment(at) or "-", str(letter.tries)
    if isinstance(letter, Effect):
        return ("effect", name, letter.name, tries, since, letter.error or "")
    where, reason = f"{letter.origin.method} {letter.origin.path}", letter.record.reason
    return ("record", name[: targets.SHORT], where, tries, since, reason or "")


@dlq.command()
@click.argument("key", required=False)
@targets.on_a_guard
@_of_the_dead
@click.option("--all", "every", is_flag=True, help="Every dead effect.")
@targets.signed
@targets.dry_run
@output.yes
@output.as_json
def retry(
    target: Target,
    key: str | None,
    every: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    wanted: dict[str, Any],
    **act: Any,
) -> None:
    """Deliver the effect KEY again, from now on and with all its tries; or all that a filter finds.

    Without KEY, what the filters find is listed, and tried again once you agree. Exit code 1 when
    one of them was no dead letter any more. For a record, use semel unknown probe.
    """
    opened = target.operator()
    if (every or any(wanted.values())) == (key is not None):
        output.fail("which effects? Give KEY, or filters, or --all", output.MISUSED)
    if key is not None:
        if not opened.retry_dead(key, **act):
            output.fail("there is no such dead effect", output.FAILED)
        return output.print_result(as_json, {"key": key, "retried": True}, "it is tried again")
    deaths = [(effect.key, effect.dead_at or 0) for effect in _dead(opened, wanted)]
    if targets.act_on("tried again", deaths, itemgetter(0), dry_run=dry_run, yes=yes):
        retrying = retry_each(opened, output.counted("retrying", deaths), **act)
        output.print_each(as_json, "key", "retried", retrying)
    return None


@dlq.command()
@click.argument("key")
@targets.on_a_guard
@targets.signed
@output.yes
def drop(target: Target, key: str, by: str, reason: str, yes: bool) -> None:
    """Delete the effect KEY: it will never be delivered.

    For a record, use semel unknown settle or semel unknown bury.
    """
    if not yes:
        output.confirm("The effect will never be delivered. Delete it?")
    if not target.operator().drop_dead(key, by=by, reason=reason):
        output.fail("there is no such dead effect", output.FAILED)
    output.say("deleted")
