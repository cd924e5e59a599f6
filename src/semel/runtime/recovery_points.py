"""Recovery points as a running handler meets them: `core/recovery/points.py` in both colours."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any, Final

from semel.backoff import pause_before
from semel.core import operations as ops
from semel.core.flow import Flow, arun, run
from semel.core.records import whole_origin
from semel.core.recovery.points import Holder, PointCall, call, phase
from semel.core.unknown import evidence
from semel.core.unknown.evidence import Absent, CannotTell, Happened
from semel.errors import ConfigurationError, LeaseLost
from semel.log import log
from semel.runtime import flow_runner
from semel.runtime.operation import Run
from semel.runtime.transactions import AsyncTransact, Transact

PATIENCE: Final = 30.0
"""Seconds that a probe has to answer."""


def _holder(run: Run) -> Holder:
    if not run.plan.policy.resumable:
        raise ConfigurationError(
            "phases and calls belong to operations that can be resumed: give the route "
            "mode='resumable'"
        )
    return Holder(run.lease.identity, run.lease.fence, run, run.epoch)


def _calling(run: Run, point: PointCall, repeatable: bool) -> Flow[Any]:
    holder = _holder(run)
    origin = whole_origin(run.origin, run.plan.terms)
    inquiry = evidence.inquiry(holder.identity, origin, point.name, holder.epoch)
    probe = run.probes.get(point.name, run.plan.policy.probe)
    return call(holder, point, repeatable, probe, inquiry)


def _demand_time(run: Run) -> None:
    """Refuse a phase without a lease: the end of the lease is what ends a phase that hangs."""
    if (why := run.lease.ended) is not None:
        raise LeaseLost(f"no phase can begin: {why}")


def _evidence(said: object) -> evidence.Evidence:
    """What a probe returned, or raised, as evidence. All but evidence counts as `CannotTell`."""
    if isinstance(said, Happened | Absent | CannotTell):
        return said
    if isinstance(said, Exception):
        log.error("semel: a probe failed", exc_info=said)
        return CannotTell(f"the probe failed: {type(said).__name__}")
    log.error("semel: a probe must return Happened, Absent or CannotTell, not %r", type(said))
    return CannotTell("the probe gave no evidence")


class Points:
    """Blocking."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._transact = Transact(run.backend, limit=run.lease.max_run)

    def phase(self, point: PointCall) -> Any:
        written, before = set(self._run.effects), self._run.lease.transaction
        try:
            return run(phase(_holder(self._run), point), self._perform)
        except BaseException:
            self._run.effects = written  # rolled back with the rest
            raise
        finally:
            self._run.lease.transaction = before
            self._transact.end()

    def call(self, point: PointCall, repeatable: bool) -> Any:
        return run(_calling(self._run, point, repeatable), self._perform)

    # Twin of AsyncPoints._perform, by tools.twins
    def _perform(self, op: ops.FlowOperation[Any]) -> Any:
        match op:
            case ops.Do():
                self._run.lease.transaction = self._transact.transaction
                return _did(op)
            case ops.Held():
                return self._run.held()
            case ops.Ask(probe, inquiry):
                try:
                    return _evidence(flow_runner.call(PATIENCE, probe, inquiry))
                except Exception as error:
                    return _evidence(error)
            case ops.Pause(attempt=attempt):
                time.sleep(pause_before(attempt))
                return self._run.held()
            case _:
                if isinstance(op, ops.Begin):
                    _demand_time(self._run)
                return self._transact.perform(op)


def _did(op: ops.Do) -> ops.Did | ops.Raised | ops.Abandoned:
    try:
        value = op.function(*op.arguments)
    except Exception as error:
        return ops.Raised(error)
    except BaseException as error:
        return ops.Abandoned(error)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # never begun, so nothing of it has happened
        refusal = "a coroutine function cannot run in a plain handler: make the handler async"
        return ops.Raised(ConfigurationError(refusal))
    return ops.Did(value)


class AsyncPoints:
    """Awaited."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._transact = AsyncTransact(run.backend, limit=run.lease.max_run)

    async def phase(self, point: PointCall) -> Any:
        written, before = set(self._run.effects), self._run.lease.transaction
        try:
            return await self._drive(phase(_holder(self._run), point))
        except BaseException:
            self._run.effects = written  # rolled back with the rest
            raise
        finally:
            self._run.lease.transaction = before
            await self._transact.end()

    async def call(self, point: PointCall, repeatable: bool) -> Any:
        return await self._drive(_calling(self._run, point, repeatable))

    async def _drive(self, flow: Flow[Any]) -> Any:
        """Run the flow. If it is cancelled in the middle of a write, finish the write first."""
        rest: list[Flow[Any]] = []
        try:
            return await arun(flow, self._perform, rest.append)
        except asyncio.CancelledError:
            work = asyncio.ensure_future(arun(rest[0], self._perform))
            while not work.done():
                try:
                    await asyncio.wait([work])
                except asyncio.CancelledError:
                    continue
            if not work.cancelled() and (error := work.exception()) is not None:
                log.info("semel: a point ended after its handler was cancelled: %r", error)
            raise

    async def _perform(self, op: ops.FlowOperation[Any]) -> Any:
        match op:
            case ops.Do():
                self._run.lease.transaction = self._transact.transaction
                return await _adid(op)
            case ops.Held():
                return self._run.held()
            case ops.Ask(probe, inquiry):
                try:
                    return _evidence(await flow_runner.acall(PATIENCE, probe, inquiry))
                except Exception as error:
                    return _evidence(error)
            case ops.Pause(attempt=attempt):
                await asyncio.sleep(pause_before(attempt))
                return self._run.held()
            case _:
                if isinstance(op, ops.Begin):
                    _demand_time(self._run)
                return await self._transact.perform(op)


async def _adid(op: ops.Do) -> ops.Did | ops.Raised | ops.Abandoned:
    try:
        value = op.function(*op.arguments)
        return ops.Did(await value if inspect.isawaitable(value) else value)
    except Exception as error:
        return ops.Raised(error)
    except BaseException as error:
        return ops.Abandoned(error)
