"""Plans of the audit, of erasure and of encryption, which look at all buckets. No I/O.

Each bucket has its own audit, a stream: the script that does an act also puts it on record, and all
keys of a script lie in one slot. A list of acts asks every bucket for its newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from semel.core.operations.audit import (
    AuditEntries,
    AuditEntry,
    Belonging,
    Belongings,
    BrowseAudit,
    Erase,
    Exhibit,
    Exhibits,
    ListBelongings,
    ListUnlike,
    Remark,
    Remarked,
    Reseal,
    ResealEffect,
)
from semel.core.operations.requests import Written
from semel.core.records import Fence, Identity
from semel.core.terms import application_of, read
from semel.core.texts import shown
from semel.errors import ConfigurationError
from semel.stores.options import whole
from semel.stores.redis import replies
from semel.stores.redis.keys import BUCKETS, Keys, bucket_for, bucket_of
from semel.stores.redis.plans import (
    Plan,
    Plans,
    audited_write,
    no_outbox,
    read_terms,
    record_call,
    signed,
)
from semel.stores.redis.plans_maintenance import next_page
from semel.stores.redis.scripts import RedisCall, script_call

# ── erasure and encryption ────────────────────────────────────────────────────────────────────────


def _belongings(op: ListBelongings, keys: Keys) -> Plan[Belongings]:
    """The records of a tenant in one application; what is gone by now is left out."""
    page = yield from next_page(keys, op.after, op.limit)
    fields = ("tenant", "state", "fence", "terms")
    answers = yield [
        RedisCall(bucket_of(each), ("HMGET", keys.of(each)[0], *fields)) for each in page.identities
    ]
    yield from read_terms(keys, [replies.terms_id(answer) for answer in answers])
    found: list[Belonging] = []
    for identity, answer in zip(page.identities, answers, strict=True):
        tenant, state, fence, _ = replies.fields(answer, 4)
        known, number = replies.state(state), replies.terms_id(answer)
        if known is None or replies.text(tenant) != shown(op.tenant):
            continue
        text = None if number is None else keys.terms_texts.get(number)
        if application_of(None if text is None else read(text)) == op.application:
            found.append(Belonging(identity, known, Fence(fence)))
    return Belongings(tuple(found), page.until, page.now)


def _unlike(op: ListUnlike, keys: Keys) -> Plan[Exhibits]:
    """The records of which some part does not begin with ``prefix``."""
    page = yield from next_page(keys, op.after, op.limit)
    answers = yield [record_call("unlike", keys, each, op.prefix) for each in page.identities]
    found: list[Exhibit] = []
    for identity, answer in zip(page.identities, answers, strict=True):
        fence, reason, *parts = replies.fields(answer, 5)
        if fence is not None and any(part is not None for part in parts):
            text = replies.optional_text(reason)
            found.append(Exhibit(identity, Fence(fence), text, *parts[:3]))
    return Exhibits(tuple(found), page.until, page.now)


def _reseal(op: Reseal, keys: Keys) -> Plan[Written]:
    words = (op.seen, op.part.value, op.old, op.new)
    (answer,) = yield (record_call("reseal", keys, op.identity, *words),)
    return replies.written(op.identity, answer)


# ── audit ─────────────────────────────────────────────────────────────────────────────────────────


def _remark(op: Remark, keys: Keys) -> Plan[Remarked]:
    bucket = bucket_for(shown(op.subject))
    words = (op.verb.value, *signed(op.act), shown(op.subject))
    (answer,) = yield (script_call(bucket, "remark", (keys.audit(bucket),), *words),)
    return Remarked(replies.time(replies.fields(answer, 1)[0]))


class _Place(NamedTuple):
    """The place of an entry in the audit: its number in a stream, and the bucket of the stream."""

    millis: int
    sequence: int
    bucket: int

    def __str__(self) -> str:
        return f"{self.millis}-{self.sequence}-{self.bucket}"


def _browse_audit(op: BrowseAudit, keys: Keys) -> Plan[AuditEntries]:
    """The newest entries of all buckets before ``op.before``, the newest first."""
    before = None if op.before is None else _parsed(op.before)
    time, *answers = yield [
        RedisCall(0, ("TIME",)),
        *[
            RedisCall(
                bucket,
                ("XREVRANGE", keys.audit(bucket), _from(before, bucket), "-", "COUNT", op.limit),
            )
            for bucket in range(BUCKETS)
        ],
    ]
    found: list[tuple[_Place, Sequence[Any]]] = []
    for bucket, answer in enumerate(answers):
        for number, fields in replies.fields(answer, 0):
            millis, _, sequence = replies.text(number).partition("-")
            found.append((_Place(int(millis), int(sequence), bucket), fields))
    found.sort(key=lambda item: item[0], reverse=True)
    entries = tuple([_entry(place, fields) for place, fields in found[: op.limit]])
    return AuditEntries(entries, replies.clock(time))


def _from(before: _Place | None, bucket: int) -> str:
    """Where XREVRANGE begins in a bucket's stream: at the newest entry before ``before``."""
    if before is None:
        return "+"
    open_end = "" if bucket < before.bucket else "("
    return f"{open_end}{before.millis}-{before.sequence}"


def _parsed(text: str) -> _Place:
    numbers = [number for each in text.split("-") if (number := whole(each)) is not None]
    if len(numbers) != 3 or text.count("-") != 2:
        raise ConfigurationError("this is no place in the audit of this store")
    return _Place(*numbers)


def _entry(place: _Place, flat: Sequence[Any]) -> AuditEntry:
    held: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    identity = held.get(b"identity")
    subject, before, after = (
        replies.optional_text(held.get(name) or None) for name in (b"subject", b"before", b"after")
    )
    return AuditEntry(
        str(place),
        replies.time(held.get(b"at")),
        replies.text(held.get(b"verb")),
        replies.text(held.get(b"by")),
        replies.text(held.get(b"reason")),
        None if identity is None else Identity(identity),
        subject,
        before,
        after,
    )


AUDIT_PLANS: Final[Plans] = {
    Erase: audited_write("erase", lambda op: (op.seen, *signed(op.act))),
    ListBelongings: _belongings,
    ListUnlike: _unlike,
    Reseal: _reseal,
    ResealEffect: no_outbox,
    Remark: _remark,
    BrowseAudit: _browse_audit,
}
