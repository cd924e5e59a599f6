"""Mutants: each takes one guard out of the shipping code. The search must notice every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import pytest

from semel.core import operations as ops
from semel.core.exchange import atomic, claim, settle
from semel.core.exchange.answers import Answer, Outcome, from_record, in_flight, usual_replay
from semel.core.exchange.settle import Verdict
from semel.core.flow import Flow, ask
from semel.core.frozen import replace
from semel.core.records import Fence, State
from semel.core.recovery import points
from semel.core.recovery.was_sent import WasSent
from semel.core.request import keys
from semel.core.states import RecordEvent
from semel.core.unknown import probe as reconciling
from semel.core.unknown import settle_unknown
from semel.core.unknown.evidence import Absent
from semel.stores.memory import records
from semel.stores.memory.rows import WRITES, Row, allowed, nothing, proved
from tests.core import whole
from tests.proof.explorer import cast, worlds
from tests.proof.explorer.worlds import BY_NAME, World

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    name: str
    world: World
    patch: Patch
    promise: str
    """The number of the promise that it breaks first; which others follow depends on the search."""


MUTANTS: Final[list[Mutant]] = []


def mutant(name: str, world: str, promise: str, **changes: Any) -> Callable[[Patch], Patch]:
    """Small worlds are enough: two requests, a fault only where the mutant needs one."""

    def add(patch: Patch) -> Patch:
        small = {"requests": 2, "faults": 0, **changes}
        MUTANTS.append(Mutant(name, BY_NAME[world].with_(**small), patch, promise))
        return patch

    return add


# ── the store: what must be shown for a write ─────────────────────────────────────────────────────


def _unfenced(write: type, *states: State) -> Patch:
    """A write of this kind is allowed in these states, whatever fence it shows."""

    def lax(kind: Any, op: Any, event: Any, held: Any, now: int) -> bool:
        if isinstance(op, write) and held.state in states:
            return True
        return allowed(kind, op, event, held, now)

    return lambda patch: patch.setattr(records, "allowed", lax)


_IN, _UNKNOWN, _FAILED = State.IN_PROGRESS, State.UNKNOWN, State.FAILED_RETRYABLE

mutant("complete without a fence", "leased-ietf-doubt", "4")(_unfenced(ops.Complete, _IN, _UNKNOWN))
mutant("release without a fence", "leased-ietf-doubt", "4")(_unfenced(ops.Release, _IN))
mutant("suspend without a fence", "leased-ietf-doubt", "4")(_unfenced(ops.Suspend, _IN))
mutant("advance without a fence", "leased-resume-repeatable", "4")(_unfenced(ops.Advance, _IN))
mutant("retake without a fence", "leased-ietf", "5", requests=3)(
    _unfenced(ops.Retake, _FAILED, _IN)
)
mutant("take without a fence", "deferred-accepted", "5", requests=1, faults=1, lives=2)(
    _unfenced(ops.Take, State.PENDING, _IN, _UNKNOWN)
)
mutant("settle without a fence", "leased-accepted", "2", faults=1)(
    _unfenced(ops.SettleHappened, _UNKNOWN, _IN, _FAILED, State.COMPLETED)
)
mutant("lapse without a fence", "leased-ietf-doubt", "5", requests=3, kinds=("ok",))(
    _unfenced(ops.Lapse, _IN)
)


@mutant("renewal revives a lease that is past", "leased-ietf", "4")
def _(patch: pytest.MonkeyPatch) -> None:
    def lax(kind: Any, op: Any, event: Any, held: Any, now: int) -> bool:
        if isinstance(op, ops.Renew):
            return proved(event, op.fence, held, now)
        return allowed(kind, op, event, held, now)

    patch.setattr(records, "allowed", lax)


def _unburnt(*kinds: type[Any]) -> Patch:
    """Writes of these kinds leave the fence as it was."""

    def keeping(own: Callable[[Any, Row, int], None]) -> Callable[[Any, Row, int], None]:
        def fill(op: Any, held: Row, now: int) -> None:
            fence = held.fence
            own(op, held, now)
            held.fence = fence

        return fill

    def mutate(patch: pytest.MonkeyPatch) -> None:
        for kind in kinds:
            kept = replace(WRITES[kind], fill=keeping(WRITES[kind].fill))
            patch.setitem(WRITES, kind, kept)

    return mutate


mutant("settling does not burn the fence", "leased-ietf-doubt", "4")(
    _unburnt(ops.SettleHappened, ops.SettleAbsent)
)
mutant("a new claim does not burn the fence", "leased-ietf", "4")(_unburnt(ops.Retake))


@mutant("a claim is retracted without its fence", "leased-ietf", "4", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    def lax(kind: Any, op: Any, event: Any, held: Any, now: int) -> bool:
        retracts = isinstance(op, ops.Release) and op.reason == "claim unanswered"
        if retracts and held.state is State.IN_PROGRESS:
            return True
        return allowed(kind, op, event, held, now)

    patch.setattr(records, "allowed", lax)


@mutant("fences are a counter that begins anew with each row", "leased-zombie-past-retention", "4")
def _(patch: pytest.MonkeyPatch) -> None:
    one = Fence(b"1".ljust(16, b"."))
    own = worlds.World.call
    patch.setattr(worlds.World, "call", lambda *given: whole.varied(own(*given), fence=one))
    # The store gives them out, so that nobody takes another's claim for its own.
    patch.setattr(records, "_claim_again", lambda op, held, now: ops.Found(held.record, now))


# ── the store: time ───────────────────────────────────────────────────────────────────────────────


@mutant("a lapsed key is free: the next request runs again", "leased-ietf", "5")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("semel.stores.memory.rows.lapse_event", lambda held: RecordEvent.LAPSE_RELEASE)


@mutant("the sweeper frees what lapsed", "leased-ietf", "5")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records, "lapse_event", lambda held: RecordEvent.LAPSE_RELEASE)


@mutant("a claim takes a lapsed record over", "leased-ietf", "5")
def _(patch: pytest.MonkeyPatch) -> None:
    claim = records.MemoryRecords._claim

    def taking_over(self: records.MemoryRecords, op: Any, now: int) -> Any:
        held = self.rows.get(op.identity)
        if held is not None and held.record.lapsed(now):
            del self.rows[op.identity]
        return claim(self, op, now)

    patch.setattr(records.MemoryRecords, "_claim", taking_over)


_DAY: Final = 24 * 3600 * 1_000_000


def _freed(op: Any, held: Row, now: int) -> None:
    held.forget_at = now + _DAY


@mutant("unknown is free after a while", "leased-retention", "5", kinds=("doubt!", "ok"))
def _(patch: pytest.MonkeyPatch) -> None:
    def freeing(self: records.MemoryRecords, op: Any, now: int) -> ops.Tended:
        for held in list(self.rows.values()):
            if held.state is _UNKNOWN and held.created_at + _DAY < now:
                self.happen(RecordEvent.SETTLE_ABSENT, held, _freed, op, now)
        return ops.Tended({}, False, now)

    patch.setattr(records.MemoryRecords, "_sweep", freeing)


@mutant("unsettled records are purged", "leased-retention", "5", kinds=("doubt!", "ok"))
def _(patch: pytest.MonkeyPatch) -> None:
    reap = records.MemoryRecords._reap

    def purging(self: records.MemoryRecords, op: Any, now: int) -> ops.Tended:
        for held in list(self.rows.values()):
            if held.created_at + 24 * 3600 * worlds.SECOND < now:
                self.happen(RecordEvent.FORGET, held, nothing, op, now)
        return reap(self, op, now)

    patch.setattr(records.MemoryRecords, "_reap", purging)


@mutant("settled records are purged before their time", "leased-ietf", "6")
def _(patch: pytest.MonkeyPatch) -> None:
    def purging(self: records.MemoryRecords, op: Any, now: int) -> ops.Tended:
        for held in list(self.rows.values()):
            if held.state is State.COMPLETED:
                self.happen(RecordEvent.FORGET, held, nothing, op, now)
        return ops.Tended({}, False, now)

    patch.setattr(records.MemoryRecords, "_reap", purging)


@mutant("the sweeper does nothing", "leased-ietf", "12", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records.MemoryRecords, "_sweep", lambda self, op, now: ops.Tended({}, False, now))


@mutant("what runs is abandoned", "deferred-abandoned", "5")
def _(patch: pytest.MonkeyPatch) -> None:
    def lax(event: RecordEvent, fence: Fence, held: Row, now: int) -> bool:
        if event is RecordEvent.ABANDON and held.state is State.IN_PROGRESS:
            return held.record.lapsed(now)
        return proved(event, fence, held, now)

    patch.setattr(records, "proved", lax)


# ── the way in ────────────────────────────────────────────────────────────────────────────────────


@mutant("no fingerprint check", "leased-mismatch", "9", strangers=(1,))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "differs", lambda call, record: False)


@mutant("no fingerprint check in flight", "leased-mismatch", "9", strangers=(1,))
def _(patch: pytest.MonkeyPatch) -> None:
    differs = claim.differs

    def when_done(call: Any, record: Any) -> bool:
        return record.state is State.COMPLETED and differs(call, record)

    patch.setattr(claim, "differs", when_done)


@mutant("a kept answer is told to another payload", "leased-mismatch", "9", strangers=(1,))
def _(patch: pytest.MonkeyPatch) -> None:
    differs = claim.differs

    def until_done(call: Any, record: Any) -> bool:
        return record.state is not State.COMPLETED and differs(call, record)

    patch.setattr(claim, "differs", until_done)


@mutant("a usual replay is told to another payload", "leased-mismatch", "9", strangers=(1,))
def _(patch: pytest.MonkeyPatch) -> None:

    def careless(ex: Any, found: ops.Found) -> Answer | None:
        return usual_replay(
            whole.varied(ex, prints=SimpleNamespace(match=lambda record: True)), found
        )

    patch.setattr(claim, "usual_replay", careless)


def _long_way(patch: pytest.MonkeyPatch) -> None:
    """Of two ways that say the same, a mutant of the long one needs the short one gone."""
    patch.setattr(claim, "usual_replay", lambda ex, found: None)


@mutant("a kept answer is refused to its own request", "leased-ietf", "12")
def _(patch: pytest.MonkeyPatch) -> None:
    _long_way(patch)
    patch.setattr(claim, "differs", lambda call, record: record.state is State.COMPLETED)


@mutant("a kept answer is called expired", "leased-ietf", "12")
def _(patch: pytest.MonkeyPatch) -> None:
    def forgetful(call: Any, record: Any, now: int) -> Flow[Answer]:
        late = now if record is None else (record.expires_at or now)
        return (yield from from_record(call, record, late))

    _long_way(patch)
    patch.setattr(claim, "from_record", forgetful)


@mutant("a retake without an answer is not taken back", "leased-certain", "12", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    def careless(call: Any, error: Any, seen: Any = None) -> Flow[None]:
        yield from ()

    patch.setattr(claim, "_retract", careless)


@mutant("an unanswered claim runs the handler", "leased-ietf", "8", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "closed", lambda ex, error: ops.Claimed(0, 0, 0))


@mutant("a busy key is run all the same", "leased-ietf", "8")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "in_flight", lambda call: ops.Claimed(0, 0, 0))


@mutant("a waiter runs without having been elected", "leased-payments-together", "12", requests=3)
def _(patch: pytest.MonkeyPatch) -> None:
    def eager(call: Any, record: Any, patience: int) -> Flow[Any]:
        reply = yield from ask(ops.Await(call.identity, record.fence, patience))
        return (
            ops.Found(reply.record, reply.now) if isinstance(reply, ops.Woken) else in_flight(call)
        )

    patch.setattr(claim, "_wait", eager)


@mutant("tenants share their keys", "leased-tenants", "7", elsewhere=(1,))
def _(patch: pytest.MonkeyPatch) -> None:
    identify: Any = keys.identify
    patch.setattr(keys, "identify", lambda tenant, *parts: identify("", *parts))


@mutant("applications share their keys", "leased-applications", "7", foreign=(1,))
def _(patch: pytest.MonkeyPatch) -> None:
    identify: Any = keys.identify

    def nameless(*parts: Any) -> bytes:
        *place, _, key = parts
        named: bytes = identify(*place, "", key)
        return named

    patch.setattr(keys, "identify", nameless)


@mutant("a worker takes whatever is due", "leased-applications", "13", foreign=(1,))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ops.RouteScope, "covers", lambda known, terms: True)


# ── what becomes of a run ─────────────────────────────────────────────────────────────────────────


@mutant("an error with an effect is released", "leased-payments", "1")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(settle._FATE, "unknown", Verdict.RELEASE)


@mutant("a reset connection is taken for an error", "leased-ietf-doubt", "1", kinds=("reset!",))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "is_ambiguous", lambda error: False)


@mutant("a cancelled handler is released", "leased-ietf", "1", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    judge = settle.judge

    def lenient(policy: Any, outcome: Any) -> Verdict:
        return Verdict.RELEASE if isinstance(outcome, ops.Abandoned) else judge(policy, outcome)

    patch.setattr(settle, "judge", lenient)


@mutant("an answer is sent though it is not durable", "leased-ietf", "3", faults=2)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "not_durable", lambda call, answer: answer)


@mutant("a success is sent by another name", "leased-ietf", "3", faults=2)
def _(patch: pytest.MonkeyPatch) -> None:
    def renamed(call: Any, answer: Answer) -> Answer:
        return replace(answer, outcome=Outcome.NOT_DURABLE)

    patch.setattr(settle, "not_durable", renamed)


@mutant("an answer is sent before it is durable", "leased-ietf", "3")
def _(patch: pytest.MonkeyPatch) -> None:
    second_half = settle.settle

    def at_once(*given: Any) -> Flow[Any]:
        """The completing write is not made."""
        flow, reply = second_half(*given), ops.Applied(State.COMPLETED, 0, None, 0)
        try:
            op = next(flow)
            while True:
                op = flow.send(reply if isinstance(op, ops.Complete) else (yield op))
        except StopIteration as done:
            return done.value

    patch.setattr(whole, "settle", at_once)


@mutant("a zombie answers what it has made", "leased-ietf-doubt", "3")
def _(patch: pytest.MonkeyPatch) -> None:
    def own(call: Any, lost: Any, answer: Answer) -> Flow[Answer]:
        yield from ()
        return replace(answer, outcome=Outcome.EXECUTED)

    patch.setattr(settle, "as_zombie", own)


@mutant("a stream begins without its receipt", "leased-stream", "11")
def _(patch: pytest.MonkeyPatch) -> None:
    insist = settle._insist

    def careless(call: Any, op: Any, *attempt: int) -> Flow[Any]:
        if isinstance(op, ops.Open):
            return ops.Applied(State.IN_PROGRESS, 0, None, 0)
        return (yield from insist(call, op, *attempt))

    patch.setattr(settle, "_insist", careless)


# ── recovery points, workers, evidence ────────────────────────────────────────────────────────────


@mutant("a call is made without its intent on record", "leased-resume-asked", "1", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    def unrecorded(holder: Any, deed: Any) -> Flow[None]:
        holder.progress.journal = holder.progress.journal.intending(deed.name)
        yield from ()

    patch.setattr(points, "_intend", unrecorded)


@mutant("an operation that has acted is freed", "leased-resume-trips", "1")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "has_begun", lambda call, progress: False)


@mutant("an operation begins anew, whatever it has done", "leased-resume-trips", "1")
def _(patch: pytest.MonkeyPatch) -> None:
    def blank(ex: Any, entry: ops.Claimed) -> Flow[ops.Claimed]:
        yield from ()
        return entry

    patch.setattr(claim, "resume", blank)
    patch.setattr(whole, "resume", blank)


@mutant("a reset call is taken back", "leased-resume-asked", "1", requests=1, ways=("reset!",))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(points, "classify", lambda error, package: WasSent.NOT_SENT)


@mutant("a take without an answer is not put back", "deferred-certain", "12", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    def careless(case: Any, fence: Any, policy: Any) -> Flow[bool]:
        until = policy.lease_micros
        reply = yield from ask(ops.Take(case.record.identity, case.record.fence, fence, until))
        return isinstance(reply, ops.Applied)

    patch.setattr(cast, "take", careless)


@mutant("a call is made without a look at its lease", "leased-resume-asked", "4")
def _(patch: pytest.MonkeyPatch) -> None:
    def careless(op: Any) -> Flow[Any]:
        return True if isinstance(op, ops.Held) else (yield from ask(op))

    patch.setattr(points, "ask", careless)


@mutant("a call in doubt is made again, whatever the provider honours", "leased-resume-asked", "1")
def _(patch: pytest.MonkeyPatch) -> None:
    def presuming(deed: Any, probe: Any, inquiry: Any) -> Flow[None]:
        yield from ()

    patch.setattr(points, "_inquire", presuming)


@mutant("a worker runs what it has not taken", "deferred-accepted", "8")
def _(patch: pytest.MonkeyPatch) -> None:
    def grabbing(case: Any, fence: Any, policy: Any) -> Flow[bool]:
        yield from ()
        return True

    patch.setattr(cast, "take", grabbing)


@mutant("absent for now is taken for absent for ever", "leased-accepted", "1", lives=2)
def _(patch: pytest.MonkeyPatch) -> None:
    operation = settle_unknown._operation

    def hasty(case: Any, evidence: Any, *rest: Any) -> Any:
        said = Absent(final=True) if isinstance(evidence, Absent) else evidence
        return operation(case, said, *rest)

    patch.setattr(settle_unknown, "_operation", hasty)


@mutant("an unknown record is asked about for ever", "leased-accepted", "12")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciling, "hopeless", lambda doubt: None)


@mutant("an operation that lapses is released", "leased-resume-asked", "5", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    # Its journal would be kept; without one the next request begins at the start.
    def freed(op: Any, held: Row, now: int) -> None:
        held.forget_at, held.journal, held.leased_until = now + _DAY, None, None

    def released(self: Any, op: Any, now: int) -> ops.Tended:
        for held in list(self.rows.values()):
            if held.record.lapsed(now) and held.resumable:
                self.happen(RecordEvent.LAPSE_RELEASE, held, freed, op, now)
        return ops.Tended({}, False, now)

    patch.setattr(records.MemoryRecords, "_sweep", released)


# ── transactions ──────────────────────────────────────────────────────────────────────────────────


@mutant("a kept failure keeps its writes", "atomic-stripe", "10")
def _(patch: pytest.MonkeyPatch) -> None:
    result = atomic._result
    patch.setattr(atomic, "_result", lambda *given: replace(result(*given), writes=True))


@mutant("a commit in doubt is called a success", "atomic-ietf", "3", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    def presuming(call: Any, result: Any, error: Any) -> Flow[Answer]:
        yield from ()
        return atomic._committed(call, result.answer, 0)

    patch.setattr(atomic, "_ascertained", presuming)


@mutant("a commit in doubt is called undone", "atomic-ietf", "8", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(atomic, "_ascertained", atomic._nothing_kept)


@mutant("a stale doubt takes a settled record back", "atomic-payments", "4", faults=1)
def _(patch: pytest.MonkeyPatch) -> None:
    ascertained = atomic._ascertained

    def forgetful(call: Any, result: Any, error: Any) -> Flow[Answer]:
        found = yield from atomic._look_again(call)
        if isinstance(found, ops.Found) and found.record.state is _FAILED:
            return (yield from atomic._nothing_kept(call, result, error))
        return (yield from ascertained(call, result, error))

    patch.setattr(atomic, "_ascertained", forgetful)
