"""What every adapter does alike: find the policy, admit the request, hold the lease, log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from semel.core.admission import Call, Refused, Ticket, admit
from semel.core.answers import Answer, Outcome
from semel.core.contract import Applied, Claim, Retake, StoreOperation
from semel.core.exchange import KeepFailed, exchange
from semel.core.flow import Flow
from semel.core.keys import mask
from semel.core.model import Request
from semel.core.policy import Policy
from semel.core.problems import refuse
from semel.core.runner import Invoke, Raised
from semel.errors import NotExecuted
from semel.log import log
from semel.process.current import Run, current_run
from semel.process.fences import new_fence
from semel.process.leases import Lease
from semel.web.message import Spool
from semel.web.routing import Place, listed
from semel.web.tags import Tagged

if TYPE_CHECKING:
    from semel.guard import Guard

FindTag: TypeAlias = Callable[[Any, Any], Tagged | None]
"""Asks an application's router for the tag of the endpoint that will answer a request."""

MARK: Final = "semel.identity"
"""Where a guard notes, in an ASGI scope or a WSGI environ, whose request it is running."""

BIG: Final = 64 * 1024
"""A body this large takes long to fingerprint: not in the thread of an event loop."""


class Desk:
    """The front desk of one guarded application."""

    def __init__(self, guard: Guard, app: Any, find_tag: FindTag) -> None:
        self.guard = guard
        self.app = app
        self._find_tag = find_tag
        _watch_frameworks()

    def admit(self, request: Request, place: Place) -> tuple[Ticket | Refused | None, str]:
        """Whether a request takes part, and the label of the route whose policy says so."""
        policy, label = self._policy_for(request, place)
        ticket = admit(request, policy, self.guard.tenant)
        if isinstance(ticket, Refused) and ticket.error is not None:
            log.error("semel: tenant=, session= or key= failed", exc_info=ticket.error)
        if isinstance(ticket, Ticket) and ticket.suspicious:
            log.warning("semel: a key looks like personal data: %s", mask(ticket.key))
        return ticket, label

    def _policy_for(self, request: Request, place: Place) -> tuple[Policy, str]:
        """A listed route comes first, then a tag on the endpoint, then the default."""
        route = listed(self.guard.routes, request.method, place)
        if route is not None:
            return route.policy, route.label
        tagged = self._find_tag(self.app, request.raw)
        if tagged is not None:
            return self.guard.bind(tagged.policy), tagged.label
        return self.guard.policy, "*"

    def policy_at(self, request: Request, place: Place) -> Policy:
        """The policy of a route, for those who look after its records."""
        return self._policy_for(request, place)[0]

    def covers(self, ticket: Ticket, mark: object) -> bool:
        """Whether another guard around this one already runs this very request.

        It left its mark in the scope or environ. The mark alone would not do: whoever sends the
        same scope through again is not inside that run any more.
        """
        run = current_run()
        if run is None or run.operation.identity != mark:
            return False
        return ticket.identity(ticket.policy) == mark

    def call(self, ticket: Ticket, body: Spool) -> Call | Answer:
        """Add what the body means, with a fence made before the first try."""
        try:
            call = ticket.call(body, new_fence(), self.guard.familiar.meet)
            older = () if call.predecessor is None else (call.predecessor.prints,)
            for prints in (call.prints, *older):
                if body.size >= BIG or prints.chosen:
                    _ = prints.fingerprint  # now, in this thread, where it may fail or take long
            return call
        except Exception as error:  # fingerprint= may be the operator's own function
            return Answer(refuse("misconfigured"), Outcome.MISCONFIGURED, error)

    def serve(self, call: Call, label: str) -> Flow[Answer]:
        """The exchange, after the first request of a route has compared its settings."""
        return exchange(call, self.guard.enrol(label, call.policy))


def report(answer: Answer) -> None:
    """One line for what an operator should see; never a key."""
    if answer.outcome in (Outcome.STORE_ERROR, Outcome.MISCONFIGURED, Outcome.NOT_DURABLE):
        log.error("semel: %s: %s", answer.outcome, answer.error)
    elif answer.zombie:
        log.warning("semel: a handler finished after its lease was lost: %s", answer.outcome)
    elif answer.outcome is Outcome.REPLAYED and answer.error is not None:
        log.error("semel: on_replay failed", exc_info=answer.error)
    elif isinstance(answer.error, KeepFailed):
        log.error("semel: keep= failed; the outcome is unknown", exc_info=answer.error)


class Performer:
    """Performs the operations of one keyed request: what both colours do alike."""

    __slots__ = ("_begun", "_guard", "_lease", "_request", "call")

    def __init__(self, guard: Guard, ticket: Ticket, call: Call) -> None:
        self._guard = guard
        self._request = ticket.request
        policy = call.policy
        lease, max_run = policy.lease_micros / 1_000_000, policy.max_run.total_seconds()
        self._lease = Lease(call.identity, call.fence, time.monotonic(), lease, max_run)
        self._begun = False
        self.call = call

    def _begin(self, op: Invoke) -> Run | None:
        """From here on the lease is renewed; None when it is too late to begin.

        A process that was stopped between claim and run may find its record settled by others.
        """
        if not self._begun and not self._held():
            return None
        self._begun = True
        self._lease.identity = op.identity  # it may be alive under the previous settings
        self._guard.attendant.hold(self._lease)
        return Run(self._lease)

    def _before(self, op: StoreOperation[Any]) -> None:
        """A lease is counted from before it is asked for, and anew when it is asked for again."""
        if isinstance(op, Claim | Retake):
            self._lease.start(time.monotonic())

    def _tell(self, op: StoreOperation[Any], reply: object) -> None:
        """Those who wait for this record learn at once that it has changed."""
        if op.finishing and isinstance(reply, Applied):
            self._guard.attendant.settled(self._lease.identity)

    def _held(self) -> bool:
        return self._lease.held(time.monotonic())

    def let_go(self) -> None:
        """The lease is no longer renewed."""
        self._guard.attendant.let_go(self._lease)


def too_late() -> Raised:
    """The outcome of a handler that was not begun."""
    return Raised(NotExecuted("the lease had passed before the handler could begin"))


def pause_before(attempt: int) -> float:
    """Seconds to rest before the next try at a write: short first, a second at most."""
    return min(1.0, 0.05 * 2.0 ** min(attempt, 6))


_TELL_OF_EXCEPTIONS: Final = ("flask.signals", "django.core.signals")


def _watch_frameworks() -> None:
    """Hear of exceptions from frameworks that answer them after their ``except`` block."""
    for name in _TELL_OF_EXCEPTIONS:
        signals: Any = sys.modules.get(name)
        if signals is not None:
            signals.got_request_exception.connect(_note_exception)


def _note_exception(sender: object, exception: BaseException | None = None, **_: object) -> None:
    run, error = current_run(), exception or sys.exception()
    if run is not None and error is not None:
        run.note(error)
