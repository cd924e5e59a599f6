"""The metrics: one table, and what each event adds to them.

Prometheus (`semel.telemetry.prometheus`) and OpenTelemetry (`semel.telemetry.opentelemetry`) read
both from here; they differ only in how they keep the numbers. docs/reference/metrics.md is made
from the table, and tests compare the alert rules and the dashboard in `monitoring` with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from semel.core.frozen import frozen
from semel.errors import ConfigurationError
from semel.runtime.event_catalogue import CATALOGUE, Field
from semel.runtime.events import Event

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

_ASKED: Final = ("route", "policy", "tenant")


def _counter(name: str, unit: str, labels: Labels, said: str) -> Measure:
    return Measure(PREFIX + name, "counter", f"{{{unit}}}", labels, said)


def _duration(name: str, labels: Labels, said: str) -> Measure:
    return Measure(PREFIX + name, "histogram", "s", labels, said)


def _gauge(name: str, unit: str, labels: Labels, said: str) -> Measure:
    return Measure(PREFIX + name, "gauge", unit, labels, said)


_TABLE: Final = (
    # ── keys, as they are reserved ───────────────────────────────────────────────────────────────
    _counter(
        "reserve.created",
        "request",
        _ASKED,
        "Keys that were new: a handler ran, or a worker will run it.",
    ),
    _counter(
        "reserve.replay", "request", _ASKED, "Duplicates that were answered with what was kept."
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
    _counter("memory", "request", (), "Answers that were repeated without asking the store."),
    _counter("key.suspicious", "request", ("route",), "Keys that look like personal data."),
    _counter(
        "unguarded",
        "request",
        ("endpoint",),
        "Requests that came to a tagged endpoint around its guard; it did not run.",
    ),
    # ── leases and writes ────────────────────────────────────────────────────────────────────────
    _counter("zombie_key", "key", ("by",), "Leases that were past, and whoever held them gone."),
    _counter(
        "fence.lost",
        "request",
        ("route",),
        "Handlers that ended after their lease was lost: they answered from the record.",
    ),
    _counter("lease", "lease", ("came",), "Leases that were renewed, lost, or ended by max_run."),
    _counter("write.lost", "write", (), "Outcomes that could not be recorded."),
    # ── the store ────────────────────────────────────────────────────────────────────────────────
    _counter(
        "store.error", "error", ("during",), "Operations to which the store gave no usable answer."
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
    _counter("ttl_pruned", "record", ("what",), "What the reaper expired or forgot."),
    _counter("abandoned", "record", (), "Stored requests that nobody ran in time."),
    _duration("maintenance.duration", (), "Rounds of maintenance."),
    _gauge("maintenance.leader", "1", (), "Whether this process leads maintenance: 1 or 0."),
    _counter("round.failed", "round", ("loop",), "Rounds of background loops that failed."),
    _counter(
        "reconcile.scheduled",
        "record",
        ("why",),
        "Records that became unknown: somebody must find out what happened.",
    ),
    _counter(
        "reconcile.resolved", "record", ("by",), "Unknown records that were settled by evidence."
    ),
    _counter(
        "reconcile.failed",
        "question",
        ("came",),
        "Questions about unknown records that came to nothing.",
    ),
    _counter("run", "run", ("came",), "Stored requests that a worker ran."),
    _counter("delivery", "try", ("effect", "ending"), "Tries at delivering effects."),
    _counter("inbox", "webhook", ("source", "came"), "Webhooks of providers."),
    _counter("operator", "act", ("act",), "What operators did."),
)
MEASURES: Final = {measure.name.removeprefix(PREFIX): measure for measure in _TABLE}


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
Reader: TypeAlias = Callable[[Event, Tenants], Iterator[Update]]


def updates(event: Event, tenants: Tenants) -> Iterable[Update]:
    """What one event adds to the metrics."""
    reader = _READERS.get(event.name)
    return () if reader is None else reader(event, tenants)


def _update(name: str, *labels: Field, value: float | None = 1.0) -> Update:
    return MEASURES[name], tuple([_text(label) for label in labels]), value


def _text(label: Field) -> str:
    return "" if label is None else str(label)


def _number(value: Field) -> float:
    return float(value) if value else 0.0


def _exchange(event: Event, tenants: Tenants) -> Iterator[Update]:
    route, policy = event["route"], event["policy"]
    yield _update("exchange", event["outcome"], route, policy, event["by"])
    if event["reserved"] is not None:
        tenant = tenants(_text(event["tenant"]))
        yield _update(f"reserve.{event['reserved']}", route, policy, tenant)
    yield _update("exchange.duration", event["outcome"], route, value=_number(event["seconds"]))
    if event["handler_seconds"] is not None:
        yield _update("handler.duration", route, value=_number(event["handler_seconds"]))
    if event["store_operations"]:
        yield _update("store.duration", route, value=_number(event["store_seconds"]))
    if event["waiting_seconds"]:
        yield _update("waiting.duration", route, value=_number(event["waiting_seconds"]))
    if event["from_memory"]:
        yield _update("memory")


def _maintenance(event: Event, tenants: Tenants) -> Iterator[Update]:
    yield _update("maintenance.duration", value=_number(event["seconds"]))
    for what in ("expired", "forgotten", "effects", "events"):
        if event[what]:
            yield _update("ttl_pruned", what, value=_number(event[what]))
    if event["abandoned"]:
        yield _update("abandoned", value=_number(event["abandoned"]))


def _depths(event: Event, tenants: Tenants) -> Iterator[Update]:
    for of, number in event.fields.items():
        if number is not None:
            yield _update("depth", of, value=_number(number))


def _leader(event: Event, tenants: Tenants) -> Iterator[Update]:
    """A process that no longer leads takes its depths back: the new leader counts them now."""
    yield _update("maintenance.leader", value=float(event["leading"] is True))
    if not event["leading"]:
        for of in CATALOGUE["depths"].fields:
            yield _update("depth", of, value=None)


def _reconcile(event: Event, tenants: Tenants) -> Iterator[Update]:
    if event["came"] == "settled":
        yield _update("reconcile.resolved", event["by"])
    else:
        yield _update("reconcile.failed", event["came"])


def _counted(name: str, *fields: str) -> Reader:
    """Add one, or the event's ``count``, labelled with these fields."""

    def read(event: Event, tenants: Tenants) -> Iterator[Update]:
        yield _update(
            name, *[event.get(field) for field in fields], value=_number(event.get("count", 1))
        )

    return read


