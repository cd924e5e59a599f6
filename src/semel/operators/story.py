"""A key's story: all that is known of one record, and its events in the order of time.

A store keeps few times: those that it needs. What has none says so, and is told where it belongs in
the order: a guess would look like evidence. The application's own data (bodies, results of calls)
is no part of a story; `contents_of` has it, for those who may look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Case, Effect, Micros, Record, State
from semel.core.recovery import journal
from semel.core.recovery.journal import PointKind
from semel.core.request import keys
from semel.core.stored import requests, snapshot
from semel.core.unknown.evidence import CannotTell, Evidence, Happened, epoch_of
from semel.core.unknown.settle_unknown import Undecided, in_doubt
from semel.errors import StoreError
from semel.operators.approvals import proposal_of
from semel.operators.forecast import Forecasts, forecast
from semel.operators.operator import sighting

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.operators.operator import Operator

LOOK: Final = 5_000
"""Effects to look at, on each shelf, to find those of one record: there is no index."""
NOTABLES: Final = 200
"""Notables that a story has, at most: the newest."""
STORY_LOOK: Final = 1_000
"""The same for a story, which is a page that people wait for."""
ACTS: Final = 2_000
"""Entries of the audit, the newest, that are looked through for those of one record."""
_HIDDEN: Final = re.compile(
    "auth|cookie|token|secret|passw|session|signature|credential|api.?key", re.IGNORECASE
)
"""In the names of headers and of query parameters whose values are secrets."""


@frozen
class StoryLine:
    """One event. ``at`` None: no time is on record."""

    at: Micros | None
    kind: str
    """One word: claim, point, state, effect, act, notable, or due for what is still to come."""
    text: str
    by: str = ""
    reckoned: bool = False
    """The time is worked out from another, by the record's terms."""


@frozen
class JournalLine:
    """One recovery point, with the key that was sent to the provider."""

    name: str
    kind: str
    done: bool
    downstream_key: str | None


@frozen
class RequestHead:
    """The stored request without its body; secrets in its headers are hidden."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    size: int
    unreadable: str | None = None


@frozen
class AnswerHead:
    """The kept answer without its body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    size: int
    kept: str
    """whole, receipt, open receipt."""
    unreadable: str | None = None


@frozen
class Story:
    """What is known of one key, at ``now``."""

    case: Case
    now: Micros
    seen: str
    """The `sighting` that an act on this record names."""
    lapsed: bool
    in_doubt: str | None
    points: tuple[JournalLine, ...]
    unreadable: str | None
    """Why its journal cannot be read."""
    request: RequestHead | None
    answer: AnswerHead | None
    effects: tuple[Effect, ...]
    acts: tuple[ops.AuditEntry, ...]
    notables: tuple[ops.NotableEntry, ...]
    """Duplicates, mismatches and webhooks that were seen, oldest first; the log is bounded."""
    forecasts: Forecasts | None
    """None: this process does not have its route."""
    lines: tuple[StoryLine, ...]

    @property
    def lease_left(self) -> Micros | None:
        """None where nobody holds it."""
        record = self.case.record
        if record.state is not State.IN_PROGRESS or record.leased_until is None:
            return None
        return max(0, record.leased_until - self.now)


def story_of(operator: Operator, found: ops.Recalled) -> Story:
    """All that is known of a record."""
    case, now, record = found.case, found.now, found.case.record
    doubted, points, unreadable = _points(case)
    belongings = effects_of(operator.guard, record, STORY_LOOK)
    acts = tuple(_acts_on(operator, record))
    lines = [*_begun(case, points), *_state(case, now)]
    lines += [line for each in belongings for line in _effect_lines(each, now)]
    lines += [_act_line(entry) for entry in acts]
    notables = _notables_of(operator, record)
    lines += [StoryLine(each.at, "notable", notable_text(each)) for each in notables]
    return Story(
        *(case, now, sighting(record), record.lapsed(now), doubted),
        *(points, unreadable, _request_head(case), answer_head(record)),
        *(tuple(belongings), acts, notables, forecast(operator, case, now)),
        in_order(lines, record.created_at),
    )


