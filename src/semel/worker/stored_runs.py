"""Runs stored requests through their application: deferred ones, and abandoned operations.

A request goes through the whole application again, with its caller's principal. The guard inside
knows by the `WorkerRun` that the worker holds the record already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from semel.backoff import jitter, luck
from semel.core import operations as ops
from semel.core.exchange.deferred import not_run, take, turned_away
from semel.core.exchange.exchange import WorkerRun
from semel.core.frozen import is_async
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
from semel.runtime.events import ERROR, INFO, WARNING, short
from semel.runtime.flow_runner import FlowRunner, in_thread
from semel.runtime.leases import lease_clock, new_fence
from semel.web.inventory import KnownRoutes
from semel.web.worker_runs import run_asgi, run_wsgi
from semel.worker.reconciler import describe_record, route_line
from semel.worker.worker import ConcurrentLoop, Round

if TYPE_CHECKING:
    from semel.guard import Guard

_AFTER_A_FAILURE: Final = 5.0
_NOT_DONE: Final = ("passed", "failed")
_SHORTEST, _LONGEST = 1_000_000, 300_000_000
"""Microseconds between two runs of a deferred request: a second, five minutes."""


class StoredRuns(ConcurrentLoop):
    """One loop of the worker. Several workers may run it: one of them takes each request.

    ``app`` is the outermost application, ASGI or WSGI. ``at_once``: how many requests run side by
    side. ``report`` gets a long round while it goes on.
    """

    _look_every = 5.0

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
        super().__init__(at_once, report)
        self._guard = guard
        self._app = app
        self._routes = KnownRoutes(guard, app)
        self._runner = FlowRunner(guard)
        self._batch = batch
        self._lifespan = Lifespan(app) if is_async(app) else None
        self._begun = False
        self._backlog: list[tuple[Case, Micros]] = []
        self._not_before: dict[Identity, float] = {}
        """Requests that could not be started are still due; they are left alone for a while."""

    async def aclose(self) -> None:
        """Shut the application down, if it was started here."""
        if self._lifespan is not None:
            await self._lifespan.end()

    async def run_once(self) -> Round:
        """Run requests until nothing is due and nothing is under way."""
        if self._lifespan is not None:
            await self._lifespan.begin()
        self._begun, self._backlog, self._not_before = False, [], {}
        return await super().run_once()

    async def _fill(self) -> float | None:
        """Start due requests while there is room; returns the seconds until there may be more."""
        due_in: float | None = 0.0
        while self._room > 0:
            if not self._backlog:
                try:
                    due_in = await self._look()
                except StoreError as error:
                    if not self._begun:
                        raise
                    self._guard.events.emit(
                        "store.error", error=error, during="run", operation="Due"
                    )
                    due_in = _AFTER_A_FAILURE
                if not self._backlog:
                    break
            case, now = self._backlog.pop(0)
            # While it runs it is not started again here, even if its lease is lost to another.
            self._not_before[case.record.identity] = float("inf")
            self._begun = True
            self._start(self._one(case, now))
        return due_in

    async def _look(self) -> float | None:
        """Put due requests into the backlog; returns the seconds until there are more."""
        known = self._routes.known()
        lists = [
            await self._runner.aperform(ops.Due(work, self._batch, known))
            for work in (ops.Work.LAPSED, ops.Work.PENDING)
        ]
        cases = [(case, listed.now) for listed in lists for case in listed.cases]
        now = time.monotonic()
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        free = [each for each in cases if each[0].record.identity not in self._not_before]
        # Shuffled: several workers that see the same list should not race for each.
        self._backlog = sorted(free, key=lambda _: luck())
        due = [each.next_due - each.now for each in lists if each.next_due is not None]
        wait = min(due) / 1_000_000 if due else None
        if not cases:
            return wait
        return _AFTER_A_FAILURE if wait is None else min(wait, _AFTER_A_FAILURE)

    async def _one(self, case: Case, now: Micros) -> str | None:
        try:
            with self._guard.events.span("run", case.record.identity):
                word = await self._take_and_run(case, now)
        except Exception as error:  # the store, or the application's router: it harms no other run
            word = self._emit(case, "failed", ERROR, error)
        if word in _NOT_DONE:
            self._not_before[case.record.identity] = time.monotonic() + _AFTER_A_FAILURE
            return None
        self._not_before.pop(case.record.identity, None)
        return word

    async def _take_and_run(self, case: Case, now: Micros) -> str:
        """Run one request; returns one word for what became of it."""
        policy = self._routes.policy(case.terms)
        if policy is None or case.terms is None:
            return "passed"  # not ours
        fence, started = new_fence(), lease_clock()
        if not await self._runner.arun(take(case, fence, policy)):
            return "passed"
        age = now - case.record.created_at
        # The older the request, the longer the pause before its next run.
        pause = int(min(_LONGEST, max(_SHORTEST, age // 2)) * jitter())
        # The last run: a later one would come too late, its request would be answered 408 before.
        pending, deadline = case.record.state is State.PENDING, case.record.leased_until
        last = pending and deadline is not None and now + pause >= deadline
        overdue = age > case.terms.give_up_after
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

    async def _release(
        self, case: Case, op: ops.StoreOperation[ops.Written], error: Exception | None
    ) -> str:
        self._emit(case, "put_down", ERROR, error)
        try:
            await self._runner.aperform(op)
        except StoreError:
            # Otherwise its lease would lapse, and its outcome would be unknown.
            self._guard.runtime.keeper.pursue(op)
        return "put_down"

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


class Lifespan:
    """Starts an ASGI application before its first request, and ends it, as a server does."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.state: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._asked: asyncio.Queue[dict[str, Any]]
        self._told: asyncio.Queue[str]

    async def begin(self) -> None:
        """Start the application once; one without a lifespan is used as it is.

        An application whose start failed is not used; the next call starts it again.
        """
        if self._task is not None:
            return
        self._asked, self._told = asyncio.Queue(), asyncio.Queue()
        task = asyncio.create_task(self._run())
        await self._asked.put({"type": "lifespan.startup"})
        if await self._told.get() == "lifespan.startup.failed":
            task.cancel()
            await asyncio.wait({task})
            raise ConfigurationError("the application's start-up failed; see its log")
        self._task = task

    async def end(self) -> None:
        if self._task is None or self._task.done():
            return
        await self._asked.put({"type": "lifespan.shutdown"})
        await self._told.get()
        await self._task

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        try:
            await self._app(scope, self._asked.get, self._send)
        except Exception as error:
            # An application without a lifespan raises, and servers use it all the same.
            log.info("semel: the application has no lifespan: %r", error)
        finally:
            self._told.put_nowait("over")

    async def _send(self, message: Any) -> None:
        self._told.put_nowait(message["type"])
