"""Whether a store and its settings are fit for use, and maintenance runs: for ``semel doctor``.

`examine` looks at the store itself, `checkup` at settings and records. Nothing is changed.
Identities are digests, so the first records in their order are a fair sample: a check costs the
same on ten records and on ten million.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from semel.core import operations as ops
from semel.core.exchange.settings_changed import foretold
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.records import Duty, Glimpse, Identity, Micros, State
from semel.core.stored import snapshot
from semel.errors import SemelError, StoreError
from semel.guard import SHORTEST_RETENTION, Guard
from semel.runtime.runtime import recorded_as
from semel.stores.base import Backend, Examined, Finding, Store
from semel.web import inventory
from semel.web.inventory import KnownRoutes

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
_APART: Final = 5.0
"""Seconds that two clocks may differ without a warning."""
_UNSETTLED: Final = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)
_LACKING: Final = {
    "durable": "acknowledged keys can be lost in a crash or a failover",
    "shared": "every process has records of its own",
    "transactions": "no transactions: mode='atomic' and recovery points need another store",
    "outbox": "no outbox: effects need another store",
}


def fit(findings: list[Finding]) -> bool:
    """Whether semel works with the store, and keeps what it promises."""
    return all(finding.severity not in ("refused", "error") for finding in findings)


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


def examine(backend: Backend) -> list[Finding]:
    """What the store cannot promise, its settings, whether it answers, and how its clock goes."""
    able = backend.capabilities
    lacking = [text for name, text in _LACKING.items() if not getattr(able, name)]
    findings = [Finding("limit", text) for text in lacking]
    try:
        if isinstance(backend, Examined):
            findings += backend.examine()
        found = backend.blocking().perform(ops.Read(Identity(bytes(32))))
        apart = abs(time.time() - found.now / 1_000_000)
        if apart >= _APART:
            text = (
                f"its clock and this machine's are {apart:.0f} s apart; leases go by the store's, "
                "but UUIDv7 keys and logs by this one: synchronise both (NTP)"
            )
            findings.append(Finding("warning", text))
    except SemelError as error:
        findings.append(Finding("refused", str(error)))
    return findings


def checkup(guard: Guard, app: Any = None) -> list[Finding]:
    """All findings about settings and records; each says what to do."""
    store, routes = guard.backend.blocking(), KnownRoutes(guard, app)
    unsettled = store.perform(ops.CountUnsettled(MOST))
    sample = store.perform(ops.Scan(tuple(State), SAMPLE))
    return [
        *_retentions(guard, app),
        *_settings(guard, routes),
        *_endpoints(app),
        *_maintenance(guard, sample),
        *_waiting(store, unsettled.now),
        *_of_others(routes, store.perform(ops.CountDue(MOST))),
        *_unknown(unsettled),
        *_effects(guard),
        *_readable(guard),
        *_runs(routes, sample),
    ]


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


def _retentions(guard: Guard, app: Any) -> Iterator[Finding]:
    """Policies that keep answers for too short a time, each by the first place where it is set."""
    named = {"the guard's policy": guard.policy}
    named |= {route.label: route.policy for route in guard.routes}
    if app is not None:
        tagged = (each for each in inventory.inventory(app, guard) if each.said == "tag")
        named |= {f"{each.method} {each.path}": each.policy for each in tagged if each.policy}
    first: dict[int, tuple[str, Policy]] = {}
    for where, policy in named.items():
        first.setdefault(id(policy), (where, policy))
    for where, policy in first.values():
        if policy.retention < SHORTEST_RETENTION:
            yield Finding(
                "warning",
                f"{where} keeps answers for {policy.retention}: a client that retries later runs "
                "its request again; set retention= to an hour or more, 24 h is usual",
            )


def _settings(guard: Guard, routes: KnownRoutes) -> Iterator[Finding]:
    """Settings that the store will refuse when an application starts with them."""
    store = guard.backend.blocking()
    for label, policy in routes.policies.items():
        name = recorded_as(guard.name, label)
        refusal = foretold(name, policy, store.perform(ops.ReadRecipe(name)))
        if refusal is not None:
            yield Finding("error", f"these settings will be refused: {refusal}")


def _endpoints(app: Any) -> Iterator[Finding]:
    """Routes of the application that do something which does not work with keys."""
    for entry in () if app is None else inventory.entries(app):
        if inventory.leaves_out(entry):
            yield Finding("warning", inventory.explained(entry))
        for name in entry.late if entry.method not in SAFE_METHODS else ():
            said = inventory.COMMITS_LATE.format(name)
            yield Finding("warning", f"{entry.method} {entry.path}: {said}")


# ── who looks after the records ───────────────────────────────────────────────────────────────────


def _overdue(due: Micros | None, now: Micros, grace: timedelta) -> bool:
    return due is not None and due + grace // timedelta(microseconds=1) < now


def _left(store: Store, duty: Duty, now: Micros, grace: timedelta) -> int:
    """How many records of a duty are overdue; of those in progress the lease must be long past."""
    latest = ops.DuePlace(now - grace // timedelta(microseconds=1), _FIRST)
    found = store.perform(ops.ListNewest(duty, MOST, latest)).found
    times = (each.glimpse.leased_until if duty in _HELD else each.glimpse.due_at for each in found)
    return sum(_overdue(each, now, grace) for each in times)


_HELD: Final = (Duty.LEASE, Duty.RESUME)
_FIRST: Final = Identity(bytes(32))
"""Before every identity."""


def _many(count: int) -> str:
    return f"{MOST} or more" if count >= MOST else str(count)


def _maintenance(guard: Guard, sample: ops.Scanned) -> Iterator[Finding]:
    """Whether maintenance runs, by the work it left: it leaves no other trace."""
    from semel.worker.maintenance import INTERVAL, LEADER

    store, grace = guard.backend.blocking(), MISSED * (guard.maintenance or INTERVAL)
    lapsed = _left(store, Duty.LEASE, sample.now, grace)
    late = [
        each
        for each in sample.glimpses
        if each.state not in _UNSETTLED and _overdue(each.due_at, sample.now, LATE)
    ]
    left = [f"{_many(lapsed)} lapsed and not swept"] if lapsed else []
    if late:
        left.append(f"{len(late)} of {len(sample.glimpses)} past their time and not reaped")
    if not left:
        return
    work = " and ".join(left)
    leader = store.perform(ops.WhoLeads(LEADER))
    if leader.until is not None and leader.until > leader.now:
        text = f"maintenance comes round, but is behind: {work}; look for errors in its log"
        yield Finding("warning", text)
        return
    last = "never came"
    if leader.until is not None:
        ago = timedelta(seconds=(leader.now - leader.until) // 1_000_000)
        last = f"was last due {ago} ago"
    yield Finding(
        "error",
        f"nobody looks after the records: {work}, and maintenance {last}; leave "
        "Guard(maintenance=) on, or run semel worker",
    )


def _waiting(store: Store, now: Micros) -> Iterator[Finding]:
    """Stored requests that no worker runs, and operations that no worker completes."""
    pending = _left(store, Duty.RUN, now, PATIENCE)
    stopped = _left(store, Duty.RESUME, now, PATIENCE)
    for what, found in (("stored requests wait", pending), ("operations were left", stopped)):
        if found:
            yield Finding(
                "error",
                f"{_many(found)} {what} for a worker for more than {PATIENCE.seconds // 60} "
                "minutes: run semel worker GUARD --app APP",
            )


def _of_others(routes: KnownRoutes, waiting: ops.Waiting) -> Iterator[Finding]:
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


def _unknown(unsettled: ops.UnsettledCounts) -> Iterator[Finding]:
    unknown, dead = unsettled.unknown.count, unsettled.dead.count
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
    dead = store.perform(ops.CountEffects(MOST)).dead.count
    if dead:
        yield Finding("warning", f"{_many(dead)} dead letters in the outbox: see semel dlq list")
    now = store.perform(ops.Read(Identity(bytes(32)))).now
    latest = ops.EffectPlace(now - PATIENCE // timedelta(microseconds=1), 0)
    listed = store.perform(ops.ListNewestEffects(ops.Shelf.WAITING, MOST, before=latest))
    late = [each for each in listed.effects if _overdue(each.due_at, now, PATIENCE)]
    if late:
        names = ", ".join(sorted({each.name for each in late})[:5])
        yield Finding(
            "error",
            f"{_many(len(late))} effects ({names}) are due for more than {PATIENCE.seconds // 60} "
            "minutes: run semel worker with a guard that has deliverers for them",
        )


def _readable(guard: Guard) -> Iterator[Finding]:
    """Answers that cannot be decoded: encrypted with a missing key, or damaged."""
    listed = guard.backend.blocking().perform(ops.Browse((State.COMPLETED,), ANSWERS)).cases
    wrong: Counter[str] = Counter()
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


# ── how long handlers run ─────────────────────────────────────────────────────────────────────────


def _runs(routes: KnownRoutes, sample: ops.Scanned) -> Iterator[Finding]:
    """How long handlers run, compared with lease and max_run of their policy."""
    runs: dict[tuple[timedelta, timedelta], list[tuple[timedelta, str]]] = defaultdict(list)
    for seen in sample.glimpses:
        policy, ran = routes.policy(seen.terms), took(seen)
        if policy is not None and ran is not None:
            where = f"{seen.origin.method} {seen.origin.path}"
            runs[policy.lease, policy.max_run].append((ran, where))
    for (lease, max_run), times in runs.items():
        if len(times) < ENOUGH:
            continue
        slow, where = sorted(times)[int(len(times) * 0.99)]
        said = f"1 of 100 runs takes {_seconds(slow)} or more ({where})"
        if slow >= NEAR * max_run:
            yield Finding(
                "warning",
                f"{said}, near max_run={_seconds(max_run)}, past which its outcome is unknown: "
                "raise max_run=, or make the route deferred",
            )
        elif slow >= lease:
            yield Finding(
                "warning",
                f"{said}, longer than lease={_seconds(lease)}: it lives by renewals, and a pause "
                "of its process makes it unknown; raise lease=, or make the route deferred",
            )


def took(seen: Glimpse) -> timedelta | None:
    """How long it ran; None if that is unknown: settled by evidence, deferred, replaced."""
    terms = seen.terms
    if seen.state is not State.COMPLETED or seen.expires_at is None or seen.reason is not None:
        return None
    if terms is None or terms.mode == "deferred":
        return None
    ran = seen.expires_at - terms.retention - seen.created_at
    return None if ran < 0 else timedelta(microseconds=ran)


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.3g} s"
