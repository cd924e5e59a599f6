"""``semel stats``: how much there is of what somebody must look after."""

from __future__ import annotations

from typing import Any, Final

import click

from semel.cli import output, targets
from semel.cli.targets import Target
from semel.core.flow import run
from semel.core.operations.maintenance import CountDue
from semel.stores.base import performer

_MOST: Final = 10_000
"""Due records that are counted of each kind of work."""


@click.command()
@targets.on_a_guard
@output.listed
@output.as_json
def stats(target: Target, as_json: bool) -> None:
    """Count what is unsettled: records by their state, effects, and what is due of each route.

    What is settled is not counted: that would read the whole table.
    """
    from semel.worker.maintenance import survey

    backend = target.open_guard().backend
    store = backend.blocking()
    depths: dict[str, Any] = run(survey(backend.capabilities.outbox), performer(store))
    waiting = store.perform(CountDue(_MOST)).routes
    due = [
        {"application": None if of is None else of[0], "route": None if of is None else of[1]}
        | {"due": number}
        for of, number in sorted(waiting.items(), key=lambda each: -each[1])
    ]
    if as_json:
        return output.print_json({**depths, "due": due})
    rows = [(of.replace("_", " "), str(count)) for of, count in depths.items() if count is not None]
    rows += [
        (f"due: {each['application'] or '-'} {each['route'] or '-'}", str(each["due"]))
        for each in due
    ]
    output.say_table(("WHAT", "COUNT"), rows)
    return None
