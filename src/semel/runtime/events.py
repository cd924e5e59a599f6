"""Events: what a guard did that an operator might count, told to whoever wants to know.

    guard = semel.Guard(..., on_event=count)          # or a list of them

    def count(event: semel.Event) -> None:
        if event.name == "exchange" and event["outcome"] == "mismatch": ...

Inside semel whatever is worth a number or a line of the log is told in one way, from any thread:

    guard.events.emit("lease.lost", route=label)                       # level and text: CATALOGUE
    guard.events.emit("store.error", error=error, during="renew")

Every name has a line in `semel.runtime.event_catalogue`, with its fields; docs/reference/events.md
is compared with it. Fields are short text, numbers and booleans: never a key, a body or a header (a
key goes through `semel.core.request.keys.mask`). On the way of a request ask ``if
guard.events.heard`` before anything is put together that costs time: with nobody listening, `emit`
does no more than log what is notable.

Nobody who listens can hurt a request. A subscriber has a thread and a queue of its own: blocked, it
loses events, which is logged. One with a true attribute ``inline`` is called on the spot instead,
and promises not to block: metrics are like that. What either raises is logged, not more than once
a minute.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from semel.core.frozen import frozen, is_async
from semel.errors import ConfigurationError
from semel.log import log
from semel.runtime.event_catalogue import CATALOGUE, Field

if TYPE_CHECKING:
    from queue import SimpleQueue

ROOM: Final = 10_000
"""Events that wait for a slow subscriber; those that come after are lost."""
_SILENCE: Final = 60.0
"""Seconds between two complaints about one subscriber."""
_LAST_WORDS: Final = 2.0
"""Seconds in which a subscriber may take in what is left when its guard is closed."""


@frozen
class Event:
    """One thing that happened. ``fields`` by name; ``event["outcome"]`` is one of them.

    ``level`` is that of its line in the log, 0 where it has none. ``error`` is what was raised: it
    may be the application's own, and say anything.
    """

    name: str
    fields: Mapping[str, Field]
    level: int = 0
    error: BaseException | None = None

    def __getitem__(self, field: str) -> Field:
        return self.fields[field]

    def get(self, field: str, default: Field = None) -> Field:
        """A field, where this event has it."""
        return self.fields.get(field, default)


def short(identity: bytes) -> str:
    """As much of an identity as events and the log show, and commands take for it."""
    return identity.hex()[:16]


Subscriber: TypeAlias = Callable[[Event], object]


class Events:
    """Where the events of one guard go: to the log, and to those who subscribed."""

    def __init__(self, on_event: Subscriber | Iterable[Subscriber] | None = None) -> None:
        subscribers = tuple(_given(on_event))
        self.heard = bool(subscribers)
        """Whether anybody but the log wants to know."""
        self._listeners = tuple(_Listener(each) for each in subscribers)

    def emit(
        self,
        name: str,
        /,
        *,
        level: int | None = None,
        error: BaseException | None = None,
        **fields: Field,
    ) -> None:
        """Tell everybody. ``level``: where this one is more, or less, notable than its kind."""
        kind = CATALOGUE[name]
        level = kind.level if level is None else level
        if not self.heard and not level:
            return
        if level:
            _write(kind.text, level, name, fields, error)
        if self.heard:
            event = Event(name, fields, level, error)
            for listener in self._listeners:
                listener.tell(event)

    def close(self) -> None:
        """Wait a moment for those who have not heard everything."""
        for listener in self._listeners:
            listener.close()


def _given(on_event: Subscriber | Iterable[Subscriber] | None) -> Iterator[Subscriber]:
    if on_event is None:
        return
    if not callable(on_event) and not isinstance(on_event, Iterable):
        raise ConfigurationError("on_event= takes a function of an event, or a list of them")
    for subscriber in (on_event,) if callable(on_event) else on_event:
        if not callable(subscriber) or is_async(subscriber):
            raise ConfigurationError("on_event= takes plain functions of an event, not coroutines")
        yield subscriber


def _write(
    text: str, level: int, name: str, fields: dict[str, Field], error: BaseException | None
) -> None:
    """One record of the log; its fields are attributes of it, with ``semel_`` before them.

    But for the tenant: subscribers may want its name, and logs go anywhere.
    """
    if not log.isEnabledFor(level):
        return
    fields = {field: value for field, value in fields.items() if field != "tenant"}
    extra: dict[str, Any] = {f"semel_{field}": value for field, value in fields.items()}
    extra["semel_event"] = name
    extra["semel_error"] = None if error is None else type(error).__name__
    shown = _Shown(fields, error="-" if error is None else str(error) or type(error).__name__)
    # What semel raises itself says all in its message; of others it matters where it comes from.
    own = error is None or type(error).__module__.startswith("semel.")
    if error is not None and own and "%(error)s" not in text:
        text += ": %(error)s"
    log.log(level, f"semel: {text}", shown, exc_info=None if own else error, extra=extra)


class _Shown(dict[str, Any]):
    """The fields for a line of the log; one that an event does not have is a dash."""

    def __missing__(self, key: str) -> str:
        return "-"


class _Listener:
    """One subscriber, and what it has not heard yet: a thread and a queue in each process."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._inline = bool(getattr(subscriber, "inline", False))
        self._queues: dict[int, SimpleQueue[Event | None]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._failed = self._lost = 0
        self._silent_until = 0.0

    def tell(self, event: Event) -> None:
        if self._inline:
            return self._call(event)
        queue = self._queues.get(os.getpid()) or self._begin()
        if queue.qsize() < ROOM:
            return queue.put(event)
        self._lost += 1
        return self._complain("a subscriber is too slow: %d events were lost", self._lost, None)

    def close(self) -> None:
        process = os.getpid()
        queue, thread = self._queues.pop(process, None), self._threads.pop(process, None)
        if queue is None:
            return
        queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LAST_WORDS)

    def _begin(self) -> SimpleQueue[Event | None]:
        """No lock, which a fork could copy while it is held: dict.setdefault is atomic."""
        from queue import SimpleQueue

        mine: SimpleQueue[Event | None] = SimpleQueue()
        queue = self._queues.setdefault(os.getpid(), mine)
        if queue is mine:
            thread = threading.Thread(
                target=self._listen, args=(mine,), name="semel-events", daemon=True
            )
            self._threads[os.getpid()] = thread
            thread.start()
        return queue

    def _listen(self, queue: SimpleQueue[Event | None]) -> None:
        while (event := queue.get()) is not None:
            self._call(event)

    def _call(self, event: Event) -> None:
        try:
            self._subscriber(event)
        except Exception as error:
            self._failed += 1
            self._complain("a subscriber failed, %d times by now", self._failed, error)

    def _complain(self, text: str, count: int, error: Exception | None) -> None:
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            log.error(f"semel: {text}", count, exc_info=error)
