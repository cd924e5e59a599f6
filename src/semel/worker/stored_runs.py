"""Runs stored requests through their application: deferred ones, and abandoned operations.

A request goes through the whole application again, with its caller's principal. The guard inside
knows by the `WorkerRun` that the worker holds the record already.
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
from semel.core.operations.maintenance import Due, Work
from semel.core.operations.requests import StoreOperation, Written
from semel.core.policy import Policy
from semel.core.records import Case, Identity, Micros, State
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
from semel.worker.worker import Round, counts_note

if TYPE_CHECKING:
    from semel.guard import Guard

_AFTER_A_FAILURE: Final = 5.0
_NOT_DONE: Final = ("passed", "failed")
_LOOK_AGAIN: Final = 5.0
"""The most seconds between two looks, while something runs and there is room."""
_REST: Final = 0.1
"""The fewest seconds between two looks."""
_REPORT_EVERY: Final = 1.0
_SHORTEST, _LONGEST = 1_000_000, 300_000_000
"""Microseconds between two runs of a deferred request: a second, five minutes."""


class StoredRuns:
    """One loop of the worker. Several workers may run it: one of them takes each request.

    ``app`` is the outermost application, ASGI or WSGI. ``at_once``: how many requests run side by
    side. ``report`` gets a long round while it goes on.
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
        """Look for new requests, also in the middle of a round."""
        self._wake.set()

    def stop(self) -> None:
        """Take no more requests; finish those that run."""
        self._stopping = True
        self._wake.set()

    async def aclose(self) -> None:
        """Shut the application down, if it was started here."""
        if self._lifespan is not None:
            await self._lifespan.end()

    async def run_once(self) -> Round:
        """Run requests until nothing is due and nothing is under way.

        Requests that become due meanwhile are taken as soon as there is room, so that a handler
        that hangs holds up no other.
        """
        if self._lifespan is not None:
            await self._lifespan.begin()
        running = _RunningRequests()
        try:
            due_in = await self._fill(running)
            while running.tasks:
                await self._wait(running, due_in)
                if self._report is not None:
                    running.report_to(self._report)
                due_in = await self._fill(running)
        finally:
            await running.cancel()
        return running.round(due_in)

    async def _fill(self, running: _RunningRequests) -> float | None:
        """Start due requests while there is room; returns the seconds until there may be more."""
        self._wake.clear()
        due_in: float | None = 0.0
        while not self._stopping and (room := self._at_once - len(running.tasks)) > 0:
            if not running.backlog:
                try:
                    due_in = await self._look(running)
                except StoreError as error:
                    if not running.begun:
                        raise
                    self._guard.events.emit(
                        "store.error", error=error, during="run", operation="Due"
                    )
                    due_in = _AFTER_A_FAILURE
                if not running.backlog:
                    break
            for case, now in running.next(room):
                running.start(case, self._one(case, now))
        return due_in

    async def _look(self, running: _RunningRequests) -> float | None:
        """Put due requests into the backlog; returns the seconds until there are more."""
        known = self._routes.known()
        lists = [
            await self._runner.aperform(Due(work, self._batch, known))
            for work in (Work.LAPSED, Work.PENDING)
        ]
        cases = [(case, listed.now) for listed in lists for case in listed.cases]
        # Shuffled: several workers that see the same list should not race for each.
        running.put(sorted(cases, key=lambda _: luck()))
        due = [each.next_due - each.now for each in lists if each.next_due is not None]
        wait = min(due) / 1_000_000 if due else None
        if not cases:
            return wait
        return _AFTER_A_FAILURE if wait is None else min(wait, _AFTER_A_FAILURE)

    async def _wait(self, running: _RunningRequests, due_in: float | None) -> None:
        """Wait until a run ends, or until there may be something to start and room for it."""
        room = len(running.tasks) < self._at_once and not self._stopping
        woken = asyncio.create_task(self._wake.wait())
        try:
            waits = {*running.tasks, woken} if room else running.tasks
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
            return await self._take_and_run(case, now)
        except Exception as error:  # the store, or the application's router: it harms no other run
            return self._emit(case, "failed", ERROR, error)

    def _emit(
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
        # The older the request, the longer the pause before its next run.
        pause = int(min(_LONGEST, max(_SHORTEST, age // 2)) * jitter())
        overdue, last = age > case.terms.give_up_after, _is_last(case, now + pause)
        again_in = None if overdue or last else pause
        try:
            request = stored.decode(case.request or b"")
        except StoreCorrupt as error:
            return await self._release(case, turned_away(case, fence, str(error)), error)
        except (EncryptionKeyMissing, SchemaTooNew) as error:
            op = not_run(case, fence, str(error), again_in)
            return await self._release(case, op, error)
        run = WorkerRun(case, fence, request, started, pause, overdue, last)
        try:
            await self._in_time(run, policy)
        except Exception as error:
            if not run.reached:
                reason = f"raised {type(error).__name__}"
                return await self._release(case, not_run(case, fence, reason, again_in), error)
            log.error("semel: %s raised in a worker", describe_record(case), exc_info=error)
        if not run.reached:
            reason = "a worker's run was turned away, or answered by another route"
            return await self._release(case, not_run(case, fence, reason, again_in), None)
        if run.answer is None:
            # Cut off by a time limit, ours or one around the guard. The handler may still run: were
            # the record freed here, the request would run a second time beside it.
            return self._emit(case, "left_running", WARNING)
        return self._emit(case, run.answer.outcome.value)

    async def _release(
        self, case: Case, op: StoreOperation[Written], error: Exception | None
    ) -> str:
        self._emit(case, "put_down", ERROR, error)
        try:
            await self._runner.aperform(op)
        except StoreError:
            # Otherwise its lease would lapse, and its outcome would be unknown.
            self._guard.runtime.keeper.pursue(op)
        return "put_down"

    async def _in_time(self, run: WorkerRun, policy: Policy) -> None:
        """Run it until its lease is over at most: handlers that hang must not take all places."""
        limit = asyncio.timeout(policy.max_run.total_seconds() + policy.lease_micros / 1_000_000)
        try:
            async with limit:
                if self._lifespan is not None:
                    await run_asgi(self._app, run, self._lifespan.state)
                else:
                    await in_thread(lambda: run_wsgi(self._app, run))
        except TimeoutError:
            if not limit.expired():
                raise
        except (asyncio.CancelledError, Exception):
            raise
        except BaseException as error:  # sys.exit() in an application must not end the worker
            raise RuntimeError(f"it raised {type(error).__name__}") from error


class _RunningRequests:
    """The requests that run in one round, and those that are next."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[str]] = set()
        self.begun = False
        self.backlog: list[tuple[Case, Micros]] = []
        self._not_before: dict[Identity, float] = {}
        """Requests that could not be started are still due; they are left alone for a while."""
        self._words: Counter[str] = Counter()
        self._reported = time.monotonic()

    def put(self, cases: list[tuple[Case, Micros]]) -> None:
        now = time.monotonic()
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        self.backlog = [it for it in cases if it[0].record.identity not in self._not_before]

    def next(self, room: int) -> list[tuple[Case, Micros]]:
        these, self.backlog = self.backlog[:room], self.backlog[room:]
        return these

    def start(self, case: Case, work: Coroutine[Any, Any, str]) -> None:
        identity, self.begun = case.record.identity, True
        # While it runs it is not started again here, even if its lease is lost to another worker.
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

    def round(self, due_in: float | None) -> Round:
        """What was done since the last call."""
        words, self._words = self._words, Counter()
        return Round(words.total(), due_in, counts_note(words))

    def report_to(self, report: Callable[[Round], None]) -> None:
        now = time.monotonic()
        if self._words and now - self._reported >= _REPORT_EVERY:
            self._reported = now
            report(self.round(0.0))

    async def cancel(self) -> None:
        """Cancel what runs, and wait until it has released its records."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


def _is_last(case: Case, next_time: Micros) -> bool:
    """Whether a later run would come too late: its request would be answered 408 before."""
    deadline = case.record.leased_until
    return case.record.state is State.PENDING and deadline is not None and next_time >= deadline
