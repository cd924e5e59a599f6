"""What workers, maintenance and operators ask, over all buckets, without I/O.

There is no index over all records, for it would lie in one slot; there is one for each bucket. A
round looks at the head of each, which is some 1,024 small questions in one pipeline for each node,
and from then on only at buckets that have something. What is to be changed is changed record by
record, by scripts that check everything again: what others did in between is not undone. Each
record is judged by the clock of its own node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha1
from typing import Any, Final, NamedTuple

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
from semel.core.operations.requests import StoreOperation
from semel.core.records import Case, Glimpse, Identity, Micros, OnLapse, State
from semel.core.states import RecordEvent
from semel.core.terms import Terms, TermsId
from semel.core.texts import shown
from semel.stores.redis import replies as answers
from semel.stores.redis.commands import Word
from semel.stores.redis.keys import BUCKETS, DUTIES, Keys, bucket_of
from semel.stores.redis.plans import Make, Plan, RedisCall, learn_terms, of_script, on_record
from semel.stores.redis.replies import Answer

WORK: Final[Mapping[Work, str]] = {Work.PENDING: "run", Work.LAPSED: "resume", Work.UNKNOWN: "ask"}

STATES_OF: Final[Mapping[str, frozenset[State]]] = {
    "lease": frozenset((State.IN_PROGRESS,)),
    "resume": frozenset((State.IN_PROGRESS,)),
    "run": frozenset((State.PENDING,)),
    "ask": frozenset((State.UNKNOWN,)),
    "expire": frozenset((State.COMPLETED,)),
    "forget": frozenset((State.FAILED_RETRYABLE, State.EXPIRED)),
}
"""Which records an index has."""

LAPSED_TO: Final[Mapping[State, RecordEvent]] = {
    State.UNKNOWN: RecordEvent.LAPSE,
    State.FAILED_RETRYABLE: RecordEvent.LAPSE_RELEASE,
    State.PENDING: RecordEvent.LAPSE_REQUEUE,
}
"""What happened to a swept record, by the state it has now."""

PAGE: Final = 1000
"""Identities or cases that are asked for at once: one answer stays within some hundred kB, unless
requests and snapshots are large."""

_NEVER: Final = float("inf")


class _Entry(NamedTuple):
    """One of an index: when it is due, and what."""

    due: float
    identity: Identity


def _command(bucket: int, *words: Word) -> RedisCall:
    return RedisCall(bucket, words)


def _clock(buckets: Iterable[int]) -> list[RedisCall]:
    return [_command(bucket, "TIME") for bucket in buckets]


def _entries(answer: Answer) -> list[_Entry]:
    flat = answers.fields(answer, 0)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [_Entry(float(due), Identity(identity)) for identity, due in pairs]


def _heads(keys: Keys, index: str) -> Plan[dict[int, float]]:
    """When the first of each bucket is due; without the empty ones."""
    found = yield [
        _command(bucket, "ZRANGE", keys.index(bucket, index), 0, 0, "WITHSCORES")
        for bucket in range(BUCKETS)
    ]
    first = {bucket: _entries(answer) for bucket, answer in enumerate(found)}
    return {bucket: entries[0].due for bucket, entries in first.items() if entries}


class _Glance(NamedTuple):
    """What is due of one index, longest first, and what comes next."""

    due: list[Identity]
    next_due: Micros | None
    now: Micros


def _glance(keys: Keys, index: str, limit: int) -> Plan[_Glance]:
    """The first ``limit`` of all buckets lie in the ``limit`` buckets whose heads come first."""
    heads = yield from _heads(keys, index)
    if not heads:
        (said,) = yield _clock((0,))
        return _Glance([], None, answers.clock(said))
    first = sorted(heads, key=heads.__getitem__)[: max(1, limit)]
    told = yield [
        call
        for bucket in first
        for call in (
            _command(bucket, "TIME"),
            _command(bucket, "ZRANGE", keys.index(bucket, index), 0, max(0, limit), "WITHSCORES"),
        )
    ]
    clocks = [answers.clock(answer) for answer in told[::2]]
    due: list[_Entry] = []
    coming = [head for bucket, head in heads.items() if bucket not in set(first)]
    for now, answer in zip(clocks, told[1::2], strict=True):
        for entry in _entries(answer):
            (due.append(entry) if entry.due <= now else coming.append(entry.due))
    due.sort()
    rest = [head for head in coming if head != _NEVER]
    return _Glance(
        [entry.identity for entry in due[:limit]], int(min(rest)) if rest else None, max(clocks)
    )


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────


def _cases(keys: Keys, identities: Sequence[Identity]) -> Plan[list[tuple[Case, Micros]]]:
    """Each with the clock of its node; what is gone by now is left out."""
    found: list[tuple[Case, Micros]] = []
    for start in range(0, len(identities), PAGE):
        page = identities[start : start + PAGE]
        told = yield [on_record("recall", keys, identity) for identity in page]
        yield from learn_terms(keys, [answers.terms_id(answers.fields(it, 3)[2]) for it in told])
        for identity, answer in zip(page, told, strict=True):
            now, row, rest = answers.fields(answer, 3)
            if case := answers.case(identity, row, rest, keys.said):
                found.append((case, answers.time(now)))
    return found


def _due(op: Due, keys: Keys) -> Plan[DueRecords]:
    """Past their deadline, requests are first of their index until somebody abandons them."""
    window = op.limit
    while True:
        glance = yield from _glance(keys, WORK[op.work], window)
        cases = yield from _cases(keys, glance.due)
        due = [case for case, now in cases if _is_due(op.work, case, now)]
        ready = tuple(
            [case for case in due if (op.known is None or op.known.covers(case.terms))][: op.limit]
        )
        if len(ready) >= op.limit or len(glance.due) < window:
            break
        window *= 2
    full = len(ready) >= op.limit
    return DueRecords(ready, glance.now, glance.now if full else glance.next_due)


def _count_due(op: CountDue, keys: Keys) -> Plan[Waiting]:
    counts: Counter[tuple[str, str] | None] = Counter()
    now = 0
    for work in Work:
        glance = yield from _glance(keys, WORK[work], op.limit)
        cases = yield from _cases(keys, glance.due)
        due = [case for case, at in cases if _is_due(work, case, at)]
        counts.update(terms.route_of(case.terms) for case in due)
        now = glance.now
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


def _browse(op: Browse, keys: Keys) -> Plan[DueRecords]:
    """Bucket by bucket, which is the order of identities; as many as the page needs."""
    duties = [duty for duty in DUTIES if STATES_OF[duty] & {*op.states}]
    first = 0 if op.after is None else bucket_of(op.after)
    (said,) = yield _clock((first,))
    sizes = yield from _sizes(keys, duties, first)
    cases: list[Case] = []
    buckets = sorted(sizes)
    while buckets and len(cases) < op.limit:
        some = _some(buckets, sizes)
        del buckets[: len(some)]
        cases += yield from _page(op, keys, duties, some, op.limit - len(cases))
    return DueRecords(tuple(cases), answers.clock(said))


def _sizes(keys: Keys, duties: Sequence[str], first: int) -> Plan[dict[int, int]]:
    asked = [
        _command(bucket, "ZCARD", keys.index(bucket, duty))
        for bucket in range(first, BUCKETS)
        for duty in duties
    ]
    if not asked:
        return {}
    told = yield asked
    sizes: Counter[int] = Counter()
    for call, size in zip(asked, told, strict=True):
        sizes[call.bucket] += size
    return {bucket: size for bucket, size in sizes.items() if size}


def _some(buckets: Sequence[int], sizes: Mapping[int, int]) -> list[int]:
    """The next buckets that together hold no more than a page, but one at least."""
    some: list[int] = []
    size = 0
    for bucket in buckets:
        size += sizes[bucket]
        if some and size > PAGE:
            break
        some.append(bucket)
    return some


def _page(
    op: Browse, keys: Keys, duties: Sequence[str], buckets: Sequence[int], limit: int
) -> Plan[list[Case]]:
    identities = yield from _members(keys, duties, buckets, op.after or b"")
    found: list[Case] = []
    for start in range(0, len(identities), PAGE):
        cases = yield from _cases(keys, identities[start : start + PAGE])
        found += [case for case, _ in cases if _shown(op, case)]
        if len(found) >= limit:
            break
    return found[:limit]


def _members(
    keys: Keys, duties: Sequence[str], buckets: Sequence[int], after: bytes
) -> Plan[list[Identity]]:
    """The identities in these indexes, in their order."""
    told = yield [
        _command(bucket, "ZRANGE", keys.index(bucket, duty), 0, -1)
        for bucket in buckets
        for duty in duties
    ]
    members = {Identity(each) for answer in told for each in answers.fields(answer, 0)}
    return sorted(each for each in members if each > after)


def _shown(op: Browse, case: Case) -> bool:
    return case.record.state in op.states and not (op.dead and case.due_at is not None)


def _scan(op: Scan, keys: Keys) -> Plan[Scanned]:
    """Bucket by bucket, which is the order of identities, until the page is full."""
    duties = [duty for duty in DUTIES if STATES_OF[duty] & {*op.states}]
    first = 0 if op.after is None else bucket_of(op.after)
    (said,) = yield _clock((first,))
    page, until = yield from _next_page(keys, duties, op.limit, op.after)
    glimpses = yield from _glimpses(keys, page)
    found = tuple([each for each in glimpses if each.state in op.states])
    return Scanned(found, until, answers.clock(said))


def _count(op: Count, keys: Keys) -> Plan[Counted]:
    """As `_scan`; of each record only its tenant and state are read."""
    first = 0 if op.after is None else bucket_of(op.after)
    (said,) = yield _clock((first,))
    page, until = yield from _next_page(keys, DUTIES, op.limit, op.after)
    tenants: Counter[str] = Counter()
    for start in range(0, len(page), PAGE):
        told = yield [
            _command(bucket_of(each), "HMGET", keys.of(each)[0], "tenant", "state")
            for each in page[start : start + PAGE]
        ]
        for tenant, state in (answers.fields(answer, 2) for answer in told):
            if tenant is not None and state != b"expired":
                tenants[bytes(tenant).decode()] += 1
    return Counted(dict(tenants), until, answers.clock(said))


def _next_page(
    keys: Keys, duties: Sequence[str], limit: int, after: Identity | None
) -> Plan[tuple[list[Identity], Identity | None]]:
    """Bucket by bucket, until the page is full; and the last of it where there is more."""
    sizes = yield from _sizes(keys, duties, 0 if after is None else bucket_of(after))
    buckets, seen = sorted(sizes), list[Identity]()
    while buckets and len(seen) <= limit:
        some = _some(buckets, sizes)
        del buckets[: len(some)]
        seen += yield from _members(keys, duties, some, after or b"")
    page = seen[:limit]
    return page, page[-1] if page and (buckets or len(seen) > len(page)) else None


def _glimpses(keys: Keys, identities: Sequence[Identity]) -> Plan[list[Glimpse]]:
    """What is gone by now is left out."""
    found: list[Glimpse] = []
    for start in range(0, len(identities), PAGE):
        page = identities[start : start + PAGE]
        told = yield [on_record("glimpse", keys, identity) for identity in page]
        yield from learn_terms(keys, [answers.terms_id(answers.fields(it, 3)[1]) for it in told])
        for identity, answer in zip(page, told, strict=True):
            _, row, size = answers.fields(answer, 3)
            if seen := answers.glimpse(identity, row, size, keys.said):
                found.append(seen)
    return found


# ── maintenance ───────────────────────────────────────────────────────────────────────────────────


class _Round(NamedTuple):
    left: list[State | None]
    """The states of what was changed."""
    more: bool
    now: Micros


def _round(keys: Keys, index: str, limit: int, name: str, *words: Word) -> Plan[_Round]:
    """One script for each that is due: it answers 1 where it changed something."""
    glance = yield from _glance(keys, index, limit)
    return (yield from _each(keys, glance, limit, name, [words] * len(glance.due)))


def _each(
    keys: Keys, glance: _Glance, limit: int, name: str, words: Sequence[Sequence[Word]]
) -> Plan[_Round]:
    """The same, with words for each of its own."""
    if not glance.due:
        return _Round([], False, glance.now)
    told = yield [
        on_record(name, keys, identity, *own)
        for identity, own in zip(glance.due, words, strict=True)
    ]
    changed = [answer for answer in told if answers.fields(answer, 2)[0] == 1]
    left = [answers.state(answers.fields(answer, 3)[2]) for answer in changed]
    return _Round(left, len(glance.due) >= limit, glance.now)


def _times(keys: Keys, identities: Sequence[Identity]) -> Plan[list[Terms | None]]:
    """The terms of each; None where they are not on record."""
    if not identities:
        return []
    told = yield [
        _command(bucket_of(each), "HGET", keys.of(each)[0], "terms") for each in identities
    ]
    numbers = [None if number is None else TermsId(answers.time(number)) for number in told]
    yield from learn_terms(keys, numbers)
    said = [None if number is None else keys.said.get(number) for number in numbers]
    return [None if text is None else terms.read(text) for text in said]


def _sweep(op: Sweep, keys: Keys) -> Plan[Tended]:
    glance = yield from _glance(keys, "lease", op.limit)
    times = yield from _times(keys, glance.due)
    words: list[Sequence[Word]] = [(b"", b"" if it is None else it.retention) for it in times]
    done = yield from _each(keys, glance, op.limit, "lapse", words)
    counts = Counter(LAPSED_TO[state].value for state in done.left if state)
    return Tended(dict(counts), done.more, done.now)


def _abandon(op: Abandon, keys: Keys) -> Plan[Tended]:
    glance = yield from _glance(keys, "deadline", op.limit)
    times = yield from _times(keys, glance.due)
    words: list[Sequence[Word]] = [
        (op.snapshot,) if it is None else (op.snapshot, it.retention, it.tombstone) for it in times
    ]
    done = yield from _each(keys, glance, op.limit, "abandon", words)
    counts = {RecordEvent.ABANDON.value: len(done.left)} if done.left else {}
    return Tended(counts, done.more, done.now)


def _reap(op: Reap, keys: Keys) -> Plan[Tended]:
    """What expires may be forgotten in the same round."""
    expired = yield from _round(keys, "expire", op.limit, "expire")
    forgotten = yield from _round(keys, "forget", op.limit, "forget", b"")
    events, more = yield from _purge_events(op.limit, keys)
    counts = {
        RecordEvent.EXPIRE.value: len(expired.left),
        RecordEvent.FORGET.value: len(forgotten.left),
        "events": events,
    }
    return Tended(
        {name: count for name, count in counts.items() if count},
        expired.more or forgotten.more or more,
        forgotten.now,
    )


def _purge_events(limit: int, keys: Keys) -> Plan[tuple[int, bool]]:
    sizes = yield [_command(bucket, "ZCARD", keys.events(bucket)) for bucket in range(BUCKETS)]
    buckets = [bucket for bucket, size in enumerate(sizes) if size]
    left = limit
    while buckets and left > 0:
        some = buckets[:left]
        del buckets[: len(some)]
        each = min(PAGE, max(1, left // len(some)))
        told = yield [
            of_script(bucket, "purge_events", (keys.events(bucket),), each) for bucket in some
        ]
        left -= sum(answers.fields(answer, 2)[0] for answer in told)
    return limit - left, left <= 0


def _retire(op: Retire, keys: Keys) -> Plan[Retired]:
    resource, tenant = shown(op.resource), shown(op.tenant)
    digest = made(tenant, resource)
    between = (b"[" + digest, b"[" + digest + LAST, "BYLEX")
    told = yield [
        _command(bucket, "ZRANGE", keys.index(bucket, "made"), *between)
        for bucket in range(BUCKETS)
    ]
    members = [each for answer in told for each in answers.fields(answer, 0)]
    made_it = [Identity(each[len(digest) :]) for each in members]
    times = yield from _times(keys, made_it)
    identities = [
        identity
        for identity, its in zip(made_it, times, strict=True)
        if terms.application_of(its) == op.application
    ]
    (said,) = yield _clock((0,))
    now, count = answers.clock(said), 0
    for start in range(0, len(identities), PAGE):
        page = identities[start : start + PAGE]
        replies = yield [on_record("retire", keys, each, resource, tenant) for each in page]
        count += sum(answers.fields(answer, 2)[0] for answer in replies)
        now = answers.time(answers.fields(replies[-1], 2)[1])
    return Retired(count, now)


LAST: Final = b"\xff" * 33
"""After every identity."""


def made(tenant: str, resource: str) -> bytes:
    """As `shared.lua` names it."""
    text = f"{tenant}\0{resource}".encode()
    return sha1(text, usedforsecurity=False).hexdigest().encode()


ROUNDS: Final[Mapping[type[StoreOperation[Any]], Make]] = {
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
