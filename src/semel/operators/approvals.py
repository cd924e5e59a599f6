"""The two-person rule: who proposes an act that cannot be undone is not who has it done.

A proposal is an entry of the audit. To decide it, a person first takes it: the store notes its
number, as it notes the events of providers, and of several who note the same number one is first
(`NoteEvent`). So an approval and a rival approval or decline come to one decision, in whatever
process they are made. The act itself names what the proposer saw, and is refused where the record
has changed since. A process that dies between taking and acting leaves a proposal that is spent and
an act that is not done: it is proposed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from secrets import token_hex
from typing import Any, Final
from unicodedata import category, normalize

from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.maintenance import Erasure
from semel.core.records import Identity, Micros
from semel.core.unknown.evidence import Absent
from semel.core.unknown.settle_unknown import Settled
from semel.errors import ConfigurationError, StoreError
from semel.operators.operator import Operator, by_operator

LOOK: Final = 5_000
"""Entries of the audit, the newest, that are looked through for proposals."""
LONGEST: Final = timedelta(hours=24)
"""How long a proposal may wait: so far back the audit is read for them."""
_SOURCE: Final = "semel two-person rule"
_FORMS: Final = "semel forms that were sent"
_KEEP: Final[Micros] = int(2 * LONGEST.total_seconds() * 1_000_000)
"""How long the store notes both: longer than any proposal waits."""
_GONE: Final = "there is no such record any more"
_FREE: Final = "its key is free: the next request with it runs"
_CHANGED: Final = "it has changed since it was looked at"


class Irreversible(StrEnum):
    """The acts that cannot be undone."""

    EVICT = "evict"
    """Remove a settled record: its key may run again."""
    FREE = "free"
    """Give an unknown record up and free its key: it may happen twice."""
    ABSENT = "absent"
    """Settle an unknown record as not happened: its key may run again."""
    ERASE = "erase"
    """Erase what is kept of a tenant."""
    DROP = "drop"
    """Delete a dead effect: it is never delivered."""


@frozen
class TwoPersonRule:
    """Which acts need a second person, and how long a proposal waits for one."""

    acts: frozenset[Irreversible] = frozenset()
    within: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        if not timedelta(0) < self.within <= LONGEST:
            raise ConfigurationError("a proposal waits for a second person for up to 24 hours")


def two_person_rule(said: TwoPersonRule | str | Collection[str] | None) -> TwoPersonRule:
    """Read ``two_person=``: ``"all"``, ``"off"`` or None, or the names of acts."""
    if isinstance(said, TwoPersonRule):
        return said
    if said is None or said == "off":
        return TwoPersonRule()
    if said == "all":
        return TwoPersonRule(frozenset(Irreversible))
    names = (said,) if isinstance(said, str) else said
    try:
        return TwoPersonRule(frozenset(map(Irreversible, names)))
    except ValueError:
        known = ", ".join(Irreversible)
        raise ConfigurationError(
            f"two_person= is 'all', 'off', or some of {known}; not {said!r}"
        ) from None


@frozen
class Intent:
    """One act on one thing: an identity in hexadecimal, an effect's key, or a tenant."""

    act: Irreversible
    subject: str
    seen: str = ""
    """What it was decided on: the record's `sighting`, or when the effect died; of an erasure, the
    number of the form, so that a form that is sent twice erases once."""


@frozen
class Proposal:
    """An act that waits for a second person."""

    number: str
    intent: Intent
    by: str
    """As the audit has it."""
    reason: str
    at: Micros
    until: Micros
    application: str
    """Whose consoles may decide it: a store may have several."""


@frozen
class ActResult:
    """What came of an act. ``proposal``: it is not done, and waits for a second person."""

    done: bool
    said: str
    proposal: Proposal | None = None
    started: bool = False
    """It is under way, and the audit will say when it is done."""
    forbidden: bool = False
    """Not by this person."""


