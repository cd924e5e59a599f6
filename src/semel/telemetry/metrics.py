"""The metrics: one table, and what each event adds to them.

Prometheus (`semel.telemetry.prometheus`) and OpenTelemetry (`semel.telemetry.opentelemetry`) read
both from here; they differ only in how they keep the numbers. docs/reference/metrics.md is made
from the table, and tests compare the alert rules and the dashboard in `monitoring` with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from semel.core.frozen import frozen
from semel.errors import ConfigurationError
from semel.runtime.events import CATALOGUE, Event, Field

PREFIX: Final = "api.idempotency."

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]
Labels: TypeAlias = tuple[str, ...]


@frozen
class Measure:
    """One metric, by its OpenTelemetry name."""

    name: str
    kind: Kind
    unit: str
    """In UCUM: ``s``, or the thing that is counted, in braces."""
    labels: Labels
    help: str

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, as OpenTelemetry's own exporter makes it."""
        name = self.name.replace(".", "_")
        if self.unit == "s":
            name += "_seconds"
        return f"{name}_total" if self.kind == "counter" else name


_MILLISECONDS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
BUCKETS: Final = tuple([each / 1_000 for each in _MILLISECONDS])
"""Upper ends, in seconds: a store answers within milliseconds, a provider within seconds."""

_TABLE: Final = """\
counter reserve.created {request} route policy tenant
    Keys that were new: a handler ran, or a worker will run it.
counter reserve.replay {request} route policy tenant
    Duplicates that were answered with what was kept.
counter reserve.in_progress {request} route policy tenant
    Duplicates that came while the first was under way.
counter reserve.key_misuse {request} route policy tenant
    Keys that were used again for another request: a client's bug, or an attack.
counter reserve.failed_retry {request} route policy tenant
    Keys that were run again, after a run of which nothing stayed.
counter reserve.unknown {request} route policy tenant
    Requests for a key of which nobody knows whether it was executed.
counter reserve.expired {request} route policy tenant
    Requests for a key past its retention, or too old to be new.

counter exchange {request} outcome route policy by
    Keyed requests, by what they came to.
histogram exchange.duration s outcome route
    From when a request's body was read to its answer.
histogram handler.duration s route
    The handler's part of it.
histogram store.duration s route
    The store's part of it: all operations of a request together.
histogram waiting.duration s route
    Waiting for another request's answer, or for a store to come back.
counter refusal {request} code route
    Requests that were turned away before their key was looked up.
counter memory {request}
    Answers that were repeated without asking the store.
counter key.suspicious {request} route
    Keys that look like personal data.
counter key.short {request} route
    Keys of less than 16 characters, when they were first used.
counter shape.failed {request} route
    Refusals whose refusal= function failed: they were sent as problem documents.
counter shadow {request} came code route
    Requests of routes in shadow: what would have become of them, and what was seen of them.
counter unguarded {request} endpoint
    Requests that came to a tagged endpoint around its guard; it did not run.

counter zombie_key {key} by
    Leases that were past, and whoever held them gone.
counter fence.lost {request} route
    Handlers that ended after their lease was lost: they answered from the record.
counter lease {lease} came
    Leases that were renewed, lost, or ended by max_run.
counter write.lost {write}
    Outcomes that could not be recorded.

counter store.error {error} during
    Operations to which the store gave no usable answer.
counter store.failover {failover}
    Primaries that were replaced, as this process saw it: what they acknowledged last may be lost.
gauge store.up 1
    Whether the store could be reached when it was last asked for its health: 1 or 0.
gauge pool.size {connection} pool
    Connections to the database that are open. Counted when the store's health is asked for, and by
    maintenance, in every process.
gauge pool.in_use {connection} pool
    Those of them that somebody uses.
gauge pool.waiting {caller} pool
    Operations, or transactions, that wait for a connection.
counter pool.opened {connection} pool
    Connections that were opened.
counter pool.closed {connection} pool
    Connections that were closed.
gauge breaker.open 1
    Whether requests are refused at once because the store is out: 1 or 0.
gauge depth {record} of
    How much waits: records pending, in progress, unknown, dead; effects waiting, dead. Counted by
    maintenance.
gauge left_alone {record}
    Records that are due, of applications and routes that this worker does not know.

counter ttl_pruned {record} what
    What the reaper expired or forgot.
counter abandoned {record}
    Stored requests that nobody ran in time.
histogram maintenance.duration s
    Rounds of maintenance.
gauge maintenance.leader 1
    Whether this process leads maintenance: 1 or 0.
counter round.failed {round} loop
    Rounds of background loops that failed.
counter reconcile.scheduled {record} why
    Records that became unknown: somebody must find out what happened.
counter reconcile.resolved {record} by
    Unknown records that were settled by evidence.
counter reconcile.failed {question} came
    Questions about unknown records that came to nothing.
counter run {run} came
    Stored requests that a worker ran.
counter delivery {try} effect ending
    Tries at delivering effects.
counter inbox {webhook} source came
    Webhooks of providers.
counter operator {act} act
    What operators did.
"""
"""For each metric: kind, name, unit and labels; below it, what it says."""

_KINDS: Final[dict[str, Kind]] = {"counter": "counter", "histogram": "histogram", "gauge": "gauge"}


