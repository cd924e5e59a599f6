"""The metrics: one table.

What an event adds to them is said in `semel.telemetry.metering`; Prometheus
(`semel.telemetry.prometheus`) and
OpenTelemetry (`semel.telemetry.opentelemetry`) only differ in how they keep the numbers.
docs/reference/metrics.md is made from the table; the alert rules and the dashboard in
`telemetry/monitoring` are compared with it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from semel.core.frozen import frozen

PREFIX: Final = "api.idempotency."

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]
Labels: TypeAlias = tuple[str, ...]


@frozen
class Measure:
    """One metric, by its OpenTelemetry name."""

    name: str
    kind: Kind
    unit: str
    """As UCUM has it: ``s``, or in braces what is counted."""
    labels: Labels
    help: str

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, as OpenTelemetry's own exporter would make it."""
        name = self.name.replace(".", "_")
        if self.unit == "s":
            name += "_seconds"
        return f"{name}_total" if self.kind == "counter" else name


_MILLISECONDS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
BUCKETS: Final = tuple([each / 1_000 for each in _MILLISECONDS])
"""Upper ends, in seconds: a store answers within milliseconds, a provider within seconds."""

_ASKED: Final = ("route", "policy", "tenant")


def _table(*measures: Measure) -> dict[str, Measure]:
    return {measure.name.removeprefix(PREFIX): measure for measure in measures}


def _counter(name: str, unit: str, labels: Labels, said: str) -> Measure:
    return Measure(PREFIX + name, "counter", f"{{{unit}}}", labels, said)


def _duration(name: str, labels: Labels, said: str) -> Measure:
    return Measure(PREFIX + name, "histogram", "s", labels, said)


def _gauge(name: str, unit: str, labels: Labels, said: str) -> Measure:
    return Measure(PREFIX + name, "gauge", unit, labels, said)


MEASURES: Final = _table(
    # ── keys, as they are reserved ───────────────────────────────────────────────────────────────
    _counter(
        "reserve.created",
        "request",
        _ASKED,
        "Keys that were new: a handler ran, or a worker will run it.",
    ),
    _counter(
        "reserve.replay",
        "request",
        _ASKED,
        "Duplicates that were answered with what was kept.",
    ),
    _counter(
        "reserve.in_progress",
        "request",
        _ASKED,
        "Duplicates that came while the first was under way.",
    ),
    _counter(
        "reserve.key_misuse",
        "request",
        _ASKED,
        "Keys that were used again for another request: a client's bug, or an attack.",
    ),
    _counter(
        "reserve.failed_retry",
        "request",
        _ASKED,
        "Keys that were run again, after a run of which nothing stayed.",
    ),
    _counter(
        "reserve.unknown",
        "request",
        _ASKED,
        "Requests for a key of which nobody knows whether it was executed.",
    ),
    _counter(
        "reserve.expired",
        "request",
        _ASKED,
        "Requests for a key past its retention, or too old to be new.",
    ),
    # ── requests ─────────────────────────────────────────────────────────────────────────────────
    _counter(
        "exchange",
        "request",
        ("outcome", "route", "policy", "by"),
        "Keyed requests, by what they came to.",
    ),
    _duration(
        "exchange.duration",
        ("outcome", "route"),
        "From when a request's body was read to its answer.",
    ),
    _duration("handler.duration", ("route",), "The handler's part of it."),
    _duration(
        "store.duration",
        ("route",),
        "The store's part of it: all operations of a request together.",
    ),
    _duration(
        "waiting.duration",
        ("route",),
        "Waiting for another request's answer, or for a store to come back.",
    ),
    _counter(
        "refusal",
        "request",
        ("code", "route"),
        "Requests that were turned away before their key was looked up.",
    ),
    _counter(
        "memory",
        "request",
        (),
        "Answers that were repeated without asking the store.",
    ),
    _counter(
        "key.suspicious",
        "request",
        ("route",),
        "Keys that look like personal data.",
    ),
    _counter(
        "unguarded",
        "request",
        ("endpoint",),
        "Requests that came to a tagged endpoint around its guard; it did not run.",
    ),
    # ── leases and writes ────────────────────────────────────────────────────────────────────────
    _counter(
        "zombie_key",
        "key",
        ("by",),
        "Leases that were past, and whoever held them gone.",
    ),
    _counter(
        "fence.lost",
        "request",
        ("route",),
        "Handlers that ended after their lease was lost: they answered from the record.",
    ),
    _counter(
        "lease",
        "lease",
        ("came",),
        "Leases that were renewed, lost, or ended by max_run.",
    ),
    _counter(
        "write.lost",
        "write",
        (),
        "Outcomes that could not be recorded.",
    ),
    # ── the store ────────────────────────────────────────────────────────────────────────────────
    _counter(
        "store.error",
        "error",
        ("during",),
        "Operations to which the store gave no usable answer.",
    ),
    _gauge(
        "store.up",
        "1",
        (),
        "Whether the store could be reached when it was last asked for its health: 1 or 0.",
    ),
    _gauge(
        "breaker.open",
        "1",
        (),
        "Whether requests are refused at once because the store is out: 1 or 0.",
    ),
    _gauge(
        "depth",
        "{record}",
        ("of",),
        "How much waits: records pending, in progress, unknown, dead; effects waiting, "
        "dead. Counted by maintenance.",
    ),
    _gauge(
        "left_alone",
        "{record}",
        (),
        "Records that are due, of applications and routes that this worker does not know.",
    ),
    # ── what loops do ────────────────────────────────────────────────────────────────────────────
    _counter(
        "ttl_pruned",
        "record",
        ("what",),
        "What the reaper expired or forgot.",
    ),
    _counter(
        "abandoned",
        "record",
        (),
        "Stored requests that nobody ran in time.",
    ),
    _duration("maintenance.duration", (), "Rounds of maintenance."),
    _gauge("maintenance.leader", "1", (), "Whether this process leads maintenance: 1 or 0."),
    _counter(
        "round.failed",
        "round",
        ("loop",),
        "Rounds of background loops that failed.",
    ),
    _counter(
        "reconcile.scheduled",
        "record",
        ("why",),
        "Records that became unknown: somebody must find out what happened.",
    ),
    _counter(
        "reconcile.resolved",
        "record",
        ("by",),
        "Unknown records that were settled by evidence.",
    ),
    _counter(
        "reconcile.failed",
        "question",
        ("came",),
        "Questions about unknown records that came to nothing.",
    ),
    _counter(
        "run",
        "run",
        ("came",),
        "Stored requests that a worker ran.",
    ),
    _counter(
        "delivery",
        "try",
        ("effect", "ending"),
        "Tries at delivering effects.",
    ),
    _counter(
        "inbox",
        "webhook",
        ("source", "came"),
        "Webhooks of providers.",
    ),
    _counter(
        "operator",
        "act",
        ("act",),
        "What operators did.",
    ),
)
