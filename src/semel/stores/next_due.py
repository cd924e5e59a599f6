"""When a record needs attention next: from a worker, the sweeper or the reaper."""

from __future__ import annotations

from semel.core.operations.maintenance import Work
from semel.core.records import Case, Micros, OnLapse, Record, State


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


def due_as(work: Work, case: Case, now: Micros) -> Micros | None:
    """When the record becomes this kind of work; None when it does not."""
    record, due = case.record, case.due_at
    match work:
        case Work.PENDING:
            # After its deadline only the abandoner may take it.
            waits = record.leased_until is not None and record.leased_until > now
            return due if record.state is State.PENDING and waits else None
        case Work.LAPSED:
            resumable = record.on_lapse is OnLapse.RESUME
            return due if record.state is State.IN_PROGRESS and resumable else None
        case Work.UNKNOWN:
            return due if record.state is State.UNKNOWN else None


def is_due(work: Work, case: Case, now: Micros) -> bool:
    due = due_as(work, case, now)
    return due is not None and due <= now