def in_order(lines: list[StoryLine], begun: Micros) -> tuple[StoryLine, ...]:
    """By time; what has none comes behind the claim, in the order given."""
    placed = [(begun if each.at is None else each.at, n) for n, each in enumerate(lines)]
    return tuple(lines[number] for _, number in sorted(placed))


# ── its parts ─────────────────────────────────────────────────────────────────────────────────────


def _points(case: Case) -> tuple[str | None, tuple[JournalLine, ...], str | None]:
    """What is in doubt, the recovery points, and why its journal cannot be read."""
    try:
        found, doubted = journal.decode(case.journal).points, in_doubt(case)
    except StoreError as error:
        return None, (), str(error)
    lines: list[JournalLine] = []
    for point in found:
        sent = None
        if point.kind is PointKind.CALL:
            sent = keys.downstream_key(case.record.identity, epoch_of(case), "call", point.name)
        lines.append(JournalLine(point.name, point.kind.value, point.done, sent))
    return doubted, tuple(lines), None


def _request_head(case: Case) -> RequestHead | None:
    if case.request is None:
        return None
    try:
        kept = requests.decode(case.request)
    except StoreError as error:
        return RequestHead("", "", "", (), len(case.request), str(error))
    headers = tuple(_shown_header(name, text, kept.key) for name, text in kept.headers)
    query = _without(_shown_query(kept.query.decode("latin-1")), kept.key)
    return RequestHead(kept.method, kept.root + kept.path, query, headers, len(kept.body))


def _shown_header(name: bytes, text: bytes, key: str) -> tuple[str, str]:
    shown = name.decode("latin-1")
    if _HIDDEN.search(shown):
        return shown, "(hidden)"
    return shown, _without(text.decode("latin-1"), key)


def _shown_query(query: str) -> str:
    """With the values of secrets left out."""
    pairs = (each.partition("=") for each in query.split("&"))
    return "&".join(
        f"{name}=(hidden)" if _HIDDEN.search(unquote(name)) else name + sign + value
        for name, sign, value in pairs
    )


def _without(text: str, key: str) -> str:
    """With the key masked: whoever has it can send requests."""
    return text.replace(key, keys.mask(key)) if key else text


def answer_head(record: Record) -> AnswerHead | None:
    """What is kept of the answer, without its body."""
    if record.snapshot is None:
        return None
    try:
        kept = snapshot.decode(record.snapshot)
    except StoreError as error:  # damaged, or encrypted with a key that is not at hand
        return AnswerHead(0, (), len(record.snapshot), "unreadable", str(error))
    headers = tuple(_shown_header(*each, key="") for each in kept.headers)
    return AnswerHead(kept.status, headers, kept.size or len(kept.body or b""), kept_as(kept))


def kept_as(kept: snapshot.Snapshot) -> str:
    """What is kept of an answer, in words."""
    if kept.open:
        return "open receipt"
    if kept.body is not None:
        return "whole"
    return "receipt" if kept.whole else "receipt of a truncated answer"


def effects_of(guard: Guard, record: Record, look: int = LOOK) -> list[Effect]:
    """The effects of a record: waiting or dead ones among the newest ``look``, others by name.

    There is no index from records to effects: every effect would pay for it, and operators need it
    rarely. Keys of effects are derived, so each name that the guard delivers leads to one.
    """
    if not guard.backend.capabilities.outbox:
        return []
    store, found = guard.backend.blocking(), dict[str, Effect]()
    identity = record.identity
    for name in guard.registry.deliverers:
        op = ops.FindEffect(keys.downstream_key(identity, record.created_at, "effect", name))
        found |= {each.key: each for each in store.perform(op).effects}
    for shelf in (ops.Shelf.WAITING, ops.Shelf.DEAD):
        for each in store.perform(ops.ListNewestEffects(shelf, look)).effects:
            if each.identity == identity:
                found[each.key] = each
    return sorted(found.values(), key=lambda each: (each.created_at, each.key))


