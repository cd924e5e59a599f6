"""Plans for notables, and for workers that were last seen. No I/O.

Each bucket has a stream of notables, which holds its share of `MOST_NOTABLES`; writing to it lets
the oldest go. Those of an identity are in its own bucket, so that they are found there; others go
to a bucket by chance, and all of one batch to the same, which keeps their order. A list asks every
bucket for its newest.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from semel.core import operations as ops
from semel.core.records import Identity, Micros
from semel.core.texts import exact, indexed, shown
from semel.errors import ConfigurationError, StoreCorrupt
from semel.stores.options import whole
from semel.stores.redis import replies
from semel.stores.redis.commands import BUCKETS, Keys, RedisCall, Word, bucket_of, script_call
from semel.stores.redis.plans import Plan, Plans

SHARE: Final = -(-ops.MOST_NOTABLES // BUCKETS)
"""How many notables a bucket keeps."""
AT_ONCE: Final = 64
"""Buckets whose notables are read whole at once."""
TIME: Final = ("TIME",)


class StreamPlace(NamedTuple):
    """The place of an entry: its number in a stream, and the bucket of the stream."""

    millis: int
    sequence: int
    bucket: int

    @property
    def text(self) -> str:
        return f"{self.millis}-{self.sequence}-{self.bucket}"

    def start(self, bucket: int) -> str:
        """Where a bucket goes on, newest first, with what comes before this place.

        In later buckets, the entry of this number does not come before it.
        """
        return f"{'' if bucket < self.bucket else '('}{self.millis}-{self.sequence}"


def place_of(text: str | None, what: str) -> StreamPlace | None:
    """The place that somebody names; None where nobody does."""
    if text is None:
        return None
    numbers = [whole(each) for each in text.split("-")]
    known = [each for each in numbers if each is not None]
    if len(numbers) != 3 or len(known) != 3:
        raise ConfigurationError(f"this is no place in the {what} of this store")
    return StreamPlace(*known)


def stream_entries(bucket: int, answer: Any) -> list[tuple[StreamPlace, dict[bytes, bytes]]]:
    """What a range of a bucket's stream answered: places, and fields by name."""
    found: list[tuple[StreamPlace, dict[bytes, bytes]]] = []
    for number, flat in replies.fields(answer, 0):
        millis, _, sequence = replies.text(number).partition("-")
        place = StreamPlace(int(millis), int(sequence), bucket)
        found.append((place, dict(zip(flat[::2], flat[1::2], strict=True))))
    return found


# ── notables ──────────────────────────────────────────────────────────────────────────────────────


def _write(op: ops.WriteNotables, keys: Keys) -> Plan[ops.NotablesChanged]:
    spare = secrets.randbelow(BUCKETS)
    calls = [_written(each, op.keep, keys, spare) for each in op.notables]
    (time, *answers) = yield [RedisCall(spare, TIME), *calls]
    for answer in answers:
        replies.fields(answer, 1)
    return ops.NotablesChanged(len(answers), replies.clock(time))


def _written(notable: ops.Notable, keep: Micros, keys: Keys, spare: int) -> RedisCall:
    bucket = spare if notable.identity is None else bucket_of(notable.identity)
    words: list[Word] = [SHARE, keep, "kind", notable.kind.value]
    words += ["application", indexed(notable.application), "route", shown(notable.route)]
    words += ["tenant", shown(notable.tenant), "detail", exact(notable.detail)]
    words += ["times", notable.count]
    if notable.identity is not None:
        words += ["identity", notable.identity]
    return script_call(bucket, "write_notable", (keys.notables(bucket),), *words)


def _browse(op: ops.BrowseNotables, keys: Keys) -> Plan[ops.NotableEntries]:
    """Asks for few of each bucket, then for more: mostly the newest lie in many buckets."""
    before = place_of(op.before, "notables")
    buckets: Sequence[int] = range(BUCKETS) if op.identity is None else (bucket_of(op.identity),)
    count = 4 + op.limit // 64
    found: list[ops.NotableEntry] = []
    while True:
        page = yield from _newest(keys, buckets, before, count)
        found += [entry for entry in page.entries if op.wants(entry)]
        if len(found) >= op.limit or page.until is None:
            break
        before, count = page.until, min(2 * count, SHARE)
    until = found[op.limit - 1].place if found and len(found) >= op.limit else None
    return ops.NotableEntries(tuple(found[: op.limit]), until, page.now)


class _NotablePage(NamedTuple):
    """The newest of some buckets, all down to ``until``; None: there are no more."""

    entries: list[ops.NotableEntry]
    until: StreamPlace | None
    now: Micros


def _newest(
    keys: Keys, buckets: Iterable[int], before: StreamPlace | None, count: int
) -> Plan[_NotablePage]:
    """A bucket that returns as many as it was asked for may have more. So what is older in other
    buckets is left for the next page."""
    calls = [
        RedisCall(
            bucket,
            (
                *("XREVRANGE", keys.notables(bucket), before.start(bucket) if before else "+"),
                *("-", "COUNT", count),
            ),
        )
        for bucket in buckets
    ]
    time, *answers = yield [RedisCall(0, TIME), *calls]
    read = [
        stream_entries(call.bucket, answer) for call, answer in zip(calls, answers, strict=True)
    ]
    until = max((each[-1][0] for each in read if len(each) >= count), default=None)
    every = [pair for each in read for pair in each if until is None or pair[0] >= until]
    every.sort(key=lambda pair: pair[0], reverse=True)
    return _NotablePage([_entry(*pair) for pair in every], until, replies.clock(time))


