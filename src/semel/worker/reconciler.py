"""Asks the probes about records whose outcome is unknown, and settles them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, assert_never

from semel.backoff import jitter
from semel.core import operations as ops
from semel.core.records import Case, Micros
from semel.core.texts import one_line
from semel.core.unknown import settle_unknown
from semel.core.unknown.probe import Doubt, GivenUp, Inspection, reconcile
from semel.errors import ConfigurationError, StoreCorrupt, StoreError
from semel.log import log
from semel.runtime.events import ERROR, INFO, NONE, WARNING, short
from semel.runtime.flow_runner import PATIENCE, FlowRunner
from semel.runtime.leases import new_fence
from semel.web.inventory import KnownRoutes, is_function
from semel.worker.worker import Round, counts_note

if TYPE_CHECKING:
    from semel.guard import Guard

_AFTER_A_FAILURE: Final = 5.0
"""Seconds to rest after a round in which nothing went well."""
_LOOK_EVERY: Final = 60.0
_MOST: Final = 1_000
"""What is counted at most, of each kind of work."""
_NAMED: Final = 5
"""Routes that one line of the log names."""


class Reconciler:
    """One loop of the worker. Several workers may run it: one of them asks about each record.

    ``app`` is for finding the policies on endpoints; see `KnownRoutes`. ``at_once``: how many
    probes run side by side. ``patience``: how long each may take.
    """

    def __init__(
        self,
        guard: Guard,
        app: Any = None,
        *,
        batch: int = 50,
        at_once: int = 8,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._guard = guard
        self._routes = KnownRoutes(guard, app)
        self._runner = FlowRunner(guard, patience)
        self._batch = batch
        self._at_once = at_once
        self._next_look = 0.0

    async def run_once(self) -> Round:
        """Ask about everything that is due, up to a batch."""
        await self._look_around()
        known = self._routes.known()
        due = await self._runner.aperform(ops.Due(ops.Work.UNKNOWN, self._batch, known))
        if not due.cases:
            wait = None if due.next_due is None else (due.next_due - due.now) / 1_000_000
            return Round(0, wait)
        turn = asyncio.Semaphore(self._at_once)

        async def one(case: Case) -> str:
            async with turn:
                with self._guard.events.span("probe", case.record.identity):
                    return await self._ask(case, due.now)

        asked = await asyncio.gather(*map(one, due.cases), return_exceptions=True)
        words = [word for word in asked if isinstance(word, str)]
        done = {word: words.count(word) for word in words if word != "failed"}
        # What was asked about has a new time; the next look tells the earliest.
        return Round(sum(done.values()), 0.0 if done else _AFTER_A_FAILURE, counts_note(done))

    async def _look_around(self) -> None:
        """Emit now and then what is due on routes unknown here: it shows a wrong deployment."""
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY
        waiting = (await self._runner.aperform(ops.CountDue(_MOST))).routes
        await self._give_up_functions(waiting)
        if not self._guard.events.heard and not log.isEnabledFor(WARNING):
            return
        left = {
            f"{which[0]} {which[1]}".strip() if which else "of no known terms": count
            for which, count in waiting.items()
            if which is None or not self._routes.knows_route(*which)
        }
        count, routes = sum(left.values()), ", ".join(sorted(left)[:_NAMED])
        level = WARNING if count else NONE
        self._guard.events.emit("left_alone", level=level, count=count, routes=routes)

    async def _give_up_functions(self, waiting: Iterable[tuple[str, str] | None]) -> None:
        """Make dead letters of functions whose own terms say that nobody can be asked.

        No worker knows the names of functions that run `once`, except those with a probe. What
        lapsed of the others would be unknown, and due, for ever.
        """
        mine = [which[1] for which in waiting if which and which[0] == self._guard.name]
        known = self._routes.known().routes
        functions = [route for route in mine if is_function(route) and route not in known]
        if not functions:
            return
        scope = ops.RouteScope(self._guard.name, tuple(functions))
        due = await self._runner.aperform(ops.Due(ops.Work.UNKNOWN, self._batch, scope))
        for case in due.cases:
            if case.terms is not None and not case.terms.probe:
                await self._give_up(case, "a dead letter: nobody can be asked")

    async def _give_up(self, case: Case, why: str, error: BaseException | None = None) -> str:
        """Make a dead letter of a record without asking anybody."""
        came = emit_reconcile(self._guard, case, "given_up", ERROR, reason=why, error=error)
        record = case.record
        await self._runner.aperform(ops.Inquire(record.identity, record.fence, case.tries, None))
        return came

    async def _ask(self, case: Case, now: Micros) -> str:
        """Ask about one record; returns one word for the result. An error harms no other record."""
        try:
            doubt = doubt_of(self._guard, self._routes, case, now)
        except StoreCorrupt as error:  # its journal: nobody can be asked about it
            return await self._give_up(case, "it cannot be asked about", error)
        try:
            inspection = await self._runner.arun(reconcile(doubt, new_fence(), jitter()))
        except StoreError as error:
            emit_reconcile(self._guard, case, "failed", ERROR, reason=str(error), error=error)
            return "failed"
        return report_inspection(self._guard, doubt, inspection)


def doubt_of(guard: Guard, routes: KnownRoutes, case: Case, now: Micros) -> Doubt:
    """All that is needed to ask about a record; raises `UnknownRoute` where it is not ours."""
    if case.terms is None or not routes.knows(case.terms):
        raise UnknownRoute(case)
    policy, name = routes.policy(case.terms), settle_unknown.in_doubt(case)
    probe = None if name is None else guard.registry.probes.get(name)
    if probe is None and policy is not None:
        probe = policy.probe
    render = None if policy is None else policy.render
    return Doubt(case, now, case.terms, name, probe, render)


class UnknownRoute(ConfigurationError):
    """A record of an application or of a route that this process does not know."""

    def __init__(self, case: Case) -> None:
        terms = case.terms
        if terms is None:
            said = "its terms are not on record"
        else:
            whose = f" of the application {terms.application!r}" if terms.application else ""
            said = f"it was made on the route {terms.route}{whose}, which is not known here"
        super().__init__(f"{said}: name the application that has it with --app, or app=")


def report_inspection(guard: Guard, doubt: Doubt, inspection: Inspection, by: str = "probe") -> str:
    """Emit the result of a question; returns one word for it."""
    emit = partial(emit_reconcile, guard, doubt.case, by=by)
    match inspection:
        case settle_unknown.Settled(state):
            return emit("settled", INFO, state=state)
        case settle_unknown.Undecided(reason, error):
            return emit("undecided", INFO if error is None else ERROR, reason=reason, error=error)
        case settle_unknown.Unusable(reason, error):
            return emit("undecided", ERROR, reason=reason, error=error)
        case GivenUp(reason):
            return emit("given_up", ERROR, reason=f"a dead letter: {reason}")
        case settle_unknown.Running() | settle_unknown.Passed():
            return "passed"
        case _:
            assert_never(inspection)


def emit_reconcile(
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
    """Emit what ``by`` has found out about a record; returns ``came``."""
    guard.events.emit(
        "reconcile",
        level=level,
        error=error,
        where=route_line(case),
        identity=short(case.record.identity),
        came=came,
        state=state,
        reason=reason or state,
        by=by,
    )
    return came


def route_line(case: Case) -> str:
    return f"{case.origin.method} {case.origin.path}"


def describe_record(case: Case) -> str:
    """A record for a line of the log, without its key: its path is a stranger's."""
    return one_line(f"{route_line(case)} [{short(case.record.identity)}]")
