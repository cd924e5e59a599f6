"""What every adapter's exchange does alike; and the exchange whose operations block.

An adapter makes one object for one keyed request: it derives from `Exchange`, which the decisions
of the core are about, and adds what this process has to do with it: the lease, the run, the limits
and the events. The blocking one, for WSGI, views in threads and functions, runs in the caller's
thread from the claim to the write that settles the record. `web/exchange_async.py` has the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from semel.backoff import pause_before
from semel.core import operations as ops
from semel.core.exchange.admit import find_key
from semel.core.exchange.answers import Answer
from semel.core.exchange.claim import claim, resume
from semel.core.exchange.exchange import Exchange, ShadowRun
from semel.core.exchange.problems import ProblemResponse, in_shape
from semel.core.exchange.settle import Flowing, end_stream, settle
from semel.core.flow import Flow, run
from semel.core.frozen import replace
from semel.core.records import Request, Response
from semel.core.request.keys import STRONG_KEY_LENGTH, looks_like_personal_data, mask
from semel.core.unknown.settle_unknown import ONCE
from semel.errors import NotExecuted, OutcomeUnknown, StoreUnavailable
from semel.runtime.events import NONE, WARNING
from semel.runtime.leases import Lease, lease_clock
from semel.runtime.limits import Charge, at_once
from semel.runtime.operation import Run
from semel.runtime.transactions import Transact
from semel.web import request_events
from semel.web.request_events import Account
from semel.web.worker_runs import find_worker_run

if TYPE_CHECKING:
    from semel.core.policy import RoutePlan
    from semel.runtime.events import Events
    from semel.runtime.runtime import Runtime
    from semel.web.body import Body

R = TypeVar("R")

ASKS_FOR_A_LEASE: Final = frozenset((ops.Claim, ops.Retake, ops.Resume, ops.Commit))


class WebExchange(Exchange):
    """One keyed request, and what this process has to do with it."""

    __slots__ = (
        *("_asked_at", "_found", "_read_at", "_run_at", "account", "body"),
        *("charge", "has_run", "heedful", "lease", "quiet", "run", "runtime"),
    )

    body: Body
    """What was sent; `Pipeline.open` puts it here."""
    lease: Lease
    run: Run
    """Those of the handler, once it is about to be called."""

    def __init__(self, runtime: Runtime, plan: RoutePlan, request: Request) -> None:
        super().__init__(plan, request)
        self.runtime = runtime
        self.account: Account | None = None
        self.quiet = False
        """Nobody listens or counts, and no transaction is opened: its operations are just asked."""
        self.heedful = False
        """Whatever the store answers matters: to limits, or to the memory of replays."""
        self.has_run = False
        """The claim was won: there is a run, and a lease to let go."""
        self.charge: Charge | None = None
        """What it is charged for, where tenants have limits."""
        self._found: ops.Found | None = None
        self._asked_at = 0.0
        self._read_at = 0.0

    def opened(self) -> Answer | None:
        """All is known that the claim takes; an answer where it is known without the store."""
        runtime = self.runtime
        if not runtime.begun:
            runtime.begin()
        limiter, replays = runtime.limiter, runtime.replays
        heedful = limiter is not None or replays is not None
        self.quiet = not heedful and self.account is None and not self.policy.settles_apart
        if self.worker is not None or not (heedful or runtime.breaker.is_open):
            return None
        answer = at_once(runtime, self)
        if answer is not None and self.policy.shadow:
            self.shadow = ShadowRun()
            self.shadow.would, self.shadow.unrecorded = answer, answer.error
            return None
        if answer is not None:
            self.tell(answer, at_once=True)
            return answer
        self.heedful = heedful
        if limiter is not None:
            self.charge = Charge(limiter, self)
        if replays is not None:
            self._read_at = replays.clock()
        return None

    def may_have_key(self) -> bool:
        """Whether the header is there, or the key may be elsewhere."""
        header = self.policy.key_header
        return not header or header in self.request.headers.first

    def find_key(self) -> None:
        """A worker's run has the key that it was accepted with: a function may look at more."""
        worker = find_worker_run(self.request.raw)
        if worker is not None:
            self.found = worker.request.key
        else:
            body: Body = getattr(self, "body", b"")
            find_key(self, body if isinstance(body, bytes) else body.whole())

    def claiming(self) -> Flow[ops.Claimed | Answer]:
        """The first half; a worker holds the record already."""
        worker = self.worker
        if worker is None:
            plan = self.plan
            if plan.enrolled:
                return claim(self)
            first_use = self.runtime.enrolment(plan)
            return (
                self._claim_in_shadow(first_use) if plan.policy.shadow else claim(self, first_use)
            )
        self._asked_at = worker.started
        held = ops.Claimed(0, 0, worker.case.record.created_at, again=True)
        return resume(self, held) if self.policy.resumable else _at_once(held)

    def _claim_in_shadow(self, first_use: Flow[None]) -> Flow[ops.Claimed | Answer]:
        from semel.core.exchange import shadow
        from semel.web.shadow import watch

        watch(self)
        self.account = self.account or Account(self.runtime.events)  # it is counted in any case
        return shadow.claim(self, first_use)

    def start_run(self, entry: ops.Claimed) -> bool:
        """From here on the lease is renewed; False when it is too late to begin.

        A process that was stopped between claim and run may find its record settled by others.
        """
        if self.account is not None:
            self._run_at = request_events.now()
        runtime, plan, policy, key = self.runtime, self.plan, self.policy, self.key
        backend, probes, made = runtime.backend, runtime.probes, entry.created_at
        lease = self.lease = Lease(
            self.identity, self.fence, self._asked_at, policy.lease_seconds, policy.max_run_seconds
        )
        self.run = Run(backend, probes, plan, self.origin, lease, self.journal, made)
        self.has_run = True
        if policy.mode == "atomic":
            lease.transaction = self.transaction()
        if not lease.held(lease_clock()) and not policy.shadow:
            return False
        if policy.mode == "atomic":
            lease.is_transaction()
        if not policy.shadow or self.shadow.would is None:
            runtime.keeper.hold(lease)
        if policy.personal_data == "warn" and looks_like_personal_data(key):
            runtime.events.emit("key.suspicious", route=plan.label, key=mask(key))
            request_events.note_key(self, {"why": "personal data"})
        if len(key) < STRONG_KEY_LENGTH:
            # Counted every time, and logged the first time: a client is not changed in a day.
            level, plan.met_short_key = NONE if plan.met_short_key else WARNING, True
            runtime.events.emit("key.short", level=level, route=plan.label, length=len(key))
            request_events.note_key(self, {"why": "short", "length": len(key)})
        return True

    def transaction(self) -> Any:
        """The transaction that is open, of ``mode="atomic"``; None where there is none."""
        raise NotImplementedError

    def in_its_shape(self, refused: Response) -> Response:
        if self.policy.refusal is None or self.request.method == ONCE:
            return refused
        sent: Body = getattr(self, "body", b"")
        small = sent if isinstance(sent, bytes) else b""
        return shaped(self.plan, refused, self.request, self.runtime.events, small)

    def ended(self) -> None:
        """The handler has come to something."""
        if self.account is not None:
            self.account.handler(request_events.now() - self._run_at)

    def before(self, op: ops.FlowOperation[Any]) -> None:
        """A lease is counted from before it is asked for, and anew when it is asked for again.

        In a transaction it has no end; a commit in doubt is looked after as long as one would last.
        """
        if isinstance(op, ops.Commit):
            self.let_go()
        if type(op) in ASKS_FOR_A_LEASE:
            self._asked_at = lease_clock()
            if self.has_run:
                self.lease.start(self._asked_at)
        if self.charge is not None and not self.has_run:
            self.charge.before(op)

    def heard(self, op: ops.FlowOperation[Any], reply: object) -> None:
        """The store has answered, and that matters to somebody."""
        runtime = self.runtime
        runtime.breaker.succeeded()
        if self.charge is not None and not self.has_run:
            self.charge.after(reply)
        if not isinstance(op, ops.StoreOperation) or self.transaction() is not None:
            return  # within a transaction nothing has changed yet
        if op.finishing and isinstance(reply, ops.Applied):
            # Those who wait for this record learn at once that it has changed.
            runtime.keeper.settled(self.identity)
        if runtime.replays is None:
            return
        # What was read may be repeated for a while; a large answer once it was fetched.
        if isinstance(reply, ops.Found):
            self._found = reply
        elif isinstance(reply, ops.Fetched) and self._found is not None:
            record = replace(self._found.record, snapshot=reply.snapshot)
            reply = replace(self._found, record=record)
        if isinstance(reply, ops.Found):
            runtime.replays.note(reply, self._read_at)

    def held(self) -> bool:
        return self.lease.held(lease_clock())

    def let_go(self) -> None:
        """The lease is no longer renewed."""
        if self.has_run:
            self.runtime.keeper.let_go(self.lease)

    def tell(self, answer: Answer, at_once: bool = False) -> None:
        """What it came to, for the worker that runs it and for those who listen."""
        if self.worker is not None:
            self.worker.answer = answer
        quiet = self.account is None and answer.error is None and not answer.zombie
        if at_once or not quiet or answer.outcome in self.runtime.told_outcomes:
            request_events.tell(self, answer, at_once)


