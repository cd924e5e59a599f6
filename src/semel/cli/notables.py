"""``semel notables``: what was seen of requests and webhooks, and no record keeps."""

from __future__ import annotations

import json
from typing import Any

import click

from semel.cli import output, targets
from semel.cli.targets import EntryList
from semel.cli.views import notable_document
from semel.core.operations.notables import NotableEntry, NotableKind
from semel.runtime.events import short


@click.group()
def notables() -> None:
    """What was seen of requests and webhooks: mismatches, conflicts, refusals …"""


@notables.command("list")
@output.listed
@targets.entries
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in NotableKind]),
    help="Only this; may be given several times.",
)
@click.option("--route", help="Only of this route, say 'POST /payments'.")
@output.as_json
def list_notables(asked: EntryList, as_json: bool, **filters: Any) -> None:
    """List notables, newest first. They are forgotten after a week, or as notables= says."""
    entries, place = asked.page(asked.operator.notables(**asked.about, **filters))
    if as_json:
        documents = [notable_document(entry) for entry in entries]
        return output.print_json({"notables": documents, "after": place})
    head = ("AT", "KIND", "ROUTE", "TENANT", "RECORD", "COUNT", "DETAIL")
    output.say_table(head, map(_line, entries), "nothing was noted")
    return output.say_more("", place)


def _line(entry: NotableEntry) -> tuple[output.Piece, ...]:
    which = "-" if entry.identity is None else short(entry.identity)
    where = (entry.route or "-", entry.tenant or "-", which)
    at, detail = output.moment(entry.at) or "-", _words(entry.detail)
    return (at, entry.kind, *where, str(entry.count), detail)


def _words(detail: str) -> str:
    said: dict[str, Any] = json.loads(detail)
    told: list[str] = []
    for name, held in said.items():
        several: list[Any] = held if isinstance(held, list) else [held]  # pyright: ignore[reportUnknownVariableType]
        told.append(f"{name}: {', '.join(map(str, several))}")
    return ", ".join(told) or "-"
