"""Plans of workers, maintenance, lists and the audit, which look at all buckets. No I/O.

Each bucket has its own index: one over all records would lie in one slot. It is ordered by duty,
then by time, so each duty has its queue there. A plan first asks for the head of a queue in all
1,024 buckets, in one pipeline for each node, and then only looks at buckets that have something.
Scripts change one record each, and check everything again: what others did in between is not
undone. The clock of a record's own node decides whether the record is due.

Each bucket has its own audit too, a stream: the script that does an act also puts it on record, and
all keys of a script lie in one slot. A list of acts asks every bucket for its newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha1
from math import inf
from operator import attrgetter
from typing import Any, Final, NamedTuple

from semel.core import operations as ops
from semel.core import terms
from semel.core.frozen import replace
from semel.core.records import DUTY_NUMBERS, Case, Duty, Fence, Identity, Micros, State
from semel.core.states import RecordEvent
from semel.core.terms import Terms
from semel.core.texts import shown
from semel.stores.base import is_due, record_groups
from semel.stores.redis import replies
from semel.stores.redis.commands import (
    BUCKETS,
    Keys,
    RedisCall,
    Word,
    bucket_for,
    bucket_of,
    script_call,
)
from semel.stores.redis.layout import RANK, Stored
from semel.stores.redis.plans import Plan, Plans, read_terms, record_call, signed
from semel.stores.redis.plans_notables import (
    PURGE_EVENTS,
    TIME,
    StreamPlace,
    place_of,
    purge,
    stream_entries,
)
from semel.stores.redis.replies import Answer
from semel.stores.sql import rows
from semel.stores.sql.plans_maintenance import DEAD, LAPSED, unsettled_counts

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


def _in_pages(calls: Sequence[RedisCall], least: int) -> Plan[list[Sequence[Any]]]:
    """Send calls about one record each, `PAGE` at a time. ``least``: the fields of each answer."""
    answers: list[Answer] = []
    for start in range(0, len(calls), PAGE):
        answers += yield calls[start : start + PAGE]
    return [replies.fields(answer, least) for answer in answers]


class _Seen(NamedTuple):
    """A record that was read, by the clock of its node, with its terms, and what the script told
    besides."""

    found: Stored
    now: Micros
    rest: Sequence[Any]
    terms: Terms | None


def _each(keys: Keys, identities: Sequence[Identity], script: str) -> Plan[list[_Seen]]:
    """Read these records by a script, and their terms; what is gone by now is left out."""
    rows = yield from _in_pages([record_call(script, keys, each) for each in identities], 3)
    seen = [
        (found, replies.time(now), rest)
        for identity, (now, data, *rest) in zip(identities, rows, strict=True)
        if (found := replies.stored(identity, data))
    ]
    agreed = yield from read_terms(keys, [found.terms for found, _, _ in seen])
    return [_Seen(*each, its) for each, its in zip(seen, agreed, strict=True)]


def _terms(keys: Keys, identities: Sequence[Identity]) -> Plan[list[Terms | None]]:
    """The terms of each record; None where there is no record, or they are not on record."""
    seen = yield from _each(keys, identities, "glimpse")
    known = {each.found.row[0]: each.terms for each in seen}
    return [known.get(each) for each in identities]


def _cases(keys: Keys, identities: Sequence[Identity]) -> Plan[list[tuple[Case, Micros]]]:
    """Read these records, each with the clock of its node."""
    seen = yield from _each(keys, identities, "recall")
    return [(replies.case(found, keys.terms_texts, *rest), now) for found, now, rest, _ in seen]


def _clock(bucket: int = 0) -> Plan[Micros]:
    (time,) = yield (RedisCall(bucket, TIME),)
    return replies.clock(time)


# ── what is due ───────────────────────────────────────────────────────────────────────────────────

WORK: Final[Mapping[ops.Work, str]] = {
    ops.Work.PENDING: "run",
    ops.Work.LAPSED: "resume",
    ops.Work.UNKNOWN: "ask",
}


class _DueEntries(NamedTuple):
    """What is due in one index, the oldest first, and when the next entry will be."""

    due: list[Identity]
    next_due: Micros | None
    now: Micros


class _Queue(NamedTuple):
    """What waits for one duty: a part of an index, by score."""

    name: str
    first: int
    last: int

    def head(self, keys: Keys, bucket: int, count: int) -> RedisCall:
        """Its first entries in a bucket, with their scores."""
        where = (keys.index(bucket, self.name), self.first, self.last, "BYSCORE")
        return RedisCall(bucket, ("ZRANGE", *where, "LIMIT", 0, count, "WITHSCORES"))

    def due_at(self, score: bytes) -> float:
        """Infinity: never."""
        if not self.first:
            return float(score)
        place = int(float(score))
        return inf if place == self.last else (place - self.first) * 1000

    def place(self, identity: bytes, score: bytes) -> ops.DuePlace:
        """Where an entry stands; nobody's has no time."""
        due_at = self.due_at(score)
        return ops.DuePlace(None if due_at == inf else int(due_at), Identity(identity))

    def ending(
        self, before: ops.DuePlace | None, bucket: int, *, dead: bool
    ) -> tuple[Word, int | None]:
        """The last score in a bucket that lies before a place; in the place's own bucket also the
        score of entries that may lie before it or not. ``dead``: among those that have no time."""
        at, here = self.last if dead else self.last - 1, None
        if before is not None:
            here = before.identity
            if before.due_at is not None:
                at = min(at, self.first + before.due_at // 1000)
                here = None if before.due_at % 1000 else here
        if here is None or bucket < bucket_of(here):
            return at, None
        return f"({at}", at if bucket == bucket_of(here) else None


DEADLINES: Final = _Queue("deadline", 0, 2**62)
QUEUES: Final = {
    duty: _Queue("due", number * RANK, (number + 1) * RANK - 1)
    for duty, number in DUTY_NUMBERS.items()
}


def _due_entries(keys: Keys, queue: _Queue, limit: int) -> Plan[_DueEntries]:
    """The first ``limit`` of all buckets lie in the ``limit`` buckets whose heads come first."""
    answers = yield [queue.head(keys, bucket, 1) for bucket in range(BUCKETS)]
    heads = {
        bucket: queue.due_at(first[1])
        for bucket, answer in enumerate(answers)
        if (first := replies.fields(answer, 0))
    }
    if not heads:
        return _DueEntries([], None, (yield from _clock()))
    buckets = sorted(heads, key=heads.__getitem__)[: max(1, limit)]
    calls: list[RedisCall] = []
    for bucket in buckets:
        calls += RedisCall(bucket, TIME), queue.head(keys, bucket, max(0, limit) + 1)
    answers = yield calls
    clocks = [replies.clock(answer) for answer in answers[::2]]
    due: list[tuple[float, Identity]] = []
    later = [heads[bucket] for bucket in heads.keys() - {*buckets}]
    for now, answer in zip(clocks, answers[1::2], strict=True):
        flat = replies.fields(answer, 0)
        for identity, due_at in zip(flat[::2], map(queue.due_at, flat[1::2]), strict=True):
            if due_at <= now:
                due.append((due_at, Identity(identity)))
            else:
                later.append(due_at)
    due.sort()
    next_due = min(later, default=inf)
    return _DueEntries(
        [identity for _, identity in due[:limit]],
        None if next_due == inf else int(next_due),
        max(clocks),
    )


def _due(op: ops.Due, keys: Keys) -> Plan[ops.DueRecords]:
    """Requests past their deadline stay first in their index until they are abandoned.

    They must not hide others, so the plan looks at ever more entries until it has enough.
    """
    window = op.limit
    while True:
        found = yield from _due_entries(keys, QUEUES[WORK[op.work]], window)
        cases = yield from _cases(keys, found.due)
        due = [case for case, now in cases if is_due(op.work, case, now)]
        if op.known is not None:
            due = [case for case in due if op.known.covers(case.terms)]
        full = len(due) >= op.limit
        if full or len(found.due) < window:
            ready = tuple(due[: op.limit])
            return ops.DueRecords(ready, found.now, found.now if full else found.next_due)
        window *= 2


def _count_due(op: ops.CountDue, keys: Keys) -> Plan[ops.Waiting]:
    counts: Counter[tuple[str, str] | None] = Counter()
    now = 0
    for work in ops.Work:
        found = yield from _due_entries(keys, QUEUES[WORK[work]], op.limit)
        cases = yield from _cases(keys, found.due)
        due = [case for case, at in cases if is_due(work, case, at)]
        counts.update(terms.route_of(case.terms) for case in due)
        now = found.now
    return ops.Waiting(dict(counts), now)


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────


class _IdentityPage(NamedTuple):
    """The next records of a list. ``until``: where the following page begins; None: nowhere."""

    identities: list[Identity]
    until: Identity | None
    now: Micros


def _next_page(
    keys: Keys, after: Identity | None, limit: int, states: Sequence[State] = tuple(State)
) -> Plan[_IdentityPage]:
    """Read what the indexes have of these states bucket by bucket: in the order of identities."""
    first = 0 if after is None else bucket_of(after)
    queues = [queue for duty, queue in QUEUES.items() if STATES_OF[duty] & {*states}]
    now = yield from _clock(first)
    groups = yield from _bucket_groups(keys, queues, first)
    seen: list[Identity] = []
    while groups and len(seen) <= limit:
        answers = yield [
            RedisCall(bucket, ("ZRANGE", keys.index(bucket, name), start, end, "BYSCORE"))
            for bucket in groups.pop(0)
            for name, start, end in queues
        ]
        members = {Identity(each) for answer in answers for each in replies.fields(answer, 0)}
        seen += sorted(each for each in members if after is None or each > after)
    page = seen[:limit]
    until = page[-1] if page and (groups or len(seen) > len(page)) else None
    return _IdentityPage(page, until, now)


def _bucket_groups(keys: Keys, queues: Sequence[_Queue], first: int) -> Plan[list[list[int]]]:
    """The buckets that are not empty, in groups that hold at most `PAGE` records or one bucket."""
    calls = [
        RedisCall(bucket, ("ZCOUNT", keys.index(bucket, name), start, end))
        for bucket in range(first, BUCKETS)
        for name, start, end in queues
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


def _browse(op: ops.Browse, keys: Keys) -> Plan[ops.DueRecords]:
    listed: list[Case] = []
    after = op.after
    while True:
        page = yield from _next_page(keys, after, max(op.limit, PAGE), op.states)
        cases = yield from _cases(keys, page.identities)
        listed += [
            case
            for case, _ in cases
            if case.record.state in op.states and not (op.dead and case.due_at is not None)
        ]
        after = page.until
        if after is None or len(listed) >= op.limit:
            return ops.DueRecords(tuple(listed[: op.limit]), page.now)


def _scan(op: ops.Scan, keys: Keys) -> Plan[ops.Scanned]:
    page = yield from _next_page(keys, op.after, op.limit, op.states)
    seen = yield from _each(keys, page.identities, "glimpse")
    glimpses = [replies.glimpse(each.found, keys.terms_texts, each.rest) for each in seen]
    listed = tuple([each for each in glimpses if each.state in op.states])
    return ops.Scanned(listed, page.until, page.now)


class _Tail(NamedTuple):
    """The latest entries of a queue in one bucket. ``whole``: it has no others before them."""

    places: list[ops.DuePlace]
    whole: bool


def _tails(
    keys: Keys, op: ops.ListNewest, depths: Mapping[int, int], *, dead: bool
) -> Plan[dict[int, _Tail]]:
    """The latest entries before the operation's place, so many of each bucket.

    Buckets have the order of identities: at the time of the place itself, those of later buckets
    are past it, those of earlier ones are not. Only in its own bucket each must be compared.
    """
    queue, calls = QUEUES[op.duty], list[RedisCall]()
    for bucket, depth in depths.items():
        last, ties = queue.ending(op.before, bucket, dead=dead)
        index, first = keys.index(bucket, queue.name), queue.last if dead else queue.first
        where = (index, last, first, "BYSCORE", "REV", "LIMIT", 0, depth)
        calls.append(RedisCall(bucket, ("ZRANGE", *where, "WITHSCORES")))
        if ties is not None:
            at = (index, ties, ties, "BYSCORE", "REV", "WITHSCORES")
            calls.append(RedisCall(bucket, ("ZRANGE", *at)))
    answers = yield calls
    tails: dict[int, _Tail] = {}
    for call, answer in zip(calls, answers, strict=True):
        flat = replies.fields(answer, 0)
        found = [
            queue.place(replies.data(identity), score)
            for identity, score in zip(flat[::2], flat[1::2], strict=True)
        ]
        if call.bucket not in tails:
            tails[call.bucket] = _Tail(found, len(found) < depths[call.bucket])
        elif op.before is not None:
            tied = [each for each in found if each.identity < op.before.identity]
            tails[call.bucket].places[:0] = tied
    return tails


def _latest(keys: Keys, op: ops.ListNewest, *, dead: bool) -> Plan[list[ops.DuePlace]]:
    """The ``limit`` latest of all buckets. Identities are spread evenly, so a few of each do; a
    bucket whose last known entry is among the chosen is asked for more."""
    depths = dict.fromkeys(range(BUCKETS), min(op.limit, 4 + 2 * op.limit // BUCKETS))
    tails: dict[int, _Tail] = {}
    while True:
        tails |= yield from _tails(keys, op, depths, dead=dead)
        every = [place for tail in tails.values() for place in tail.places]
        chosen = sorted(every, key=attrgetter("rank"), reverse=True)[: op.limit]
        least = chosen[-1].rank if len(chosen) == op.limit else (-1, b"")
        depths = {
            bucket: min(op.limit, 4 * len(tail.places))
            for bucket, tail in tails.items()
            if not tail.whole and len(tail.places) < op.limit and tail.places[-1].rank >= least
        }
        if not depths:
            return chosen


def _newest(op: ops.ListNewest, keys: Keys) -> Plan[ops.Newest]:
    now, asked = (yield from _clock()), op.limit
    places: list[ops.DuePlace] = []
    if op.before is None or op.before.due_at is not None:
        places = yield from _latest(keys, op, dead=False)
        op = replace(op, before=None)
    if op.duty is Duty.ASK and len(places) < op.limit:
        rest = replace(op, limit=op.limit - len(places))
        places += yield from _latest(keys, rest, dead=True)
    seen = yield from _each(keys, [place.identity for place in places], "glimpse")
    glimpses = {
        each.found.row[0]: replies.glimpse(each.found, keys.terms_texts, each.rest) for each in seen
    }
    found = [
        ops.Placed(place, glimpses[place.identity])
        for place in places
        if place.identity in glimpses
    ]
    until = places[-1] if places and len(places) >= asked else None
    return ops.Newest(tuple(found), until, now)


def _list_terms(op: ops.ListTerms, keys: Keys) -> Plan[ops.KnownTerms]:
    bucket, key = keys.terms
    time, answer = yield (RedisCall(bucket, TIME), RedisCall(bucket, ("HVALS", key)))
    texts = map(replies.text, replies.fields(answer, 0)[: op.limit])
    return ops.KnownTerms(tuple(map(terms.read, texts)), replies.clock(time))


def _count_unsettled(op: ops.CountUnsettled, keys: Keys) -> Plan[ops.UnsettledCounts]:
    """Numbers come from the indexes; the age of the oldest from the first `PAGE` of each kind."""
    now = yield from _clock()
    kinds: dict[int, ops.KindCount] = {}
    for duty in (Duty.LEASE, Duty.RESUME, Duty.RUN, Duty.ASK):
        queue, number = QUEUES[duty], DUTY_NUMBERS[duty]
        past = queue.first + now // 1000
        ranges = {number: (queue.first, queue.last - 1)}
        if duty is Duty.ASK:
            ranges[DEAD] = (queue.last, queue.last)
        if duty in (Duty.LEASE, Duty.RESUME):
            ranges[LAPSED] = (queue.first, past)
        for kind, (first, last) in ranges.items():
            counted = yield from _count_range(keys, _Queue(queue.name, first, last), op.limit)
            known = kinds.get(kind, ops.KindCount(0, None))
            oldest = [each for each in (known.oldest, counted.oldest) if each is not None]
            kinds[kind] = ops.KindCount(known.count + counted.count, min(oldest, default=None))
    return unsettled_counts(kinds, now)


def _count_range(keys: Keys, queue: _Queue, limit: int) -> Plan[ops.KindCount]:
    name, first, last = queue
    sizes = yield [
        RedisCall(bucket, ("ZCOUNT", keys.index(bucket, name), first, last))
        for bucket in range(BUCKETS)
    ]
    taken = [bucket for bucket, size in enumerate(sizes) if size][:PAGE]
    answers = yield [
        RedisCall(
            bucket, ("ZRANGE", keys.index(bucket, name), first, last, "BYSCORE", "LIMIT", 0, PAGE)
        )
        for bucket in taken
    ]
    some = [Identity(each) for answer in answers for each in replies.fields(answer, 0)][:PAGE]
    seen = yield from _each(keys, some, "glimpse")
    oldest = min((each.found.row[6] for each in seen), default=None)
    return ops.KindCount(min(sum(sizes), limit), oldest)


def _sample(op: ops.SampleRecords, keys: Keys) -> Plan[ops.SampledRecords]:
    page = yield from _next_page(keys, op.after, op.limit)
    seen = yield from _each(keys, page.identities, "glimpse")
    told = [(each.terms, State(each.found.row[1]), each.found.row[6]) for each in seen]
    return ops.SampledRecords(record_groups(told, op.since), page.until, page.now)


def _count(op: ops.Count, keys: Keys) -> Plan[ops.Counted]:
    page = yield from _next_page(keys, op.after, op.limit)
    seen = yield from _each(keys, page.identities, "glimpse")
    alive = [each.found for each in seen if each.found.row[1] != State.EXPIRED]
    counts = Counter(found.origin[0] for found in alive)
    return ops.Counted(dict(counts), page.until, page.now)


# ── maintenance ───────────────────────────────────────────────────────────────────────────────────


class _Round(NamedTuple):
    """The states of the records that a round changed. ``full``: there may be more to do."""

    states: list[State | None]
    full: bool
    now: Micros


def _round(
    keys: Keys,
    queue: _Queue,
    limit: int,
    script: str,
    words: Callable[[Terms | None], Sequence[Word]],
    *,
    by_terms: bool = False,
) -> Plan[_Round]:
    """Call a script on each record that is due in a queue; it answers 1 where it changed it.

    ``words`` makes its arguments, of the record's terms where ``by_terms`` is set.
    """
    found = yield from _due_entries(keys, queue, limit)
    known: list[Terms | None] = [None] * len(found.due)
    if by_terms:
        known = yield from _terms(keys, found.due)
    due = zip(found.due, known, strict=True)
    calls = [record_call(script, keys, identity, *words(its)) for identity, its in due]
    answers = yield from _in_pages(calls, 2)
    changed = [answer for answer in answers if answer[0] == 1]
    states = [replies.state(replies.fields(answer, 3)[2]) for answer in changed]
    return _Round(states, len(found.due) >= limit > 0, found.now)


def _sweep(op: ops.Sweep, keys: Keys) -> Plan[ops.Tended]:
    def words(its: Terms | None) -> Sequence[Word]:
        return b"", b"" if its is None else its.retention

    lapsed = yield from _round(keys, QUEUES["lease"], op.limit, "lapse", words, by_terms=True)
    counts = Counter(LAPSED_TO[state].value for state in lapsed.states if state)
    return ops.Tended(dict(counts), lapsed.full, lapsed.now)


def _abandon(op: ops.Abandon, keys: Keys) -> Plan[ops.Tended]:
    def words(its: Terms | None) -> Sequence[Word]:
        return (op.snapshot,) if its is None else (op.snapshot, its.retention, its.tombstone)

    left = yield from _round(keys, DEADLINES, op.limit, "abandon", words, by_terms=True)
    counts = {RecordEvent.ABANDON.value: len(left.states)} if left.states else {}
    return ops.Tended(counts, left.full, left.now)


def _reap(op: ops.Reap, keys: Keys) -> Plan[ops.Tended]:
    """Expire, then forget: what expires now may be forgotten in the same round."""
    expired = yield from _round(keys, QUEUES["expire"], op.limit, "expire", lambda _: ())
    forgotten = yield from _round(keys, QUEUES["forget"], op.limit, "forget", lambda _: (b"",))
    events = yield from purge(PURGE_EVENTS, keys.events, op.limit, PAGE)
    more = expired.full or forgotten.full or events >= op.limit
    counts = {
        RecordEvent.EXPIRE.value: len(expired.states),
        RecordEvent.FORGET.value: len(forgotten.states),
        "events": events,
    }
    return ops.Tended({name: each for name, each in counts.items() if each}, more, forgotten.now)


def _retire(op: ops.Retire, keys: Keys) -> Plan[ops.Retired]:
    resource, tenant = shown(op.resource), shown(op.tenant)
    # The prefix of entries in the index ``made``; `shared.lua` makes the same.
    digest = sha1(f"{tenant}\0{resource}".encode(), usedforsecurity=False).hexdigest()[:16].encode()
    between = (b"[" + digest, b"[" + digest + GREATER_THAN_IDENTITIES, "BYLEX")
    answers = yield [
        RedisCall(bucket, ("ZRANGE", keys.index(bucket, "made"), *between))
        for bucket in range(BUCKETS)
    ]
    members = [each for answer in answers for each in replies.fields(answer, 0)]
    found = [Identity(each[len(digest) :]) for each in members]
    known = yield from _terms(keys, found)
    now = yield from _clock()
    calls = [
        record_call("retire", keys, identity, resource, tenant)
        for identity, its in zip(found, known, strict=True)
        if terms.application_of(its) == op.application
    ]
    retired = yield from _in_pages(calls, 2)
    if retired:
        now = replies.time(retired[-1][1])
    return ops.Retired(sum(count for count, _ in retired), now)


GREATER_THAN_IDENTITIES: Final = b"\xff" * 33


# ── erasure and encryption ────────────────────────────────────────────────────────────────────────


def _belongings(op: ops.ListBelongings, keys: Keys) -> Plan[ops.Belongings]:
    """The records of a tenant in one application; what is gone by now is left out."""
    page = yield from _next_page(keys, op.after, op.limit)
    seen = yield from _each(keys, page.identities, "glimpse")
    belonging = tuple(
        rows.belonging(found.row)
        for found, _, _, its in seen
        if found.origin[0] == shown(op.tenant) and terms.application_of(its) == op.application
    )
    return ops.Belongings(belonging, page.until, page.now)


def _unlike(op: ops.ListUnlike, keys: Keys) -> Plan[ops.Exhibits]:
    """The records of which some part does not begin with ``prefix``."""
    page = yield from _next_page(keys, op.after, op.limit)
    calls = [record_call("unlike", keys, each, op.prefix) for each in page.identities]
    answers = yield from _in_pages(calls, 5)
    found: list[ops.Exhibit] = []
    for identity, (fence, reason, *parts) in zip(page.identities, answers, strict=True):
        if fence is not None and any(part is not None for part in parts):
            text = replies.optional_text(reason)
            found.append(ops.Exhibit(identity, Fence(fence), text, *parts[:3]))
    return ops.Exhibits(tuple(found), page.until, page.now)


# ── audit ─────────────────────────────────────────────────────────────────────────────────────────


def _remark(op: ops.Remark, keys: Keys) -> Plan[ops.Remarked]:
    bucket = bucket_for(shown(op.subject))
    words = (op.verb.value, *signed(op.act), shown(op.subject))
    (answer,) = yield (script_call(bucket, "remark", (keys.audit(bucket),), *words),)
    return ops.Remarked(replies.time(replies.fields(answer, 1)[0]))


def _browse_audit(op: ops.BrowseAudit, keys: Keys) -> Plan[ops.AuditEntries]:
    """The newest entries of all buckets before ``op.before``, the newest first."""
    before = place_of(op.before, "audit")
    calls = [RedisCall(0, TIME)]
    for bucket in range(BUCKETS):
        start = before.start(bucket) if before else "+"
        words = ("XREVRANGE", keys.audit(bucket), start, "-", "COUNT", op.limit)
        calls.append(RedisCall(bucket, words))
    time, *answers = yield calls
    found = [pair for each, answer in enumerate(answers) for pair in stream_entries(each, answer)]
    found.sort(key=lambda pair: pair[0], reverse=True)
    entries = tuple([_entry(*pair) for pair in found[: op.limit]])
    return ops.AuditEntries(entries, replies.clock(time))


def _entry(place: StreamPlace, held: dict[bytes, bytes]) -> ops.AuditEntry:
    own, at = held.get(b"identity"), replies.time(held.get(b"at"))
    identity = None if own is None else Identity(own)
    verb, by, reason = (replies.text(held.get(name)) for name in (b"verb", b"by", b"reason"))
    subject, before, after = (
        replies.optional_text(held.get(name) or None) for name in (b"subject", b"before", b"after")
    )
    return ops.AuditEntry(place.text, at, verb, by, reason, identity, subject, before, after)


MAINTENANCE_PLANS: Final[Plans] = {
    ops.Due: _due,
    ops.CountDue: _count_due,
    ops.Browse: _browse,
    ops.Scan: _scan,
    ops.ListNewest: _newest,
    ops.ListTerms: _list_terms,
    ops.CountUnsettled: _count_unsettled,
    ops.SampleRecords: _sample,
    ops.Count: _count,
    ops.Sweep: _sweep,
    ops.Abandon: _abandon,
    ops.Reap: _reap,
    ops.Retire: _retire,
    ops.ListBelongings: _belongings,
    ops.ListUnlike: _unlike,
    ops.Remark: _remark,
    ops.BrowseAudit: _browse_audit,
}
