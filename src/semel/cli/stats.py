"""``semel stats``: how much there is of what somebody must look after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from semel.cli import output, targets
from semel.cli.targets import Target
from semel.core.flow import run
from semel.core.operations.maintenance import CountDue
from semel.stores.base import performer

if TYPE_CHECKING:
    from semel.operators.counts import Estimate, RecordSample

_MOST: Final = 10_000
"""Due records that are counted of each kind of work."""


@click.command()
@targets.on_a_guard
@output.listed
@output.as_json
def stats(target: Target, as_json: bool) -> None:
    """Count what is unsettled: records by their state, effects, and what is due of each route.

    All records are counted by a sample of 20,000, which says how far off it may be.
    """
    from semel.operators import counts
    from semel.worker.maintenance import survey

    backend = target.open_guard().backend
    store = backend.blocking()
    depths: dict[str, Any] = run(survey(backend.capabilities.outbox), performer(store))
    unsettled = counts.unsettled(store)
    depths |= {"lapsed": unsettled.lapsed.count}
    sampled = counts.sample(store, unsettled.now)
    waiting = store.perform(CountDue(_MOST)).routes
    due = [
        {"application": None if of is None else of[0], "route": None if of is None else of[1]}
        | {"due": number}
        for of, number in sorted(waiting.items(), key=lambda each: -each[1])
    ]
    if as_json:
        return output.print_json({**depths, "due": due, "records": _sampled(sampled)})
    rows = [(of.replace("_", " "), str(count)) for of, count in depths.items() if count is not None]
    rows += [
        (f"due: {each['application'] or '-'} {each['route'] or '-'}", str(each["due"]))
        for each in due
    ]
    rows.append(("records", _about(sampled.total)))
    rows += [
        (f"records: {state.value.replace('_', ' ')}", _about(estimate))
        for state, estimate in sampled.by_state().items()
    ]
    output.say_table(("WHAT", "COUNT"), rows)
    if not sampled.exact:
        output.say(f"{sampled.said} records", err=True)
    return None


def _about(found: Estimate) -> str:
    return str(found.count) if not found.error else f"about {found.count} ± {found.error}"


def _sampled(found: RecordSample) -> dict[str, Any]:
    """All records, as JSON."""

    def told(each: Estimate) -> dict[str, int]:
        return {"count": each.count, "error": each.error}

    return {
        "looked_at": found.looked,
        "exact": found.exact,
        "total": told(found.total),
        "states": {state.value: told(each) for state, each in found.by_state().items()},
        "routes": [
            {
                "application": each.application,
                "route": each.route,
                "state": each.state.value,
                "records": told(each.records),
                "last_day": told(each.recent),
            }
            for each in found.groups
        ],
    }
