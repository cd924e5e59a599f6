"""The part of ``semel doctor`` that reads records: settings, maintenance, workers, run times.

Nothing is changed. Identities are digests, so the first records in their order are a fair sample: a
check costs the same on ten records and on ten million.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from semel.core.exchange.settings_changed import foretold
from semel.core.operations.maintenance import Browse, CountDue, Scan, Scanned, Waiting, WhoLeads
from semel.core.operations.outbox import BrowseEffects, Shelf
from semel.core.operations.requests import ReadRecipe
from semel.core.policy import SAFE_METHODS
from semel.core.records import Effect, Glimpse, Micros, OnLapse, State
from semel.core.stored import snapshot
from semel.errors import StoreError
from semel.guard import SHORTEST_RETENTION
from semel.runtime.runtime import recorded_as
from semel.stores.base import Finding
from semel.web.inventory import KnownRoutes
from semel.worker.maintenance import INTERVAL, LEADER

if TYPE_CHECKING:
    from semel.core.policy import Policy
    from semel.guard import Guard

SAMPLE: Final = 2_000
"""Records that are looked at."""
MOST: Final = 1_000
"""Unsettled records, or effects, that are counted; there may be more."""
PATIENCE: Final = timedelta(minutes=5)
"""How long what is due may wait for a worker."""
MISSED: Final = 3
"""Rounds that maintenance may miss: a leader's lease is as long."""
LATE: Final = timedelta(hours=1)
"""How long what is past its time may stay, while the reaper works down a backlog."""
ANSWERS: Final = 100
"""Answers that are read."""
ENOUGH: Final = 20
"""Runs of one kind that a quantile can be told of."""
NEAR: Final = 0.8
"""Of max_run: from there on, a bad day is enough."""

_UNSETTLED: Final = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)


def checkup(guard: Guard, app: Any = None) -> tuple[Finding, ...]:
    """All findings about settings and records; each says what to do."""
    store, routes = guard.backend.blocking(), KnownRoutes(guard, app)
    unsettled = store.perform(Scan(_UNSETTLED, MOST))
    sample = store.perform(Scan(tuple(State), SAMPLE))
    found = [*_retentions(guard, app), *_settings(guard, routes), *_endpoints(app)]
    found += _maintenance(guard, unsettled, sample)
    found += _waiting(unsettled)
    found += _of_others(routes, store.perform(CountDue(MOST)))
    found += _unknown(unsettled)
    found += _effects(guard)
    found += _readable(guard)
    found += _runs(routes, sample)
    return tuple(found)


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


def _retentions(guard: Guard, app: Any) -> Iterator[Finding]:
    first: dict[int, tuple[str, Policy]] = {}
    for where, policy in _named(guard, app).items():
        first.setdefault(id(policy), (where, policy))
    for where, policy in first.values():
        if policy.retention < SHORTEST_RETENTION:
            yield Finding(
                "warning",
                f"{where} keeps answers for {policy.retention}: a client that retries later runs "
                "its request again; set retention= to an hour or more, 24 h is usual",
            )


def _named(guard: Guard, app: Any) -> dict[str, Policy]:
    """The policies in use, each by the place where it is set."""
    from semel.web.inventory import inventory

    named = {"the guard's policy": guard.policy}
    named |= {route.label: route.policy for route in guard.routes}
    if app is not None:
        tagged = (each for each in inventory(app, guard) if each.said == "tag")
        named |= {f"{each.method} {each.path}": each.policy for each in tagged if each.policy}
    return named


def _settings(guard: Guard, routes: KnownRoutes) -> Iterator[Finding]:
    """Settings that the store will refuse when an application starts with them."""
    store = guard.backend.blocking()
    for label, policy in routes.policies.items():
        name = recorded_as(guard.name, label)
        refusal = foretold(name, policy, store.perform(ReadRecipe(name)))
        if refusal is not None:
            yield Finding("error", f"these settings will be refused: {refusal}")


