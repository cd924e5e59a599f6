"""Plans of workers, maintenance and lists, which look at all buckets. No I/O.

Each bucket has its own indexes: an index over all records would lie in one slot. A plan first asks
for the head of the index in all 1,024 buckets, in one pipeline for each node, and then only looks
at buckets that have something. Scripts change one record each, and check everything again: what
others did in between is not undone. The clock of a record's own node decides whether the record is
due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from math import inf
from typing import Final, NamedTuple

from semel.core import terms
from semel.core.operations.maintenance import (
    Abandon,
    Browse,
    Count,
    CountDue,
    Counted,
    Due,
    DueRecords,
    Reap,
    Retire,
    Retired,
    Scan,
    Scanned,
    Sweep,
    Tended,
    Waiting,
    Work,
)
from semel.core.records import Case, Glimpse, Identity, Micros, OnLapse, State
from semel.core.states import RecordEvent
from semel.core.terms import Terms, TermsId
from semel.core.texts import shown
from semel.stores.redis import replies
from semel.stores.redis.keys import BUCKETS, DUTIES, Keys, bucket_of
from semel.stores.redis.plans import Plan, Plans, read_terms, record_call
from semel.stores.redis.replies import Answer
from semel.stores.redis.scripts import RedisCall, Word, script_call

WORK: Final[Mapping[Work, str]] = {Work.PENDING: "run", Work.LAPSED: "resume", Work.UNKNOWN: "ask"}

STATES_OF: Final[Mapping[str, frozenset[State]]] = {
    "lease": frozenset((State.IN_PROGRESS,)),
    "resume": frozenset((State.IN_PROGRESS,)),
    "run": frozenset((State.PENDING,)),
    "ask": frozenset((State.UNKNOWN,)),
    "expire": frozenset((State.COMPLETED,)),
    "forget": frozenset((State.FAILED_RETRYABLE, State.EXPIRED)),
}
"""The states of the records in an index."""

LAPSED_TO: Final[Mapping[State, RecordEvent]] = {
    State.UNKNOWN: RecordEvent.LAPSE,
    State.FAILED_RETRYABLE: RecordEvent.LAPSE_RELEASE,
    State.PENDING: RecordEvent.LAPSE_REQUEUE,
}
"""What happened to a swept record, by the state it has now."""

PAGE: Final = 1000
"""How many records are asked for at once. The answers are some hundred kB, unless requests and
snapshots are large."""


def _clock(bucket: int) -> list[RedisCall]:
    return [RedisCall(bucket, ("TIME",))]


def _pages(identities: Sequence[Identity]) -> Iterator[Sequence[Identity]]:
    return (identities[start : start + PAGE] for start in range(0, len(identities), PAGE))


# ── what is due ───────────────────────────────────────────────────────────────────────────────────


class _Entry(NamedTuple):
    """A record in an index, and when it is due (never: infinity)."""

    due: float
    identity: Identity


class _DueEntries(NamedTuple):
    """What is due in one index, the oldest first, and when the next entry will be."""

    due: list[Identity]
    next_due: Micros | None
    now: Micros


def _entries(answer: Answer) -> list[_Entry]:
    flat = replies.fields(answer, 0)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [_Entry(float(due), Identity(identity)) for identity, due in pairs]


def _due_entries(keys: Keys, index: str, limit: int) -> Plan[_DueEntries]:
    """The first ``limit`` of all buckets lie in the ``limit`` buckets whose heads come first."""
    answers = yield [
        RedisCall(bucket, ("ZRANGE", keys.index(bucket, index), 0, 0, "WITHSCORES"))
        for bucket in range(BUCKETS)
    ]
    firsts = enumerate(map(_entries, answers))
    heads = {bucket: entries[0].due for bucket, entries in firsts if entries}
    if not heads:
        (time,) = yield _clock(0)
        return _DueEntries([], None, replies.clock(time))
    buckets = sorted(heads, key=heads.__getitem__)[: max(1, limit)]
    calls: list[RedisCall] = []
    for bucket in buckets:
        key = keys.index(bucket, index)
        calls += _clock(bucket)
        calls.append(RedisCall(bucket, ("ZRANGE", key, 0, max(0, limit), "WITHSCORES")))
    answers = yield calls
    clocks = [replies.clock(answer) for answer in answers[::2]]
    due: list[_Entry] = []
    later = [heads[bucket] for bucket in heads.keys() - {*buckets}]
    for now, answer in zip(clocks, answers[1::2], strict=True):
        for entry in _entries(answer):
            if entry.due <= now:
                due.append(entry)
            else:
                later.append(entry.due)
    due.sort()
    next_due = min(later, default=inf)
    return _DueEntries(
        [entry.identity for entry in due[:limit]],
        None if next_due == inf else int(next_due),
        max(clocks),
    )


def _cases(keys: Keys, identities: Sequence[Identity]) -> Plan[list[tuple[Case, Micros]]]:
    """Read these records, each with the clock of its node; what is gone by now is left out."""
    found: list[tuple[Case, Micros]] = []
    for page in _pages(identities):
        answers = yield [record_call("recall", keys, identity) for identity in page]
        rows = [replies.fields(answer, 3) for answer in answers]
        yield from read_terms(keys, [replies.terms_id(rest) for _, _, rest in rows])
        for identity, (now, row, rest) in zip(page, rows, strict=True):
            if case := replies.case(identity, row, rest, keys.terms_texts):
                found.append((case, replies.time(now)))
    return found


def _due(op: Due, keys: Keys) -> Plan[DueRecords]:
    """Requests past their deadline stay first in their index until they are abandoned.

    They must not hide others, so the plan looks at ever more entries until it has enough.
    """
    window = op.limit
    while True:
        found = yield from _due_entries(keys, WORK[op.work], window)
        cases = yield from _cases(keys, found.due)
        due = [case for case, now in cases if _is_due(op.work, case, now)]
        ready = tuple(
            [case for case in due if (op.known is None or op.known.covers(case.terms))][: op.limit]
        )
        full = len(ready) >= op.limit
        if full or len(found.due) < window:
            return DueRecords(ready, found.now, found.now if full else found.next_due)
        window *= 2


def _count_due(op: CountDue, keys: Keys) -> Plan[Waiting]:
    counts: Counter[tuple[str, str] | None] = Counter()
    now = 0
    for work in Work:
        found = yield from _due_entries(keys, WORK[work], op.limit)
        cases = yield from _cases(keys, found.due)
        due = [case for case, at in cases if _is_due(work, case, at)]
        counts.update(terms.route_of(case.terms) for case in due)
        now = found.now
    return Waiting(dict(counts), now)


def _is_due(work: Work, case: Case, now: Micros) -> bool:
    record = case.record
    if case.due_at is None or case.due_at > now:
        return False
    match work:
        case Work.PENDING:
            until = record.leased_until
            return record.state is State.PENDING and until is not None and until > now
        case Work.LAPSED:
            return record.lapsed(now) and record.on_lapse is OnLapse.RESUME
        case Work.UNKNOWN:
            return record.state is State.UNKNOWN


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────


class IdentityPage(NamedTuple):
    """The next records of a list. ``until``: where the following page begins; None: nowhere."""

    identities: list[Identity]
    until: Identity | None
    now: Micros


def next_page(
    keys: Keys, after: Identity | None, limit: int, duties: Sequence[str] = DUTIES
) -> Plan[IdentityPage]:
    """Read these indexes bucket by bucket, which is the order of identities, until it is full."""
    first = 0 if after is None else bucket_of(after)
    (time,) = yield _clock(first)
    groups = yield from _bucket_groups(keys, duties, first)
    seen: list[Identity] = []
    while groups and len(seen) <= limit:
        seen += yield from _members(keys, duties, groups.pop(0), after)
    page = seen[:limit]
    until = page[-1] if page and (groups or len(seen) > len(page)) else None
    return IdentityPage(page, until, replies.clock(time))


def _bucket_groups(keys: Keys, duties: Sequence[str], first: int) -> Plan[list[list[int]]]:
    """The buckets that are not empty, in groups that hold at most `PAGE` records or one bucket."""
    calls = [
        RedisCall(bucket, ("ZCARD", keys.index(bucket, duty)))
        for bucket in range(first, BUCKETS)
        for duty in duties
    ]
    answers = yield calls
    sizes: Counter[int] = Counter()
    for call, size in zip(calls, answers, strict=True):
        sizes[call.bucket] += size
    groups: list[list[int]] = []
    room = 0
    for bucket in sorted(each for each, size in sizes.items() if size):
        if sizes[bucket] > room:
            groups.append([])
            room = PAGE
        groups[-1].append(bucket)
        room -= sizes[bucket]
    return groups


def _members(
    keys: Keys, duties: Sequence[str], buckets: Sequence[int], after: Identity | None
) -> Plan[list[Identity]]:
    """The identities in these indexes that come after ``after``, in order."""
    answers = yield [
        RedisCall(bucket, ("ZRANGE", keys.index(bucket, duty), 0, -1))
        for bucket in buckets
        for duty in duties
    ]
    members = {Identity(each) for answer in answers for each in replies.fields(answer, 0)}
    return sorted(each for each in members if after is None or each > after)


def _duties_of(states: Sequence[State]) -> list[str]:
    """The indexes that hold records of these states."""
    return [duty for duty in DUTIES if STATES_OF[duty] & {*states}]


def _browse(op: Browse, keys: Keys) -> Plan[DueRecords]:
    duties = _duties_of(op.states)
    first = 0 if op.after is None else bucket_of(op.after)
    (time,) = yield _clock(first)
    groups = yield from _bucket_groups(keys, duties, first)
    listed: list[Case] = []
    while groups and len(listed) < op.limit:
        identities = yield from _members(keys, duties, groups.pop(0), op.after)
        for page in _pages(identities):
            if len(listed) < op.limit:
                cases = yield from _cases(keys, page)
                listed += [
                    case
                    for case, _ in cases
                    if case.record.state in op.states and not (op.dead and case.due_at is not None)
                ]
    return DueRecords(tuple(listed[: op.limit]), replies.clock(time))


def _scan(op: Scan, keys: Keys) -> Plan[Scanned]:
    listed = yield from next_page(keys, op.after, op.limit, _duties_of(op.states))
    found: list[Glimpse] = []
    for page in _pages(listed.identities):
        answers = yield [record_call("glimpse", keys, identity) for identity in page]
        rows = [replies.fields(answer, 3) for answer in answers]
        yield from read_terms(keys, [replies.terms_id(row) for _, row, _ in rows])
        for identity, (_, row, size) in zip(page, rows, strict=True):
            seen = replies.glimpse(identity, row, size, keys.terms_texts)
            if seen is not None and seen.state in op.states:
                found.append(seen)
    return Scanned(tuple(found), listed.until, listed.now)


def _count(op: Count, keys: Keys) -> Plan[Counted]:
    """Of each record only its tenant and state are read."""
    listed = yield from next_page(keys, op.after, op.limit)
    tenants: Counter[str] = Counter()
    for page in _pages(listed.identities):
        answers = yield [
            RedisCall(bucket_of(each), ("HMGET", keys.of(each)[0], "tenant", "state"))
            for each in page
        ]
        for tenant, state in (replies.fields(answer, 2) for answer in answers):
            if tenant is not None and state != b"expired":
                tenants[bytes(tenant).decode()] += 1
    return Counted(dict(tenants), listed.until, listed.now)


# ── maintenance ───────────────────────────────────────────────────────────────────────────────────


def _change(
    keys: Keys, name: str, identities: Sequence[Identity], arguments: Sequence[Sequence[Word]]
) -> Plan[list[State | None]]:
    """Call a script on each record; the states of those that it changed (it answers 1)."""
    answers = yield [
        record_call(name, keys, identity, *own)
        for identity, own in zip(identities, arguments, strict=True)
    ]
    changed = [answer for answer in answers if replies.fields(answer, 2)[0] == 1]
    return [replies.state(replies.fields(answer, 3)[2]) for answer in changed]


def _terms_of(keys: Keys, identities: Sequence[Identity]) -> Plan[list[Terms | None]]:
    """The terms of each record; None where they are not on record."""
    answers = yield [
        RedisCall(bucket_of(each), ("HGET", keys.of(each)[0], "terms")) for each in identities
    ]
    numbers = [None if number is None else TermsId(replies.time(number)) for number in answers]
    yield from read_terms(keys, numbers)
    texts = [None if number is None else keys.terms_texts.get(number) for number in numbers]
    return [None if text is None else terms.read(text) for text in texts]


def _sweep(op: Sweep, keys: Keys) -> Plan[Tended]:
    found = yield from _due_entries(keys, "lease", op.limit)
    known = yield from _terms_of(keys, found.due)
    arguments = [(b"", b"" if each is None else each.retention) for each in known]
    left = yield from _change(keys, "lapse", found.due, arguments)
    counts = Counter(LAPSED_TO[state].value for state in left if state)
    return Tended(dict(counts), len(found.due) >= op.limit > 0, found.now)


def _abandon(op: Abandon, keys: Keys) -> Plan[Tended]:
    found = yield from _due_entries(keys, "deadline", op.limit)
    known = yield from _terms_of(keys, found.due)
    arguments: list[Sequence[Word]] = [
        (op.snapshot,) if each is None else (op.snapshot, each.retention, each.tombstone)
        for each in known
    ]
    left = yield from _change(keys, "abandon", found.due, arguments)
    counts = {RecordEvent.ABANDON.value: len(left)} if left else {}
    return Tended(counts, len(found.due) >= op.limit > 0, found.now)


def _reap(op: Reap, keys: Keys) -> Plan[Tended]:
    """Expire, then forget: what expires now may be forgotten in the same round."""
    old = yield from _due_entries(keys, "expire", op.limit)
    expired = yield from _change(keys, "expire", old.due, [()] * len(old.due))
    done = yield from _due_entries(keys, "forget", op.limit)
    forgotten = yield from _change(keys, "forget", done.due, [(b"",)] * len(done.due))
    events = yield from _purge_events(op.limit, keys)
    counts = {
        RecordEvent.EXPIRE.value: len(expired),
        RecordEvent.FORGET.value: len(forgotten),
        "events": events,
    }
    more = max(len(old.due), len(done.due)) >= op.limit > 0 or events >= op.limit
    return Tended({name: count for name, count in counts.items() if count}, more, done.now)


def _purge_events(limit: int, keys: Keys) -> Plan[int]:
    """Forget up to about ``limit`` events; returns how many."""
    sizes = yield [RedisCall(bucket, ("ZCARD", keys.events(bucket))) for bucket in range(BUCKETS)]
    buckets = [bucket for bucket, size in enumerate(sizes) if size]
    left = limit
    while buckets and left > 0:
        some = buckets[:left]
        del buckets[: len(some)]
        each = min(PAGE, max(1, left // len(some)))
        answers = yield [
            script_call(bucket, "purge_events", (keys.events(bucket),), each) for bucket in some
        ]
        left -= sum(replies.fields(answer, 2)[0] for answer in answers)
    return limit - left


def _retire(op: Retire, keys: Keys) -> Plan[Retired]:
    resource, tenant = shown(op.resource), shown(op.tenant)
    digest = made_by(tenant, resource)
    between = (b"[" + digest, b"[" + digest + LAST, "BYLEX")
    answers = yield [
        RedisCall(bucket, ("ZRANGE", keys.index(bucket, "made"), *between))
        for bucket in range(BUCKETS)
    ]
    members = [each for answer in answers for each in replies.fields(answer, 0)]
    found = [Identity(each[len(digest) :]) for each in members]
    known = yield from _terms_of(keys, found)
    identities = [
        identity
        for identity, its in zip(found, known, strict=True)
        if terms.application_of(its) == op.application
    ]
    (time,) = yield _clock(0)
    now, count = replies.clock(time), 0
    for page in _pages(identities):
        answers = yield [record_call("retire", keys, each, resource, tenant) for each in page]
        count += sum(replies.fields(answer, 2)[0] for answer in answers)
        now = replies.time(replies.fields(answers[-1], 2)[1])
    return Retired(count, now)


LAST: Final = b"\xff" * 33
"""Greater than every identity."""


def made_by(tenant: str, resource: str) -> bytes:
    """The prefix of entries in the index ``made``; `shared.lua` makes the same."""
    text = f"{tenant}\0{resource}".encode()
    return sha1(text, usedforsecurity=False).hexdigest().encode()


MAINTENANCE_PLANS: Final[Plans] = {
    Due: _due,
    CountDue: _count_due,
    Browse: _browse,
    Scan: _scan,
    Count: _count,
    Sweep: _sweep,
    Abandon: _abandon,
    Reap: _reap,
    Retire: _retire,
}
