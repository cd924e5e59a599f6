"""Runs background loops side by side, wakes them promptly, and stops them gracefully."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, Final, Protocol

from semel.backoff import jitter
from semel.core.frozen import frozen
from semel.errors import ConfigurationError
from semel.log import log
from semel.worker.wake_up import EFFECT, WORK, Listener

DELIVER, RUN, RECONCILE, MAINTAIN = "deliver", "run", "reconcile", "maintain"
LOOPS: Final = (DELIVER, RUN, RECONCILE, MAINTAIN)

_WOKEN_BY: Final[Mapping[str, frozenset[str]]] = {
    EFFECT: frozenset({DELIVER}),
    WORK: frozenset({RUN, RECONCILE}),
}
"""Which loops a channel wakes; maintenance goes by the clock alone."""

_SHORTEST_REST: Final = 0.1
"""Seconds between rounds that did nothing, whatever they say is due: it may be another's."""
_LONGEST_REST: Final = 30.0
"""Seconds between rounds that fail."""
_LAST_WORDS: Final = 10.0
"""Seconds that cancelled loops have to release what they hold."""
_REST: Final = 0.1
"""The fewest seconds between two looks within a round."""
_REPORT_EVERY: Final = 1.0
"""Seconds between two reports of a round that goes on."""


@frozen
class Round:
    """What one round of a loop did, and in how many seconds the loop has more to do.

    ``next_due_in`` None: nothing is known to come, so the poll or a listener decides. Zero or less:
    there is more at once. ``note``: what was done, for the log line of the round.
    """

    done: int
    next_due_in: float | None = None
    note: str = ""


def counts_note(counts: Mapping[str, int], order: Iterable[str] = ()) -> str:
    """``forget 40, lapse 2`` for a line of the log; empty where nothing was done."""
    named = tuple(order) or sorted(counts)
    return ", ".join(f"{name} {counts[name]}" for name in named if counts[name])


class Loop(Protocol):
    """A background loop, one round at a time. A round that fails raises, and is tried later.

    A loop whose rounds are long may have ``wake`` and ``stop``, which act in the middle of one, and
    ``aclose``.
    """

    async def run_once(self) -> Round: ...


