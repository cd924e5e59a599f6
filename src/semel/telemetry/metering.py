"""What each event adds to the metrics, and what is told of tenants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from typing import Final, TypeAlias

from semel.errors import ConfigurationError
from semel.runtime.event_catalogue import CATALOGUE, Field
from semel.runtime.events import Event
from semel.telemetry.metrics import MEASURES, Labels, Measure

Update: TypeAlias = tuple[Measure, Labels, float | None]
"""None: this process does not know any more what it last said."""


# ── tenants ───────────────────────────────────────────────────────────────────────────────────────

Tenants: TypeAlias = Callable[[str], str]


def tenants_by(given: Collection[str] | int | None) -> Tenants:
    """What the label ``tenant`` says: bounded, whoever comes.

    None: nothing. A list of tenants: these by name, all others ``other``. A number: so many groups,
    in which the same tenant is always in the same; a name is not told by its group.
    """
    if given is None:
        return lambda tenant: ""
    if isinstance(given, int) and not isinstance(given, bool):
        return _grouped(given)
    if isinstance(given, str) or not isinstance(given, Collection):
        raise ConfigurationError("tenants= takes a list of tenants, a number of groups, or None")
    known = frozenset(given)
    return lambda tenant: tenant if tenant in known else "other"


_MOST_GROUPS: Final = 256


def _grouped(groups: int) -> Tenants:
    if not 0 < groups <= _MOST_GROUPS:
        raise ConfigurationError(f"tenants= takes from 1 to {_MOST_GROUPS} groups")

    def group(tenant: str) -> str:
        digest = sha256(tenant.encode("utf-8", "surrogatepass")).digest()
        return f"g{int.from_bytes(digest[:8]) % groups:03}"

    return group


# ── from events ───────────────────────────────────────────────────────────────────────────────────


def updates(event: Event, tenants: Tenants) -> Iterator[Update]:
    """What one event adds to the metrics."""
    reader = _READERS.get(event.name)
    if reader is not None:
        yield from reader(event, tenants)


def _one(name: str, *labels: Field, value: float | None = 1.0) -> Update:
    return MEASURES[name], tuple([_text(label) for label in labels]), value


def _text(label: Field) -> str:
    return "" if label is None else str(label)


def _number(value: Field) -> float:
    return float(value) if value else 0.0


def _exchange(event: Event, tenants: Tenants) -> Iterator[Update]:
    route, policy = event["route"], event["policy"]
    yield _one("exchange", event["outcome"], route, policy, event["by"])
    if event["reserved"] is not None:
        tenant = tenants(_text(event["tenant"]))
        yield _one(f"reserve.{event['reserved']}", route, policy, tenant)
    yield _one("exchange.duration", event["outcome"], route, value=_number(event["seconds"]))
    if event["handler_seconds"] is not None:
        yield _one("handler.duration", route, value=_number(event["handler_seconds"]))
    if event["store_operations"]:
        yield _one("store.duration", route, value=_number(event["store_seconds"]))
    if event["waiting_seconds"]:
        yield _one("waiting.duration", route, value=_number(event["waiting_seconds"]))
    if event["from_memory"]:
        yield _one("memory")


def _maintenance(event: Event, tenants: Tenants) -> Iterator[Update]:
    yield _one("maintenance.duration", value=_number(event["seconds"]))
    for what in ("expired", "forgotten", "effects", "events"):
        if event[what]:
            yield _one("ttl_pruned", what, value=_number(event[what]))
    if event["abandoned"]:
        yield _one("abandoned", value=_number(event["abandoned"]))


def _depths(event: Event, tenants: Tenants) -> Iterator[Update]:
    for of, number in event.fields.items():
        if number is not None:
            yield _one("depth", of, value=_number(number))


def _leader(event: Event, tenants: Tenants) -> Iterator[Update]:
    """Who no longer leads no longer counts: an old depth beside the new leader's would be a lie."""
    yield _one("maintenance.leader", value=float(event["leading"] is True))
    if not event["leading"]:
        for of in CATALOGUE["depths"].fields:
            yield _one("depth", of, value=None)


def _reconcile(event: Event, tenants: Tenants) -> Iterator[Update]:
    if event["came"] == "settled":
        yield _one("reconcile.resolved", event["by"])
    else:
        yield _one("reconcile.failed", event["came"])


Reader: TypeAlias = Callable[[Event, Tenants], Iterator[Update]]


def _counted(name: str, *fields: str) -> Reader:
    """One more, labelled with these fields; so many where the event has a ``count``."""

    def read(event: Event, tenants: Tenants) -> Iterator[Update]:
        yield _one(
            name, *[event.get(field) for field in fields], value=_number(event.get("count", 1))
        )

    return read


def _lease(came: str) -> Reader:
    def read(event: Event, tenants: Tenants) -> Iterator[Update]:
        yield _one("lease", came)

    return read


def _gauge(name: str, field: str, on: Field = True) -> Reader:
    def read(event: Event, tenants: Tenants) -> Iterator[Update]:
        yield _one(name, value=float(event[field] == on))

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
    "store.health": _gauge("store.up", "up"),
    "breaker": _gauge("breaker.open", "circuit", "open"),
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
