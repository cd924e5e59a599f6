"""A process that a test can end at a named place, as ``kill -9`` would.

The place is a step of the store. There `ProcessCrashed` is raised, and the process is over: no
step that it asks for afterwards is taken, so nothing of it is released, completed or renewed. Open
transactions are rolled back, as a database does when a connection ends. The guards go on with what
a new process would have: an empty runtime.

What cannot be had without another process: Python runs the ``finally`` blocks of a handler on the
way out.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from semel.core import operations as ops
from semel.core.records import Identity, whole_origin
from semel.core.recovery import journal as journals
from semel.core.terms import Terms, TermsId
from semel.errors import StoreUnavailable
from semel.testing.watched import Step, WatchedSteps, in_background

if TYPE_CHECKING:
    from semel.guard import Guard

CLAIMED: Final = "after claim"
COMPLETING: Final = "before completion"
COMPLETED: Final = "after completion"
WITHIN: Final = "within point "
BEHIND: Final = "after point "
PLACES: Final = (CLAIMED, f"{WITHIN}NAME", f"{BEHIND}NAME", COMPLETING, COMPLETED)

_OVER: Final = "the process was ended by the test"


class ProcessCrashed(BaseException):
    """A test has ended the process here. No ``except Exception`` catches it."""

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type[Exception]:
            """For who asks by ``isinstance``: anyio ends its event loop on what is no Exception,
            and a test client would be gone with it."""
            return Exception


class Observed:
    """What a test can ask about afterwards, whichever process did it."""

    def __init__(self) -> None:
        self.identities: dict[str, dict[Identity, str]] = {}
        """By the client's key: the records it was used for, and where."""
        self.terms: dict[TermsId, Terms] = {}
        """What is on record: a claim does not repeat what the route of its terms says."""
        self.runs: Counter[Identity] = Counter()
        """How often somebody got the right to run a handler."""
        self.moments: list[str] = []
        """The places that were reached, in order."""


class SimulatedProcess:
    """One life of the process that the guards of a test are in."""

    def __init__(
        self, guards: tuple[Guard, ...], observed: Observed, start_next: Callable[[], None]
    ) -> None:
        self._guards = guards
        self._observed = observed
        self._start_next = start_next
        self._until_commit: dict[WatchedSteps, list[str]] = {}
        """The places that the commit of a transaction reaches."""
        self.ends_at: str | None = None
        """The place where it is to be ended."""
        self.over = False
        """Nothing that it asks for is done any more."""
        self.last: Step | None = None
        """The step at which it ended."""

    # ── as a watcher ──────────────────────────────────────────────────────────────────────────────

    def before(self, step: Step) -> None:
        if self.over and step.name != "roll_back":
            self._refuse()
        op = step.op
        if isinstance(op, ops.Claim | ops.Accept):
            origin = whole_origin(op.origin, self._observed.terms.get(op.terms))
            places = self._observed.identities.setdefault(origin.key, {})
            places[op.identity] = f"{origin.method} {origin.path}"
        if isinstance(op, ops.Agree):
            self._observed.terms[op.terms.id] = op.terms
        if isinstance(op, ops.Advance):
            self._reach([WITHIN + name for name in _done(op)], step)
        elif isinstance(op, ops.Complete) and step.within is None:
            self._reach([COMPLETING], step)
        elif step.name == "commit" and step.within is not None:
            self._reach([COMPLETING] * (COMPLETED in self._until_commit.get(step.within, ())), step)

    def after(self, step: Step, reply: object) -> None:
        if self.over and step.name != "roll_back":
            self._refuse()  # another request has ended the process meanwhile
        op, within = step.op, step.within
        if within is not None and step.name in ("commit", "roll_back"):
            reached = self._until_commit.pop(within, [])
            return self._reach(reached if step.name == "commit" else [], step)
        applied = isinstance(reply, ops.Applied)
        took = applied and isinstance(op, ops.Retake | ops.Resume | ops.Take)
        if took or isinstance(reply, ops.Claimed):
            self._observed.runs[cast("ops.Claim", op).identity] += 1
            return self._reach([CLAIMED], step)
        reached = [BEHIND + name for name in _done(op)] if applied else []
        if applied and isinstance(op, ops.Complete):
            reached = [COMPLETED]
        if within is None:
            return self._reach(reached, step)
        return self._until_commit.setdefault(within, []).extend(reached)

    # ── its end ───────────────────────────────────────────────────────────────────────────────────

    def _reach(self, moments: Iterable[str], step: Step) -> None:
        for moment in moments:
            self._observed.moments.append(moment)
            if moment == self.ends_at and not in_background():
                self.last = step
                self._end()
                raise ProcessCrashed(moment)

    def _end(self) -> None:
        """End the threads of its runtimes without their last words, and start the next process."""
        self.over = True
        for guard in self._guards:
            runtime = guard.runtime
            runtime.keeper.renewing.stop()
            runtime.keeper._other_work.stop()
            for thread in runtime._threads:
                thread.stop()
            for task in tuple(runtime.running):
                task.add_done_callback(_hear)
            runtime.running = _Abandoned(runtime.running)
        self._start_next()

    def _refuse(self) -> None:
        if in_background():
            raise StoreUnavailable(_OVER, applied=False)
        if isinstance(sys.exception(), ProcessCrashed):
            # A flow that is interrupted asks once more, from its ``except`` block: to raise the
            # same there would have it ask for ever.
            raise RuntimeError(_OVER)
        raise ProcessCrashed(self.ends_at)


class _Abandoned(set["asyncio.Task[Any]"]):
    """Tasks of a process that is over: whatever they raise, nobody is told."""

    def add(self, task: asyncio.Task[Any]) -> None:
        super().add(task)
        task.add_done_callback(_hear)


def _hear(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # else the event loop would log it


def _done(op: object) -> list[str]:
    """The point that an operation puts on record; none for an intent, or one that is withdrawn."""
    points = journals.decode(op.journal).points if isinstance(op, ops.Advance) else ()
    return [points[-1].name] if points and points[-1].done else []
