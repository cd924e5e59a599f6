"""Recovery points as a running handler meets them: `core/recovery/points.py` in both colours."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from semel.backoff import pause_before
from semel.core.flow import Flow, arun, run
from semel.core.operations.handler import Abandoned, Ask, Begin, Did, Do, Held, Pause, Raised
from semel.core.operations.requests import FlowOperation, StoreOperation
from semel.core.recovery.points import Holder, PointCall, call, phase
from semel.core.unknown import evidence
from semel.core.unknown.evidence import Absent, CannotTell, Happened, Inquiry
from semel.errors import ConfigurationError, LeaseLost
from semel.log import log
from semel.runtime import flow_runner
from semel.runtime.operation import Run
from semel.runtime.transactions import AsyncTransact, Transact

PATIENCE: Final = 30.0
"""Seconds that a probe has to answer."""


class _Colour(Protocol):
    _run: Run


def _holder(self: _Colour) -> Holder:
    given = self._run
    if not given.plan.policy.resumable:
        raise ConfigurationError(
            "phases and calls belong to operations that can be resumed: give the route "
            "mode='resumable'"
        )
    return Holder(given.lease.identity, given.lease.fence, given, given.epoch)


def _demand_time(self: _Colour) -> None:
    """Refuse a phase without a lease: the end of the lease is what ends a phase that hangs."""
    if (why := self._run.lease.ended) is not None:
        raise LeaseLost(f"no phase can begin: {why}")


def _calling(self: _Colour, point: PointCall, repeatable: bool) -> Flow[Any]:
    run, holder = self._run, _holder(self)
    inquiry = evidence.inquiry(holder.identity, run.origin, point.name, holder.epoch)
    return call(holder, point, repeatable, run.probe_for(point.name), inquiry)


class Points:
    """Blocking."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._transact = Transact(run.backend, limit=run.lease.max_run)

    def phase(self, point: PointCall) -> Any:
        written, before = set(self._run.effects), self._run.transaction
        try:
            return run(phase(_holder(self), point), self._perform)
        except BaseException:
            self._run.effects = written  # rolled back with the rest
            raise
        finally:
            self._run.transaction = before
            self._transact.end()

    def call(self, point: PointCall, repeatable: bool) -> Any:
        return run(_calling(self, point, repeatable), self._perform)

    def _perform(self, op: FlowOperation[Any]) -> Any:
        match op:
            case Begin():
                _demand_time(self)
                return self._transact.perform(op)
            case Do(function, arguments):
                self._run.transaction = self._transact.transaction
                return _did(function, arguments)
            case Held():
                return self._run.held()
            case Ask(probe, inquiry):
                return _asked(probe, inquiry)
            case Pause(attempt=attempt):
                time.sleep(pause_before(attempt))
                return self._run.held()
            case _:
                return self._transact.perform(op)


def _did(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Did | Raised | Abandoned:
    try:
        value = function(*arguments)
    except Exception as error:
        return Raised(error)
    except BaseException as error:
        return Abandoned(error)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # never begun, so nothing of it has happened
        refusal = "a coroutine function cannot run in a plain handler: make the handler async"
        return Raised(ConfigurationError(refusal))
    return Did(value)


def _asked(probe: Callable[..., Any], inquiry: Inquiry) -> evidence.Evidence:
    try:
        return checked(flow_runner.call(PATIENCE, probe, inquiry))
    except Exception as error:
        return _failed(error)


def _failed(error: BaseException) -> CannotTell:
    log.error("semel: a probe failed", exc_info=error)
    return CannotTell(f"the probe failed: {type(error).__name__}")


def checked(said: object) -> evidence.Evidence:
    """The probe's reply as evidence. Anything else counts as `CannotTell`."""
    if isinstance(said, Happened | Absent | CannotTell):
        return said
    log.error("semel: a probe must return Happened, Absent or CannotTell, not %r", type(said))
    return CannotTell("the probe gave no evidence")


class AsyncPoints:
    """Awaited."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._transact = AsyncTransact(run.backend, limit=run.lease.max_run)

    async def phase(self, point: PointCall) -> Any:
        written, before = set(self._run.effects), self._run.transaction
        try:
            return await self._drive(phase(_holder(self), point))
        except BaseException:
            self._run.effects = written  # rolled back with the rest
            raise
        finally:
            self._run.transaction = before
            await self._transact.end()

    async def call(self, point: PointCall, repeatable: bool) -> Any:
        return await self._drive(_calling(self, point, repeatable))

    async def _drive(self, flow: Flow[Any]) -> Any:
        """Run the flow. If it is cancelled in the middle of a write, finish the write first."""
        rest: list[Flow[Any]] = []
        try:
            return await arun(flow, self._perform, rest.append)
        except asyncio.CancelledError:
            await _see_through(asyncio.ensure_future(arun(rest[0], self._perform)))
            raise

    async def _perform(self, op: FlowOperation[Any]) -> Any:
        match op:
            case StoreOperation():
                return await self._transact.perform(op)
            case Begin():
                _demand_time(self)
                return await self._transact.perform(op)
            case Do(function, arguments):
                self._run.transaction = self._transact.transaction
                return await _adid(function, arguments)
            case Held():
                return self._run.held()
            case Ask(probe, inquiry):
                return await aasked(probe, inquiry)
            case Pause(attempt=attempt):
                await asyncio.sleep(pause_before(attempt))
                return self._run.held()
            case _:
                return await self._transact.perform(op)


async def _see_through(work: asyncio.Future[Any]) -> None:
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            continue
    if not work.cancelled() and work.exception() is not None:
        log.info("semel: a point ended after its handler was cancelled: %r", work.exception())


async def _adid(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        value = function(*arguments)
        return Did(await value if inspect.isawaitable(value) else value)
    except Exception as error:
        return Raised(error)
    except BaseException as error:
        return Abandoned(error)


async def aasked(probe: Callable[..., Any], inquiry: Inquiry) -> evidence.Evidence:
    """Ask a probe of either colour; one that blocks does so in a thread."""
    try:
        return checked(await flow_runner.acall(PATIENCE, probe, inquiry))
    except Exception as error:
        return _failed(error)
