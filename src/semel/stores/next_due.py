"""When a record needs attention next: from a worker, the sweeper or the reaper."""

from __future__ import annotations

from semel.core.records import Micros, Record, State


def due_at(record: Record, chosen: Micros | None) -> Micros | None:
    """``chosen``: the time set for a worker's retry or a probe; other states have their own."""
    times = (record.leased_until, record.expires_at, record.forget_at)
    return next_look(record.state, *times, chosen)


def next_look(
    state: State,
    leased_until: Micros | None,
    expires_at: Micros | None,
    forget_at: Micros | None,
    chosen: Micros | None,
) -> Micros | None:
    """The same from single columns. A record in progress is due when its lease ends, whatever the
    SQL stores' own column says: renewals do not write that column.
    """
    match state:
        case State.PENDING | State.UNKNOWN:
            return chosen
        case State.IN_PROGRESS:
            return leased_until
        case State.COMPLETED:
            return expires_at
        case State.FAILED_RETRYABLE | State.EXPIRED:
            return forget_at
