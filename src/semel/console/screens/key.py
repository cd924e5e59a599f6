"""One key: its story, its place among the states, and what a retry would get now."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

from semel.console.acts import ROLES, ActPage, confirm, is_confirmed, outcome
from semel.console.diagram import StateDiagram, diagram
from semel.console.requests import ConsoleRefusal
from semel.console.roles import Role
from semel.console.times import Moment, Span, moment
from semel.console.view import View
from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Case, Effect, Identity, Micros, State
from semel.core.request.keys import mask
from semel.errors import StoreError
from semel.operators.approvals import Intent, Irreversible, Proposal, same_person
from semel.operators.forecast import Forecasts
from semel.operators.operator import by_operator
from semel.operators.story import (
    AnswerHead,
    JournalLine,
    RequestHead,
    Story,
    contents_of,
    notable_text,
    story_of,
)

SETTLED: Final = (State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED)


@frozen
class KeyLine:
    """One line of the timeline; ``at`` None: no time is on record."""

    at: Moment | None
    kind: str
    text: str
    by: str
    reckoned: bool


@frozen
class EffectRow:
    """An effect without its payload."""

    key: str
    name: str
    state: str
    tries: int
    created_at: Moment
    next_at: Moment | None
    """When it may be tried next, or when it died or was delivered."""
    error: str | None
    provider_id: str | None
    identity: str | None
    size: int
    item: str
    """What a form sends to name it: the effect, and the death that was seen."""


@frozen
class PendingAct:
    """An act that waits for a second person."""

    number: str
    act: str
    subject: str
    by: str
    reason: str
    at: Moment | None
    until: Moment | None
    own: bool
    """The user has proposed it, and cannot approve it."""
    role: Role
    """What who decides it must be."""


@frozen
class KeyPage:
    """What the page of one key shows; never the key, a body or a result."""

    identity: str
    state: State
    seen: str
    masked_key: str
    tenant: str
    method: str
    path: str
    application: str | None
    route: str | None
    mode: str | None
    created_at: Moment
    leased_until: Moment | None
    lease_left: Span | None
    lapsed: bool
    in_doubt: str | None
    reason: str | None
    tries: int
    due_at: Moment | None
    expires_at: Moment | None
    forget_at: Moment | None
    retired_at: Moment | None
    resource: str | None
    traces: str | None
    """Where its traces are found, if the guard was told."""
    points: tuple[JournalLine, ...]
    unreadable: str | None
    request: RequestHead | None
    answer: AnswerHead | None
    effects: tuple[EffectRow, ...]
    lines: tuple[KeyLine, ...]
    webhooks: tuple[KeyLine, ...]
    forecasts: Forecasts | None
    pending: tuple[PendingAct, ...]
    doubtful: bool
    settled: bool
    two_person: tuple[str, ...]
    diagram: StateDiagram


def show(view: View) -> KeyPage:
    """All that is known of one record."""
    return page_of(view, story(view))


def story(view: View) -> Story:
    """The story of the record that the path names."""
    found = view.operator.find(view.identity())
    if found is None:
        raise ConsoleRefusal(404, "There is no such record (any more).")
    return story_of(view.operator, found)


def page_of(view: View, told: Story) -> KeyPage:
    case, now, record = told.case, told.now, told.case.record
    terms, origin = case.terms, case.origin
    left = told.lease_left
    return KeyPage(
        identity=record.identity.hex(),
        state=record.state,
        seen=told.seen,
        masked_key=mask(origin.key),
        tenant=origin.tenant,
        method=origin.method,
        path=origin.path,
        application=None if terms is None else terms.application,
        route=None if terms is None else terms.route,
        mode=None if terms is None else terms.mode,
        created_at=Moment(record.created_at, now),
        leased_until=moment(record.leased_until, now),
        lease_left=None if left is None else Span(left),
        lapsed=told.lapsed,
        in_doubt=told.in_doubt,
        reason=record.reason,
        tries=case.tries,
        due_at=moment(case.due_at, now),
        expires_at=moment(record.expires_at, now),
        forget_at=moment(record.forget_at, now),
        retired_at=moment(record.retired_at, now),
        resource=case.resource,
        traces=view.traces_of(record.identity, record.created_at, now),
        points=told.points,
        unreadable=told.unreadable,
        request=told.request,
        answer=told.answer,
        effects=tuple(effect_row(each, now) for each in told.effects),
        lines=tuple(
            KeyLine(moment(each.at, now), each.kind, each.text, each.by, each.reckoned)
            for each in told.lines
        ),
        webhooks=tuple(
            KeyLine(moment(each.at, now), each.kind, notable_text(each), "", False)
            for each in told.notables
            if each.kind == ops.NotableKind.WEBHOOK
        ),
        forecasts=told.forecasts,
        pending=_shown_acts(view, view.approvals.undecided(reversed(told.acts), now), now),
        doubtful=record.state is State.UNKNOWN or told.lapsed,
        settled=record.state in SETTLED,
        two_person=tuple(sorted(view.approvals.rule.acts)),
        diagram=diagram(record.state),
    )


def effect_row(effect: Effect, now: Micros) -> EffectRow:
    state, at = "waiting", effect.due_at
    if effect.dead_at is not None:
        state, at = "dead", effect.dead_at
    elif effect.delivered_at is not None:
        state, at = "delivered", effect.delivered_at
    return EffectRow(
        *(effect.key, effect.name, state, effect.tries, Moment(effect.created_at, now)),
        *(moment(at, now), effect.error, effect.provider_id),
        None if effect.identity is None else effect.identity.hex(),
        len(effect.payload),
        f"{effect.dead_at or ''}:{effect.key}",
    )


def pending(view: View) -> tuple[PendingAct, ...]:
    """All that waits for a second person."""
    return _shown_acts(view, view.approvals.pending(), view.now())


def _shown_acts(view: View, found: list[Proposal], now: Micros) -> tuple[PendingAct, ...]:
    mine = by_operator(view.user.name, "-").by
    return tuple(_pending(each, now, mine) for each in found)


def _pending(each: Proposal, now: Micros, mine: str) -> PendingAct:
    intent, times = each.intent, (moment(each.at, now), moment(each.until, now))
    own = same_person(each.by, mine)
    named = (each.number, intent.act.value, intent.subject, each.by, each.reason)
    return PendingAct(*named, *times, own, ROLES[intent.act])


# ── acts ──────────────────────────────────────────────────────────────────────────────────────────


def evict(view: View) -> ActPage:
    """Remove a settled record: its key is free."""
    told = story(view)
    name = told.case.record.identity.hex()
    back = f"records/{name}"
    if not is_confirmed(view):
        return confirm(
            *(view, "Free this key?", "Free the key", back),
            warning="The record is removed. The next request with this key runs.",
            facts=facts(told),
        )
    intent = Intent(Irreversible.EVICT, name, view.form.get("seen", ""))
    result = view.approvals.act(intent, by=view.user.name, reason=view.reason())
    return outcome(result, "records" if result.done else back, facts_now(view))


def facts(told: Story) -> tuple[tuple[str, Any], ...]:
    """What a page of an act says of its record."""
    return _facts(told.case, told.now)


def _facts(case: Case, now: Micros) -> tuple[tuple[str, Any], ...]:
    return (
        ("Record", case.record.identity.hex()),
        ("State", case.record.state.value),
        ("Request", f"{case.origin.method} {case.origin.path}"),
        ("Tenant", case.origin.tenant),
        ("Made", Moment(case.record.created_at, now)),
    )


def facts_now(view: View) -> tuple[tuple[str, Any], ...]:
    """The same, read anew: a person whose act was refused sees what has changed."""
    return facts_of(view, view.identity())


def facts_of(view: View, identity: Identity) -> tuple[tuple[str, Any], ...]:
    try:
        found = view.operator.find(identity)
    except StoreError:  # what the page is about is done, or refused, all the same
        return (("Record", identity.hex()), ("State", "it cannot be read just now"))
    if found is None:
        return (("Record", identity.hex()), ("State", "there is no such record any more"))
    return _facts(found.case, found.now)


# ── the application's data ────────────────────────────────────────────────────────────────────────


@frozen
class Body:
    """One text or, where it is none, its bytes in base64."""

    title: str
    text: str
    base64: bool = False


@frozen
class ContentsPage:
    identity: str
    bodies: tuple[Body, ...]


def contents(view: View) -> ContentsPage:
    """Bodies and results, for custodians; that they were looked at is put on record first."""
    found = view.operator.find(view.identity())
    if found is None:
        raise ConsoleRefusal(404, "There is no such record (any more).")
    name = found.case.record.identity.hex()
    said = by_operator(view.user.name, view.reason())
    view.guard.backend.blocking().perform(ops.Remark(ops.Verb.LOOK, said, name))
    held = contents_of(found.case)
    bodies = [_body(title, body) for title, body in _bodies(held.request, held.answer)]
    bodies += [Body(f"Result of {point}", text) for point, text in held.results]
    return ContentsPage(name, tuple(bodies))


def _bodies(request: bytes | None, answer: bytes | None) -> list[tuple[str, bytes]]:
    both = (("Stored request", request), ("Kept answer", answer))
    return [(title, body) for title, body in both if body is not None]


def _body(title: str, body: bytes) -> Body:
    try:
        return Body(title, body.decode())
    except UnicodeDecodeError:
        return Body(title, b64encode(body).decode(), base64=True)
