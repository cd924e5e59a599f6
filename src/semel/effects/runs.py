"""Runs stored requests through their application: deferred ones, and abandoned operations.

A request goes the way of the first time, from the outermost application inwards, with its caller's
principal; the guard inside knows by the `Errand` that its record is held already.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from semel.core import stored
from semel.core.contract import StoreOperation, Written
from semel.core.model import Case, Fence, Micros
from semel.core.taking import not_run, take, turned_away
from semel.core.upkeep import Due, Listed, Work
from semel.effects.asking import Runner
from semel.effects.counts import Counts, told
from semel.effects.lifespan import Lifespan
from semel.effects.policies import Policies
from semel.effects.reconcile import named
from semel.effects.rounds import Round
from semel.errors import ConfigurationError, StoreCorrupt, StoreError
from semel.log import log
from semel.process.fences import new_fence
from semel.process.jitter import jitter
from semel.web.errands import Errand, run_asgi, run_wsgi

if TYPE_CHECKING:
    from semel.guard import Guard

_AFTER_A_FAILURE: Final = 5.0
_SHORTEST, _LONGEST = 1_000_000, 300_000_000
"""Between two runs of a deferred request: a second, five minutes."""


class Runs:
    """One loop of the worker. Several workers may run it: of each request one takes hold.

    ``app`` is the outermost application, ASGI or WSGI; ``at_once``: how many run side by side.
    """

    def __init__(
        self,
        guard: Guard,
        app: Any,
        *,
        root: str = "",
        batch: int = 64,
        at_once: int = 4,
        counts: Counts | None = None,
    ) -> None:
        if not callable(app):
            raise ConfigurationError("the application to run requests through must be callable")
        self._guard = guard
        self._app = app
        self._policies = Policies(guard, app, root)
        self._runner = Runner(guard)
        self._batch = batch
        self._turn = asyncio.Semaphore(at_once)
        self._lifespan = Lifespan(app) if is_asgi(app) else None
        self._stopping = False
        self.counts = Counts() if counts is None else counts

    def stop(self) -> None:
        """Take nothing more; what runs is finished."""
        self._stopping = True

    async def aclose(self) -> None:
        """Let the application shut down, if it was started here."""
        if self._lifespan is not None:
            await self._lifespan.end()

    async def run_once(self) -> Round:
        """Run everything that is due, up to a batch of each kind."""
        if self._lifespan is not None:
            await self._lifespan.begin()
        lists = [
            await self._runner.aperform(Due(work, self._batch))
            for work in (Work.LAPSED, Work.PENDING)
        ]
        cases = [(case, listed.now) for listed in lists for case in listed.cases]
        if not cases:
            return Round(0, _next_due(lists))
        random.shuffle(cases)  # several workers that see the same list should not race for each
        words = await asyncio.gather(*(self._one(case, now) for case, now in cases))
        done = {word: words.count(word) for word in words if word not in ("passed", "failed")}
        return Round(sum(done.values()), 0.0 if done else _AFTER_A_FAILURE, told(done))

    async def _one(self, case: Case, now: Micros) -> str:
        async with self._turn:
            if self._stopping:
                return "passed"
            try:
                word = await self._take_and_run(case, now - case.record.created_at)
            except StoreError as error:
                log.error("semel: %s could not be run: %s", named(case), error)
                word = "failed"
            except Exception:  # the application's router; the others must not suffer for it
                log.exception("semel: %s could not be run", named(case))
                word = "failed"
        self.counts.add(f"runs.{word}")
        return word

    async def _take_and_run(self, case: Case, age: Micros) -> str:
        policy, fence = self._policies.of(case), new_fence()
        started = time.monotonic()
        if not await self._runner.arun(take(case, fence, policy)):
            return "passed"
        try:
            request = stored.decode(case.request or b"")
        except StoreCorrupt as error:
            return await self._put_down(case, turned_away(case, fence, str(error)), error)
        pause = _pause(age)
        errand = Errand(case, fence, request, started, pause, age > policy.give_up_micros)
        try:
            await self._send_through(errand)
        except Exception as error:
            if not errand.reached:
                reason = f"raised {type(error).__name__}"
                op = not_run(case, fence, policy, reason, None if errand.overdue else pause)
                return await self._put_down(case, op, error)
            log.error("semel: %s raised in a worker", named(case), exc_info=error)
        return await self._came_to(case, fence, errand)

    async def _came_to(self, case: Case, fence: Fence, errand: Errand) -> str:
        if not errand.reached:
            reason = "the application turned a worker's run away before its guard"
            return await self._put_down(case, turned_away(case, fence, reason), None)
        if errand.answer is None:
            # Cut off on its way out, as by a time limit around the guard. The handler may be at it
            # still: freed here, the request would be run a second time beside it.
            log.warning("semel: %s goes on without its worker", named(case))
            return "left_running"
        log.info("semel: %s was run: %s", named(case), errand.answer.outcome)
        return errand.answer.outcome.value

    async def _put_down(
        self, case: Case, op: StoreOperation[Written], error: Exception | None
    ) -> str:
        log.error("semel: %s could not be run", named(case), exc_info=error)
        try:
            await self._runner.aperform(op)
        except StoreError:
            # Held by nobody, it would lapse, and its outcome would be called unknown.
            self._guard.attendant.pursue(op)
        return "put_down"

    async def _send_through(self, errand: Errand) -> None:
        if self._lifespan is not None:
            await run_asgi(self._app, errand, self._lifespan.state)
        else:
            await asyncio.to_thread(run_wsgi, self._app, errand)


def _pause(age: Micros) -> Micros:
    """Before the next run, should nothing happen in this one: the older, the longer."""
    return int(min(_LONGEST, max(_SHORTEST, age // 2)) * jitter())


def _next_due(lists: list[Listed]) -> float | None:
    waits = [(each.next_due - each.now) / 1_000_000 for each in lists if each.next_due is not None]
    return min(waits, default=None)


def is_asgi(app: Any) -> bool:
    """An ASGI application is a coroutine function, or an object that is called as one."""
    call: Callable[..., Any] = getattr(app, "__call__", app)  # noqa: B004 - its method, not whether
    return inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(call)
