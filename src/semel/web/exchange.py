"""What every adapter's exchange does alike, in either colour.

An adapter makes one object for one keyed request: it derives from `Exchange`, which the decisions
of the core are about, and adds what this process has to do with it: the lease, the run, the limits
and the events. `web/awaited.py` and `web/blocking.py` perform its operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semel.core.answers import Answer
from semel.core.claim import claim, resume
from semel.core.contract import (
    Applied,
    Claim,
    Claimed,
    Fetched,
    Found,
    Operation,
    Resume,
    Retake,
    StoreOperation,
)
from semel.core.course import Course
from semel.core.exchange import Exchange
from semel.core.flow import Flow
from semel.core.frozen import replace
from semel.core.runner import Commit, Raised
from semel.errors import NotExecuted
from semel.process.clock import lease_clock
from semel.process.current import Ground, Run
from semel.process.leases import Lease
from semel.web import accounts
from semel.web.accounts import Account
from semel.web.protection import Fare

if TYPE_CHECKING:
    from semel.core.model import Request
    from semel.core.policy import Policy
    from semel.guard import Guard
    from semel.web.message import Spool

_ASKS_FOR_A_LEASE: Final = (Claim, Retake, Resume, Commit)


class WebExchange(Exchange):
    """One keyed request, and what this process has to do with it."""

    __slots__ = (
        *("_asked_at", "_began", "_fare", "_found", "_read_at", "account", "begun", "body"),
        *("enrolment", "guard", "label", "lease", "run"),
    )

    body: Spool
    """What was sent; `Pipeline.open` puts it here."""
    lease: Lease
    run: Run
    """Those of the handler, once it is about to be called."""

    def __init__(self, guard: Guard, request: Request, policy: Policy, label: str) -> None:
        super().__init__(request, policy, guard.name)
        self.guard = guard
        self.label = label
        """The name of the route."""
        self.account: Account | None = None
        self.enrolment: Flow[None] | None = None
        """To be done before the claim, where this process has not served the route yet."""
        self.begun = False
        """The claim was won: there is a run, and a lease to let go."""
        self._fare: Fare | None = None
        self._found: Found | None = None
        self._asked_at = 0.0
        self._read_at = 0.0

    def opened(self) -> None:
        """All is known that the claim takes."""
        guard = self.guard
        if guard.limiter is not None and self.worker is None:
            self._fare = Fare(guard.limiter, self)
        if guard.replays is not None:
            self._read_at = guard.replays.clock()

    def claiming(self) -> Flow[Claimed | Answer]:
        """The first half; a worker holds the record already."""
        worker = self.worker
        if worker is None:
            return claim(self, self.enrolment)
        self._asked_at = worker.started
        held = Claimed(0, 0, worker.case.record.created_at, again=True)
        return resume(self, held) if self.resumable else _at_once(held)

    def begin(self, entry: Claimed) -> bool:
        """From here on the lease is renewed; False when it is too late to begin.

        A process that was stopped between claim and run may find its record settled by others.
        """
        if self.account is not None:
            self._began = accounts.now()
        policy = self.policy
        seconds, max_run = policy.lease_micros / 1_000_000, policy.max_run.total_seconds()
        lease = self.lease = Lease(self.identity, self.fence, self._asked_at, seconds, max_run)
        self.run = Run(lease, Course(self.journal), self._ground(), entry.created_at)
        self.begun = True
        if not lease.held(lease_clock()):
            return False
        if policy.mode == "atomic":
            lease.is_transaction()
        self.guard.attendant.hold(lease)
        return True

    def ended(self) -> None:
        """The handler has come to something."""
        if self.account is not None:
            self.account.handler(accounts.now() - self._began)

    def _ground(self) -> Ground:
        # Nothing of this exchange: a circle would leave every request to the garbage collector.
        guard, policy = self.guard, self.policy
        kind = (self.resumable, policy.mode == "atomic")
        store = (guard.backend, guard.name)
        return Ground(*store, self.origin, *kind, guard.registry.probes, policy.probe)

    def before(self, op: Operation[Any]) -> None:
        """A lease is counted from before it is asked for, and anew when it is asked for again.

        In a transaction it has no end; a commit in doubt is looked after as long as one would last.
        """
        if isinstance(op, Commit):
            self.let_go()
        if isinstance(op, _ASKS_FOR_A_LEASE):
            self._asked_at = lease_clock()
            if self.begun:
                self.lease.start(self._asked_at)
        if self._fare is not None and not self.begun:
            self._fare.before(op)

    def heard(self, reply: object) -> None:
        """The store has answered."""
        if self.guard.breaker is not None:
            self.guard.breaker.succeeded()
        if self._fare is not None and not self.begun:
            self._fare.after(reply)

    def unheard(self, asked: float) -> None:
        """The store gave no answer to what it was asked then."""
        if self.guard.breaker is not None:
            self.guard.breaker.failed(asked)

    def changed(self, op: StoreOperation[Any], reply: object) -> None:
        """Those who wait for this record learn at once that it has changed."""
        if op.finishing and isinstance(reply, Applied):
            self.guard.attendant.settled(self.identity)
        if self.guard.replays is not None:
            self._remember(reply)

    def _remember(self, reply: object) -> None:
        """What was read may be repeated for a while; a large answer once it was fetched."""
        if isinstance(reply, Found):
            self._found = reply
        elif isinstance(reply, Fetched) and self._found is not None:
            record = replace(self._found.record, snapshot=reply.snapshot)
            reply = replace(self._found, record=record)
        if isinstance(reply, Found) and self.guard.replays is not None:
            self.guard.replays.note(reply, self._read_at)

    def held(self) -> bool:
        return self.lease.held(lease_clock())

    def let_go(self) -> None:
        """The lease is no longer renewed."""
        if self.begun:
            self.guard.attendant.let_go(self.lease)

    def tell(self, answer: Answer, at_once: bool = False) -> None:
        """What it came to, for the worker that runs it and for those who listen."""
        if self.worker is not None:
            self.worker.answer = answer
        accounts.tell(self, answer, at_once)


def _at_once(held: Claimed) -> Flow[Claimed | Answer]:
    yield from ()
    return held


def too_late() -> Raised:
    """The outcome of a handler that was not begun."""
    return Raised(NotExecuted("the lease had passed before the handler could begin"))
