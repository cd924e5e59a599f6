"""Time passes when a test says so: no lease is short, and nothing that must succeed races one.

What the store keeps is moved into the past. A process that stands still meanwhile goes by the
machine's clock, which cannot be moved: to it is added what a file says, each time it looks at its
lease (`keep_time`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LEASE: Final = 600.0
"""Seconds of every lease and every pause: longer than any test waits for anything."""
STEP: Final = 2 * LEASE
FILE: Final = "RIDES_AHEAD"
"""The environment variable that tells processes where the file is."""


class Time:
    """Of one store and all the processes that use it."""

    def __init__(self, store: str, folder: Path) -> None:
        self._store = store
        self._file = folder / "ahead"
        self._file.write_text("0")
        self.settings = {FILE: str(self._file)}

    def passes(self) -> None:
        """Enough for every lease that is held now to be past, and for all that waits to be due."""
        from tests.time_travel import into_the_past  # not needed by the processes

        into_the_past(self._store, STEP)
        written = self._file.with_suffix(".new")
        written.write_text(str(float(self._file.read_text()) + STEP))
        written.rename(self._file)


def keep_time() -> None:
    """In a process: leases begin and end by the clock that tests can put forward."""
    if FILE not in os.environ:
        return
    from semel.runtime.leases import Lease

    file, start, held = Path(os.environ[FILE]), Lease.start, Lease.held

    def starts(lease: Lease, now: float) -> None:
        start(lease, now)
        lease.good_until += float(file.read_text())

    def is_held(lease: Lease, now: float) -> bool:
        return held(lease, now + float(file.read_text()))

    Lease.start = starts  # type: ignore[method-assign, assignment]
    Lease.held = is_held  # type: ignore[method-assign, assignment]
