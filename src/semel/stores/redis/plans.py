"""How each operation becomes calls of scripts, and their answers its reply. No I/O.

A plan is a generator. It yields calls and is sent their answers; it returns the operation's reply.
An operation that a request awaits is one call, a `SingleCall`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from semel.core import operations as ops
from semel.core import terms
from semel.core.records import ON_LAPSE_NUMBERS, Identity, Micros
from semel.core.terms import Terms, TermsId
from semel.core.texts import described, exact, indexed, shown
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt
from semel.stores.redis import layout, replies
from semel.stores.redis.commands import (
    Command,
    Keys,
    RedisCall,
    Word,
    bucket_for,
    bucket_of,
    script,
    script_call,
)
from semel.stores.redis.replies import Answer

R = TypeVar("R")

Plan: TypeAlias = Generator[Sequence[RedisCall], Sequence[Answer], R]
MakePlan: TypeAlias = Callable[[Any, Keys], Plan[Any]]
Plans: TypeAlias = Mapping[type[ops.StoreOperation[Any]], MakePlan]


class SingleCall(NamedTuple):
    """An operation on one record that is one call of a script, as all are that a request awaits.

    ``command`` makes the command; ``parse`` makes the reply of what Redis answered.
    """

    script: str
    command: Callable[[Any, Keys], Command]
    parse: Callable[[Identity, Answer], Any]

    def plan(self, op: Any, keys: Keys) -> Plan[Any]:
        call = RedisCall(bucket_of(op.identity), self.command(op, keys), script(self.script))
        (answer,) = yield (call,)
        return self.parse(op.identity, answer)


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
    places = (*keys.of(identity), keys.audit(bucket)) if audit else keys.of(identity)
    return script_call(bucket, name, places, *[b"" if word is None else word for word in given])


# ── claim and read ────────────────────────────────────────────────────────────────────────────────


def _new_record(op: ops.Claim | ops.Accept, time: Micros) -> tuple[Word, ...]:
    """The arguments that describe a new record. Written out, for this runs in every request."""
    origin = op.origin
    place = (origin.tenant, origin.method, origin.path, origin.key)
    texts = "\0".join(described(op.fingerprint, *place))
    fresh = b"" if op.fresh_until is None else op.fresh_until
    terms_id = op.terms.to_bytes(8, "big", signed=True)
    said = (op.identity, op.fence, ON_LAPSE_NUMBERS[op.on_lapse], time, fresh, terms_id)
    whole = (*said, b"%b\0%b" % (texts.encode(), op.fields))
    return whole if op.request is None else (*whole, op.request)


def _claim_command(op: ops.Claim, keys: Keys) -> Command:
    identity, digest = op.identity, script("claim").digest
    places = (keys.record(identity), keys.due(identity))
    words = _new_record(op, op.lease)
    if op.request is None:
        return (b"EVALSHA", digest, 2, *places, *words)
    return (b"EVALSHA", digest, 3, *places, keys.more(identity), *words)


def _claimed(identity: Identity, answer: Answer) -> ops.Claimed | ops.Found | ops.Stale:
    match replies.fields(answer, 1):
        case [2, int(now), int(leased_until), int(created_at)]:
            return ops.Claimed(leased_until, now, created_at)
        case row:
            return _not_made(identity, row)


def _accepted(identity: Identity, answer: Answer) -> ops.Accepted | ops.Found | ops.Stale:
    match replies.fields(answer, 1):
        case [2, now]:
            return ops.Accepted(replies.time(now))
        case row:
            return _not_made(identity, row)


def _not_made(identity: Identity, row: Sequence[Any]) -> ops.Found | ops.Stale:
    if row[0] == 3:
        return ops.Stale()
    record = layout.record(identity, row[0])
    if record is None:
        raise StoreCorrupt("a claim neither made nor found a record")
    return ops.Found(record, replies.time(row[-1]))


def _read_command(op: ops.Read, keys: Keys) -> Command:
    identity = op.identity
    return (b"EVALSHA", script("read").digest, 1, keys.record(identity), identity)


def _read_reply(identity: Identity, answer: Answer) -> ops.Found | ops.NoRecord:
    found, at = replies.fields(answer, 2)
    record, now = layout.record(identity, found), replies.time(at)
    return ops.NoRecord(now) if record is None else ops.Found(record, now)


def _fetched(identity: Identity, answer: Answer) -> ops.Fetched | ops.NoRecord:
    now, kept = replies.fields(answer, 2)
    return ops.NoRecord(replies.time(now)) if kept is None else ops.Fetched(replies.data(kept))


def _recall(op: ops.Recall, keys: Keys) -> Plan[ops.Recalled | ops.NoRecord]:
    (answer,) = yield (record_call("recall", keys, op.identity),)
    at, data, more = replies.fields(answer, 3)
    now, found = replies.time(at), replies.stored(op.identity, data)
    if found is None:
        return ops.NoRecord(now)
    yield from read_terms(keys, [found.terms])
    return ops.Recalled(replies.case(found, keys.terms_texts, more), now)


def read_terms(keys: Keys, numbers: Sequence[TermsId | None]) -> Plan[list[Terms | None]]:
    """The terms with these numbers; None where they are not on record.

    Their texts are read into `Keys.terms_texts`, unless they are there.
    """
    wanted = sorted({each for each in numbers if each is not None} - keys.terms_texts.keys())
    if wanted:
        bucket, key = keys.terms
        (answer,) = yield (RedisCall(bucket, ("HMGET", key, *wanted)),)
        for number, text in zip(wanted, replies.fields(answer, len(wanted)), strict=True):
            if text is not None:
                keys.terms_texts[number] = replies.text(text)
    texts = [None if number is None else keys.terms_texts.get(number) for number in numbers]
    return [None if text is None else terms.read(text) for text in texts]


# ── writes ────────────────────────────────────────────────────────────────────────────────────────


def _on_record(
    name: str,
    arguments: Callable[[Any], tuple[Word | None, ...]],
    parse: Callable[[Identity, Answer], Any] = replies.written,
    *,
    audit: bool = False,
) -> SingleCall:
    """An operation that calls a script on its record.

    ``arguments``: those of the script, without the identity, which is the first. ``audit``: an
    operator asked for it, and the script puts the act into the audit.
    """

    def command(op: Any, keys: Keys) -> Command:
        return record_call(name, keys, op.identity, *arguments(op), audit=audit).command

    return SingleCall(name, command, parse)


def _complete_command(op: ops.Complete, keys: Keys) -> Command:
    identity = op.identity
    places = (keys.record(identity), keys.due(identity), keys.more(identity))
    words = (identity, op.fence, op.snapshot, op.retention, op.tombstone)
    digest = script("complete").digest
    if op.resource is None:
        return (b"EVALSHA", digest, 3, *places, *words)
    made = keys.index(bucket_of(identity), "made")
    return (b"EVALSHA", digest, 4, *places, made, *words, shown(op.resource))


def signed(act: ops.Act) -> tuple[Word, Word]:
    return shown(act.by), shown(act.reason)


def _evict_unknown(op: ops.EvictUnknown, keys: Keys) -> Plan[ops.Written]:
    name = "free_unknown" if op.free else "evict_unknown"
    own: tuple[Word, ...] = () if op.free else (op.fence, op.tombstone)
    words = (op.seen, *own, *signed(op.act))
    (answer,) = yield (record_call(name, keys, op.identity, *words, audit=True),)
    return replies.written(op.identity, answer)


SINGLE_CALLS: Final[Mapping[type[ops.StoreOperation[Any]], SingleCall]] = {
    ops.Claim: SingleCall("claim", _claim_command, _claimed),
    ops.Read: SingleCall("read", _read_command, _read_reply),
    ops.Complete: SingleCall("complete", _complete_command, replies.written),
    ops.Accept: _on_record("accept", lambda op: _new_record(op, op.patience)[1:], _accepted),
    ops.Fetch: _on_record("fetch", lambda op: (op.fence,), _fetched),
    ops.Retake: _on_record("retake", lambda op: (op.seen, op.fence, op.lease, op.on_lapse.value)),
    ops.Take: _on_record("take", lambda op: (op.seen, op.fence, op.lease)),
    ops.Resume: _on_record("resume", lambda op: (op.seen, op.fence, op.lease)),
    ops.Renew: _on_record("renew", lambda op: (op.fence, op.lease)),
    ops.Advance: _on_record("advance", lambda op: (op.fence, op.journal)),
    ops.Open: _on_record("open", lambda op: (op.fence, op.snapshot)),
    ops.Release: _on_record(
        "release", lambda op: (op.fence, op.retention, op.requeue, op.reason and shown(op.reason))
    ),
    ops.Suspend: _on_record(
        "suspend", lambda op: (op.fence, op.probe_after, op.reason and shown(op.reason))
    ),
    ops.Lapse: _on_record("lapse", lambda op: (op.seen, op.retention)),
    ops.Forget: _on_record("forget", lambda op: (op.seen,)),
    ops.Inquire: _on_record("inquire", lambda op: (op.seen, op.tries, op.again_in)),
    ops.SettleHappened: _on_record(
        "settle_happened",
        lambda op: (op.seen, op.fence, op.snapshot, op.retention, op.tombstone, *signed(op.act)),
        audit=True,
    ),
    ops.SettleAbsent: _on_record(
        "settle_absent",
        lambda op: (op.seen, op.fence, op.retention, *signed(op.act), op.journal),
        audit=True,
    ),
    ops.SettleCall: _on_record(
        "settle_call", lambda op: (op.seen, op.fence, op.journal, *signed(op.act)), audit=True
    ),
    ops.Evict: _on_record("evict", lambda op: (op.seen, *signed(op.act)), audit=True),
    ops.Erase: _on_record("erase", lambda op: (op.seen, *signed(op.act)), audit=True),
    ops.Reseal: _on_record("reseal", lambda op: (op.seen, op.part.value, op.old, op.new)),
}


# ── settings, leaders and events ──────────────────────────────────────────────────────────────────


def _register(op: ops.Register, keys: Keys) -> Plan[ops.Registered | ops.Conflicting]:
    bucket, key = keys.named("recipe", exact(op.route))
    previously = () if op.previous is None else (exact(op.previous),)
    words = (exact(op.recipe), op.alive, *previously)
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
        return ops.Conflicting(replies.text(recorded), alive_until, replies.time(now))
    return ops.Registered(replies.optional_text(previous), alive_until, replies.time(now))


def _read_recipe(op: ops.ReadRecipe, keys: Keys) -> Plan[ops.Recorded]:
    bucket, key = keys.named("recipe", exact(op.route))
    row, time = yield (
        RedisCall(bucket, ("HMGET", key, "recipe", "previous", "alive_until")),
        RedisCall(bucket, ("TIME",)),
    )
    recorded, previous, until = replies.fields(row, 3)
    recipes = (replies.optional_text(recorded), replies.optional_text(previous))
    return ops.Recorded(*recipes, replies.optional_time(until), replies.clock(time))


def _agree(op: ops.Agree, keys: Keys) -> Plan[ops.Agreed]:
    bucket, key = keys.terms
    for name in (op.terms.application, op.terms.route):
        indexed(name)  # refuses what stores with a text index refuse
    words: tuple[Word, ...] = (op.terms.id, exact(op.terms.text))
    (answer,) = yield (script_call(bucket, "agree", (key,), *words),)
    stored, now = replies.fields(answer, 2)
    if replies.text(stored) != op.terms.text:
        raise StoreCorrupt("other terms are on record under the number of these")
    return ops.Agreed(replies.time(now))


def _lead(op: ops.Lead, keys: Keys) -> Plan[ops.Led]:
    bucket, key = keys.named("leader", indexed(op.name))
    (answer,) = yield (script_call(bucket, "lead", (key,), op.fence, op.lease),)
    leading, until, now = replies.fields(answer, 3)
    return ops.Led(leading == 1, replies.time(until), replies.time(now))


def _who_leads(op: ops.WhoLeads, keys: Keys) -> Plan[ops.Leading]:
    bucket, key = keys.named("leader", indexed(op.name))
    (answer,) = yield (script_call(bucket, "who_leads", (key,)),)
    until, now = replies.fields(answer, 2)
    return ops.Leading(replies.optional_time(until), replies.time(now))


def _note(op: ops.NoteEvent, keys: Keys) -> Plan[ops.Noted]:
    event = f"{indexed(op.source)}\0{indexed(op.event)}"
    bucket = bucket_for(event)
    words: tuple[Word, ...] = (event, b"" if op.keep is None else op.keep)
    (answer,) = yield (script_call(bucket, "note", (keys.events(bucket),), *words),)
    before, now = replies.fields(answer, 2)
    return ops.Noted(before == 1, replies.time(now))


def _no_outbox(op: ops.StoreOperation[Any], keys: Keys) -> Plan[Any]:
    raise ConfigurationError(
        "Redis has no outbox: an effect must be written in the transaction that wants it; use a "
        "store in the application's own database (SQLite, PostgreSQL)"
    )


REQUEST_PLANS: Final[Plans] = {
    **{kind: single.plan for kind, single in SINGLE_CALLS.items()},
    ops.EvictUnknown: _evict_unknown,
    ops.Recall: _recall,
    ops.Register: _register,
    ops.ReadRecipe: _read_recipe,
    ops.Agree: _agree,
    ops.Lead: _lead,
    ops.WhoLeads: _who_leads,
    ops.NoteEvent: _note,
    **dict.fromkeys((ops.Enqueue, ops.TakeEffects, ops.RenewEffects, ops.ResealEffect), _no_outbox),
    **dict.fromkeys((ops.MarkDelivered, ops.MarkFailed, ops.Requeue, ops.CountEffects), _no_outbox),
    **dict.fromkeys((ops.BrowseEffects, ops.ListNewestEffects, ops.FindEffect), _no_outbox),
}
