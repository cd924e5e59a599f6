"""``semel shadow``: what keys would have done on routes that are watched, before they do it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from semel.cli import output, targets
from semel.cli.targets import Since, Target
from semel.runtime.shadow import read_counts

_HEAD: Final = ("ROUTE", "REQUESTS", "WITH A KEY", "COVERAGE", "LOOK-ALIKES WITHOUT ONE")
_WOULD: Final = ("ROUTE", "REPLAYED", "IN CONFLICT", "REFUSED", "ANSWERS DIFFER", "NOT RECORDED")


@click.group()
def shadow() -> None:
    """Routes in shadow: enforce="shadow" watches keys, and refuses nothing."""


@shadow.command()
@targets.on_a_guard
@targets.since
@output.as_json
def report(target: Target, since: Since | None, as_json: bool) -> None:
    """Report how many requests carry a key, and what would have become of them.

    From what all processes have counted in the last 30 days, or since a day. Coverage comes first:
    where few requests have a key, enforcement changes little. Refusals are listed by their code.
    """
    guard = target.open_guard()
    then = datetime.now(UTC) - timedelta(days=30) if since is None else since.time()
    counts = read_counts(guard.backend.blocking(), guard.name, then)
    documents = [_document(route, counts[route]) for route in sorted(counts)]
    if as_json:
        return output.print_json(documents)
    if not documents:
        return output.say("nothing was counted: no route was in shadow, or none had a request")
    output.say_table(_HEAD, map(_coverage, documents))
    output.say("")
    output.say("What keys would have done:")
    output.say_table(_WOULD, map(_would, documents))
    refused = [
        (each["route"], code, str(number))
        for each in documents
        for code, number in each["would_refuse"].items()
    ]
    if refused:
        output.say("")
        output.say_table(("ROUTE", "WOULD BE REFUSED WITH", "REQUESTS"), refused)
    return None


def _document(route: str, of: dict[str, int]) -> dict[str, Any]:
    keyed, unkeyed = of.get("keyed", 0), of.get("unkeyed", 0)
    refusals = {
        what.removeprefix("would_refuse "): number
        for what, number in sorted(of.items())
        if what.startswith("would_refuse ")
    }
    return {
        "route": route,
        "requests": keyed + unkeyed,
        "keyed": keyed,
        "look_alikes": of.get("look_alike", 0),
        "not_looked_at": of.get("not_looked_at", 0),
        "would_replay": of.get("would_replay", 0),
        "would_conflict": of.get("would_conflict", 0),
        "would_refuse": refusals,
        "differs": of.get("differs", 0),
        "unrecorded": of.get("unrecorded", 0),
    }


def _coverage(each: dict[str, Any]) -> tuple[output.Piece, ...]:
    share = f"{each['keyed'] * 100 // max(1, each['requests'])} %"
    alike = str(each["look_alikes"])
    if each["not_looked_at"]:
        alike += f" ({each['not_looked_at']} not looked at)"
    return (each["route"], str(each["requests"]), str(each["keyed"]), share, alike)


def _would(each: dict[str, Any]) -> tuple[output.Piece, ...]:
    refused = sum(each["would_refuse"].values())
    numbers = (each["would_replay"], each["would_conflict"], refused)
    return (each["route"], *map(str, (*numbers, each["differs"], each["unrecorded"])))
