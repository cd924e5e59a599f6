"""How each operation becomes calls of scripts, and their answers its reply. No I/O.

A plan is a generator. It yields calls and is sent their answers; it returns the operation's reply.
An operation that a request awaits is one call, a `SingleCall`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from semel.core.operations import outbox
from semel.core.operations.acts import Act
from semel.core.operations.maintenance import Lead, Leading, Led, WhoLeads
from semel.core.operations.outbox import Noted, NoteEvent
from semel.core.operations.requests import (
    Accept,
    Accepted,
    Advance,
    Agree,
    Agreed,
    Claim,
    Claimed,
    Complete,
    Conflicting,
    Evict,
    EvictUnknown,
    Fetch,
    Fetched,
    Forget,
    Found,
    Inquire,
    Lapse,
    NoRecord,
    Open,
    Read,
    ReadRecipe,
    Recall,
    Recalled,
    Recorded,
    Register,
    Registered,
    Release,
    Renew,
    Resume,
    Retake,
    SettleAbsent,
    SettleCall,
    SettleHappened,
    Stale,
    StoreOperation,
    Suspend,
    Take,
    Written,
)
from semel.core.records import Identity, Micros
from semel.core.terms import TermsId
from semel.core.texts import described, exact, indexed, shown
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt
from semel.stores.redis import replies
from semel.stores.redis.keys import Keys, bucket_for, bucket_of
from semel.stores.redis.replies import Answer
from semel.stores.redis.scripts import Command, RedisCall, Word, script, script_call

R = TypeVar("R")

Plan: TypeAlias = Generator[Sequence[RedisCall], Sequence[Answer], R]
MakePlan: TypeAlias = Callable[[Any, Keys], Plan[Any]]
Plans: TypeAlias = Mapping[type[StoreOperation[Any]], MakePlan]


class SingleCall(NamedTuple):
    """An operation on one record that is one call of a script, as all are that a request awaits.

    ``command`` makes the command; ``parse`` makes the reply of what Redis answered.
    """

    script: str
    command: Callable[[Any, Keys], Command]
    parse: Callable[[Identity, Answer], Any]


def _single_plan(single: SingleCall) -> MakePlan:
    def plan(op: Any, keys: Keys) -> Plan[Any]:
        call = RedisCall(bucket_of(op.identity), single.command(op, keys), script(single.script))
        (answer,) = yield (call,)
        return single.parse(op.identity, answer)

    return plan


def record_call(
    name: str, keys: Keys, identity: Identity, *words: Word | None, audit: bool = False
) -> RedisCall:
    """Call a script on one record. Optional arguments come last.

    None at the end is left out; None before that becomes empty. ``audit``: the bucket's audit
    stream follows the keys.
    """
    bucket, given = bucket_of(identity), [identity, *words]
    while given[-1] is None:
        given.pop()
    places = keys.of(identity)
    if audit:
        places = (*places, keys.audit(bucket))
    return script_call(bucket, name, places, *[b"" if word is None else word for word in given])


# ── claim and read ────────────────────────────────────────────────────────────────────────────────


def _new_record(op: Claim | Accept, time: Micros) -> tuple[Word, ...]:
    """The arguments that describe a new record. Written out, for this runs in every request."""
    origin = op.origin
    place = (origin.tenant, origin.method, origin.path, origin.key)
    fresh = b"" if op.fresh_until is None else op.fresh_until
    kept = () if op.request is None else (op.request,)
    rest = (op.on_lapse.value, time, fresh, op.terms, *kept)
    texts = described(op.fingerprint, *place)
    return (op.identity, op.fence, texts[0], op.fields, *texts[1:], *rest)


def _claim_command(op: Claim, keys: Keys) -> Command:
    record, indexes = keys.record_and_indexes(op.identity)
    digest = script("claim").digest
    return (b"EVALSHA", digest, 3, record, indexes[0], indexes[1], *_new_record(op, op.lease))


def _claimed(identity: Identity, answer: Answer) -> Claimed | Found | Stale:
    match replies.fields(answer, 1):
        case [2, int(now), int(leased_until), int(created_at)]:
            return Claimed(leased_until, now, created_at)
        case [3]:
            return Stale()
        case row:
            return _found(identity, row)


def _accept(op: Accept, keys: Keys) -> Plan[Accepted | Found | Stale]:
    _, *words = _new_record(op, op.patience)
    (answer,) = yield (record_call("accept", keys, op.identity, *words),)
    match replies.fields(answer, 1):
        case [2, now]:
            return Accepted(replies.time(now))
        case [3]:
            return Stale()
        case row:
            return _found(op.identity, row)


def _found(identity: Identity, row: Sequence[Any]) -> Found:
    record = replies.record(identity, row)
    if record is None:
        raise StoreCorrupt("a claim neither made nor found a record")
    return Found(record, replies.time(row[-1]))


def _read_command(op: Read, keys: Keys) -> Command:
    identity = op.identity
    return (b"EVALSHA", script("read").digest, 1, keys.record_and_indexes(identity)[0], identity)


def _read_reply(identity: Identity, answer: Answer) -> Found | NoRecord:
    record = replies.record(identity, answer)
    now = replies.time(answer[-1])
    return NoRecord(now) if record is None else Found(record, now)


def _fetch(op: Fetch, keys: Keys) -> Plan[Fetched | NoRecord]:
    (answer,) = yield (record_call("fetch", keys, op.identity, op.fence),)
    now, kept = replies.fields(answer, 2)
    return NoRecord(replies.time(now)) if kept is None else Fetched(replies.data(kept))


def _recall(op: Recall, keys: Keys) -> Plan[Recalled | NoRecord]:
    (answer,) = yield (record_call("recall", keys, op.identity),)
    now, row, rest = replies.fields(answer, 3)
    yield from read_terms(keys, [replies.terms_id(rest)])
    case = replies.case(op.identity, row, rest, keys.terms_texts)
    return NoRecord(replies.time(now)) if case is None else Recalled(case, replies.time(now))


def read_terms(keys: Keys, numbers: Iterable[TermsId | None]) -> Plan[None]:
    """Read the texts of these terms into `Keys.terms_texts`, unless they are there."""
    wanted = sorted({each for each in numbers if each is not None} - keys.terms_texts.keys())
    if not wanted:
        return
    bucket, key = keys.terms()
    (answer,) = yield (RedisCall(bucket, ("HMGET", key, *wanted)),)
    for number, text in zip(wanted, replies.fields(answer, len(wanted)), strict=True):
        if text is not None:
            keys.terms_texts[number] = replies.text(text)


# ── writes ────────────────────────────────────────────────────────────────────────────────────────


Arguments: TypeAlias = Callable[[Any], tuple[Word | None, ...]]
"""The arguments of a script, without the identity, which is the first."""


def _write(name: str, arguments: Arguments) -> SingleCall:
    def command(op: Any, keys: Keys) -> Command:
        return record_call(name, keys, op.identity, *arguments(op)).command

    return SingleCall(name, command, replies.written)


def audited_write(name: str, arguments: Arguments) -> MakePlan:
    """A write that an operator asked for; its script puts the act into the audit."""

    def plan(op: Any, keys: Keys) -> Plan[Written]:
        (answer,) = yield (record_call(name, keys, op.identity, *arguments(op), audit=True),)
        return replies.written(op.identity, answer)

    return plan


def _complete_command(op: Complete, keys: Keys) -> Command:
    identity = op.identity
    record, indexes = keys.record_and_indexes(identity)
    lease, resume, _, ask, expire, _, _, made = indexes
    words = (identity, op.fence, op.snapshot, op.retention, op.tombstone)
    digest = script("complete").digest
    if op.resource is None:
        return (b"EVALSHA", digest, 5, record, lease, resume, ask, expire, *words)
    places = (record, lease, resume, ask, expire, made)
    return (b"EVALSHA", digest, 6, *places, *words, shown(op.resource))


def signed(act: Act) -> tuple[Word, Word]:
    return shown(act.by), shown(act.reason)


def _shown(text: str | None) -> str | None:
    return None if text is None else shown(text)


_evict_forced = audited_write(
    "evict_unknown", lambda op: (op.seen, op.fence, op.tombstone, *signed(op.act))
)
_evict_freed = audited_write("free_unknown", lambda op: (op.seen, *signed(op.act)))

SINGLE_CALLS: Final[Mapping[type[StoreOperation[Any]], SingleCall]] = {
    Claim: SingleCall("claim", _claim_command, _claimed),
    Read: SingleCall("read", _read_command, _read_reply),
    Complete: SingleCall("complete", _complete_command, replies.written),
    Retake: _write("retake", lambda op: (op.seen, op.fence, op.lease, op.on_lapse.value)),
    Take: _write("take", lambda op: (op.seen, op.fence, op.lease)),
    Resume: _write("resume", lambda op: (op.seen, op.fence, op.lease)),
    Renew: _write("renew", lambda op: (op.fence, op.lease)),
    Advance: _write("advance", lambda op: (op.fence, op.journal)),
    Open: _write("open", lambda op: (op.fence, op.snapshot)),
    Release: _write("release", lambda op: (op.fence, op.retention, op.requeue, _shown(op.reason))),
    Suspend: _write("suspend", lambda op: (op.fence, op.probe_after, _shown(op.reason))),
    Lapse: _write("lapse", lambda op: (op.seen, op.retention)),
    Forget: _write("forget", lambda op: (op.seen,)),
    Inquire: _write("inquire", lambda op: (op.seen, op.tries, op.again_in)),
}

RECORD_PLANS: Final[Plans] = {
    **{kind: _single_plan(single) for kind, single in SINGLE_CALLS.items()},
    SettleHappened: audited_write(
        "settle_happened",
        lambda op: (op.seen, op.fence, op.snapshot, op.retention, op.tombstone, *signed(op.act)),
    ),
    SettleAbsent: audited_write(
        "settle_absent",
        lambda op: (op.seen, op.fence, op.retention, *signed(op.act), op.journal),
    ),
    SettleCall: audited_write(
        "settle_call", lambda op: (op.seen, op.fence, op.journal, *signed(op.act))
    ),
    Evict: audited_write("evict", lambda op: (op.seen, *signed(op.act))),
    EvictUnknown: lambda op, keys: (_evict_freed if op.free else _evict_forced)(op, keys),
}


# ── settings, leaders and events ──────────────────────────────────────────────────────────────────


def _register(op: Register, keys: Keys) -> Plan[Registered | Conflicting]:
    bucket, key = keys.named("recipe", exact(op.route))
    words: tuple[Word, ...] = (exact(op.recipe), op.alive)
    if op.previous is not None:
        words = (*words, exact(op.previous))
    everywhere = (key, *keys.elsewhere("recipe", exact(op.route)))
    (answer,) = yield (script_call(bucket, "register", everywhere, *words),)
    recorded, previous, until, now = replies.fields(answer, 4)
    if recorded is None:
        raise SchemaError(
            "under this prefix another version of semel keeps its records in a way that this one "
            "does not know, and would not find them: upgrade semel, or use another prefix"
        )
    alive_until = replies.optional_time(until)
    if replies.text(recorded) != op.recipe:
        return Conflicting(replies.text(recorded), alive_until, replies.time(now))
    return Registered(replies.optional_text(previous), alive_until, replies.time(now))


def _read_recipe(op: ReadRecipe, keys: Keys) -> Plan[Recorded]:
    bucket, key = keys.named("recipe", exact(op.route))
    row, time = yield (
        RedisCall(bucket, ("HMGET", key, "recipe", "previous", "alive_until")),
        RedisCall(bucket, ("TIME",)),
    )
    recorded, previous, until = replies.fields(row, 3)
    recipes = (replies.optional_text(recorded), replies.optional_text(previous))
    return Recorded(*recipes, replies.optional_time(until), replies.clock(time))


def _agree(op: Agree, keys: Keys) -> Plan[Agreed]:
    bucket, key = keys.terms()
    for name in (op.terms.application, op.terms.route):
        indexed(name)  # refuses what stores with a text index refuse
    words: tuple[Word, ...] = (op.terms.id, exact(op.terms.text))
    (answer,) = yield (script_call(bucket, "agree", (key,), *words),)
    stored, now = replies.fields(answer, 2)
    if replies.text(stored) != op.terms.text:
        raise StoreCorrupt("other terms are on record under the number of these")
    return Agreed(replies.time(now))


def _lead(op: Lead, keys: Keys) -> Plan[Led]:
    bucket, key = keys.named("leader", indexed(op.name))
    (answer,) = yield (script_call(bucket, "lead", (key,), op.fence, op.lease),)
    leading, until, now = replies.fields(answer, 3)
    return Led(leading == 1, replies.time(until), replies.time(now))


def _who_leads(op: WhoLeads, keys: Keys) -> Plan[Leading]:
    bucket, key = keys.named("leader", indexed(op.name))
    (answer,) = yield (script_call(bucket, "who_leads", (key,)),)
    until, now = replies.fields(answer, 2)
    return Leading(replies.optional_time(until), replies.time(now))


def _note(op: NoteEvent, keys: Keys) -> Plan[Noted]:
    event = f"{indexed(op.source)}\0{indexed(op.event)}"
    bucket = bucket_for(event)
    words: tuple[Word, ...] = (event, b"" if op.keep is None else op.keep)
    (answer,) = yield (script_call(bucket, "note", (keys.events(bucket),), *words),)
    before, now = replies.fields(answer, 2)
    return Noted(before == 1, replies.time(now))


def no_outbox(op: StoreOperation[Any], keys: Keys) -> Plan[Any]:
    raise ConfigurationError(
        "Redis has no outbox: an effect must be written in the transaction that wants it; use a "
        "store in the application's own database (SQLite, PostgreSQL)"
    )


NAMED_PLANS: Final[Plans] = {
    Accept: _accept,
    Fetch: _fetch,
    Recall: _recall,
    Register: _register,
    ReadRecipe: _read_recipe,
    Agree: _agree,
    Lead: _lead,
    WhoLeads: _who_leads,
    NoteEvent: _note,
    **dict.fromkeys(
        (
            outbox.Enqueue,
            outbox.TakeEffects,
            outbox.RenewEffects,
            outbox.MarkDelivered,
            outbox.MarkFailed,
            outbox.BrowseEffects,
            outbox.FindEffect,
            outbox.Requeue,
        ),
        no_outbox,
    ),
}
