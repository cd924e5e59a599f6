"""``semel audit``: what was done to records, by whom, and why."""

from __future__ import annotations

from itertools import islice

import click

from semel.cli import output, targets
from semel.cli.targets import Target
from semel.cli.views import audit_document
from semel.core.operations.acts import Verb
from semel.core.operations.audit import AuditEntry
from semel.core.records import Micros


@click.group()
def audit() -> None:
    """What was done beside the way of requests, by whom, and why."""


@audit.command("list")
@targets.on_a_guard
@click.option("--identity", help="Only about this record; the whole identity, if it is gone.")
@click.option("--verb", type=click.Choice([verb.value for verb in Verb]), help="Only this.")
@click.option("--by", help="Only by those whose name has this in it.")
@click.option("--since", type=targets.age, help="Only what is younger than this, say 12h or 30d.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most.")
@output.as_json
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
    opened = target.operator()
    which = None if identity is None else targets.identity_of(opened, identity)
    then = None if since is None else opened.now() - since  # by the clock the entries have
    found = opened.audit(identity=which, verb=verb, by=by, since=then)
    entries = list(islice(found, limit))
    head = ("AT", "VERB", "WHAT", "BEFORE", "AFTER", "BY", "REASON")
    if as_json:
        output.print_json([audit_document(entry) for entry in entries])
    else:
        output.say_table(head, map(_row, entries), "nothing was done")


def _row(entry: AuditEntry) -> tuple[str, ...]:
    what = entry.subject or (entry.identity.hex()[: targets.SHORT] if entry.identity else "-")
    after = entry.after or ("gone" if entry.identity and entry.before else "-")
    at, before = output.moment(entry.at) or "-", entry.before or "-"
    return (at, entry.verb, what, before, after, entry.by, entry.reason)
