"""Notables of one process: what is decided about requests and worth a look later.

A request, or an inbox, notes a line: a few dictionary operations, no I/O. A thread writes the lines
to the store, at most `BATCH` in a second. Equal lines are one, with a count. A line that was
written is not written again within `PAUSE`: what goes on for long is counted, and does not fill the
log. The thread begins with the first line, and sleeps while there are none.

Nothing depends on notables, so they may be lost, and no request waits for them. What finds no room,
and what the store did not take, is counted. The next batch that is written says how many.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from semel.core.operations.notables import Notable, NotableKind, WriteNotables
from semel.core.records import Identity
from semel.runtime.events import NONE, WARNING, Events
from semel.stores.base import Backend

EVERY: Final = 1.0
"""Seconds between two batches."""
BATCH: Final = 100
"""Lines that are written at once: a store notices no more than one more write in a second."""
ROOM: Final = 1_000
"""Lines that wait to be written. Others are only counted."""
PAUSE: Final = 60.0
"""Seconds until the same line is written again, with all that was counted of it meanwhile."""
LONGEST: Final = 200
"""Characters of a text in a line: a route, what a provider said."""


class NotableLine(NamedTuple):
    """What equal notables have in common."""

    kind: NotableKind
    route: str
    tenant: str
    identity: Identity | None
    detail: str


class NotableRecorder:
    """Lines that this process has noted and not written yet; a thread writes them.

    ``keep``: how long the store keeps them. ``replays``: those are noted too.
    """

    def __init__(
        self,
        backend: Backend,
        events: Events,
        application: str,
        keep: timedelta,
        *,
        replays: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend, self._events, self._application = backend, events, application
        self._keep = keep // timedelta(microseconds=1)
        self.replays = replays
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[NotableLine, int] = {}
        self._dropped: Counter[str] = Counter()
        self._written: dict[NotableLine, float] = {}
        """When a line was last written, if that is not long ago."""
        self._silent_until = 0.0
        self._unbegun = [True]
        self._noted, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def note(
        self,
        kind: NotableKind,
        *,
        route: str = "",
        tenant: str = "",
        identity: Identity | None = None,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        """Note a line. ``detail`` is for people and may end up anywhere: never a key or a value."""
        text = json.dumps(detail or {}, separators=(",", ":"))
        line = NotableLine(kind, route[:LONGEST], tenant, identity, text)
        with self._lock:
            count = self._counts.get(line, 0)
            if count or len(self._counts) < ROOM:
                self._counts[line] = count + 1
            else:
                self._dropped[kind.value] += 1
        if not self._noted.is_set():
            self._noted.set()
        if self._unbegun:
            self._begin()

    def forget(self, tenant: str) -> None:
        """What is noted of a tenant is not to be written."""
        with self._lock:
            self._counts = {
                line: count for line, count in self._counts.items() if line.tenant != tenant
            }

    def _begin(self) -> None:
        try:
            self._unbegun.pop()  # atomic: of several that come first together, one starts it
        except IndexError:
            return
        self._thread = threading.Thread(target=self._run, name="semel-notables", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write all that is left, once, and end the thread."""
        self._stopping.set()
        self._noted.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            self._noted.wait()
            if self._stopping.wait(EVERY):
                break
            self._noted.clear()
            self.run_once()
            if self._counts:
                self._noted.set()  # some wait for their pause, or for room in a batch
        while self.run_once(last=True):
            pass

    def run_once(self, *, last: bool = False) -> bool:
        """Write one batch; whether one was written. ``last``: nothing waits for its pause."""
        lines, dropped = self._due(last)
        if not lines and not dropped:
            return False
        if not self._backend.capabilities.threads:
            return False
        notables = [
            Notable(
                kind=each.kind,
                application=self._application,
                route=each.route,
                tenant=each.tenant,
                identity=each.identity,
                detail=each.detail,
                count=count,
            )
            for each, count in lines.items()
        ]
        if dropped:
            detail = json.dumps(dict(sorted(dropped.items())), separators=(",", ":"))
            kind, total = NotableKind.DROPPED, dropped.total()
            notables.insert(0, Notable(kind, self._application, detail=detail, count=total))
        try:
            self._backend.blocking().perform(WriteNotables(tuple(notables), self._keep))
        except Exception as error:
            for line, count in lines.items():
                dropped[line.kind.value] += count
            with self._lock:  # counted, and not tried again
                self._dropped.update(dropped)
            self._tell(dropped.total(), error)
            return False
        if dropped:
            self._tell(dropped.total(), None)
        return True

    def _due(self, last: bool) -> tuple[dict[NotableLine, int], Counter[str]]:
        """Take the lines of a batch, and what was dropped before them."""
        now = self._clock()
        with self._lock:
            self._written = {
                line: at for line, at in self._written.items() if now - at < PAUSE and not last
            }
            free = [line for line in self._counts if line not in self._written][:BATCH]
            lines = {line: self._counts.pop(line) for line in free}
            self._written.update(dict.fromkeys(free, now))
            dropped, self._dropped = self._dropped, Counter()
        return lines, dropped

    def _tell(self, count: int, error: Exception | None) -> None:
        """Logged once a minute: while a store is out this happens every second."""
        now = self._clock()
        level = NONE if now < self._silent_until else WARNING
        if level:
            self._silent_until = now + PAUSE
        self._events.emit("notables.dropped", level=level, error=error, count=count)