def _measures() -> Iterator[tuple[str, Measure]]:
    for entry in re.split(r"\n+(?=\S)", _TABLE):
        head, *lines = entry.splitlines()
        kind, name, unit, *labels = head.split()
        said = " ".join(map(str.strip, lines))
        yield name, Measure(PREFIX + name, _KINDS[kind], unit, tuple(labels), said)


MEASURES: Final = dict(_measures())


# ── tenants ───────────────────────────────────────────────────────────────────────────────────────

Tenants: TypeAlias = Callable[[str], str]

_MOST_GROUPS: Final = 256


def tenants_by(given: Collection[str] | int | None) -> Tenants:
    """A function from a tenant to the label ``tenant``, which has a bounded number of values.

    None: the label is empty. A list of tenants: these by name, all others ``other``. A number: so
    many groups; a tenant is always in the same one, and its name does not show.
    """
    if given is None:
        return lambda tenant: ""
    if isinstance(given, str | bool) or not isinstance(given, Collection | int):
        raise ConfigurationError("tenants= takes a list of tenants, a number of groups, or None")
    if isinstance(given, Collection):
        known = frozenset(given)
        return lambda tenant: tenant if tenant in known else "other"
    groups = given
    if not 0 < groups <= _MOST_GROUPS:
        raise ConfigurationError(f"tenants= takes from 1 to {_MOST_GROUPS} groups")

    def group(tenant: str) -> str:
        digest = sha256(tenant.encode("utf-8", "surrogatepass")).digest()
        return f"g{int.from_bytes(digest[:8]) % groups:03}"

    return group


# ── from events ───────────────────────────────────────────────────────────────────────────────────


Update: TypeAlias = tuple[Measure, Labels, float | None]
"""A metric, its labels and a number; None: this process no longer knows the value."""

_SAME_NAME: Final = (
    *("refusal", "key.suspicious", "key.short", "shape.failed", "unguarded", "fence.lost"),
    *("write.lost", "store.error", "store.failover"),
    *("round.failed", "left_alone", "run", "delivery", "inbox", "operator"),
)
_COUNTED: Final = {
    **dict(zip(_SAME_NAME, _SAME_NAME, strict=True)),
    "lapse": "zombie_key",
    "doubt": "reconcile.scheduled",
}
"""Events that add one, or their ``count``, to a metric whose labels are fields of the event."""


_SHADOW: Final = "shadow."


def updates(event: Event, tenants: Tenants) -> Iterator[Update]:
    """What one event adds to the metrics."""
    match event.name:
        case "exchange":
            yield from _exchange(event, tenants)
        case "lease.renewed" | "lease.lost" | "lease.overrun":
            yield _update("lease", event.name.removeprefix("lease."))
        case "store.health":
            yield _update("store.up", value=event["up"] is True)
        case "pool":
            for each in ("size", "in_use", "waiting", "opened", "closed"):
                yield _update(f"pool.{each}", event["pool"], value=event[each])
        case "breaker":
            yield _update("breaker.open", value=event["circuit"] == "open")
        case "depths":
            known = {of: number for of, number in event.fields.items() if number is not None}
            yield from (_update("depth", of, value=number) for of, number in known.items())
        case "maintenance":
            yield from _maintenance(event)
        case "leader":
            yield _update("maintenance.leader", value=event["leading"] is True)
            # Who no longer leads takes its depths back: the new leader counts them now.
            for of in () if event["leading"] else CATALOGUE["depths"].fields:
                yield MEASURES["depth"], (of,), None
        case "reconcile" if event["came"] == "settled":
            yield _update("reconcile.resolved", event["by"])
        case "reconcile":
            yield _update("reconcile.failed", event["came"])
        case name:
            yield from _plain(name, event)


def _plain(name: str, event: Event) -> Iterator[Update]:
    """What an event adds whose fields are labels."""
    if name.startswith(_SHADOW):
        yield _update("shadow", name.removeprefix(_SHADOW), event.get("code"), event["route"])
    elif name in _COUNTED:
        counted = _COUNTED[name]
        labels = [event.get(label) for label in MEASURES[counted].labels]
        yield _update(counted, *labels, value=event.get("count", 1))


def _exchange(event: Event, tenants: Tenants) -> Iterator[Update]:
    outcome, route, policy = event["outcome"], event["route"], event["policy"]
    yield _update("exchange", outcome, route, policy, event["by"])
    if event["reserved"] is not None:
        tenant = tenants(_text(event["tenant"]))
        yield _update(f"reserve.{event['reserved']}", route, policy, tenant)
    yield _update("exchange.duration", outcome, route, value=event["seconds"])
    if event["handler_seconds"] is not None:
        yield _update("handler.duration", route, value=event["handler_seconds"])
    if event["store_operations"]:
        yield _update("store.duration", route, value=event["store_seconds"])
    if event["waiting_seconds"]:
        yield _update("waiting.duration", route, value=event["waiting_seconds"])
    if event["from_memory"]:
        yield _update("memory")


def _maintenance(event: Event) -> Iterator[Update]:
    yield _update("maintenance.duration", value=event["seconds"])
    for what in ("expired", "forgotten", "effects", "events"):
        if event[what]:
            yield _update("ttl_pruned", what, value=event[what])
    if event["abandoned"]:
        yield _update("abandoned", value=event["abandoned"])


def _update(name: str, *labels: Field, value: Field = 1.0) -> Update:
    return MEASURES[name], tuple(map(_text, labels)), float(value) if value else 0.0


def _text(label: Field) -> str:
    return "" if label is None else str(label)