def _at_once(held: ops.Claimed) -> Flow[ops.Claimed | Answer]:
    yield from ()
    return held


def shaped(
    plan: RoutePlan, refused: Response, request: Request, events: Events, sent: bytes = b""
) -> Response:
    """A refusal in the shape that the policy has for it.

    Whatever a shape raises, ``SystemExit`` too, is only told: this may be on the way of the write
    that settles a record, which must not be lost, and the caller has an answer all the same.
    """
    policy, render = plan.policy, plan.policy.refusal
    if render is None or not isinstance(refused, ProblemResponse):
        return refused
    problem = replace(refused.problem, sent=sent)
    try:
        return in_shape(problem, render(problem, request), policy.replay_name)
    except BaseException as error:
        events.emit("shape.failed", error=error, route=plan.label, code=problem.code)
        return refused


def too_late() -> ops.Raised:
    """The outcome of a handler that was not begun."""
    return ops.Raised(NotExecuted("the lease had passed before the handler could begin"))


def outcome_of(error: BaseException) -> ops.HandlerOutcome:
    """The outcome of a handler that has raised before it answered anything."""
    return ops.Raised(error) if isinstance(error, Exception) else ops.Abandoned(error)


# ── blocking ──────────────────────────────────────────────────────────────────────────────────────


