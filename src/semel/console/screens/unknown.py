"""Unknown outcomes: grouped, one with its evidence side by side, and what a person decides."""

from __future__ import annotations

import re
from hmac import compare_digest
from typing import Any, Final

from semel.console.acts import (
    MOST,
    ActItem,
    ActPage,
    chosen,
    confirm,
    is_confirmed,
    outcome,
    outcomes,
)
from semel.console.requests import ConsoleRefusal
from semel.console.screens import key
from semel.console.screens.key import KeyPage
from semel.console.times import Moment, moment
from semel.console.view import View, identity
from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Case, Glimpse, Identity, Micros, State, whole_origin
from semel.core.texts import one_line
from semel.core.unknown.evidence import Absent, Evidence
from semel.core.unknown.probe import Inspection
from semel.core.unknown.settle_unknown import ONCE, Settled, Undecided, call_in_doubt, in_doubt
from semel.errors import SemelError, StoreError
from semel.operators import decisions
from semel.operators.approvals import ActResult, Intent, Irreversible
from semel.operators.bulk import inspection_text, probe_each
from semel.operators.doubts import DoubtGroup, Doubts, doubts
from semel.operators.operator import voucher
from semel.operators.story import Story, evidence_text, probe_text

_LOOK: Final = 1_000
"""Records in doubt that a page looks at."""
_ASKING: Final = 30.0
"""Seconds that probes of a list are asked: a slow provider holds a thread no longer."""
_SHOWN: Final = 100
"""Rows of a page, about: groups share them, the more groups the fewer each."""
_FEWEST, _MOST_OF_ONE = 2, 50
"""Rows of one group."""
_LONGEST: Final = 300
"""Characters of a typed reason that are kept beside the evidence."""


_STATUS: Final = re.compile("[2-5][0-9]{2}", re.ASCII)


# ── the list ──────────────────────────────────────────────────────────────────────────────────────


@frozen
class DoubtRow:
    """One record in doubt."""

    identity: str
    state: State
    tenant: str
    method: str
    path: str
    call: str | None
    created_at: Moment
    tries: int
    due_at: Moment | None
    dead: bool


@frozen
class DoubtSection:
    """Those of one route, for one reason."""

    application: str | None
    route: str
    reason: str
    count: int
    dead: int
    oldest: Moment
    rows: tuple[DoubtRow, ...]


@frozen
class UnknownPage:
    sections: tuple[DoubtSection, ...]
    looked: int
    more: bool
    pending: int
    """Acts that wait for a second person."""


