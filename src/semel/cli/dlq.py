"""``semel dlq``: dead letters, which nothing tries or asks about again by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from semel.cli.output import (
    FAILED,
    as_json,
    errors_as_sentences,
    fail,
    moment,
    print_json,
    say,
    say_table,
    yes,
)
from semel.cli.targets import SHORT, Target, on_a_guard, signed

if TYPE_CHECKING:
    from semel.core.records import Case, Effect


@click.group()
def dlq() -> None:
    """Dead letters: effects that were not delivered, unknown outcomes nobody asks about."""


@dlq.command("list")
@on_a_guard
@as_json
def list_(target: Target, as_json: bool) -> None:
    """List the dead letters."""
    from semel.cli.views import case_document, effect_document

    with errors_as_sentences():
        opened = target.operator()
        effects = list(opened.list_dead())
        records = [case for case, _ in opened.list_unknown(dead=True)]
    if as_json:
        found = {"effects": list(map(effect_document, effects))}
        return print_json(found | {"records": list(map(case_document, records))})
    if not effects and not records:
        return say("there are no dead letters")
    rows = [*map(_effect_row, effects), *map(_record_row, records)]
    say_table(("KIND", "ID", "NAME", "TRIES", "SINCE", "ERROR"), rows)
    return None


def _effect_row(effect: Effect) -> tuple[str, ...]:
    since = moment(effect.dead_at) or "-"
    return ("effect", effect.key, effect.name, str(effect.tries), since, effect.error or "")


def _record_row(case: Case) -> tuple[str, ...]:
    where = f"{case.origin.method} {case.origin.path}"
    since = moment(case.record.created_at) or "-"
    identity = case.record.identity.hex()[:SHORT]
    return ("record", identity, where, str(case.tries), since, case.record.reason or "")


@dlq.command()
@click.argument("key")
@on_a_guard
@signed
def retry(target: Target, key: str, by: str, reason: str) -> None:
    """Deliver the effect KEY again, from now on and with all its tries.

    For a record, use semel unknown probe.
    """
    with errors_as_sentences():
        if not target.operator().retry_dead(key, by=by, reason=reason):
            fail("there is no such dead effect", FAILED)
    say("it is tried again")


@dlq.command()
@click.argument("key")
@on_a_guard
@signed
@yes
def drop(target: Target, key: str, by: str, reason: str, yes: bool) -> None:
    """Delete the effect KEY: it will never be delivered.

    For a record, use semel unknown settle or semel unknown bury.
    """
    if not yes:
        click.confirm("The effect will never be delivered. Delete it?", abort=True, err=True)
    with errors_as_sentences():
        if not target.operator().drop_dead(key, by=by, reason=reason):
            fail("there is no such dead effect", FAILED)
    say("deleted")