class BlockingExchange(WebExchange):
    """One keyed request in a thread."""

    __slots__ = ("_store", "transact")

    def __init__(self, runtime: Runtime, plan: RoutePlan, request: Request) -> None:
        super().__init__(runtime, plan, request)
        self._store = runtime.backend.blocking()
        self.transact: Transact | None = None
        if plan.policy.mode == "atomic":
            left, limit = runtime.keeper.settled, plan.policy.max_run_seconds
            self.transact = Transact(runtime.backend, left, limit)

    def serve(self) -> Answer | Flowing:
        """Claim, call the application, settle; a stream is settled at its end (`end_stream`)."""
        entry = run(self.claiming(), self.perform)
        if isinstance(entry, Answer):
            self.tell(entry)
            return entry
        outcome = self.call() if self.start_run(entry) else too_late()
        self.ended()
        reached = run(settle(self, outcome, self.run), self.perform)
        if isinstance(reached, Answer):
            self.tell(reached)
        return reached

    def call(self) -> ops.HandlerOutcome:
        """Call the application; whatever it raises is an outcome."""
        raise NotImplementedError

    def end_stream(self, stream: Flowing, drained: ops.Drained) -> Answer:
        """Settle the record of a streamed answer, after its body."""
        answer = run(end_stream(self, stream, drained, self.run), self.perform)
        self.tell(answer)
        return answer

    def end(self) -> None:
        """Close the transaction and give up the lease: nothing stays open."""
        if self.transact is not None:
            self.transact.end()
        self.let_go()

    def transaction(self) -> Any:
        return None if self.transact is None else self.transact.transaction

    def perform(self, op: ops.FlowOperation[R]) -> R:
        """Perform one operation of the claim or of the settlement.

        Listeners, limits and the breaker are called only if there is something for them.
        """
        account, asked = self.account, time.monotonic()
        began = 0.0 if account is None else request_events.now()
        try:
            if not isinstance(op, ops.StoreOperation):
                reply: R = self._attend(op)
            else:
                if self.charge is not None or type(op) in ASKS_FOR_A_LEASE:
                    self.before(op)
                reply = (self.transact or self._store).perform(op)
                runtime = self.runtime
                breaker, watched = runtime.breaker, runtime.keeper.waiters.watches
                if self.heedful or breaker.failures or breaker.is_open or watched:
                    self.heard(op, reply)
        except Exception as error:
            if account is not None:
                account.saw(op, error, began)
            if isinstance(error, StoreUnavailable):
                self.runtime.breaker.failed(asked)
            raise
        if account is not None:
            account.saw(op, reply, began)
        return reply

    def _attend(self, op: ops.FlowOperation[Any]) -> Any:
        match op:
            case ops.Await(identity, fence, patience):
                runtime = self.runtime
                waiters, room = runtime.keeper.waiters, runtime.max_waiters
                return waiters.wait(identity, fence, patience, room)
            case ops.Pause(attempt=attempt):
                time.sleep(pause_before(attempt))
                return self.held()
            case ops.Pursue(write, claim, seen):
                return self.runtime.keeper.pursue(write, claim, seen)
            case ops.Render(response):
                on_replay = self.policy.on_replay
                return response if on_replay is None else on_replay(self.request, response)
            case ops.Apart(work):
                return work()
            case _ if self.transact is not None:
                self.before(op)
                reply = self.transact.perform(op)
                self.heard(op, reply)
                return reply
            case _:
                raise AssertionError(f"no way to perform {op!r}")


# ── functions that run `once` ─────────────────────────────────────────────────────────────────────

_JSON: Final = ((b"content-type", b"application/json"),)


def returned(value: Any) -> ops.HandlerOutcome:
    """The result of a function, as the answer of a handler."""
    try:
        body = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # It ran, and its result cannot be kept: nobody may run it again.
        doubt = OutcomeUnknown(f"the function's result is not JSON: {error}")
        doubt.__cause__ = error
        return ops.Raised(doubt)
    return ops.Returned(Response(200, _JSON, body))


class FunctionExchange(BlockingExchange):
    """One call of a function in the place of an application."""

    __slots__ = ("function",)

    function: Callable[[], Any]

    def call(self) -> ops.HandlerOutcome:
        leave = self.run.enter()
        try:
            return returned(self.function())
        except BaseException as error:
            return outcome_of(error)
        finally:
            leave()
