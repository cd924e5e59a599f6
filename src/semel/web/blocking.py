"""An exchange whose operations block: for WSGI, views in threads, and functions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from semel.core.answers import Answer
from semel.core.contract import Claimed, Operation, StoreOperation
from semel.core.flow import run
from semel.core.runner import Apart, Await, HandlerOutcome, Pause, Pursue, Render
from semel.core.settle import Flowing, end_stream, settle
from semel.errors import StoreUnavailable
from semel.process.jitter import pause_before
from semel.process.transact import Transact
from semel.web import accounts
from semel.web.exchange import WebExchange, too_late

if TYPE_CHECKING:
    from semel.core.model import Request
    from semel.core.policy import Policy
    from semel.core.runner import Drained
    from semel.guard import Guard

R = TypeVar("R")


class BlockingExchange(WebExchange):
    """One keyed request in a thread."""

    __slots__ = ("_store", "_transact")

    def __init__(self, guard: Guard, request: Request, policy: Policy, label: str) -> None:
        super().__init__(guard, request, policy, label)
        self._store = guard.backend.blocking()
        self._transact: Transact | None = None
        if policy.mode == "atomic":
            left, limit = guard.attendant.settled, policy.max_run.total_seconds()
            self._transact = Transact(guard.backend, left, limit)

    # ── the two halves ────────────────────────────────────────────────────────────────────────────

    def serve(self) -> Answer | Flowing:
        """Both halves, with the application between them."""
        entry = run(self.claiming(), self.perform)
        if isinstance(entry, Answer):
            return self._told(entry)
        outcome = self._outcome(entry)
        reached = run(settle(self, outcome, self.run.course), self.perform)
        return self._told(reached) if isinstance(reached, Answer) else reached

    def _outcome(self, entry: Claimed) -> HandlerOutcome:
        in_time = self.begin(entry)
        if self._transact is not None:
            self.run.transaction = self._transact.transaction
        outcome = self.call() if in_time else too_late()
        self.ended()
        return outcome

    def call(self) -> HandlerOutcome:
        """Call the application; whatever it raises is an outcome."""
        raise NotImplementedError

    def end_stream(self, stream: Flowing, drained: Drained) -> Answer:
        """The body of a streamed answer has flowed past."""
        return self._told(run(end_stream(self, stream, drained, self.run.course), self.perform))

    def _told(self, answer: Answer) -> Answer:
        self.tell(answer)
        return answer

    def end(self) -> None:
        """The answer is there, or nothing is: nothing stays open or leased."""
        if self._transact is not None:
            self._transact.end()
        self.let_go()

    # ── its operations ────────────────────────────────────────────────────────────────────────────

    def perform(self, op: Operation[R]) -> R:
        account = self.account
        if account is None:
            return self._perform(op)
        asked = accounts.now()
        try:
            reply = self._perform(op)
        except Exception as error:
            account.saw(op, error, asked)
            raise
        account.saw(op, reply, asked)
        return reply

    def _perform(self, op: Operation[R]) -> R:
        asked = time.monotonic()
        try:
            if not isinstance(op, StoreOperation):
                answer: R = self._attend(op)
                return answer
            self.before(op)
            reply: R = (self._transact or self._store).perform(op)
        except StoreUnavailable:
            self.unheard(asked)
            raise
        self.heard(reply)
        if self._transact is None or self._transact.transaction is None:
            self.changed(op, reply)  # within a transaction nothing has changed yet
        return reply

    def _attend(self, op: Operation[Any]) -> Any:
        match op:
            case Await(identity, fence, patience):
                room = self.guard.max_waiters
                return self.guard.attendant.waiters.wait(identity, fence, patience, room)
            case Pause(attempt=attempt):
                time.sleep(pause_before(attempt))
                return self.held()
            case Pursue(write, claim, seen):
                return self.guard.attendant.pursue(write, claim, seen)
            case Render(response):
                on_replay = self.policy.on_replay
                return response if on_replay is None else on_replay(self.request, response)
            case Apart(work):
                return work()
            case _ if self._transact is not None:
                self.before(op)
                reply = self._transact.perform(op)
                self.heard(reply)
                return reply
            case _:
                raise AssertionError(f"no way to perform {op!r}")
