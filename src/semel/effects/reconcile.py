"""The reconciler: asks the probes about records whose outcome nobody knows, and settles them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, assert_never

from semel.core.contract import Inquire
from semel.core.model import Case, Micros
from semel.core.reconciling import Doubt, GivenUp, Inspection, pause, reconcile
from semel.core.settling import Passed, Running, Settled, Undecided, Unusable
from semel.core.upkeep import Due, Work
from semel.effects.asking import PATIENCE, Runner
from semel.effects.policies import Policies
from semel.effects.rounds import Round, told
from semel.errors import StoreCorrupt, StoreError
from semel.process.catalogue import ERROR, INFO
from semel.process.events import short
from semel.process.fences import new_fence
from semel.process.jitter import jitter

if TYPE_CHECKING:
    from semel.guard import Guard

_AFTER_A_FAILURE: Final = 5.0
"""Seconds to rest after a round in which nothing went well."""


class Reconciler:
    """One loop of the worker. Several workers may run it: of each question one puts it.

    ``app`` and ``root`` are for finding policies on endpoints; see `Policies`. ``at_once``: how
    many probes run side by side. ``patience``: how long each may take.
    """

    def __init__(
        self,
        guard: Guard,
        app: Any = None,
        *,
        root: str = "",
        batch: int = 50,
        at_once: int = 8,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._guard = guard
        self._policies = Policies(guard, app, root)
        self._runner = Runner(guard, patience)
        self._batch = batch
        self._at_once = at_once

    async def run_once(self) -> Round:
        """Ask about everything that is due, up to a batch."""
        due = await self._runner.aperform(Due(Work.UNKNOWN, self._batch))
        if not due.cases:
            wait = None if due.next_due is None else (due.next_due - due.now) / 1_000_000
            return Round(0, wait)
        words = await self._ask_all(due.cases, due.now)
        done = {word: words.count(word) for word in words if word != "failed"}
        # What was asked about has a new time; the next look tells the earliest.
        return Round(sum(done.values()), 0.0 if done else _AFTER_A_FAILURE, told(done))

    async def _ask_all(self, cases: tuple[Case, ...], now: Micros) -> list[str]:
        turn = asyncio.Semaphore(self._at_once)

        async def one(case: Case) -> str:
            async with turn:
                return await self._ask(case, now)

        words = await asyncio.gather(*map(one, cases), return_exceptions=True)
        return [word if isinstance(word, str) else "failed" for word in words]

    async def _ask(self, case: Case, now: Micros) -> str:
        """One word for what became of a case; a surprise puts it off and harms no other."""
        try:
            doubt = self._policies.doubt(case, now)
        except StoreCorrupt as error:
            return await self._put_off(case, None, error)
        except Exception as error:  # the application's router
            return await self._put_off(case, pause(self._guard.policy, case.tries), error)
        try:
            inspection = await self._runner.arun(reconcile(doubt, new_fence(), jitter()))
        except StoreError as error:
            tell(self._guard, case, "failed", ERROR, reason=str(error), error=error)
            return "failed"
        return report(self._guard, doubt, inspection)

    async def _put_off(self, case: Case, again_in: Micros | None, error: Exception) -> str:
        record = case.record
        word = "undecided" if again_in else "given_up"
        tell(self._guard, case, word, ERROR, reason="it cannot be asked about", error=error)
        op = Inquire(record.identity, record.fence, case.tries, again_in)
        await self._runner.aperform(op)
        return word


def report(guard: Guard, doubt: Doubt, inspection: Inspection, by: str = "probe") -> str:
    """Tell what came of a question; one word for it."""
    case = doubt.case
    match inspection:
        case Settled(state):
            return tell(guard, case, "settled", INFO, by=by, state=state)
        case Undecided(reason, error):
            level = INFO if error is None else ERROR
            return tell(guard, case, "undecided", level, by=by, reason=reason, error=error)
        case Unusable(reason, error):
            return tell(guard, case, "undecided", ERROR, by=by, reason=reason, error=error)
        case GivenUp(reason):
            return tell(guard, case, "given_up", ERROR, by=by, reason=f"a dead letter: {reason}")
        case Running() | Passed():
            return "passed"
        case _:
            assert_never(inspection)


def tell(
    guard: Guard,
    case: Case,
    came: str,
    level: int,
    *,
    by: str = "probe",
    state: str | None = None,
    reason: str | None = None,
    error: BaseException | None = None,
) -> str:
    """What ``by`` has found out about a record, or not; ``came`` again."""
    guard.events.emit(
        "reconcile",
        level=level,
        error=error,
        where=where(case),
        identity=short(case.record.identity),
        came=came,
        state=state,
        reason=reason or state,
        by=by,
    )
    return came


def where(case: Case) -> str:
    return f"{case.origin.method} {case.origin.path}"


def named(case: Case) -> str:
    """A record in a line of the log: never its key."""
    return f"{where(case)} [{short(case.record.identity)}]"