def _entry(place: StreamPlace, held: dict[bytes, bytes]) -> ops.NotableEntry:
    own = held.get(b"identity")
    names = (b"kind", b"application", b"route", b"tenant", b"detail")
    kind, application, route, tenant, detail = [replies.text(held.get(name)) for name in names]
    return ops.NotableEntry(
        *(place.text, replies.time(held.get(b"at")), kind, application, route, tenant),
        *(None if own is None else Identity(own), detail, replies.time(held.get(b"times"))),
    )


def _erase(op: ops.EraseNotables, keys: Keys) -> Plan[ops.NotablesChanged]:
    whose = shown(op.tenant).encode(), indexed(op.application).encode()
    count, now = 0, 0
    for start in range(0, BUCKETS, AT_ONCE):
        some = range(start, start + AT_ONCE)
        ranges = [RedisCall(each, ("XRANGE", keys.notables(each), "-", "+")) for each in some]
        time, *answers = yield [RedisCall(0, TIME), *ranges]
        now = replies.clock(time)
        theirs = [
            (bucket, keys.notables(bucket), f"{place.millis}-{place.sequence}")
            for bucket, answer in zip(some, answers, strict=True)
            for place, held in stream_entries(bucket, answer)
            if (held.get(b"tenant"), held.get(b"application")) == whose
        ][: op.limit - count]
        if theirs:
            count += sum(
                (yield [RedisCall(at, ("XDEL", key, number)) for at, key, number in theirs])
            )
        if count >= op.limit:
            break
    return ops.NotablesChanged(count, now)


PURGE_EVENTS: Final = "ZCARD", "purge_events"
PURGE_NOTABLES: Final = "XLEN", "purge_notables"
"""The command that tells how many there are, and the script that purges."""


def purge(how: tuple[str, str], key_of: Callable[[int], bytes], limit: int, most: int) -> Plan[int]:
    """Forget up to about ``limit`` entries, at most ``most`` of a bucket; returns how many."""
    size_of, script = how
    sizes = yield [RedisCall(bucket, (size_of, key_of(bucket))) for bucket in range(BUCKETS)]
    buckets = [bucket for bucket, size in enumerate(sizes) if size]
    left = limit
    while buckets and left > 0:
        some = buckets[:left]
        del buckets[: len(some)]
        each = min(most, max(1, left // len(some)))
        answers = yield [script_call(bucket, script, (key_of(bucket),), each) for bucket in some]
        left -= sum(replies.fields(answer, 2)[0] for answer in answers)
    return limit - left


def _prune(op: ops.Prune, keys: Keys) -> Plan[ops.Tended]:
    notables = yield from purge(PURGE_NOTABLES, keys.notables, op.limit, op.limit)
    memory = (ops.WORKER_MEMORY, op.limit)
    (answer,) = yield (script_call(keys.workers[0], "purge_workers", keys.workers[1:], *memory),)
    gone, now = replies.fields(answer, 2)
    counts = {"notables": notables, "workers": gone}
    more = notables >= op.limit or gone >= op.limit
    return ops.Tended({name: count for name, count in counts.items() if count}, more, now)


# ── workers ───────────────────────────────────────────────────────────────────────────────────────


def _beat(op: ops.Beat, keys: Keys) -> Plan[ops.Beaten]:
    given = op.worker
    texts = [shown(each) for each in (given.role, given.does, given.host, given.version)]
    about = [indexed(given.application), *texts, given.pid, given.leading, op.lease]
    words: tuple[Word, ...] = (exact(given.id), json.dumps(about))
    lease: tuple[Word, ...] = () if op.lease is None else (op.lease,)
    (answer,) = yield (script_call(keys.workers[0], "beat", keys.workers[1:], *words, *lease),)
    return ops.Beaten(replies.time(replies.fields(answer, 1)[0]))


def _list_workers(op: ops.ListWorkers, keys: Keys) -> Plan[ops.WorkersSeen]:
    bucket, known, beats = keys.workers
    time, every, ends = yield (
        RedisCall(bucket, TIME),
        RedisCall(bucket, ("HGETALL", known)),
        RedisCall(bucket, ("ZRANGE", beats, 0, -1, "WITHSCORES")),
    )
    names, texts = replies.fields(every, 0)[::2], replies.fields(every, 0)[1::2]
    about = dict(zip(names, texts, strict=True))
    flat = replies.fields(ends, 0)
    seen = [
        _seen(name, about[name], int(float(end)))
        for name, end in zip(flat[::2], flat[1::2], strict=True)
        if name in about  # who ended between the two is not listed
    ]
    seen.sort(key=lambda each: (-each.seen_at, each.worker.id))
    return ops.WorkersSeen(tuple(seen[: op.limit]), replies.clock(time))


def _seen(name: bytes, about: bytes, until: Micros) -> ops.WorkerSeen:
    try:
        application, role, does, host, version, pid, leading, lease = json.loads(about)
        info = ops.WorkerInfo(
            *(replies.text(name), str(application), str(role), str(does), str(host), int(pid)),
            *(str(version), bool(leading)),
        )
        return ops.WorkerSeen(info, until - int(lease), until)
    except (ValueError, TypeError):
        raise StoreCorrupt("what is kept of a worker cannot be read") from None


NOTABLE_PLANS: Final[Plans] = {
    ops.WriteNotables: _write,
    ops.BrowseNotables: _browse,
    ops.EraseNotables: _erase,
    ops.Prune: _prune,
    ops.Beat: _beat,
    ops.ListWorkers: _list_workers,
}
