"""``semel audit``: what was done to records, by whom, and why."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from semel.cli.keys import age
from semel.cli.output import moment, on_a_guard, one_sentence, print_json, say, say_table
from semel.cli.targets import SHORT, identity_of, operator

if TYPE_CHECKING:
    from semel.core.operations.audit import AuditEntry
    from semel.core.records import Micros

VERBS = ("settle", "evict", "bury", "free", "erase", "rotate", "retry", "drop")


@click.group()
def audit() -> None:
    """What was done beside the way of requests, by whom, and why."""


@audit.command("list")
@on_a_guard
@click.option("--identity", help="Only about this record; the whole identity, if it is gone.")
@click.option("--verb", type=click.Choice(VERBS), help="Only this.")
@click.option("--by", help="Only by those whose name has this in it.")
@click.option("--since", type=age, help="Only what is younger than this, say 12h or 30d.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(
    guard: str | None,
    store: str | None,
    app: str | None,
    identity: str | None,
    verb: str | None,
    by: str | None,
    since: Micros | None,
    limit: int,
    as_json: bool,
) -> None:
    """List acts, newest first. They are kept for good: maintenance does not touch them."""
    with one_sentence():
        opened = operator(guard, store, app)
        which = None if identity is None else identity_of(opened, identity)
        then = None if since is None else opened.now() - since  # by the clock the entries have
        found = opened.audit(identity=which, verb=verb, by=by, since=then)
        entries = list(islice(found, limit))
    if as_json:
        return print_json([told(entry) for entry in entries])
    if not entries:
        return say("nothing was done")
    head = ("AT", "VERB", "WHAT", "BEFORE", "AFTER", "BY", "REASON")
    say_table(head, map(_row, entries))
    return None


def told(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": moment(entry.at),
        "verb": entry.verb,
        "by": entry.by,
        "reason": entry.reason,
        "identity": None if entry.identity is None else entry.identity.hex(),
        "subject": entry.subject,
        "before": entry.before,
        "after": entry.after,
    }


def _row(entry: AuditEntry) -> tuple[str, ...]:
    what = entry.subject or (entry.identity.hex()[:SHORT] if entry.identity else "-")
    after = entry.after or ("gone" if entry.identity and entry.before else "-")
    return (
        moment(entry.at) or "-",
        entry.verb,
        what,
        entry.before or "-",
        after,
        entry.by,
        entry.reason,
    )
