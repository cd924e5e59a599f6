"""The pool of one event loop.

A statement runs in a task of its own: a cancelled caller leaves at once, and the connection comes
back to the pool with the answer, or is closed at the deadline.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TypeVar

from semel.core.operations.requests import StoreOperation
from semel.errors import SemelError
from semel.stores.background import in_thread
from semel.stores.mysql.connection_async import Wire, dial
from semel.stores.mysql.errors import Fault, not_connected, verdict
from semel.stores.mysql.migration import migrate
from semel.stores.mysql.settings import Settings
from semel.stores.sql.plans import Rows, Statement
from semel.stores.sql.statement_retry import adrive, errand

R = TypeVar("R")


class AwaitedPool:
    """At most ``pool_size`` connections; the one used last is used next."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(settings.pool_size)
        self._idle: list[Wire] = []
        self._working: set[asyncio.Task[Rows]] = set()
        self._ready = False
        self._closed = False

    async def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = errand(op, verdict, doubt=doubt)
        return await adrive(steps, lambda statement: self.execute(statement, deadline))

    async def aclose(self) -> None:
        """Close idle connections now, and those at work when they are done: by their deadline."""
        self.abandon()
        if self._working:
            await asyncio.wait(self._working, timeout=self._settings.timeout)

    def abandon(self) -> None:
        """Close what is idle, without the loop, which may be closed already."""
        self._closed = True
        self._drop_idle()

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        """In one task from the first, which nobody cancels."""
        work = self._loop.create_task(self._work_in_turn(statement, deadline))
        self._working.add(work)  # the loop itself holds its tasks only weakly
        work.add_done_callback(self._working.discard)
        return work

    async def execute(self, statement: Statement, deadline: float) -> Rows:
        await self._take_slot(deadline)
        work = self._loop.create_task(self._work(statement, deadline))
        self._working.add(work)
        work.add_done_callback(self._done)
        return await asyncio.shield(work)

    async def _take_slot(self, deadline: float) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # at once
            return
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self._slots.acquire()
        except TimeoutError:
            size = self._settings.pool_size
            raise Fault(
                f"no connection came free within the time limit (pool_size={size})"
            ) from None

    async def _work_in_turn(self, statement: Statement, deadline: float) -> Rows:
        await self._take_slot(deadline)
        try:
            return await self._work(statement, deadline)
        finally:
            self._slots.release()

    def _done(self, work: asyncio.Task[Rows]) -> None:
        self._working.discard(work)
        self._slots.release()
        if not work.cancelled():
            work.exception()  # nobody may be left to ask for it

    async def _work(self, statement: Statement, deadline: float) -> Rows:
        wire = self._take() or await self._open(deadline)
        broken = True
        try:
            rows = await wire.run(statement, deadline)
            broken = False
            return rows
        except Fault as fault:
            broken = fault.broken
            if fault.contagious:
                self._drop_idle()
            raise
        finally:
            if broken or self._closed:
                wire.close()
            else:
                self._idle.append(wire)

    def _take(self) -> Wire | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.alive():
                return wire
            wire.close()
        return None

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _open(self, deadline: float) -> Wire:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                return await self._connect(deadline)
        except TimeoutError:
            raise Fault("no connection within the time limit") from None
        except (SemelError, Fault):
            raise
        except Exception as error:
            raise not_connected(error, self._settings.without_secrets) from None

    async def _connect(self, deadline: float) -> Wire:
        if self._settings.migrate and not self._ready:
            await in_thread(lambda: migrate(self._settings))
        wire = Wire(await dial(self._settings), self._settings)
        try:
            await wire.greet(deadline, warn=not self._ready)
            if not self._ready:
                await wire.check_schema(deadline)
                self._ready = True
        except BaseException:
            wire.close()
            raise
        return wire
