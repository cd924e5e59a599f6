"""Audit, erasure and encryption, over all buckets, without I/O.

Each bucket has an audit of its own, a stream, for an act is put on record by the script that does
it, and a script's keys lie in one slot. A list of acts asks every bucket for its newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from semel.core.operations.requests import StoreOperation, Written
from semel.core.records import Fence, Identity, Micros
from semel.core.terms import TermsId, application_of, read
from semel.core.texts import shown
from semel.errors import ConfigurationError
from semel.stores.options import whole
from semel.stores.redis import replies
from semel.stores.redis.keys import BUCKETS, DUTIES, Keys, bucket_for, bucket_of
from semel.stores.redis.plans import (
    Make,
    Plan,
    audited,
    learn_terms,
    no_outbox,
    of_script,
    on_record,
    signed,
)
from semel.stores.redis.plans_maintenance import _clock, _command, _members, _sizes, _some
from semel.stores.redis.replies import Answer

# ── pages of records ──────────────────────────────────────────────────────────────────────────────


class _Page(NamedTuple):
    identities: list[Identity]
    until: Identity | None
    now: Micros


def _page(keys: Keys, after: Identity | None, limit: int) -> Plan[_Page]:
    """The next records, bucket by bucket, which is the order of identities."""
    first = 0 if after is None else bucket_of(after)
    (said,) = yield _clock((first,))
    held = yield from _sizes(keys, DUTIES, first)
    buckets, seen = sorted(held), list[Identity]()
    while buckets and len(seen) <= limit:
        next_ones = _some(buckets, held)
        del buckets[: len(next_ones)]
        seen += yield from _members(keys, DUTIES, next_ones, after or b"")
    page = seen[:limit]
    until = page[-1] if page and (buckets or len(seen) > len(page)) else None
    return _Page(page, until, replies.clock(said))


def _belongings(op: ListBelongings, keys: Keys) -> Plan[Belongings]:
    page = yield from _page(keys, op.after, op.limit)
    told: Sequence[Answer] = ()
    if page.identities:
        told = yield [
            _command(
                bucket_of(each), "HMGET", keys.of(each)[0], "tenant", "state", "fence", "terms"
            )
            for each in page.identities
        ]
        yield from learn_terms(keys, [replies.terms_id(answer) for answer in told])
    found = _of_tenant(zip(page.identities, told, strict=True), shown(op.tenant))
    ours = [each for each, terms in found if _is_of(keys, terms, op.application)]
    return Belongings(tuple(ours), page.until, page.now)


def _is_of(keys: Keys, terms: TermsId | None, application: str) -> bool:
    said = None if terms is None else keys.said.get(terms)
    return application_of(None if said is None else read(said)) == application


def _of_tenant(
    told: Iterable[tuple[Identity, Answer]], tenant: str
) -> Iterable[tuple[Belonging, TermsId | None]]:
    """With the numbers of their terms; what is gone by now is left out."""
    for identity, answer in told:
        whose, state, fence, _ = replies.fields(answer, 4)
        known = replies.state(state)
        if known is not None and replies.text(whose) == tenant:
            yield Belonging(identity, known, Fence(fence)), replies.terms_id(answer)


def _unlike(op: ListUnlike, keys: Keys) -> Plan[Exhibits]:
    page = yield from _page(keys, op.after, op.limit)
    told: Sequence[Answer] = ()
    if page.identities:
        told = yield [on_record("unlike", keys, each, op.prefix) for each in page.identities]
    found: list[Exhibit] = []
    for identity, answer in zip(page.identities, told, strict=True):
        fence, reason, *parts = replies.fields(answer, 5)
        if fence is not None and any(part is not None for part in parts):
            said = replies.optional_text(reason)
            found.append(Exhibit(identity, Fence(fence), said, *parts[:3]))
    return Exhibits(tuple(found), page.until, page.now)


def _reseal(op: Reseal, keys: Keys) -> Plan[Written]:
    words = (op.seen, op.part.value, op.old, op.new)
    (answer,) = yield (on_record("reseal", keys, op.identity, *words),)
    return replies.written(op.identity, answer)


# ── audit ─────────────────────────────────────────────────────────────────────────────────────────


def _remark(op: Remark, keys: Keys) -> Plan[Remarked]:
    bucket = bucket_for(shown(op.subject))
    words = (op.verb.value, *signed(op.act), shown(op.subject))
    (answer,) = yield (of_script(bucket, "remark", (keys.audit(bucket),), *words),)
    return Remarked(replies.time(replies.fields(answer, 1)[0]))


class _Place(NamedTuple):
    """Where an entry stands among those of all buckets."""

    millis: int
    sequence: int
    bucket: int

    def __str__(self) -> str:
        return f"{self.millis}-{self.sequence}-{self.bucket}"


def _browse_audit(op: BrowseAudit, keys: Keys) -> Plan[AuditEntries]:
    before = None if op.before is None else _parsed(op.before)
    (said,) = yield _clock((0,))
    told = yield [
        _command(
            bucket,
            *("XREVRANGE", keys.audit(bucket), _from(before, bucket), "-", "COUNT", op.limit),
        )
        for bucket in range(BUCKETS)
    ]
    found = [
        (_Place(*_numbers(replies.text(name)), bucket), fields)
        for bucket, answer in enumerate(told)
        for name, fields in replies.fields(answer, 0)
    ]
    found.sort(key=lambda item: item[0], reverse=True)
    return AuditEntries(
        tuple([_entry(place, fields) for place, fields in found[: op.limit]]), replies.clock(said)
    )


def _from(before: _Place | None, bucket: int) -> str:
    """The newest of a bucket that comes behind ``before``."""
    if before is None:
        return "+"
    open_end = "" if bucket < before.bucket else "("
    return f"{open_end}{before.millis}-{before.sequence}"


def _parsed(text: str) -> _Place:
    numbers = [number for each in text.split("-") if (number := whole(each)) is not None]
    if len(numbers) != 3 or text.count("-") != 2:
        raise ConfigurationError("this is no place in the audit of this store")
    return _Place(*numbers)


def _numbers(name: str) -> tuple[int, int]:
    millis, _, sequence = name.partition("-")
    return int(millis), int(sequence)


def _entry(place: _Place, flat: Sequence[Any]) -> AuditEntry:
    held: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))

    def text(name: bytes) -> str | None:
        return replies.optional_text(held.get(name) or None)

    identity = held.get(b"identity")
    return AuditEntry(
        str(place),
        replies.time(held.get(b"at")),
        replies.text(held.get(b"verb")),
        replies.text(held.get(b"by")),
        replies.text(held.get(b"reason")),
        None if identity is None else Identity(identity),
        text(b"subject"),
        text(b"before"),
        text(b"after"),
    )


CUSTODY: Final[Mapping[type[StoreOperation[Any]], Make]] = {
    Erase: audited("erase", lambda op: (op.seen, *signed(op.act))),
    ListBelongings: _belongings,
    ListUnlike: _unlike,
    Reseal: _reseal,
    ResealEffect: no_outbox,
    Remark: _remark,
    BrowseAudit: _browse_audit,
}
