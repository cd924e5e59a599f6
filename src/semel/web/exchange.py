"""What every adapter's exchange does alike, in either colour.

An adapter makes one object for one keyed request: it derives from `Exchange`, which the decisions
of the core are about, and adds what this process has to do with it: the lease, the run, the limits
and the events. `web/exchange_async.py` and `web/exchange_sync.py` perform its operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semel.core.exchange.answers import Answer
from semel.core.exchange.claim import claim, resume
from semel.core.exchange.exchange import Exchange
from semel.core.exchange.problems import ProblemResponse, in_shape
from semel.core.flow import Flow
from semel.core.frozen import replace
from semel.core.operations.handler import Commit, Raised
from semel.core.operations.requests import (
    Applied,
    Claim,
    Claimed,
    Fetched,
    FlowOperation,
    Found,
    Resume,
    Retake,
    StoreOperation,
)
from semel.core.request.keys import STRONG_KEY_LENGTH, looks_like_personal_data, mask
from semel.core.unknown.settlement import ONCE
from semel.errors import NotExecuted
from semel.runtime.event_catalogue import NONE, WARNING
from semel.runtime.leases import Lease, lease_clock
from semel.runtime.limits import Charge, at_once
from semel.runtime.operation import Run
from semel.web import request_events
from semel.web.request_events import Account

if TYPE_CHECKING:
    from semel.core.policy import RoutePlan
    from semel.core.records import Request, Response
    from semel.runtime.events import Events
    from semel.runtime.runtime import Runtime
    from semel.web.body import Body

ASKS_FOR_A_LEASE: Final = frozenset((Claim, Retake, Resume, Commit))


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
        self._found: Found | None = None
        self._asked_at = 0.0
        self._read_at = 0.0

    def opened(self) -> Answer | None:
        """All is known that the claim takes; an answer where it is known without the store."""
        runtime = self.runtime
        if not runtime.begun:
            runtime.begin()
        limiter, replays = runtime.limiter, runtime.replays
        heedful = limiter is not None or replays is not None
        self.quiet = not heedful and self.account is None and self.policy.mode != "atomic"
        if self.worker is not None or not (heedful or runtime.breaker.is_open):
            return None
        answer = at_once(runtime, self)
        if answer is not None:
            self.tell(answer, at_once=True)
            return answer
        self.heedful = heedful
        if limiter is not None:
            self.charge = Charge(limiter, self)
        if replays is not None:
            self._read_at = replays.clock()
        return None

    def claiming(self) -> Flow[Claimed | Answer]:
        """The first half; a worker holds the record already."""
        worker = self.worker
        if worker is None:
            plan = self.plan
            return claim(self, None if plan.enrolled else self.runtime.enrolment(plan))
        self._asked_at = worker.started
        held = Claimed(0, 0, worker.case.record.created_at, again=True)
        return resume(self, held) if self.policy.resumable else _at_once(held)

    def new_run(self, entry: Claimed) -> bool:
        """From here on the lease is renewed; False when it is too late to begin.

        A process that was stopped between claim and run may find its record settled by others.
        """
        if self.account is not None:
            self._run_at = request_events.now()
        policy = self.policy
        runtime, asked = self.runtime, self._asked_at
        lease = self.lease = Lease(
            self.identity, self.fence, asked, policy.lease_seconds, policy.max_run_seconds
        )
        self.run = Run(
            runtime.backend,
            runtime.probes,
            self.plan,
            self.origin,
            lease,
            self.journal,
            entry.created_at,
        )
        self.has_run = True
        if not lease.held(lease_clock()):
            return False
        if policy.mode == "atomic":
            lease.is_transaction()
        runtime.keeper.hold(lease)
        if policy.personal_data == "warn" and looks_like_personal_data(self.key):
            runtime.events.emit("key.suspicious", route=self.plan.label, key=mask(self.key))
        if len(self.key) < STRONG_KEY_LENGTH:
            self._tell_short_key()
        return True

    def _tell_short_key(self) -> None:
        """Counted every time, and logged the first time: a client is not changed in a day."""
        plan, level = self.plan, NONE if self.plan.met_short_key else WARNING
        plan.met_short_key = True
        length = len(self.key)
        self.runtime.events.emit("key.short", level=level, route=plan.label, length=length)

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

    def before(self, op: FlowOperation[Any]) -> None:
        """A lease is counted from before it is asked for, and anew when it is asked for again.

        In a transaction it has no end; a commit in doubt is looked after as long as one would last.
        """
        if isinstance(op, Commit):
            self.let_go()
        if type(op) in ASKS_FOR_A_LEASE:
            self._asked_at = lease_clock()
            if self.has_run:
                self.lease.start(self._asked_at)
        if self.charge is not None and not self.has_run:
            self.charge.before(op)

    def heard(self, op: FlowOperation[Any], reply: object) -> None:
        """The store has answered, and that matters to somebody."""
        self.runtime.breaker.succeeded()
        if self.charge is not None and not self.has_run:
            self.charge.after(reply)
        if self.in_transaction() or not isinstance(op, StoreOperation):
            return  # within a transaction nothing has changed yet
        if op.finishing and isinstance(reply, Applied):
            # Those who wait for this record learn at once that it has changed.
            self.runtime.keeper.settled(self.identity)
        if self.runtime.replays is not None:
            self._remember(reply)

    def in_transaction(self) -> bool:
        """Whether what is written now is written in a transaction that is still open."""
        raise NotImplementedError

    def unheard(self, asked: float) -> None:
        """The store gave no answer to what it was asked then."""
        self.runtime.breaker.failed(asked)

    def _remember(self, reply: object) -> None:
        """What was read may be repeated for a while; a large answer once it was fetched."""
        if isinstance(reply, Found):
            self._found = reply
        elif isinstance(reply, Fetched) and self._found is not None:
            record = replace(self._found.record, snapshot=reply.snapshot)
            reply = replace(self._found, record=record)
        if isinstance(reply, Found) and self.runtime.replays is not None:
            self.runtime.replays.note(reply, self._read_at)

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
        if at_once or not quiet or answer.outcome in request_events.FAILED:
            request_events.tell(self, answer, at_once)


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


def _at_once(held: Claimed) -> Flow[Claimed | Answer]:
    yield from ()
    return held


def too_late() -> Raised:
    """The outcome of a handler that was not begun."""
    return Raised(NotExecuted("the lease had passed before the handler could begin"))