def _lease(ending: str) -> Reader:
    def read(event: Event, tenants: Tenants) -> Iterator[Update]:
        yield _update("lease", ending)

    return read


def _flag(name: str, field: str, on: Field = True) -> Reader:
    def read(event: Event, tenants: Tenants) -> Iterator[Update]:
        yield _update(name, value=float(event[field] == on))

    return read


_READERS: Final[dict[str, Reader]] = {
    "exchange": _exchange,
    "refusal": _counted("refusal", "code", "route"),
    "key.suspicious": _counted("key.suspicious", "route"),
    "unguarded": _counted("unguarded", "endpoint"),
    "fence.lost": _counted("fence.lost", "route"),
    "lease.renewed": _lease("renewed"),
    "lease.lost": _lease("lost"),
    "lease.overrun": _lease("overrun"),
    "lapse": _counted("zombie_key", "by"),
    "doubt": _counted("reconcile.scheduled", "why"),
    "write.lost": _counted("write.lost"),
    "store.error": _counted("store.error", "during"),
    "store.health": _flag("store.up", "up"),
    "breaker": _flag("breaker.open", "circuit", "open"),
    "depths": _depths,
    "maintenance": _maintenance,
    "leader": _leader,
    "round.failed": _counted("round.failed", "loop"),
    "reconcile": _reconcile,
    "left_alone": _counted("left_alone"),
    "run": _counted("run", "came"),
    "delivery": _counted("delivery", "effect", "ending"),
    "inbox": _counted("inbox", "source", "came"),
    "operator": _counted("operator", "act"),
}
