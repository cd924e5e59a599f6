"""``semel dlq``: dead letters, that is, what nobody will try or ask about again by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from semel.cli.output import (
    FAILED,
    fail,
    moment,
    on_a_guard,
    one_sentence,
    print_json,
    say,
    say_table,
    signed,
)
from semel.cli.targets import operator
from semel.cli.unknown import told

if TYPE_CHECKING:
    from semel.core.records import Case, Effect


@click.group()
def dlq() -> None:
    """Dead letters: effects that were not delivered, unknown outcomes nobody asks about."""


@dlq.command("list")
@on_a_guard
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(guard: str | None, store: str | None, app: str | None, as_json: bool) -> None:
    """List the dead letters."""
    from semel.cli.keys_shown import effect

    with one_sentence():
        opened = operator(guard, store, app)
        effects = list(opened.list_dead())
        records = [case for case, _ in opened.list_unknown(dead=True)]
    if as_json:
        return print_json(
            {"effects": list(map(effect, effects)), "records": list(map(told, records))}
        )
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
    identity = case.record.identity.hex()[:16]
    return ("record", identity, where, str(case.tries), since, case.record.reason or "")


@dlq.command()
@click.argument("key")
@on_a_guard
@signed
def retry(
    key: str, guard: str | None, store: str | None, app: str | None, by: str, reason: str
) -> None:
    """Deliver the effect KEY again, from now on and with all its tries.

    For a record, use semel unknown probe.
    """
    with one_sentence():
        if not operator(guard, store, app).retry_dead(key, by=by, reason=reason):
            fail("there is no such dead effect", FAILED)
    say("it is tried again")


@dlq.command()
@click.argument("key")
@on_a_guard
@signed
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(
    key: str,
    guard: str | None,
    store: str | None,
    app: str | None,
    by: str,
    reason: str,
    yes: bool,
) -> None:
    """Delete the effect KEY: it will never be delivered.

    For a record, use semel unknown settle or semel unknown bury.
    """
    if not yes:
        click.confirm("The effect will never be delivered. Delete it?", abort=True, err=True)
    with one_sentence():
        if not operator(guard, store, app).drop_dead(key, by=by, reason=reason):
            fail("there is no such dead effect", FAILED)
    say("deleted")
