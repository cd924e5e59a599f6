"""How often requests took effect, by an oracle that is itself put to the test first.

The first requests of a run show how many effects one request has and how late they come. An oracle
that does not notice them, or that changes while nothing is sent, proves nothing: its counts would
make a wrong API hold, or a right one broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from semel.check.oracles import Oracle
from semel.check.wire import WireAnswer

LONGEST_WAIT: Final = 5.0
"""Seconds that a count waits for an effect that has not come."""
_QUIET: Final = 0.2
_PAUSE: Final = 0.05


class EffectCounter:
    """Counts the effects of requests. ``doubt`` says why nothing is counted; then it gives None."""

    def __init__(self, oracle: Oracle | None, settle: float = 0.0, patience: float = 30.0) -> None:
        self._oracle, self._settle = oracle, settle
        self._wait = min(patience, LONGEST_WAIT)
        self._late = 0.0
        self.of_one = 1
        """Effects of one request."""
        self.doubt = "without --effects nobody counted" if oracle is None else ""

    def learn(self, sends: Sequence[Callable[[], WireAnswer]]) -> list[WireAnswer]:
        """Send requests with different keys, and learn from them what one request counts."""
        if self._oracle is None:
            return [send() for send in sends]
        before = self._oracle.count()
        answers = [send() for send in sends]
        answered = time.monotonic()
        most = len(sends)
        counted = self._counted(self._oracle, before, lambda n: n >= most and not n % most)
        self._late = max(0.0, time.monotonic() - answered - _PAUSE)
        time.sleep(_QUIET + self._late + self._settle)
        after = self._oracle.count() - before
        if counted == 0 == after:
            self.doubt = f"{self._oracle.words} does not count these requests"
        elif counted % len(sends) or counted < 0 or after != counted:
            self.doubt = f"{self._oracle.words} counts {counted}, then {after}, for {len(sends)}"
            self.doubt += " requests: it changes by itself, or late (then give --settle)"
        self.of_one = max(1, counted // len(sends))
        return answers

    def now(self) -> int | None:
        """The count so far, from any beginning."""
        if self._oracle is None or self.doubt:
            return None
        time.sleep(self._settle)
        return self._oracle.count()

    def since(self, before: int | None, requests: int = 1) -> int | None:
        """How many effects there were since; waits for those of so many requests, which may come
        late, and then as long again for those that should not come."""
        if before is None or self._oracle is None:
            return None
        self._counted(self._oracle, before, lambda n: n >= requests * self.of_one)
        time.sleep(2 * self._late + self._settle)
        return self._oracle.count() - before

    def moves_by_itself(self, seconds: float) -> bool:
        """Whether the count changes while nothing is sent."""
        if self._oracle is None:
            return False
        before = self._oracle.count()
        time.sleep(seconds)
        return self._oracle.count() != before

    def _counted(self, oracle: Oracle, before: int, enough: Callable[[int], bool]) -> int:
        """The effects since, when they are enough, or when the time is over."""
        deadline = time.monotonic() + self._wait
        while not enough(found := oracle.count() - before) and time.monotonic() <= deadline:
            time.sleep(_PAUSE)
        return found