def _endpoints(app: Any) -> Iterator[Finding]:
    """Routes of the application that do something which does not work with keys."""
    from semel.web.inventory import COMMITS_LATE, entries, explained, leaves_out

    for entry in () if app is None else entries(app):
        if leaves_out(entry):
            yield Finding("warning", explained(entry))
        for name in entry.late if entry.method not in SAFE_METHODS else ():
            said = COMMITS_LATE.format(name)
            yield Finding("warning", f"{entry.method} {entry.path}: {said}")


# ── who looks after the records ───────────────────────────────────────────────────────────────────


def _maintenance(guard: Guard, unsettled: Scanned, sample: Scanned) -> Iterator[Finding]:
    """Whether maintenance runs, by the work it left: it leaves no other trace."""
    now, interval = unsettled.now, guard.maintenance or INTERVAL
    lapsed = [each for each in unsettled.glimpses if _unswept(each, now, MISSED * interval)]
    late = [
        each
        for each in sample.glimpses
        if each.state not in _UNSETTLED and _overdue(each.due_at, sample.now, LATE)
    ]
    if not lapsed and not late:
        return
    leader = guard.backend.blocking().perform(WhoLeads(LEADER))
    left = f"{_many(lapsed)} lapsed and not swept" if lapsed else ""
    left += " and " if lapsed and late else ""
    left += f"{len(late)} of {len(sample.glimpses)} past their time and not reaped" if late else ""
    if leader.until is not None and leader.until > leader.now:
        text = f"maintenance comes round, but is behind: {left}; look for errors in its log"
        yield Finding("warning", text)
    else:
        last = "never came"
        if leader.until is not None:
            ago = timedelta(seconds=(leader.now - leader.until) // 1_000_000)
            last = f"was last due {ago} ago"
        yield Finding(
            "error",
            f"nobody looks after the records: {left}, and maintenance {last}; leave "
            "Guard(maintenance=) on, or run semel worker",
        )


def _unswept(seen: Glimpse, now: Micros, grace: timedelta) -> bool:
    """In progress with a lease long past, and not resumable: the sweeper should have taken it."""
    sweepable = seen.state is State.IN_PROGRESS and seen.on_lapse is not OnLapse.RESUME
    return sweepable and _overdue(seen.leased_until, now, grace)


def _overdue(due: Micros | None, now: Micros, grace: timedelta) -> bool:
    return due is not None and due + grace // timedelta(microseconds=1) < now


def _waiting(unsettled: Scanned) -> Iterator[Finding]:
    """Stored requests that no worker runs, and operations that no worker completes."""
    now = unsettled.now
    pending = [
        each
        for each in unsettled.glimpses
        if each.state is State.PENDING and _overdue(each.due_at, now, PATIENCE)
    ]
    stopped = [
        each
        for each in unsettled.glimpses
        if each.state is State.IN_PROGRESS
        and each.on_lapse is OnLapse.RESUME
        and _overdue(each.leased_until, now, PATIENCE)
    ]
    for what, found in (("stored requests wait", pending), ("operations were left", stopped)):
        if found:
            yield Finding(
                "error",
                f"{_many(found)} {what} for a worker for more than {PATIENCE.seconds // 60} "
                "minutes: run semel worker GUARD --app APP",
            )


def _of_others(routes: KnownRoutes, waiting: Waiting) -> Iterator[Finding]:
    """What is due, and no worker of this application will touch."""
    for which, count in waiting.routes.items():
        if which is None:
            yield Finding(
                "error",
                f"{count} records are due whose terms are not on record, so that everybody leaves "
                "them alone: restore the store's list of terms, or settle them by hand",
            )
        elif not routes.knows_route(*which):
            application, route = which
            whose = f"of the application {application!r} " if application else ""
            yield Finding(
                "warning",
                f"{count} records of the route {route} {whose}are due, which is not known here: "
                "run a worker of that application, and name this one with --app",
            )


def _unknown(unsettled: Scanned) -> Iterator[Finding]:
    unknown = [each for each in unsettled.glimpses if each.state is State.UNKNOWN]
    dead = [each for each in unknown if each.due_at is None]
    if dead:
        yield Finding(
            "warning",
            f"{_many(dead)} unknown and asked about by nobody: look at semel unknown list --dead",
        )
    elif unknown:
        yield Finding("warning", f"{_many(unknown)} unknown: look at semel unknown list")


def _effects(guard: Guard) -> Iterator[Finding]:
    if not guard.backend.capabilities.outbox:
        return
    store = guard.backend.blocking()
    dead = store.perform(BrowseEffects(Shelf.DEAD, MOST)).effects
    if dead:
        yield Finding("warning", f"{_many(dead)} dead letters in the outbox: see semel dlq list")
    waiting = store.perform(BrowseEffects(Shelf.WAITING, MOST))
    late = [each for each in waiting.effects if _overdue(each.due_at, waiting.now, PATIENCE)]
    if late:
        names = ", ".join(sorted({each.name for each in late})[:5])
        yield Finding(
            "error",
            f"{_many(late)} effects ({names}) are due for more than {PATIENCE.seconds // 60} "
            "minutes: run semel worker with a guard that has deliverers for them",
        )


def _readable(guard: Guard) -> Iterator[Finding]:
    """Answers that cannot be decoded: encrypted with a missing key, or damaged."""
    listed = guard.backend.blocking().perform(Browse((State.COMPLETED,), ANSWERS)).cases
    wrong: dict[str, int] = defaultdict(int)
    for case in listed:
        try:
            snapshot.decode(case.record.snapshot or b"")
        except StoreError as error:
            wrong[str(error)] += 1
    for said, count in wrong.items():
        yield Finding(
            "error",
            f"{count} of {len(listed)} answers cannot be repeated: {said}; give the guard all keys "
            "that are in use, Encryption(keys=...), or restore the store from a backup",
        )


def _many(found: list[Glimpse] | list[Effect] | tuple[Effect, ...]) -> str:
    return f"{MOST} or more" if len(found) >= MOST else str(len(found))


# ── how long handlers run ─────────────────────────────────────────────────────────────────────────


def _runs(routes: KnownRoutes, sample: Scanned) -> Iterator[Finding]:
    """How long handlers run, compared with lease and max_run of their policy."""
    runs: dict[tuple[timedelta, timedelta], list[tuple[timedelta, str]]] = defaultdict(list)
    for seen in sample.glimpses:
        policy, took = routes.policy(seen.terms), _took(seen)
        if policy is not None and took is not None:
            where = f"{seen.origin.method} {seen.origin.path}"
            runs[policy.lease, policy.max_run].append((took, where))
    for (lease, max_run), times in runs.items():
        if len(times) >= ENOUGH:
            yield from _compare(lease, max_run, sorted(times))


def _took(seen: Glimpse) -> timedelta | None:
    """How long it ran; None if that is unknown: settled by evidence, deferred, replaced."""
    terms = seen.terms
    if seen.state is not State.COMPLETED or seen.expires_at is None or seen.reason is not None:
        return None
    if terms is None or terms.mode == "deferred":
        return None
    took = seen.expires_at - terms.retention - seen.created_at
    return None if took < 0 else timedelta(microseconds=took)


def _compare(
    lease: timedelta, max_run: timedelta, times: list[tuple[timedelta, str]]
) -> Iterator[Finding]:
    slow, where = times[int(len(times) * 0.99)]
    said = f"1 of 100 runs takes {_seconds(slow)} or more ({where})"
    if slow >= NEAR * max_run:
        yield Finding(
            "warning",
            f"{said}, near max_run={_seconds(max_run)}, past which its outcome is unknown: raise "
            "max_run=, or make the route deferred",
        )
    elif slow >= lease:
        yield Finding(
            "warning",
            f"{said}, longer than lease={_seconds(lease)}: it lives by renewals, and a pause of "
            "its process makes it unknown; raise lease=, or make the route deferred",
        )


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.3g} s"
