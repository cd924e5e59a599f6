"""How each operation is carried out with scripts, without I/O: shared by both colours.

A plan is a generator. It yields calls and is sent their replies; its return value is the
operation's reply. An operation on the way of a request is one call.
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
from semel.stores.redis.commands import Command, Word
from semel.stores.redis.keys import Keys, bucket_for, bucket_of
from semel.stores.redis.replies import Answer
from semel.stores.redis.scripts import Script, script

R = TypeVar("R")


ANY: Final = -1
"""The bucket of a call that any node can answer."""


class Call(NamedTuple):
    """One command to the node of a bucket, and the script that it runs by its digest."""

    bucket: int
    command: Command
    script: Script | None = None

    def full(self) -> Command:
        """The same with the script itself, for a server that does not know it."""
        made = self.script
        return self.command if made is None else (b"EVAL", made.text, *self.command[2:])


Plan: TypeAlias = Generator[Sequence[Call], Sequence[Answer], R]
Make: TypeAlias = Callable[[Any, Keys], Plan[Any]]


class OneCall(NamedTuple):
    """An operation on one record that is one call of a script, as all are that requests wait for.

    ``ask`` makes the command, ``understand`` the reply of what was answered about the identity.
    """

    script: str
    ask: Callable[[Any, Keys], Command]
    understand: Callable[[Identity, Answer], Any]


def planned(one: OneCall) -> Make:
    def plan(op: Any, keys: Keys) -> Plan[Any]:
        call = Call(bucket_of(op.identity), one.ask(op, keys), script(one.script))
        (answer,) = yield (call,)
        return one.understand(op.identity, answer)

    return plan


def of_script(bucket: int, name: str, keys: Sequence[bytes], *words: Word) -> Call:
    made = script(name)
    return Call(bucket, (b"EVALSHA", made.digest, len(keys), *keys, *words), made)


def on_record(name: str, keys: Keys, identity: Identity, *words: Word | None) -> Call:
    """A script on one record; what is None at the end is left out."""
    return of_script(bucket_of(identity), name, keys.of(identity), *_given(identity, *words))


def _given(*words: Word | None) -> list[Word]:
    """Without what is None at the end; what is None before that is empty."""
    given = [*words]
    while given[-1] is None:
        given.pop()
    return [b"" if word is None else word for word in given]


# ── claim and read ────────────────────────────────────────────────────────────────────────────────


def _described(op: Claim | Accept, time: Micros) -> tuple[Word, ...]:
    """Everything that a new record holds. Written out: each word costs here and in the server."""
    origin = op.origin
    place = (origin.tenant, origin.method, origin.path, origin.key)
    fresh = b"" if op.fresh_until is None else op.fresh_until
    kept = () if op.request is None else (op.request,)
    rest = (op.on_lapse.value, time, fresh, op.terms, *kept)
    texts = described(op.fingerprint, *place)
    return (op.identity, op.fence, texts[0], op.fields, *texts[1:], *rest)


def _ask_claim(op: Claim, keys: Keys) -> Command:
    record, indexes = keys.near(op.identity)
    digest = script("claim").digest
    return (b"EVALSHA", digest, 3, record, indexes[0], indexes[1], *_described(op, op.lease))


def _claimed(identity: Identity, answer: Answer) -> Claimed | Found | Stale:
    match replies.fields(answer, 1):
        case [2, int(now), int(leased_until), int(created_at)]:
            return Claimed(leased_until, now, created_at)
        case [3]:
            return Stale()
        case row:
            return _found(identity, row)


def _accept(op: Accept, keys: Keys) -> Plan[Accepted | Found | Stale]:
    _, *words = _described(op, op.patience)
    (answer,) = yield (on_record("accept", keys, op.identity, *words),)
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


def _ask_read(op: Read, keys: Keys) -> Command:
    identity = op.identity
    return (b"EVALSHA", script("read").digest, 1, keys.near(identity)[0], identity)


def _seen(identity: Identity, answer: Answer) -> Found | NoRecord:
    record = replies.record(identity, answer)
    now = replies.time(answer[-1])
    return NoRecord(now) if record is None else Found(record, now)


def _fetch(op: Fetch, keys: Keys) -> Plan[Fetched | NoRecord]:
    (answer,) = yield (on_record("fetch", keys, op.identity, op.fence),)
    now, kept = replies.fields(answer, 2)
    return NoRecord(replies.time(now)) if kept is None else Fetched(replies.data(kept))


def _recall(op: Recall, keys: Keys) -> Plan[Recalled | NoRecord]:
    (answer,) = yield (on_record("recall", keys, op.identity),)
    now, row, rest = replies.fields(answer, 3)
    yield from learn_terms(keys, [replies.terms_id(rest)])
    case = replies.case(op.identity, row, rest, keys.said)
    return NoRecord(replies.time(now)) if case is None else Recalled(case, replies.time(now))


def learn_terms(keys: Keys, numbers: Iterable[TermsId | None]) -> Plan[None]:
    """Read what these terms say, unless it was read before."""
    wanted = sorted({each for each in numbers if each is not None} - keys.said.keys())
    if not wanted:
        return
    bucket, key = keys.terms()
    (told,) = yield (Call(bucket, ("HMGET", key, *wanted)),)
    for number, said in zip(wanted, replies.fields(told, len(wanted)), strict=True):
        if said is not None:
            keys.said[number] = replies.text(said)


# ── writes ────────────────────────────────────────────────────────────────────────────────────────


def _write(name: str, words: Callable[[Any], tuple[Word | None, ...]]) -> OneCall:
    """``words`` begin behind the identity."""

    def ask(op: Any, keys: Keys) -> Command:
        return on_record(name, keys, op.identity, *words(op)).command

    return OneCall(name, ask, replies.written)


def _ask_complete(op: Complete, keys: Keys) -> Command:
    identity = op.identity
    record, indexes = keys.near(identity)
    lease, resume, _, ask, expire, _, _, made = indexes
    words = (identity, op.fence, op.snapshot, op.retention, op.tombstone)
    digest = script("complete").digest
    if op.resource is None:
        return (b"EVALSHA", digest, 5, record, lease, resume, ask, expire, *words)
    places = (record, lease, resume, ask, expire, made)
    return (b"EVALSHA", digest, 6, *places, *words, shown(op.resource))


def audited(name: str, words: Callable[[Any], tuple[Word | None, ...]]) -> Make:
    """A write that puts its act on record; ``words`` begin behind the identity."""

    def plan(op: Any, keys: Keys) -> Plan[Written]:
        identity, bucket = op.identity, bucket_of(op.identity)
        places = (*keys.of(identity), keys.audit(bucket))
        (answer,) = yield (of_script(bucket, name, places, *_given(identity, *words(op))),)
        return replies.written(identity, answer)

    return plan


def signed(act: Act) -> tuple[Word, Word]:
    return shown(act.by), shown(act.reason)


def _shown(text: str | None) -> str | None:
    return None if text is None else shown(text)


_settle_happened = audited(
    "settle_happened",
    lambda op: (op.seen, op.fence, op.snapshot, op.retention, op.tombstone, *signed(op.act)),
)
_evict_forced = audited(
    "evict_unknown", lambda op: (op.seen, op.fence, op.tombstone, *signed(op.act))
)
_evict_freed = audited("free_unknown", lambda op: (op.seen, *signed(op.act)))


def _evict_unknown(op: EvictUnknown, keys: Keys) -> Plan[Written]:
    return _evict_freed(op, keys) if op.free else _evict_forced(op, keys)


ONE_CALL: Final[Mapping[type[StoreOperation[Any]], OneCall]] = {
    Claim: OneCall("claim", _ask_claim, _claimed),
    Read: OneCall("read", _ask_read, _seen),
    Complete: OneCall("complete", _ask_complete, replies.written),
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

WRITES: Final[Mapping[type[StoreOperation[Any]], Make]] = {
    **{kind: planned(one) for kind, one in ONE_CALL.items()},
    SettleHappened: _settle_happened,
    SettleAbsent: audited(
        "settle_absent",
        lambda op: (op.seen, op.fence, op.retention, *signed(op.act), op.journal),
    ),
    SettleCall: audited("settle_call", lambda op: (op.seen, op.fence, op.journal, *signed(op.act))),
    Evict: audited("evict", lambda op: (op.seen, *signed(op.act))),
    EvictUnknown: _evict_unknown,
}


# ── what has a name ───────────────────────────────────────────────────────────────────────────────


def _register(op: Register, keys: Keys) -> Plan[Registered | Conflicting]:
    bucket, key = keys.named("recipe", exact(op.route))
    words: tuple[Word, ...] = (exact(op.recipe), op.alive)
    if op.previous is not None:
        words = (*words, exact(op.previous))
    everywhere = (key, *keys.elsewhere("recipe", exact(op.route)))
    (answer,) = yield (of_script(bucket, "register", everywhere, *words),)
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
    told, said = yield (
        Call(bucket, ("HMGET", key, "recipe", "previous", "alive_until")),
        Call(bucket, ("TIME",)),
    )
    recorded, previous, until = replies.fields(told, 3)
    recipes = (replies.optional_text(recorded), replies.optional_text(previous))
    return Recorded(*recipes, replies.optional_time(until), replies.clock(said))


def _agree(op: Agree, keys: Keys) -> Plan[Agreed]:
    bucket, key = keys.terms()
    for name in (op.terms.application, op.terms.route):
        indexed(name)  # as stores with an index have it
    words: tuple[Word, ...] = (op.terms.id, exact(op.terms.text))
    (answer,) = yield (of_script(bucket, "agree", (key,), *words),)
    said, now = replies.fields(answer, 2)
    if replies.text(said) != op.terms.text:
        raise StoreCorrupt("other terms are on record under the number of these")
    return Agreed(replies.time(now))


def _lead(op: Lead, keys: Keys) -> Plan[Led]:
    bucket, key = keys.named("leader", indexed(op.name))
    (answer,) = yield (of_script(bucket, "lead", (key,), op.fence, op.lease),)
    leading, until, now = replies.fields(answer, 3)
    return Led(leading == 1, replies.time(until), replies.time(now))


def _who_leads(op: WhoLeads, keys: Keys) -> Plan[Leading]:
    bucket, key = keys.named("leader", indexed(op.name))
    (answer,) = yield (of_script(bucket, "who_leads", (key,)),)
    until, now = replies.fields(answer, 2)
    return Leading(replies.optional_time(until), replies.time(now))


def _note(op: NoteEvent, keys: Keys) -> Plan[Noted]:
    event = f"{indexed(op.source)}\0{indexed(op.event)}"
    bucket = bucket_for(event)
    words: tuple[Word, ...] = (event, b"" if op.keep is None else op.keep)
    (answer,) = yield (of_script(bucket, "note", (keys.events(bucket),), *words),)
    before, now = replies.fields(answer, 2)
    return Noted(before == 1, replies.time(now))


def no_outbox(op: StoreOperation[Any], keys: Keys) -> Plan[Any]:
    raise ConfigurationError(
        "Redis has no outbox: an effect must be written in the transaction that wants it; use a "
        "store in the application's own database (SQLite, PostgreSQL)"
    )


NAMED: Final[Mapping[type[StoreOperation[Any]], Make]] = {
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
