"""What is counted of routes in shadow: in each process, and on record for `semel shadow report`.

A report must add up what several processes have seen, some of which are gone. So the counts are
kept in the store, as texts that are compared and exchanged (`Register`): a row for each day of the
month and slot, of which each process has one. That is a bounded number of rows, whatever happens.
They are written every few seconds by a thread, and once more when the guard is closed; a process
that is killed takes the counts of its last seconds with it. No request waits for any of this.

A request without a key that looks like one from before is found by its fingerprint, which the store
remembers for a while (`NoteEvent`): the first may have been another process's. The same thread
makes fingerprints and looks for them, from a queue with room for so many; what finds no room is
not looked at, and counted as that.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, TypeAlias

from semel.core.frozen import frozen
from semel.core.operations.outbox import NoteEvent
from semel.core.operations.requests import Conflicting, ReadRecipe, Register
from semel.core.request.comparison import Prints
from semel.errors import StoreCorrupt, StoreError
from semel.log import log
from semel.runtime.events import Events
from semel.stores.base import Store

SLOTS: Final = 8
"""Rows for one day. Processes that share one add their counts to the same row."""
DAYS: Final = 31
"""How far back a report can look: rows are named by the day of the month, and used again."""
ROOM: Final = 2_048
"""Requests without a key that wait to be looked at."""
WINDOW: Final = timedelta(minutes=10)
"""How long a request without a key is remembered: longer than clients try again by themselves."""
_EVERY: Final = 5.0
_TRIES: Final = 8
_SOURCE: Final = "~shadow"
"""No provider is called like this, and no route."""

Counts: TypeAlias = dict[str, dict[str, int]]
"""By route and by what was counted: ``keyed``, ``unkeyed``, ``would_replay`` …"""


@frozen
class _LookAlike:
    """A request without a key that waits to be looked at."""

    route: str
    method: str
    tenant: str
    prints: Prints


class ShadowCounts:
    """What one process has counted and not written down yet; a thread writes it."""

    def __init__(self, store: Callable[[], Store], events: Events, application: str) -> None:
        self._store = store
        self._events = events
        self._application = application
        self._slot = secrets.randbelow(SLOTS)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._look_alikes: deque[_LookAlike] = deque()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="semel-shadow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after it has written down what there is."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def count(self, route: str, what: str) -> None:
        with self._lock:
            self._counts[route, what] += 1

    def look(self, route: str, method: str, tenant: str, prints: Prints) -> None:
        """Have a request without a key compared with those from before."""
        if len(self._look_alikes) < ROOM:
            self._look_alikes.append(_LookAlike(route, method, tenant, prints))
        else:
            self.count(route, "not_looked_at")

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY):
            self.run_once()
        self.run_once()

    def run_once(self) -> None:
        """Look at what waits, and write down what was counted; what fails is tried again later."""
        try:
            store = self._store()
            while self._look_alikes:
                self._look_at(store, self._look_alikes.popleft())
            self._write_down(store)
        except Exception as error:
            self._events.emit("round.failed", error=error, loop="shadow")

    def _look_at(self, store: Store, request: _LookAlike) -> None:
        try:
            text = request.prints.fingerprint.text
        except Exception as error:  # fingerprint= may be the operator's own function
            log.warning("semel: a request in shadow has no fingerprint: %r", error)
            return
        place = (self._application, request.route, request.tenant, text)
        digest = sha256(b"\n".join(each.encode("utf-8", "surrogatepass") for each in place))
        keep = WINDOW // timedelta(microseconds=1)
        if store.perform(NoteEvent(_SOURCE, digest.hexdigest(), keep)).before:
            self.count(request.route, "look_alike")
            self._events.emit("shadow.look_alike", route=request.route, method=request.method)

    def _write_down(self, store: Store) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            _add(store, self._application, self._slot, counts)
        except BaseException:
            with self._lock:
                self._counts.update(counts)
            raise


# ── on record ─────────────────────────────────────────────────────────────────────────────────────


def _row(application: str, day: int, slot: int) -> str:
    return f"{_SOURCE} {application}:{day}:{slot}"


def _add(store: Store, application: str, slot: int, counts: Mapping[tuple[str, str], int]) -> None:
    """Add to a row: it is exchanged for another text if it is still the one that was read."""
    today = datetime.now(UTC).date()
    name = _row(application, today.day, slot)
    for _ in range(_TRIES):
        recorded = store.perform(ReadRecipe(name)).recipe
        day, total = _read(recorded)
        if day != today.isoformat():
            total = {}
        for (route, what), number in counts.items():
            of = total.setdefault(route, {})
            of[what] = of.get(what, 0) + number
        text = json.dumps({"day": today.isoformat(), "routes": total}, sort_keys=True)
        if not isinstance(store.perform(Register(name, text, recorded)), Conflicting):
            return
    raise StoreError("the counts of a shadow are being written by too many others")


def _read(recorded: str | None) -> tuple[str, Counts]:
    if recorded is None:
        return "", {}
    try:
        said = json.loads(recorded)
        return str(said["day"]), said["routes"]
    except (ValueError, TypeError, KeyError) as error:
        raise StoreCorrupt(f"the counts of a shadow cannot be read: {error!r}") from error


def read_counts(store: Store, application: str, since: datetime) -> Counts:
    """What all processes have counted since a day, that day included."""
    total: Counts = {}
    for day in range(1, DAYS + 1):
        for slot in range(SLOTS):
            when, routes = _read(store.perform(ReadRecipe(_row(application, day, slot))).recipe)
            for route, of in routes.items() if when >= since.date().isoformat() else ():
                whole = total.setdefault(route, {})
                for what, number in of.items():
                    whole[what] = whole.get(what, 0) + number
    return total