class Approvals:
    """Does the irreversible acts, or has them approved first, as the rule says.

    ``apart`` runs what takes long where nobody waits for it, or says that it does not; without it,
    it is waited for.
    """

    def __init__(
        self,
        operator: Operator,
        rule: TwoPersonRule,
        apart: Callable[[Callable[[], object]], bool] | None = None,
    ) -> None:
        self._operator = operator
        self._apart = apart
        self._ask = operator.guard.backend.blocking().perform
        self.rule = rule

    def act(self, intent: Intent, *, by: str, reason: str) -> ActResult:
        """Do it, or propose it where it needs a second person."""
        if intent.act not in self.rule.acts:
            return self._do(intent, by, reason)
        said, number = by_operator(by, reason), token_hex(16)
        until = self._operator.now() + int(self.rule.within.total_seconds() * 1_000_000)
        what = {"act": intent.act.value, "subject": intent.subject, "seen": intent.seen}
        whose = self._operator.guard.name
        text = json.dumps({"number": number, **what, "until": until, "application": whose})
        at = self._ask(ops.Remark(ops.Verb.PROPOSE, said, text)).now
        proposal = Proposal(number, intent, said.by, said.reason, at, until, whose)
        return ActResult(False, "proposed: a second person must approve it", proposal)

    def pending(self) -> list[Proposal]:
        """What waits for a second person, newest first."""
        now = self._operator.now()
        return self.undecided(self._entries(now), now)

    def undecided(self, entries: Iterable[ops.AuditEntry], now: Micros) -> list[Proposal]:
        """The proposals among entries of the audit, newest first, that wait still."""
        decided: set[str | None] = set()
        found: list[Proposal] = []
        for entry in entries:
            if entry.verb in (ops.Verb.APPROVE, ops.Verb.DECLINE):
                decided.add(entry.subject)
            proposal = self._own(entry)
            if proposal is not None and proposal.number not in decided and proposal.until > now:
                found.append(proposal)
        return found

    def approve(self, number: str, *, by: str, reason: str) -> ActResult:
        """Do what was proposed, as the second person; refused for the first."""
        said = by_operator(by, reason)
        proposal = self._taken(number, approver=said.by)
        if isinstance(proposal, ActResult):
            return proposal
        self._ask(ops.Remark(ops.Verb.APPROVE, said, number))
        words = f"proposal {number[:8]} of {proposal.by}: {proposal.reason}"
        result = self._do(proposal.intent, by, words)
        if not result.done and not result.started:
            words = f"came to nothing: {result.said}"
            self._ask(ops.Remark(ops.Verb.APPROVE, ops.act(said.by, words), number))
        return result

    def decline(self, number: str, *, by: str, reason: str) -> ActResult:
        """Put an end to a proposal. Its proposer may do so too."""
        said = by_operator(by, reason)
        proposal = self._taken(number)
        if isinstance(proposal, ActResult):
            return proposal
        self._ask(ops.Remark(ops.Verb.DECLINE, said, number))
        return ActResult(True, "declined")

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────

    def _taken(self, number: str, approver: str | None = None) -> Proposal | ActResult:
        """The proposal, to be decided by this call alone; or why it is not, in words."""
        proposal = self._find(number)
        if proposal is None:
            return ActResult(False, "there is no such proposal, or its time is up")
        if approver is not None and same_person(approver, proposal.by):
            return ActResult(False, "who has proposed it cannot approve it", forbidden=True)
        noted = self._ask(ops.NoteEvent(_SOURCE, proposal.number, _KEEP))
        if noted.before:
            return ActResult(False, "somebody has decided it already")
        if noted.now > proposal.until:
            return ActResult(False, "its time is up")
        return proposal

    def _find(self, number: str) -> Proposal | None:
        now = self._operator.now()
        for entry in self._entries(now):
            proposal = self._own(entry)
            if proposal is not None and proposal.number == number:
                return proposal if proposal.until > now else None
        return None

    def _own(self, entry: ops.AuditEntry) -> Proposal | None:
        found = proposal_of(entry)
        own = found is not None and found.application == self._operator.guard.name
        return found if own else None

    def _entries(self, now: Micros) -> Iterator[ops.AuditEntry]:
        since = now - int(LONGEST.total_seconds() * 1_000_000)
        return islice(self._operator.audit(since=since), LOOK)

    # ── doing ────────────────────────────────────────────────────────────────────────────────────

    def _do(self, intent: Intent, by: str, reason: str) -> ActResult:
        match intent.act:
            case Irreversible.EVICT | Irreversible.FREE:
                return self._remove(intent, by, reason)
            case Irreversible.ABSENT:
                return self._settle_absent(intent, by, reason)
            case Irreversible.ERASE:
                return self._erase(intent, by, reason)
            case Irreversible.DROP:
                return self._drop(intent, by, reason)

    def _erase(self, intent: Intent, by: str, reason: str) -> ActResult:
        """It reads the whole table, and then waits for the answers that processes remember."""
        if intent.seen and self._ask(ops.NoteEvent(_FORMS, intent.seen, _KEEP)).before:
            return ActResult(False, "this form was sent before: the audit says what came of it")

        def erase() -> Erasure:
            return self._operator.erase(intent.subject, by=by, reason=reason)

        if self._apart is not None:
            if self._apart(erase):
                return ActResult(False, "it is being erased", started=True)
            return ActResult(False, "too many tenants are being erased: come again later")
        done = erase()
        left = f", {len(done.left)} unsettled ones left" if done.left else ""
        return ActResult(True, f"{done.erased} records erased{left}")

    def _remove(self, intent: Intent, by: str, reason: str) -> ActResult:
        operator, identity = self._operator, _identity(intent)
        said: dict[str, Any] = {"by": by, "reason": reason, "seen": intent.seen}
        settled = intent.act is Irreversible.EVICT
        if settled:
            written = operator.evict(identity, **said, wait=False)
        else:
            written = operator.bury(identity, **said, free=True)
        if written is None:
            return ActResult(False, _GONE)
        if isinstance(written, ops.Lost):
            return ActResult(False, _CHANGED)
        return ActResult(True, self._freed() if settled else _FREE)

    def _freed(self) -> str:
        """That a key is free, and until when a process may still repeat what it remembers."""
        try:
            until = self._operator.remembered_until()
        except StoreError as error:  # it is done all the same
            return f"its key is free; whether processes remember its answer is not known: {error}"
        if until is None:
            return _FREE
        end = datetime.fromtimestamp(-(-until // 1_000_000), UTC)
        at = f"{end:%H:%M:%S} UTC"
        return f"its key is free; a process may repeat its answer from memory until {at}"

    def _settle_absent(self, intent: Intent, by: str, reason: str) -> ActResult:
        said = {"by": by, "reason": reason, "seen": intent.seen}
        came = self._operator.settle(_identity(intent), Absent(final=True), **said)
        if came is None:
            return ActResult(False, _GONE)
        if isinstance(came, Settled):
            return ActResult(True, f"settled: {came.state.value}")
        return ActResult(False, getattr(came, "reason", _CHANGED))

    def _drop(self, intent: Intent, by: str, reason: str) -> ActResult:
        found = self._ask(ops.FindEffect(intent.subject)).effects
        dead_at = found[0].dead_at if found else None
        if dead_at is None:
            return ActResult(False, "it is no dead letter any more")
        if str(dead_at) != intent.seen:
            return ActResult(False, _CHANGED)
        dropped = self._operator.drop_dead(intent.subject, by=by, reason=reason, died_at=dead_at)
        return ActResult(dropped, "deleted" if dropped else "it is no dead letter any more")


def same_person(one: str, other: str) -> bool:
    """Whether two names may be one login: where it is in doubt, they are.

    Who checks passwords may take several spellings for one account: databases ignore case, accents
    and blanks, directories the width of letters. So only letters, digits and signs that are seen
    are compared, without their accents.
    """
    return _spelling(one) == _spelling(other)


def _spelling(name: str) -> str:
    folded = normalize("NFKD", normalize("NFKD", name).casefold())
    return "".join(c for c in folded if category(c)[0] not in "MZC" and c not in _UNSEEN)


_UNSEEN: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Blanks that Unicode takes for letters or signs."""


def proposal_of(entry: ops.AuditEntry) -> Proposal | None:
    """The proposal that an entry of the audit is; None for every other entry."""
    if entry.verb != ops.Verb.PROPOSE:
        return None
    try:
        said: dict[str, Any] = json.loads(entry.subject or "")
        intent = Intent(Irreversible(said["act"]), str(said["subject"]), str(said["seen"]))
        times = (entry.at, int(said["until"]))
        return Proposal(
            *(str(said["number"]), intent, entry.by, entry.reason, *times, said["application"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def _identity(intent: Intent) -> Identity:
    return Identity(bytes.fromhex(intent.subject))
