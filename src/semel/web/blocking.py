"""The exchange of one keyed request, blocking: for WSGI, views in threads, and functions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from semel.core.admission import Call, Ticket
from semel.core.contract import Operation, StoreOperation
from semel.core.model import Headers
from semel.core.runner import (
    Apart,
    Await,
    Discard,
    Drain,
    Drained,
    HandlerOutcome,
    Invoke,
    Pause,
    Pursue,
    Render,
)
from semel.errors import StoreUnavailable
from semel.process.current import Run
from semel.process.jitter import pause_before
from semel.process.transact import Transact
from semel.web.desk import Performer, too_late

if TYPE_CHECKING:
    from semel.guard import Guard

R = TypeVar("R")


class BlockingHandler(Protocol):
    """What runs under the lease: a WSGI application, a view, or a function."""

    def outcome(self, run: Run) -> HandlerOutcome: ...
    def drain(self, headers: Headers) -> Drained: ...
    def discard(self) -> None: ...


class BlockingExchange(Performer):
    """Performs the operations of one keyed request, blocking."""

    __slots__ = ("_handler", "_store", "_transact")

    def __init__(
        self,
        guard: Guard,
        ticket: Ticket,
        call: Call,
        handler: BlockingHandler,
        started: float | None = None,
    ) -> None:
        super().__init__(guard, ticket, call, started)
        self._handler = handler
        self._store = guard.backend.blocking()
        self._transact: Transact | None = None
        if call.policy.mode == "atomic":
            left = guard.attendant.settled
            self._transact = Transact(guard.backend, left, self._lease.max_run)

    def perform(self, op: Operation[R]) -> R:
        asked = time.monotonic()
        try:
            if not isinstance(op, StoreOperation):
                answer: R = self._attend(op)
                return answer
            self._before(op)
            reply: R = (self._transact or self._store).perform(op)
        except StoreUnavailable:
            self._unheard(asked)
            raise
        self._heard(reply)
        if self._transact is None or self._transact.transaction is None:
            self._tell(op, reply)  # within a transaction nothing has changed yet
        return reply

    def _attend(self, op: Operation[Any]) -> Any:
        match op:
            case Invoke():
                run = self._begin(op)
                if run is None:
                    return too_late()
                if self._transact is not None:
                    run.transaction = self._transact.transaction
                return self._handler.outcome(run)
            case Drain(headers):
                return self._handler.drain(headers)
            case Discard():
                return self._handler.discard()
            case Await(identity, fence, patience):
                room = self._guard.max_waiters
                return self._guard.attendant.waiters.wait(identity, fence, patience, room)
            case Pause(attempt=attempt):
                time.sleep(pause_before(attempt))
                return self._held()
            case Pursue(write, claim, seen):
                return self._guard.attendant.pursue(write, claim, seen)
            case Render(response):
                on_replay = self.call.policy.on_replay
                return response if on_replay is None else on_replay(self._request, response)
            case Apart(work):
                return work()
            case _ if self._transact is not None:
                self._before(op)
                reply = self._transact.perform(op)
                self._heard(reply)
                return reply
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    def end(self) -> None:
        """The answer is there, or nothing is: nothing stays open or leased."""
        if self._transact is not None:
            self._transact.end()
        self.let_go()
