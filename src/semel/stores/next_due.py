"""When somebody must look at a record next, as its state tells."""

from __future__ import annotations

from semel.core.records import Micros, Record, State


def due_at(record: Record, chosen: Micros | None) -> Micros | None:
    """``chosen`` counts where the state leaves it open: for a worker's retry, and for a probe."""
    times = (record.leased_until, record.expires_at, record.forget_at)
    return next_look(record.state, *times, chosen)


def next_look(
    state: State,
    leased_until: Micros | None,
    expires_at: Micros | None,
    forget_at: Micros | None,
    chosen: Micros | None,
) -> Micros | None:
    """Of a record in progress the SQL stores' own column is no witness: renewals leave it alone,
    for the sweeper to catch up.
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
