"""An exchange whose operations block: for WSGI, views in threads, and functions.

It runs in the caller's thread from the claim to the write that settles the record.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from semel.backoff import pause_before
from semel.core.exchange.answers import Answer
from semel.core.exchange.settle import Flowing, end_stream, settle
from semel.core.flow import run
from semel.core.operations.handler import Apart, Await, HandlerOutcome, Pause, Pursue, Render
from semel.core.operations.requests import FlowOperation, StoreOperation
from semel.errors import StoreUnavailable
from semel.runtime.transactions import Transact
from semel.web import request_events
from semel.web.exchange import ASKS_FOR_A_LEASE, WebExchange, too_late

if TYPE_CHECKING:
    from semel.core.operations.handler import Drained
    from semel.core.policy import RoutePlan
    from semel.core.records import Request
    from semel.runtime.runtime import Runtime

R = TypeVar("R")


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

    # ── the two halves ────────────────────────────────────────────────────────────────────────────

    def serve(self) -> Answer | Flowing:
        """Claim, call the application, settle; a stream is settled at its end (`end_stream`)."""
        entry = run(self.claiming(), self.perform)
        if isinstance(entry, Answer):
            self.tell(entry)
            return entry
        in_time = self.new_run(entry)
        if self.transact is not None:
            self.run.transaction = self.transact.transaction
        outcome = self.call() if in_time else too_late()
        self.ended()
        reached = run(settle(self, outcome, self.run), self.perform)
        if isinstance(reached, Answer):
            self.tell(reached)
        return reached

    def call(self) -> HandlerOutcome:
        """Call the application; whatever it raises is an outcome."""
        raise NotImplementedError

    def end_stream(self, stream: Flowing, drained: Drained) -> Answer:
        """Settle the record of a streamed answer, after its body."""
        answer = run(end_stream(self, stream, drained, self.run), self.perform)
        self.tell(answer)
        return answer

    def end(self) -> None:
        """Close the transaction and give up the lease: nothing stays open."""
        if self.transact is not None:
            self.transact.end()
        self.let_go()

    def in_transaction(self) -> bool:
        return self.transact is not None and self.transact.transaction is not None

    # ── its operations ────────────────────────────────────────────────────────────────────────────

    def perform(self, op: FlowOperation[R]) -> R:
        """Perform one operation of the claim or of the settlement.

        Listeners, limits and the breaker are called only if there is something for them.
        """
        account, asked = self.account, time.monotonic()
        began = 0.0 if account is None else request_events.now()
        try:
            if not isinstance(op, StoreOperation):
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
                self.unheard(asked)
            raise
        if account is not None:
            account.saw(op, reply, began)
        return reply

    def _attend(self, op: FlowOperation[Any]) -> Any:
        match op:
            case Await(identity, fence, patience):
                runtime = self.runtime
                waiters, room = runtime.keeper.waiters, runtime.max_waiters
                return waiters.wait(identity, fence, patience, room)
            case Pause(attempt=attempt):
                time.sleep(pause_before(attempt))
                return self.held()
            case Pursue(write, claim, seen):
                return self.runtime.keeper.pursue(write, claim, seen)
            case Render(response):
                on_replay = self.policy.on_replay
                return response if on_replay is None else on_replay(self.request, response)
            case Apart(work):
                return work()
            case _ if self.transact is not None:
                self.before(op)
                reply = self.transact.perform(op)
                self.heard(op, reply)
                return reply
            case _:
                raise AssertionError(f"no way to perform {op!r}")
