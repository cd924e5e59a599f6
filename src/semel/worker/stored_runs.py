"""Runs stored requests through their application: deferred ones, and abandoned operations.

A request goes the way of the first time, from the outermost application inwards, with its caller's
principal; the guard inside knows by the `WorkerRun` that its record is held already.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from semel.backoff import jitter, luck
from semel.core.exchange.deferred import not_run, take, turned_away
from semel.core.exchange.exchange import WorkerRun
from semel.core.frozen import is_async
from semel.core.operations.maintenance import Due, DueRecords, Work
from semel.core.operations.requests import StoreOperation, Written
from semel.core.policy import Policy
from semel.core.records import Case, Fence, Identity, Micros, State
from semel.core.stored import requests as stored
from semel.errors import (
    ConfigurationError,
    EncryptionKeyMissing,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
)
from semel.log import log
from semel.runtime.event_catalogue import ERROR, INFO, WARNING
from semel.runtime.events import short
from semel.runtime.leases import lease_clock, new_fence
from semel.web.inventory import KnownRoutes
from semel.web.worker_runs import run_asgi, run_wsgi
from semel.worker.calling import in_thread
from semel.worker.flow_runner import FlowRunner
from semel.worker.lifespan import Lifespan
from semel.worker.reconciler import describe_record, route_line
from semel.worker.rounds import Round, counts_note

if TYPE_CHECKING:
    from semel.guard import Guard

_AFTER_A_FAILURE: Final = 5.0
_NOT_DONE: Final = ("passed", "failed")
_LOOK_AGAIN: Final = 5.0
"""Seconds between two looks at most, while something is under way and there is room."""
_REST: Final = 0.1
"""And at least."""
_REPORT_EVERY: Final = 1.0
_SHORTEST, _LONGEST = 1_000_000, 300_000_000
"""Between two runs of a deferred request: a second, five minutes."""


class StoredRuns:
    """One loop of the worker. Several workers may run it: of each request one takes hold.

    ``app`` is the outermost application, ASGI or WSGI; ``at_once``: how many run side by side.
    ``report`` is counts_note about a long round while it goes on.
    """

    def __init__(
        self,
        guard: Guard,
        app: Any,
        *,
        batch: int = 64,
        at_once: int = 4,
        report: Callable[[Round], None] | None = None,
    ) -> None:
        if not callable(app):
            raise ConfigurationError("the application to run requests through must be callable")
        self._guard = guard
        self._app = app
        self._routes = KnownRoutes(guard, app)
        self._runner = FlowRunner(guard)
        self._batch = batch
        self._at_once = at_once
        self._report = report
        self._wake = asyncio.Event()
        self._lifespan = Lifespan(app) if is_async(app) else None
        self._stopping = False

    def wake(self) -> None:
        """There may be something new; also while a round is at work."""
        self._wake.set()

    def stop(self) -> None:
        """Take nothing more; what runs is finished."""
        self._stopping = True
        self._wake.set()

    async def aclose(self) -> None:
        """Let the application shut down, if it was started here."""
        if self._lifespan is not None:
            await self._lifespan.end()

    async def run_once(self) -> Round:
        """Run what is due until nothing is, and nothing is under way.

        What comes up meanwhile is taken as soon as there is room: a handler that takes long, or
        hangs, holds up no other.
        """
        if self._lifespan is not None:
            await self._lifespan.begin()
        shift = _Shift()
        try:
            due_in = await self._fill(shift)
            while shift.tasks:
                await self._something(shift, due_in)
                if self._report is not None:
                    shift.tell(self._report)
                due_in = await self._fill(shift)
        finally:
            await shift.leave()
        return shift.account(due_in)

    async def _fill(self, shift: _Shift) -> float | None:
        """Begin what is due and there is room for; seconds until there may be more."""
        self._wake.clear()
        due_in: float | None = 0.0
        while not self._stopping and (room := self._at_once - len(shift.tasks)) > 0:
            if not shift.backlog:
                try:
                    due_in = await self._look(shift)
                except StoreError as error:
                    if not shift.begun:
                        raise
                    self._guard.events.emit(
                        "store.error", error=error, during="run", operation="Due"
                    )
                    due_in = _AFTER_A_FAILURE
                if not shift.backlog:
                    break
            for case, now in shift.next(room):
                shift.start(case, self._one(case, now))
        return due_in

    async def _look(self, shift: _Shift) -> float | None:
        """Put what is due into the backlog; seconds until there will be more."""
        known = self._routes.known()
        lists = [
            await self._runner.aperform(Due(work, self._batch, known))
            for work in (Work.LAPSED, Work.PENDING)
        ]
        cases = [(case, listed.now) for listed in lists for case in listed.cases]
        # Shuffled: several workers that see the same list should not race for each.
        shift.put(sorted(cases, key=lambda _: luck()))
        wait = _next_due(lists)
        if not cases:
            return wait
        return _AFTER_A_FAILURE if wait is None else min(wait, _AFTER_A_FAILURE)

    async def _something(self, shift: _Shift, due_in: float | None) -> None:
        """Until a run has ended, or there may be something to begin and room for it."""
        room = len(shift.tasks) < self._at_once and not self._stopping
        woken = asyncio.create_task(self._wake.wait())
        try:
            waits = {*shift.tasks, woken} if room else shift.tasks
            patience = _LOOK_AGAIN if due_in is None else min(_LOOK_AGAIN, max(due_in, _REST))
            await asyncio.wait(
                waits,
                timeout=patience if room else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            woken.cancel()

    async def _one(self, case: Case, now: Micros) -> str:
        try:
            word = await self._take_and_run(case, now)
        except StoreError as error:
            return self._tell(case, "failed", ERROR, error)
        except Exception as error:  # the application's router; the others must not suffer for it
            return self._tell(case, "failed", ERROR, error)
        return word

    def _tell(
        self, case: Case, came: str, level: int = INFO, error: BaseException | None = None
    ) -> str:
        self._guard.events.emit(
            "run",
            level=level,
            error=error,
            where=route_line(case),
            identity=short(case.record.identity),
            came=came,
        )
        return came

    async def _take_and_run(self, case: Case, now: Micros) -> str:
        policy = self._routes.policy(case.terms)
        if policy is None or case.terms is None:
            return "passed"  # not ours
        fence, started = new_fence(), lease_clock()
        if not await self._runner.arun(take(case, fence, policy)):
            return "passed"
        age = now - case.record.created_at
        pause, overdue = _pause(age), age > case.terms.give_up_after
        last = _last(case, now + pause)
        again_in = None if overdue or last else pause
        try:
            request = stored.decode(case.request or b"")
        except StoreCorrupt as error:
            return await self._put_down(case, turned_away(case, fence, str(error)), error)
        except (EncryptionKeyMissing, SchemaTooNew) as error:
            op = not_run(case, fence, str(error), again_in)
            return await self._put_down(case, op, error)
        run = WorkerRun(case, fence, request, started, pause, overdue, last)
        try:
            await self._in_time(run, policy)
        except Exception as error:
            if not run.reached:
                reason = f"raised {type(error).__name__}"
                return await self._put_down(case, not_run(case, fence, reason, again_in), error)
            log.error("semel: %s raised in a worker", describe_record(case), exc_info=error)
        return await self._came_to(case, fence, run, again_in)

    async def _came_to(
        self, case: Case, fence: Fence, run: WorkerRun, again_in: Micros | None
    ) -> str:
        if not run.reached:
            reason = "a worker's run was turned away, or answered by another route"
            return await self._put_down(case, not_run(case, fence, reason, again_in), None)
        if run.answer is None:
            # Cut off on its way out, by a time limit around the guard or by `_in_time`. The handler
            # may be at it still: freed here, the request would be run a second time beside it.
            return self._tell(case, "left_running", WARNING)
        return self._tell(case, run.answer.outcome.value)

    async def _put_down(
        self, case: Case, op: StoreOperation[Written], error: Exception | None
    ) -> str:
        self._tell(case, "put_down", ERROR, error)
        try:
            await self._runner.aperform(op)
        except StoreError:
            # Held by nobody, it would lapse, and its outcome would be called unknown.
            self._guard.runtime.keeper.pursue(op)
        return "put_down"

    async def _in_time(self, run: WorkerRun, policy: Policy) -> None:
        """Until its lease is over in any case: handlers that hang must not take all the places."""
        limit = asyncio.timeout(policy.max_run.total_seconds() + policy.lease_micros / 1_000_000)
        try:
            async with limit:
                await self._send_through(run)
        except TimeoutError:
            if not limit.expired():
                raise
        except (asyncio.CancelledError, Exception):
            raise
        except BaseException as error:  # sys.exit() in an application must not end the worker
            raise RuntimeError(f"it raised {type(error).__name__}") from error

    async def _send_through(self, run: WorkerRun) -> None:
        if self._lifespan is not None:
            await run_asgi(self._app, run, self._lifespan.state)
        else:
            await in_thread(lambda: run_wsgi(self._app, run))


class _Shift:
    """What is under way in one round, and what is next."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[str]] = set()
        self.begun = False
        self.backlog: list[tuple[Case, Micros]] = []
        self._not_before: dict[Identity, float] = {}
        """What could not be begun is due still, and left alone for a while."""
        self._words: Counter[str] = Counter()
        self._told = time.monotonic()

    def put(self, cases: list[tuple[Case, Micros]]) -> None:
        now = time.monotonic()
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        self.backlog = [it for it in cases if it[0].record.identity not in self._not_before]

    def next(self, room: int) -> list[tuple[Case, Micros]]:
        these, self.backlog = self.backlog[:room], self.backlog[room:]
        return these

    def start(self, case: Case, work: Coroutine[Any, Any, str]) -> None:
        identity, self.begun = case.record.identity, True
        # While it runs it is not due; should its lease be lost, it is another's.
        self._not_before[identity] = float("inf")
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(lambda done: self._ended(identity, done))

    def _ended(self, identity: Identity, task: asyncio.Task[str]) -> None:
        self.tasks.discard(task)
        word = "failed" if task.cancelled() or task.exception() is not None else task.result()
        if word in _NOT_DONE:
            self._not_before[identity] = time.monotonic() + _AFTER_A_FAILURE
        else:
            self._not_before.pop(identity, None)
            self._words[word] += 1

    def account(self, due_in: float | None) -> Round:
        """What was done since the last account."""
        words, self._words = self._words, Counter()
        return Round(words.total(), due_in, counts_note(words))

    def tell(self, report: Callable[[Round], None]) -> None:
        now = time.monotonic()
        if self._words and now - self._told >= _REPORT_EVERY:
            self._told = now
            report(self.account(0.0))

    async def leave(self) -> None:
        """Nobody waits any more: what is under way hears of it, and puts things down."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


def _last(case: Case, next_time: Micros) -> bool:
    """Whether there is no next time: then nobody would run it, and its answer would be a 408."""
    deadline = case.record.leased_until
    return case.record.state is State.PENDING and deadline is not None and next_time >= deadline


def _pause(age: Micros) -> Micros:
    """Before the next run, should nothing happen in this one: the older, the longer."""
    return int(min(_LONGEST, max(_SHORTEST, age // 2)) * jitter())


def _next_due(lists: list[DueRecords]) -> float | None:
    waits = [(each.next_due - each.now) / 1_000_000 for each in lists if each.next_due is not None]
    return min(waits, default=None)
