"""What would a retry get now? Asked of the same code that answers requests.

The first half of an exchange (`core/exchange/claim.py`) is run on a copy of the record, in a memory
store that is thrown away: whatever it writes is written there. So the forecast cannot drift from
what requests get, and changes nothing. Limits of tenants and a store that is down are not foreseen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from semel.core import operations as ops
from semel.core.exchange.answers import Answer
from semel.core.exchange.claim import claim
from semel.core.exchange.exchange import Exchange
from semel.core.exchange.problems import ProblemResponse
from semel.core.flow import run
from semel.core.frozen import frozen
from semel.core.policy import RoutePlan
from semel.core.records import Case, HeaderView, Identity, Micros, Record, Request
from semel.core.recovery import journal
from semel.core.request.comparison import FieldDifference, Prints
from semel.core.request.fingerprint import Fingerprint
from semel.core.terms import NO_TERMS
from semel.errors import StoreError
from semel.runtime.leases import new_fence
from semel.stores.memory.outbox import MemoryOutbox
from semel.stores.memory.records import MemoryRecords
from semel.stores.memory.rows import Row

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.operators.operator import Operator

R = TypeVar("R")


@frozen
class Forecast:
    """What a request with the record's key would get at this moment."""

    runs: bool
    """The handler is called; a status is not known then."""
    outcome: str
    status: int | None = None
    code: str | None = None
    """Of the problem document; None: it is no refusal."""
    retryable: bool | None = None
    retry_after: int | None = None
    """Seconds."""
    waits: Micros = 0
    """It is kept waiting for up to so long first."""
    goes_on: tuple[str, ...] = ()
    """The recovery points that the run would not do again."""
    said: str = ""


@frozen
class Forecasts:
    """For the request that made the record, sent again, and for another one under its key."""

    same: Forecast
    other: Forecast
    policy: str
    """The name of the policy that was asked."""
    as_promised: bool
    """Its terms are those of the record; else the route was changed since."""
    shadow: bool
    """The route is only watched: each request runs, whatever is foreseen here."""


def forecast(operator: Operator, case: Case, now: Micros) -> Forecasts | None:
    """What retries get; None where this process does not have the record's route."""
    policy = operator.policy_of(case)
    if policy is None or case.terms is None:
        return None
    guard = operator.guard
    plan = guard.runtime.plan(case.terms.route, policy)
    same = _Rehearsal(guard, plan, case, now, matching=True).forecast()
    other = _Rehearsal(guard, plan, case, now, matching=False).forecast()
    return Forecasts(same, other, policy.name, plan.terms == case.terms, policy.shadow)


# ── one request, on a copy ────────────────────────────────────────────────────────────────────────


class _Rehearsal(Exchange):
    """A keyed request of which only the record is known: it sends the same payload, or another."""

    __slots__ = ("_case", "_copy", "_guard", "_now", "_rendered", "_waited")

    def __init__(
        self, guard: Guard, plan: RoutePlan, case: Case, now: Micros, *, matching: bool
    ) -> None:
        origin, record = case.origin, case.record
        super().__init__(plan, Request(origin.method, origin.path, b"", HeaderView(()), raw=None))
        self.identity, self.fence = record.identity, new_fence()
        self.prints = _KnownPrints(record, matching=matching)
        self.found = self.key = self.sent = origin.key
        self.tenant, self.fresh_until, self.seen_before = origin.tenant, None, False
        asked = plan.policy.resumable and bool(guard.registry.probes)
        self.can_ask = plan.policy.probe is not None or asked
        self.stored, self.status_at = b"", guard.status
        self._guard, self._case, self._now = guard, case, now
        self._copy = _copy_of(case)
        self._waited: Micros = 0
        self._rendered = False

    def forecast(self) -> Forecast:
        came = run(claim(self), self._perform)
        return self._would_run() if isinstance(came, ops.Claimed) else self._told(came)

    def _perform(self, op: ops.FlowOperation[R]) -> R:
        any_op: ops.FlowOperation[Any] = op
        reply: Any = None
        match any_op:
            case ops.Read(identity) if identity != self.identity:
                reply = self._guard.runtime.backend.blocking().perform(any_op)
            case ops.StoreOperation():
                reply = self._copy[type(any_op)](any_op, self._now)
            case ops.Await(patience=patience):
                self._waited, reply = patience, ops.Unwoken()
            case ops.Begin():
                reply = ops.Begun()
            case ops.Apart(work):
                reply = work()
            case ops.Render(response):  # on_replay is the application's: it is not called for this
                self._rendered, reply = True, response
            case _:
                pass
        return cast("R", reply)

    def _would_run(self) -> Forecast:
        try:
            points = journal.decode(self._case.journal).points if self.policy.resumable else ()
        except StoreError:
            points = ()
        done = tuple(point.name for point in points if point.done)
        said = "the handler goes on behind what it has done" if done else "the handler runs"
        return Forecast(True, "executed", goes_on=done, said=said, waits=self._waited)

    def _told(self, answer: Answer) -> Forecast:
        response = answer.response
        if response is None:
            return Forecast(False, answer.outcome.value, waits=self._waited)
        outcome, said = answer.outcome.value, "the kept answer is repeated"
        if isinstance(response, ProblemResponse):
            found = response.problem
            facts = (found.status, found.code, found.retryable, found.retry_after)
            return Forecast(False, outcome, *facts, self._waited, said=found.title)
        if self._rendered:
            said = "the kept answer, as on_replay= renders it then"
        after = HeaderView(response.headers).get("retry-after")
        if response.status == 202 and after is not None:
            said = "it is under way: the address of its status"
        seconds = int(after) if after is not None and after.isdecimal() else None
        return Forecast(
            False, outcome, response.status, retry_after=seconds, waits=self._waited, said=said
        )


class _KnownPrints(Prints):
    """Prints of a body that nobody has: those of the record itself, or of any other."""

    __slots__ = ("_matching", "_record")

    def __init__(self, record: Record, *, matching: bool) -> None:
        self._record = record
        self._matching = matching

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self._record.fingerprint, {}, _KIND, b"")

    def evidence(self, identity: Identity) -> bytes:
        return self._record.fields

    def match(self, record: Record) -> bool:
        return self._matching

    def differing(self, record: Record) -> FieldDifference:
        return FieldDifference()


_KIND: Final = "raw"


def _copy_of(case: Case) -> Any:
    """A memory store's answers, with this record in it and nothing else."""
    record, terms = case.record, case.terms
    claimed = ops.Claim(
        *(record.identity, record.fence, record.fingerprint, record.fields, case.origin, 0),
        on_lapse=record.on_lapse,
        request=case.request,
        terms=NO_TERMS if terms is None else terms.id,
    )
    row = Row(claimed, record.state, record.leased_until or 0, record.created_at)
    row.leased_until, row.expires_at = record.leased_until, record.expires_at
    row.forget_at, row.retired_at = record.forget_at, record.retired_at
    row.snapshot, row.reason, row.journal = record.snapshot, record.reason, case.journal
    row.resource, row.tries, row.due_at = case.resource, case.tries, case.due_at
    if terms is not None and terms.mode == "deferred":
        row.patience, row.abandon_at = 0, record.leased_until
    records = MemoryRecords(MemoryOutbox())
    records.rows[record.identity] = row
    if terms is not None:
        records.terms[terms.id] = terms
    return records.answers()