class ConcurrentLoop:
    """A loop that does many things at once in a round, ``at_once`` at most.

    A round ends when nothing is due and nothing is under way. What becomes due meanwhile is started
    as soon as there is room, so that one that is slow holds up no other. ``report`` gets a long
    round while it goes on.
    """

    _look_every: ClassVar[float | None] = None
    """The most seconds between two looks, while something is under way and there is room."""
    _last_words: ClassVar[float | None] = None
    """Seconds that cancelled tasks have to record that they were stopped."""
    _order: ClassVar[tuple[str, ...]] = ()
    """The order of the words in a note; without it they are sorted."""

    def __init__(self, at_once: int, report: Callable[[Round], None] | None) -> None:
        self._at_once, self._report = at_once, report
        self._tasks: set[asyncio.Task[str | None]] = set()
        self._counts: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._stopping = False

    def wake(self) -> None:
        """Look for what is due, also in the middle of a round."""
        self._wake.set()

    def stop(self) -> None:
        """Start nothing more; finish what is under way."""
        self._stopping = True
        self._wake.set()

    async def run_once(self) -> Round:
        """Work until nothing is due and nothing is under way."""
        self._tasks, self._counts = set(), Counter()
        reported = time.monotonic()
        try:
            while True:
                # Before the look: what comes up during it is not missed.
                self._wake.clear()
                due_in = await self._fill()
                if not self._tasks:
                    return self._round(due_in)
                await self._wait(due_in)
                now = time.monotonic()
                if self._report is not None and self._counts and now - reported >= _REPORT_EVERY:
                    reported = now
                    self._report(self._round(0.0))
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._last_words)

    async def _fill(self) -> float | None:
        """Start what is due while there is room; returns the seconds until there may be more."""
        raise NotImplementedError

    @property
    def _room(self) -> int:
        return 0 if self._stopping else self._at_once - len(self._tasks)

    def _start(self, work: Coroutine[Any, Any, str | None]) -> None:
        """Do ``work``; the word that it returns, if any, is counted as done."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[str | None]) -> None:
        self._tasks.discard(task)
        word = None if task.cancelled() or task.exception() is not None else task.result()
        if word is not None:
            self._counts[word] += 1

    async def _wait(self, due_in: float | None) -> None:
        """Wait until a task ends, or until there may be something to start and room for it."""
        timeout, woken = None, asyncio.create_task(self._wake.wait())
        waits: set[asyncio.Task[Any]] = {*self._tasks}
        if self._room > 0:
            waits.add(woken)
            bounds = [self._look_every, None if due_in is None else max(due_in, _REST)]
            timeout = min([bound for bound in bounds if bound is not None], default=None)
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    def _round(self, due_in: float | None) -> Round:
        """What was done since the last call."""
        counts, self._counts = self._counts, Counter()
        return Round(counts.total(), due_in, counts_note(counts, self._order))


class Worker:
    """Runs each of ``loops`` whenever it has something to do, until ``stop``.

    ``poll``: how long a loop rests at most when nothing wakes it. ``drain``: how long work under
    way may take once the worker is stopped. ``listener`` wakes it early. ``on_round`` gets every
    round that did something; ``on_failure`` gets what a round raised, which is logged without it.
    """

    def __init__(
        self,
        loops: Sequence[tuple[str, Loop]],
        *,
        listener: Listener | None = None,
        poll: timedelta = timedelta(seconds=5),
        drain: timedelta = timedelta(seconds=30),
        on_round: Callable[[str, Round], None] | None = None,
        on_failure: Callable[[str, Exception], None] | None = None,
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
        """Begin no more rounds. Call it in the event loop, or in a signal handler of it."""
        self._stopped.set()
        for name, loop in self._loops.items():
            _call(loop, "stop")
            self._wakes[name].set()

    def wake(self, channel: str | None = None) -> None:
        """Look at once: for what ``channel`` is about, or for everything."""
        for name, loop in self._loops.items():
            if channel is None or name in _WOKEN_BY.get(channel, ()):
                self._wakes[name].set()
                _call(loop, "wake")

    async def run_once(self) -> dict[str, Round]:
        """Run one round of each loop, one after the other."""
        rounds: dict[str, Round] = {}
        for name, loop in self._loops.items():
            if not self._stopped.is_set():
                rounds[name] = await self._round(name, loop)
        return rounds

    async def run(self) -> bool:
        """Run until ``stop``; return whether everything under way then ended in time."""
        listening = asyncio.create_task(self._listen(self._listener)) if self._listener else None
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
            if listening is not None:
                listening.cancel()
                await asyncio.wait({listening}, timeout=_LAST_WORDS)
            for task in rounds:
                task.cancel()
            await asyncio.wait(rounds, timeout=_LAST_WORDS)

    async def aclose(self) -> None:
        """Close what loops have opened, such as an application. Call it after the last round."""
        for loop in self._loops.values():
            aclose: Any = getattr(loop, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _listen(self, listener: Listener) -> None:
        try:
            await listener.listen(self.wake)
        except Exception:
            # Polling goes on.
            log.exception("semel: waking up early does not work")

    async def _keep(self, name: str, loop: Loop) -> None:
        """Run rounds of one loop until the worker is stopped, with rests in between."""
        failures = 0
        while not self._stopped.is_set():
            # Before the round: what comes up during it is not missed.
            self._wakes[name].clear()
            try:
                round_ = await self._round(name, loop)
            except Exception as error:
                failures += 1
                if self._on_failure is not None:
                    self._on_failure(name, error)
                else:
                    kind = type(error).__name__
                    log.warning("semel: a round of %s failed: %s: %s", name, kind, error)
                rest = min(_LONGEST_REST, 0.5 * 2.0 ** min(failures, 10)) * jitter()
                await _wait(self._stopped, rest)
                continue
            failures, polled = 0, self._poll * jitter()
            rest = polled if round_.next_due_in is None else round_.next_due_in
            if name != MAINTAIN:  # that goes by the clock alone, and knows its interval
                rest = min(polled, max(rest, 0.0 if round_.done else _SHORTEST_REST))
            await _wait(self._wakes[name], rest)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stop the worker when a loop ends by an error: without that loop it would idle."""
        if not task.cancelled() and task.exception() is not None:
            self.stop()

    async def _round(self, name: str, loop: Loop) -> Round:
        round_ = await loop.run_once()
        if round_.done and self._on_round is not None:
            self._on_round(name, round_)
        return round_


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _call(loop: Any, verb: str) -> None:
    """Call ``wake`` or ``stop`` of a loop that has it."""
    method = getattr(loop, verb, None)
    if method is not None:
        method()