def show(view: View) -> UnknownPage:
    """What is in doubt, by route and reason."""
    found = doubts(view.operator, _LOOK)
    fitting = _fitting(found, view.query.get("route"), view.query.get("reason"))
    each_has = min(max(_SHOWN // max(1, len(fitting)), _FEWEST), _MOST_OF_ONE)
    sections = tuple(_section(view, each, each_has, found.now) for each in fitting)
    return UnknownPage(sections, found.looked, found.more, len(view.approvals.pending()))


def _fitting(found: Doubts, route: str | None, reason: str | None) -> list[DoubtGroup]:
    """The groups of a route and a reason; None: of any."""
    return [
        each
        for each in found.groups
        if route in (None, each.route) and reason in (None, each.reason)
    ]


def _section(view: View, group: DoubtGroup, shown: int, now: Micros) -> DoubtSection:
    rows = tuple(_row(view, each, now) for each in group.glimpses[:shown])
    named = (group.application, group.route, group.reason, group.count, group.dead)
    return DoubtSection(*named, Moment(group.oldest, now), rows)


def _row(view: View, seen: Glimpse, now: Micros) -> DoubtRow:
    origin = whole_origin(seen.origin, seen.terms)
    place = (origin.tenant, origin.method, origin.path)
    dead = seen.state is State.UNKNOWN and seen.due_at is None
    times = (Moment(seen.created_at, now), seen.tries, moment(seen.due_at, now))
    call = _doubted_call(view, seen.identity)
    return DoubtRow(seen.identity.hex(), seen.state, *place, call, *times, dead)


def _doubted_call(view: View, identity: Identity) -> str | None:
    """What of it is in doubt: only its journal says so, which lists do not read."""
    found = view.operator.find(identity)
    try:
        return None if found is None else in_doubt(found.case)
    except StoreError:
        return "its journal cannot be read"


def probe_many(view: View) -> ActPage:
    """Ask the probes of those selected, or of all that fit; the list is frozen when it is shown."""
    if is_confirmed(view):
        said = {"by": view.user.name, "reason": view.reason()}
        wanted = [identity(each) for each in chosen(view)]
        asked = probe_each(view.operator, wanted, **said, within=_ASKING)
        return outcomes([_item(each.name, each) for each in asked], "unknown")
    names = _matching(view) if view.form.get("every") else chosen(view)
    return confirm(
        *(view, f"Ask the probes of {_count(len(names))}?", "Ask them now", "unknown"),
        warning="Each is settled by what its probe says; one that cannot tell stays as it is.",
        items=tuple(ActItem(each, f"records/{identity(each).hex()}") for each in names),
    )


def _matching(view: View) -> tuple[str, ...]:
    named = (view.form.get("route"), view.form.get("reason_of_group"))
    groups = _fitting(doubts(view.operator, _LOOK), *named)
    names = [each.hex() for group in groups for each in group.identities]
    if not names:
        raise ConsoleRefusal(409, "Nothing fits any more.")
    return tuple(names[:MOST])


def _item(name: str, result: Any) -> ActItem:
    return ActItem(name, f"records/{name}", result.said, result.done)


def _count(count: int) -> str:
    return "one record" if count == 1 else f"{count:,} records"


# ── one, with its evidence ────────────────────────────────────────────────────────────────────────


@frozen
class DecisionPage:
    """One record in doubt: what we know, what the probe says, what the provider has sent."""

    record: KeyPage
    call: str | None
    """The call that the evidence must be about; None: the whole handler."""
    wants_json: bool
    """What happened is stated as the JSON result of a function."""
    probe: str
    """Who can be asked: the name of what is asked about, or why nobody can."""
    can_ask: bool
    looked: str | None
    """What the probe said just now, where it was looked at."""
    voucher: str | None
    """Proves, when a form brings it back, that the probe said so."""
    evidence: str
    """What goes into the audit with the reason."""


def decide(view: View) -> DecisionPage:
    return _decision(view, key.story(view), None)


def look(view: View) -> DecisionPage:
    """Ask the probe, and decide nothing."""
    said = view.operator.look(view.identity())
    return _decision(view, key.story(view), said)


def _decision(view: View, told: Story, said: Evidence | Undecided | None) -> DecisionPage:
    case = told.case
    call = _call(case)
    can_ask, probe = _who_can_be_asked(view, case, told.now)
    looked = None if said is None else one_line(probe_text(said))
    return DecisionPage(
        record=key.page_of(view, told),
        call=call,
        wants_json=call is not None or case.origin.method == ONCE,
        probe=probe,
        can_ask=can_ask,
        looked=looked,
        voucher=None if looked is None else voucher(case.record, looked),
        evidence=evidence_text(told, said),
    )


def _call(case: Case) -> str | None:
    try:
        return call_in_doubt(case)
    except StoreError:
        return None


def _who_can_be_asked(view: View, case: Case, now: Micros) -> tuple[bool, str]:
    try:
        doubt = view.operator.doubt_of(case, now)
    except SemelError as error:
        return False, str(error)
    if doubt.probe is None:
        return False, "Nobody can be asked: its route and its call have no probe."
    return True, doubt.name or "the whole request"


# ── what is decided ───────────────────────────────────────────────────────────────────────────────


def probe(view: View) -> ActPage:
    """Ask the probe now, and settle by what it says."""
    asked = view.operator.probe_now(view.identity(), by=view.user.name)
    result = ActResult(isinstance(asked, Settled), _said(asked))
    back = f"{'records' if result.done else 'unknown'}/{view.identity().hex()}"
    return outcome(result, back, key.facts_now(view))


def _said(came: Inspection | None) -> str:
    return inspection_text(came).removeprefix("not settled: ")


def settle(view: View) -> ActPage:
    """Settle as happened, or as absent; first it is said what that will do."""
    told = key.story(view)
    evidence = _evidence(view, told.case)
    name = told.case.record.identity.hex()
    back = f"unknown/{name}"
    if not is_confirmed(view):
        return confirm(
            *(view, "Settle it?", "Settle it", back),
            warning=f"If you say so: {decisions.consequence(told.case, evidence)}",
            facts=(
                *key.facts(told),
                *_stated(view),
                ("Evidence on screen", _on_screen(view, told)),
            ),
        )
    result = _settled(view, told, evidence)
    return outcome(result, f"records/{name}" if result.done else back, key.facts_now(view))


def _stated(view: View) -> tuple[tuple[str, str], ...]:
    """What the person says that it came to, to be read once more."""
    names = (("status", "Status"), ("body", "Answer or result"), ("provider_id", "Provider's name"))
    given = [(title, view.form.text(name)) for name, title in names]
    return tuple((title, text[:2000]) for title, text in given if text is not None)


def _settled(view: View, told: Story, evidence: Evidence) -> ActResult:
    """By the login's name; the reason says what was on screen."""
    seen, by, reason = view.form.get("seen", ""), view.user.name, signed_reason(view, told)
    identity = told.case.record.identity
    if isinstance(evidence, Absent):
        intent = Intent(Irreversible.ABSENT, identity.hex(), seen)
        return view.approvals.act(intent, by=by, reason=reason)
    came = view.operator.settle(identity, evidence, by=by, reason=reason, seen=seen)
    return ActResult(isinstance(came, Settled), _said(came))


def _evidence(view: View, case: Case) -> Evidence:
    """What the form says. Absent needs its assertion; nothing is taken for granted."""
    form = view.form
    verdict = form.get("verdict")
    if verdict == "absent":
        if form.get("final") != "yes":
            raise ConsoleRefusal(
                400,
                "That it is not there now does not prove that it will not come: say that it did "
                "not happen and no longer can, or void it at the provider first.",
            )
        return Absent(final=True)
    if verdict != "happened":
        raise ConsoleRefusal(400, "Say whether it happened.")
    body, status = form.get("body", ""), form.text("status")
    if status is not None and not _STATUS.fullmatch(status):
        raise ConsoleRefusal(400, "The status of an answer is from 200 to 599.")
    stated = decisions.StatedAnswer(
        None if status is None else int(status),
        body.replace("\r\n", "\n").encode() if body.strip() else None,
        form.text("content_type") or "application/json",
        form.text("provider_id"),
    )
    try:
        return decisions.happened(case, stated)
    except decisions.Incomplete as error:
        raise ConsoleRefusal(400, f"Not enough: {error}.") from None


def signed_reason(view: View, told: Story) -> str:
    """The typed reason, and the evidence that was on screen: only ours stands in brackets."""
    typed = view.reason()[:_LONGEST].replace("[", "(").replace("]", ")")
    return f"{typed} [on screen: {_on_screen(view, told)}]"


def _on_screen(view: View, told: Story) -> str:
    """What the page showed. What a form says of the probe counts only if our page had said it."""
    looked, sent = view.form.get("looked", ""), view.form.get("voucher", "")
    shown = compare_digest(sent.encode(), voucher(told.case.record, looked).encode())
    return evidence_text(told) + (f"; probe, as shown: {looked[:80]}" if shown else "")


def bury(view: View) -> ActPage:
    """Give it up: its key is expired."""
    told = key.story(view)
    name = told.case.record.identity.hex()
    if not is_confirmed(view):
        return confirm(
            *(view, "Give it up?", "Give it up", f"unknown/{name}"),
            warning="Nobody will ever know. Retries are refused (410); its key stays used.",
            facts=key.facts(told),
        )
    written = view.operator.bury(
        told.case.record.identity,
        by=view.user.name,
        reason=signed_reason(view, told),
        seen=view.form.get("seen", ""),
    )
    done = isinstance(written, ops.Applied)
    result = ActResult(done, "given up" if done else "it has changed since it was looked at")
    return outcome(result, f"records/{name}", key.facts_now(view))


def free(view: View) -> ActPage:
    """Give it up and free its key: it may happen twice."""
    told = key.story(view)
    name = told.case.record.identity.hex()
    if not is_confirmed(view):
        return confirm(
            *(view, "Free the key of an unknown outcome?", "Free the key", f"unknown/{name}"),
            warning="If it did happen, a retry makes it happen twice.",
            facts=key.facts(told),
        )
    intent = Intent(Irreversible.FREE, name, view.form.get("seen", ""))
    result = view.approvals.act(intent, by=view.user.name, reason=signed_reason(view, told))
    return outcome(result, "unknown", key.facts_now(view))