def _acts_on(operator: Operator, record: Record) -> list[ops.AuditEntry]:
    """What was done to it since it was created, oldest first: proposals and their ends too."""
    subject, numbers = record.identity.hex(), set[str | None]()
    read = list(islice(operator.audit(since=record.created_at), ACTS))
    found: list[ops.AuditEntry] = []
    for entry in reversed(read):
        proposal = proposal_of(entry)
        if proposal is not None and proposal.intent.subject == subject:
            numbers.add(proposal.number)
            found.append(entry)
        elif (
            entry.verb in (ops.Verb.APPROVE, ops.Verb.DECLINE) and entry.subject in numbers
        ) or entry.identity == record.identity:
            found.append(entry)
    return found


def _notables_of(operator: Operator, record: Record) -> tuple[ops.NotableEntry, ...]:
    op = ops.BrowseNotables(NOTABLES, identity=record.identity)
    found = operator.guard.backend.blocking().perform(op).entries
    return tuple(each for each in reversed(found) if each.at >= record.created_at)


def notable_text(entry: ops.NotableEntry) -> str:
    """A notable in words; what its detail says follows by name."""
    what = _NOTABLE.get(entry.kind, entry.kind.replace("_", " "))
    told = "; ".join(f"{name}: {_brief(each)}" for name, each in notable_detail(entry).items())
    many = f" ({entry.count} times)" if entry.count > 1 else ""
    return f"{what}{many}: {told}" if told else f"{what}{many}"


def notable_detail(entry: ops.NotableEntry) -> dict[str, Any]:
    """The detail of a notable; empty where it cannot be read."""
    try:
        said: Any = json.loads(entry.detail)
    except ValueError:
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _brief(said: Any) -> str:
    if isinstance(said, bool):
        return "yes" if said else "no"
    return ", ".join(map(str, said)) if isinstance(said, list) else str(said)  # pyright: ignore[reportUnknownArgumentType]


_NOTABLE: Final = {
    "mismatch": "another request came under its key",
    "conflict": "a duplicate met it under way, or in doubt",
    "replay": "a duplicate got its answer",
    "refusal": "a request was refused",
    "lost_fence": "a handler ended after its lease was lost",
    "webhook": "the provider sent an event",
}


# ── its events ────────────────────────────────────────────────────────────────────────────────────


def _begun(case: Case, points: tuple[JournalLine, ...]) -> Iterator[StoryLine]:
    """Who claimed it, and how far its operation came."""
    deferred = case.terms is not None and case.terms.mode == "deferred"
    text = "a request was accepted, for a worker to run" if deferred else "a request claimed it"
    yield StoryLine(case.record.created_at, "claim", text)
    for point in points:
        end = "done" if point.kind == PointKind.PHASE else "answered"
        text = f"{point.kind} {point.name}: {end}"
        if not point.done:
            text = f"call {point.name}: begun; whether it was sent or took effect is not on record"
        yield StoryLine(None, "point", text)


