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
from semel.effects.counts import Counts, told
from semel.effects.policies import Policies
from semel.effects.rounds import Round
from semel.errors import StoreCorrupt, StoreError
from semel.log import log
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
        counts: Counts | None = None,
    ) -> None:
        self._guard = guard
        self._policies = Policies(guard, app, root)
        self._runner = Runner(guard, patience)
        self._batch = batch
        self._at_once = at_once
        self.counts = Counts() if counts is None else counts

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
            log.error("semel: an unknown outcome could not be looked after: %s", error)
            self.counts.add("reconcile.failed")
            return "failed"
        word = report(doubt, inspection)
        self.counts.add(f"reconcile.{word}")
        return word

    async def _put_off(self, case: Case, again_in: Micros | None, error: Exception) -> str:
        record = case.record
        log.error("semel: %s cannot be asked about", named(case), exc_info=error)
        op = Inquire(record.identity, record.fence, case.tries, again_in)
        await self._runner.aperform(op)
        self.counts.add("reconcile.undecided" if again_in else "reconcile.given_up")
        return "undecided" if again_in else "given_up"


def report(doubt: Doubt, inspection: Inspection) -> str:
    """Log what came of a question, and give it one word for counters."""
    which = named(doubt.case)
    match inspection:
        case Settled(state):
            log.info("semel: %s was settled: %s", which, state)
            return "settled"
        case Undecided(reason, error):
            level = log.info if error is None else log.error
            level("semel: %s stays unknown: %s", which, reason, exc_info=error)
            return "undecided"
        case Unusable(reason, error):
            log.error("semel: %s stays unknown: %s", which, reason, exc_info=error)
            return "undecided"
        case GivenUp(reason):
            log.error("semel: %s is a dead letter: %s", which, reason)
            return "given_up"
        case Running() | Passed():
            return "passed"
        case _:
            assert_never(inspection)


def named(case: Case) -> str:
    """A record in a line of the log: never its key."""
    return f"{case.origin.method} {case.origin.path} [{case.record.identity.hex()[:16]}]"
