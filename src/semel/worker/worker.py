"""The worker: background loops side by side, woken promptly, stopped gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from semel.backoff import jitter
from semel.errors import ConfigurationError
from semel.log import log
from semel.worker.rounds import Loop, Round
from semel.worker.wake_up import CHANNELS, EFFECT, WORK, Listener

DELIVER, RUN, RECONCILE, MAINTAIN = "deliver", "run", "reconcile", "maintain"
LOOPS: Final = (DELIVER, RUN, RECONCILE, MAINTAIN)

_WOKEN_BY: Final[Mapping[str, frozenset[str]]] = {
    EFFECT: frozenset({DELIVER}),
    WORK: frozenset({RUN, RECONCILE}),
}
"""Maintenance goes by the clock alone."""

_SHORTEST_REST: Final = 0.1
"""Seconds between rounds that did nothing, whatever they say is due: it may be another's."""
_LONGEST_REST: Final = 30.0
"""Seconds between rounds that fail."""
_LAST_WORDS: Final = 10.0
"""Seconds for loops that were cancelled to put things down."""

ReportRound = Callable[[str, Round], None]
ReportFailure = Callable[[str, Exception], None]


def _silent(name: str, round_: Round) -> None:
    """Nobody wants to know."""


def _logged(name: str, error: Exception) -> None:
    log.warning("semel: a round of %s failed: %s: %s", name, type(error).__name__, error)


class Worker:
    """Runs each of ``loops`` whenever it has something to do, until ``stop``.

    ``poll``: how long a loop rests at most when nothing wakes it. ``drain``: how long work under
    way may take once the worker is stopped. ``listener`` wakes it early.
    """

    def __init__(
        self,
        loops: Sequence[tuple[str, Loop]],
        *,
        listener: Listener | None = None,
        poll: timedelta = timedelta(seconds=5),
        drain: timedelta = timedelta(seconds=30),
        on_round: ReportRound = _silent,
        on_failure: ReportFailure = _logged,
    ) -> None:
        if not loops:
            raise ConfigurationError("a worker needs a loop to run")
        self._loops = dict(loops)
        self._listener = listener
        self._poll = poll.total_seconds()
        self._drain = drain.total_seconds()
        self._on_round = on_round
        self._on_failure = on_failure
        self._wakes = {name: asyncio.Event() for name in self._loops}
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Begin no more rounds; from the event loop, or a signal handler of it."""
        self._stopped.set()
        for name, loop in self._loops.items():
            _call(loop, "stop")
            self._wakes[name].set()

    def wake(self, channel: str | None = None) -> None:
        """There may be something to do, of any kind unless ``channel`` says which."""
        for name, loop in self._loops.items():
            if channel is None or name in _WOKEN_BY.get(channel, ()):
                self._wakes[name].set()
                _call(loop, "wake")

    async def run_once(self) -> dict[str, Round]:
        """One round of each, one after the other."""
        rounds: dict[str, Round] = {}
        for name, loop in self._loops.items():
            if not self._stopped.is_set():
                rounds[name] = await self._round(name, loop)
        return rounds

    async def run(self) -> bool:
        """Until ``stop``; whether everything under way then came to its end in time."""
        ringing = asyncio.create_task(self._listen()) if self._listener is not None else None
        rounds = {asyncio.create_task(self._keep(*pair)) for pair in self._loops.items()}
        for task in rounds:
            task.add_done_callback(self._ended)
        try:
            await self._stopped.wait()
            done, late = await asyncio.wait(rounds, timeout=self._drain)
            for task in done:
                task.result()
            return not late
        finally:
            if ringing is not None:
                ringing.cancel()
                await asyncio.wait({ringing}, timeout=_LAST_WORDS)
            for task in rounds:
                task.cancel()
            await asyncio.wait(rounds, timeout=_LAST_WORDS)

    async def aclose(self) -> None:
        """After the last round: what loops have opened, such as an application, is closed."""
        for loop in self._loops.values():
            aclose: Any = getattr(loop, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _listen(self) -> None:
        assert self._listener is not None  # noqa: S101 - asked by `run`
        try:
            await self._listener.listen(self.wake)
        except Exception:
            # Polling goes on.
            log.exception("semel: waking up early does not work")

    async def _keep(self, name: str, loop: Loop) -> None:
        failures = 0
        while not self._stopped.is_set():
            # Before the round: what comes up during it is not missed.
            self._wakes[name].clear()
            try:
                rest = self._rest(name, await self._round(name, loop))
                failures = 0
            except Exception as error:
                failures += 1
                self._on_failure(name, error)
                rest = min(_LONGEST_REST, 0.5 * 2.0 ** min(failures, 10)) * jitter()
                await self._wait(self._stopped, rest)
                continue
            await self._wait(self._wakes[name], rest)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop that cannot even tell of its failure is over; a worker without it would idle."""
        if not task.cancelled() and task.exception() is not None:
            self.stop()

    async def _round(self, name: str, loop: Loop) -> Round:
        round_ = await loop.run_once()
        if round_.done:
            self._on_round(name, round_)
        return round_

    def _rest(self, name: str, round_: Round) -> float:
        polled = self._poll * jitter()
        due = polled if round_.next_due_in is None else round_.next_due_in
        if name == MAINTAIN:
            return due  # it goes by the clock alone, and knows its interval
        return min(polled, max(due, 0.0 if round_.done else _SHORTEST_REST))

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return


def _call(loop: Any, verb: str) -> None:
    """Loops whose rounds last can be woken and stopped in the middle of one."""
    method = getattr(loop, verb, None)
    if method is not None:
        method()


__all__ = ["CHANNELS", "LOOPS", "Worker"]