def _state(case: Case, now: Micros) -> list[StoryLine]:
    """How it came to its state, as far as that is on record, and what time will do to it."""
    record, lines = case.record, list[StoryLine]()
    match record.state:
        case State.IN_PROGRESS if record.leased_until is not None:
            past = record.leased_until <= now
            text = "its lease ended" if past else "its lease ends, unless it is renewed"
            lines.append(StoryLine(record.leased_until, "state" if past else "due", text))
        case State.UNKNOWN:
            why = record.reason or "no reason is on record"
            lines.append(StoryLine(None, "state", f"its outcome became unknown: {why}"))
        case State.COMPLETED if record.expires_at is not None and case.terms is not None:
            ended = record.expires_at - case.terms.retention
            known = record.created_at <= ended <= now
            at = ended if known else None
            lines.append(StoryLine(at, "state", "it completed", reckoned=known))
        case State.FAILED_RETRYABLE:
            why = record.reason or "no reason is on record"
            lines.append(StoryLine(None, "state", f"it failed, and may run again: {why}"))
        case _:
            lines.append(StoryLine(None, "state", f"it became {record.state.value}"))
    if case.tries:
        lines.append(StoryLine(None, "state", f"its probe was asked {_times(case.tries)}"))
    if record.state is State.UNKNOWN:
        text = "nobody will be asked by itself: it is a dead letter"
        if case.due_at is not None:
            text = "its probe is asked again" if case.due_at > now else "it is due for its probe"
        lines.append(StoryLine(case.due_at, "due", text))
    endings = (
        (record.retired_at, "what it made was retired"),
        (record.expires_at, "its answer expires"),
        (record.forget_at, "its key is forgotten, and may run again"),
    )
    for at, text in endings:
        if at is not None:
            lines.append(StoryLine(at, "due" if at > now else "state", text))
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _effect_lines(effect: Effect, now: Micros) -> list[StoryLine]:
    name = f"effect {effect.name}"
    lines = [StoryLine(effect.created_at, "effect", f"{name}: written to the outbox")]
    tries = "one try" if effect.tries == 1 else f"{effect.tries} tries"
    failed = f" after {tries}: {effect.error or 'no error is on record'}"
    if effect.delivered_at is not None:
        text = f"{name}: delivered, tried {_times(effect.tries)}"
        lines.append(StoryLine(effect.delivered_at, "effect", text))
    elif effect.dead_at is not None:
        lines.append(StoryLine(effect.dead_at, "effect", f"{name}: dead{failed}"))
    else:
        if effect.error is not None:
            lines.append(StoryLine(None, "effect", f"{name}: failed{failed}"))
        due = "due" if (effect.due_at or 0) > now else "effect"
        lines.append(StoryLine(effect.due_at, due, f"{name}: may be taken"))
    return lines


def _act_line(entry: ops.AuditEntry) -> StoryLine:
    proposal = proposal_of(entry)
    what = entry.verb if proposal is None else f"proposed: {proposal.intent.act.value}"
    return StoryLine(entry.at, "act", f"{what}: {entry.reason}", entry.by)


# ── what it was decided on ────────────────────────────────────────────────────────────────────────

SHORT: Final = 160
"""Characters of evidence that go with a reason into the audit."""


def evidence_text(story: Story, looked: Evidence | Undecided | None = None) -> str:
    """What was on screen when somebody decided, in short, for the audit."""
    points = [f"{point.name}{'' if point.done else ' begun'}" for point in story.points]
    parts = [f"journal: {', '.join(points) or 'none'}"]
    if story.case.tries:
        parts.append(f"asked {_times(story.case.tries)}")
    if looked is not None:
        parts.append(f"probe: {probe_text(looked)}")
    webhooks = sum(each.kind == ops.NotableKind.WEBHOOK for each in story.notables)
    parts.append(f"webhooks: {webhooks or 'none'}")
    return "; ".join(parts)[:SHORT]


def probe_text(said: Evidence | Undecided) -> str:
    """A probe's answer in a few words, without the application's data."""
    match said:
        case Happened(provider_id=name):
            return "happened" if name is None else f"happened ({name})"
        case CannotTell(reason) | Undecided(reason):
            return f"cannot tell: {reason}" if reason else "cannot tell"
        case _:
            return "absent, and final" if said.final else "absent now, but it may still come"


# ── the application's data, for those who may look ────────────────────────────────────────────────


@frozen
class Contents:
    """The application's own data in a record; None: there is none, or it cannot be read."""

    request: bytes | None
    answer: bytes | None
    results: tuple[tuple[str, str], ...]
    """Of its points, by their names, as JSON."""


def contents_of(case: Case) -> Contents:
    """The bodies and results that a record holds. Look only where the person may."""
    kept, points = case.record.snapshot, tuple[journal.Point, ...]()
    request: bytes | None = None
    answer: bytes | None = None
    with suppress(StoreError):
        request = None if case.request is None else requests.decode(case.request).body
    with suppress(StoreError):
        answer = None if kept is None else snapshot.decode(kept).body
    with suppress(StoreError):
        points = journal.decode(case.journal).points
    done = [(point.name, point.result) for point in points if point.done]
    results = [(name, json.dumps(it, ensure_ascii=False, indent=1)) for name, it in done]
    return Contents(request, answer, tuple(results))
