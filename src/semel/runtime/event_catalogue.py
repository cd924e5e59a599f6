"""The kinds of events there are: their fields, their line in the log, and what they mean.

One table. docs/reference/events.md says the same, and a test compares them; another sees that every
event that is told has the fields it has here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from semel.core.frozen import frozen

Field: TypeAlias = str | int | float | bool | None

NONE, DEBUG, INFO, WARNING, ERROR = 0, 10, 20, 30, 40
"""Levels of `logging`; 0: no line."""


@frozen
class EventKind:
    """One kind of event."""

    fields: tuple[str, ...]
    level: int
    """Of its line in the log, unless the event says otherwise."""
    text: str
    """Its line, with fields by name; ``%(error)s`` is what was raised."""
    meaning: str


_RECORD: Final = ("where", "identity")
"""Method and path, and the first digits of the identity, as ``semel unknown`` takes them."""

CATALOGUE: Final[Mapping[str, EventKind]] = {
    # ── requests ─────────────────────────────────────────────────────────────────────────────────
    "exchange": EventKind(
        (
            "outcome",
            "reserved",
            "route",
            "method",
            "policy",
            "tenant",
            "status",
            "replayed",
            "from_memory",
            "lost_fence",
            "by",
            "identity",
            "key",
            "seconds",
            "store_seconds",
            "store_operations",
            "handler_seconds",
            "waiting_seconds",
        ),
        NONE,
        "a request of %(route)s: %(outcome)s: %(error)s",
        "A keyed request was answered.",
    ),
    "refusal": EventKind(
        ("code", "status", "route", "method", "policy"),
        NONE,
        "a request of %(route)s: tenant=, session= or key= failed: %(error)s",
        "A request was turned away before its key was looked up.",
    ),
    "shape.failed": EventKind(
        ("route", "code"),
        ERROR,
        "refusal= of %(route)s failed; %(code)s was sent as a problem document: %(error)s",
        "A `refusal=` function raised, or returned no response.",
    ),
    "unguarded": EventKind(
        ("endpoint",),
        ERROR,
        "a request came to %(endpoint)s around its guard, and was refused",
        "A tagged endpoint was reached without its policy, and did not run.",
    ),
    "key.suspicious": EventKind(
        ("route", "key"),
        WARNING,
        "a key looks like personal data: %(key)s",
        "A key that looks like personal data was taken: an e-mail address, or the number of a "
        "telephone, a payment card or a bank account.",
    ),
    "key.short": EventKind(
        ("route", "length"),
        WARNING,
        "a key of %(route)s has %(length)s characters, and may meet another (told once): ask "
        "clients for random ones, or refuse such keys with key='strong'",
        "A key of less than 16 characters was used for the first time.",
    ),
    # ── leases and writes ────────────────────────────────────────────────────────────────────────
    "lease.renewed": EventKind(
        ("identity",), NONE, "a lease was renewed", "A handler is still at it."
    ),
    "lease.lost": EventKind(
        ("identity",),
        WARNING,
        "a lease was lost while its handler runs; its answer will be refused",
        "The store says that a lease is another's by now.",
    ),
    "fence.lost": EventKind(
        ("route", "outcome", "identity"),
        WARNING,
        "a handler of %(route)s ended after its lease was lost: %(outcome)s",
        "A handler ended after its lease was lost; it answered from the record.",
    ),
    "lease.overrun": EventKind(
        ("identity",),
        WARNING,
        "a handler runs longer than max_run; its key is taken from it",
        "A handler ran longer than `max_run`.",
    ),
    "lapse": EventKind(
        ("count", "by"),
        NONE,
        "leases that were past: %(count)s",
        "Leases were past and whoever held them gone: found by a `request` or by `maintenance`.",
    ),
    "doubt": EventKind(
        ("count", "why"),
        NONE,
        "outcomes nobody knows: %(count)s (%(why)s)",
        "Records became `unknown`: their handlers said so (`suspended`), or their leases `lapsed`.",
    ),
    "write.lost": EventKind(
        ("why",),
        ERROR,
        "%(why)s",
        "An outcome could not be recorded although it was tried again and again.",
    ),
    # ── the store ────────────────────────────────────────────────────────────────────────────────
    "store.error": EventKind(
        ("during", "operation"),
        WARNING,
        "the store failed (%(during)s, %(operation)s): %(error)s",
        "The store gave no usable answer.",
    ),
    "store.health": EventKind(
        ("up", "seconds", "circuit"),
        NONE,
        "the store is up: %(up)s",
        "Somebody asked whether the store can be reached.",
    ),
    "breaker": EventKind(
        ("circuit",),
        WARNING,
        "the circuit to the store is %(circuit)s",
        "The circuit breaker opened: requests are refused at once. Or it closed again.",
    ),
    "depths": EventKind(
        ("pending", "in_progress", "unknown", "dead", "waiting_effects", "dead_effects"),
        NONE,
        "depths",
        "How much there is of what somebody must look after, counted by maintenance.",
    ),
    # ── background loops ─────────────────────────────────────────────────────────────────────────
    "maintenance": EventKind(
        (
            "note",
            "lapsed",
            "abandoned",
            "expired",
            "forgotten",
            "effects",
            "events",
            "more",
            "seconds",
        ),
        INFO,
        "maintenance: %(note)s",
        "A round of maintenance ended.",
    ),
    "leader": EventKind(
        ("leading",),
        INFO,
        "maintenance is with this process: %(leading)s",
        "This process leads maintenance from now on, or does not any more.",
    ),
    "round.failed": EventKind(
        ("loop",),
        WARNING,
        "a round of %(loop)s failed: %(error)s",
        "A background loop met an error, and comes again later.",
    ),
    "reconcile": EventKind(
        (*_RECORD, "came", "state", "reason", "by"),
        INFO,
        "%(where)s [%(identity)s]: %(came)s: %(reason)s",
        "A record with an unknown outcome was asked about, or told about.",
    ),
    "left_alone": EventKind(
        ("count", "routes"),
        NONE,
        "%(count)s records are due that nobody here knows, and are left alone: %(routes)s",
        "A worker has counted what is due of applications and routes that it does not know.",
    ),
    "run": EventKind(
        (*_RECORD, "came"),
        INFO,
        "a worker's run of %(where)s [%(identity)s]: %(came)s (%(error)s)",
        "A worker ran a stored request.",
    ),
    "delivery": EventKind(
        ("effect", "ending", "tries", "reason"),
        NONE,
        "an effect %(effect)r, try %(tries)s: %(ending)s: %(reason)s",
        "A try at delivering an effect ended.",
    ),
    "inbox": EventKind(
        ("source", "came", "reason"),
        INFO,
        "an event of %(source)s: %(came)s: %(reason)s",
        "A provider's webhook was taken in, or refused.",
    ),
    "operator": EventKind(
        ("act", "by", "identity", "effect", "reason"),
        WARNING,
        "%(by)s %(act)s %(identity)s: %(reason)s",
        "An operator did something to a record or an effect: `settled`, `gave up`, `evicted` …",
    ),
}
