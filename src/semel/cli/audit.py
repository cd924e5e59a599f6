"""``semel audit``: what was done to records, by whom, and why."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

from semel.cli.output import as_json, errors_as_sentences, moment, print_json, say, say_table
from semel.cli.targets import SHORT, Target, age, identity_of, on_a_guard

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
@as_json
def list_(
    target: Target,
    identity: str | None,
    verb: str | None,
    by: str | None,
    since: Micros | None,
    limit: int,
    as_json: bool,
) -> None:
    """List acts, newest first. They are kept for good: maintenance does not touch them."""
    from semel.cli.views import audit_document

    with errors_as_sentences():
        opened = target.operator()
        which = None if identity is None else identity_of(opened, identity)
        then = None if since is None else opened.now() - since  # by the clock the entries have
        found = opened.audit(identity=which, verb=verb, by=by, since=then)
        entries = list(islice(found, limit))
    if as_json:
        return print_json([audit_document(entry) for entry in entries])
    if not entries:
        return say("nothing was done")
    head = ("AT", "VERB", "WHAT", "BEFORE", "AFTER", "BY", "REASON")
    say_table(head, map(_row, entries))
    return None


def _row(entry: AuditEntry) -> tuple[str, ...]:
    what = entry.subject or (entry.identity.hex()[:SHORT] if entry.identity else "-")
    after = entry.after or ("gone" if entry.identity and entry.before else "-")
    at, before = moment(entry.at) or "-", entry.before or "-"
    return (at, entry.verb, what, before, after, entry.by, entry.reason)
