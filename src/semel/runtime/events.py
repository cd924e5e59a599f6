"""Events: what a guard did that an operator might count, told to whoever wants to know.

    guard = semel.Guard(..., on_event=count)          # or a list of them

    def count(event: semel.Event) -> None:
        if event.name == "exchange" and event["outcome"] == "mismatch": ...

Inside semel whatever is worth a number or a line of the log is told in one way, from any thread:

    guard.events.emit("lease.lost", route=label)                       # level and text: CATALOGUE
    guard.events.emit("store.error", error=error, during="renew")

Every name has a line in `CATALOGUE`, with its fields; docs/reference/events.md
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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from semel.core.frozen import frozen, is_async
from semel.core.texts import one_line
from semel.errors import ConfigurationError
from semel.log import log

if TYPE_CHECKING:
    from queue import SimpleQueue

Field: TypeAlias = str | int | float | bool | None

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

    @contextmanager
    def span(self, name: str, identity: bytes | None) -> Generator[None]:
        """Around work on a record that no request does: a span, of subscribers that make some."""
        which = None if identity is None else short(identity)
        ends = [each.begin_span(name, which) for each in self._listeners if each.traces]
        try:
            yield
        finally:
            for end in reversed(ends):
                end()

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

    But for the tenant: subscribers may want its name, and logs go anywhere. A reason that a person
    has typed, or the text of an exception, is one line: it cannot look like a second record, and
    no escape of it reaches a terminal.
    """
    if not log.isEnabledFor(level):
        return
    fields = {field: _line(value) for field, value in fields.items() if field != "tenant"}
    extra: dict[str, Any] = {f"semel_{field}": value for field, value in fields.items()}
    extra["semel_event"] = name
    extra["semel_error"] = None if error is None else type(error).__name__
    raised = "-" if error is None else _line(str(error)) or type(error).__name__
    shown = _Shown(fields, error=raised)
    # What semel raises itself says all in its message; of others it matters where it comes from.
    own = error is None or type(error).__module__.startswith("semel.")
    if error is not None and own and "%(error)s" not in text:
        text += ": %(error)s"
    log.log(level, f"semel: {text}", shown, exc_info=None if own else error, extra=extra)


def _line(value: Any) -> Any:
    return one_line(value) if isinstance(value, str) else value


class _Shown(dict[str, Any]):
    """The fields for a line of the log; one that an event does not have is a dash."""

    def __missing__(self, key: str) -> str:
        return "-"


class _Listener:
    """One subscriber, and what it has not heard yet: a thread and a queue in each process."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._inline = bool(getattr(subscriber, "inline", False))
        self._span_about: Any = getattr(subscriber, "span_about", None)
        self.traces = self._span_about is not None
        self._queues: dict[int, SimpleQueue[Event | None]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._failed = self._lost = 0
        self._silent_until = 0.0

    def tell(self, event: Event) -> None:
        if self._inline:
            return self._call(self._subscriber, event)
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
            self._call(self._subscriber, event)

    def begin_span(self, name: str, identity: str | None) -> Callable[[], None]:
        """Begin a span; returns what ends it. Neither can hurt the work that it is about."""
        span = ExitStack()
        self._call(lambda: span.enter_context(self._span_about(name, identity)))
        return lambda: self._call(span.close)

    def _call(self, function: Callable[..., object], *given: object) -> None:
        try:
            function(*given)
        except Exception as error:
            self._failed += 1
            self._complain("a subscriber failed, %d times by now", self._failed, error)

    def _complain(self, text: str, count: int, error: Exception | None) -> None:
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            log.error(f"semel: {text}", count, exc_info=error)


# ── the kinds of events there are ─────────────────────────────────────────────────────────────────
#
# docs/reference/events.md says the same, and a test compares them; another sees that every event
# that is told has the fields it has here.

NONE, DEBUG, INFO, WARNING, ERROR = 0, 10, 20, 30, 40
"""Levels of `logging`; 0: no line."""


@frozen
class EventKind:
    """One kind of event."""

    fields: tuple[str, ...]
    level: int
    """Of its line in the log, unless the event says otherwise."""
    text: str
    """Its line, with fields by name; ``%(error)s`` is what was raised."""
    meaning: str


_RECORD: Final = ("where", "identity")
"""Method and path, and the first digits of the identity, as ``semel unknown`` takes them."""

_WATCHED: Final = ("route", "method", "code", "status")
"""``code`` and ``status`` are those of the answer that was not sent."""

CATALOGUE: Final[Mapping[str, EventKind]] = {
    # ── requests ─────────────────────────────────────────────────────────────────────────────────
    "exchange": EventKind(
        (
            *("outcome", "reserved", "route", "method", "policy", "tenant", "status", "replayed"),
            *("from_memory", "lost_fence", "by", "identity", "key", "seconds", "store_seconds"),
            *("store_operations", "handler_seconds", "waiting_seconds"),
        ),
        NONE,
        "a request of %(route)s: %(outcome)s: %(error)s",
        "A keyed request was answered.",
    ),
    "refusal": EventKind(
        ("code", "status", "route", "method", "policy"),
        NONE,
        "a request of %(route)s: tenant=, session= or key_from= failed: %(error)s",
        "A request was turned away before its key was looked up.",
    ),
    "shape.failed": EventKind(
        ("route", "code"),
        ERROR,
        "refusal= of %(route)s failed; %(code)s was sent as a problem document: %(error)s",
        "A `refusal=` function raised, or returned no response.",
    ),
    "unguarded": EventKind(
        ("endpoint",),
        ERROR,
        "a request came to %(endpoint)s around its guard, and was refused",
        "A tagged endpoint was reached without its policy, and did not run.",
    ),
    "key.suspicious": EventKind(
        ("route", "key"),
        WARNING,
        "a key looks like personal data: %(key)s",
        "A key that looks like personal data was taken: an e-mail address, or the number of a "
        "telephone, a payment card or a bank account.",
    ),
    "key.short": EventKind(
        ("route", "length"),
        WARNING,
        "a key of %(route)s has %(length)s characters, and may meet another (told once): ask "
        "clients for random ones, or refuse such keys with key='strong'",
        "A key of less than 16 characters was used for the first time.",
    ),
    # ── routes in shadow ─────────────────────────────────────────────────────────────────────────
    "shadow.would_replay": EventKind(
        _WATCHED,
        NONE,
        "a request of %(route)s in shadow would have been a replay",
        "In shadow: a request ran that would have been answered with what was kept.",
    ),
    "shadow.would_conflict": EventKind(
        _WATCHED,
        NONE,
        "a request of %(route)s in shadow would have met another: %(code)s",
        "In shadow: a request ran whose key was in flight, or whose outcome was unknown.",
    ),
    "shadow.would_refuse": EventKind(
        _WATCHED,
        NONE,
        "a request of %(route)s in shadow would have been refused: %(code)s",
        "In shadow: a request ran that would have been refused for another reason.",
    ),
    "shadow.differs": EventKind(
        ("route", "method", "identity"),
        NONE,
        "a key of %(route)s in shadow has two answers; neither will be repeated",
        "In shadow: a key ran again, and its answer is not the one on record, or cannot be "
        "compared with it.",
    ),
    "shadow.unkeyed": EventKind(
        ("route", "method"),
        NONE,
        "a request of %(route)s in shadow has no key",
        "In shadow: a request without a key.",
    ),
    "shadow.look_alike": EventKind(
        ("route", "method"),
        NONE,
        "a request of %(route)s without a key looks like another of the last minutes",
        "In shadow: a request without a key was the same as one of the last ten minutes.",
    ),
    "shadow.unrecorded": EventKind(
        ("route", "method", "identity"),
        WARNING,
        "a request of %(route)s in shadow ran, and could not be put on record: %(error)s",
        "In shadow: a request ran without a record, or its outcome is still to be written.",
    ),
    # ── leases and writes ────────────────────────────────────────────────────────────────────────
    "lease.renewed": EventKind(
        ("identity",), NONE, "a lease was renewed", "A handler is still at it."
    ),
    "lease.lost": EventKind(
        ("identity",),
        WARNING,
        "a lease was lost while its handler runs; its answer will be refused",
        "The store says that a lease is another's by now.",
    ),
    "fence.lost": EventKind(
        ("route", "outcome", "identity"),
        WARNING,
        "a handler of %(route)s ended after its lease was lost: %(outcome)s",
        "A handler ended after its lease was lost; it answered from the record.",
    ),
    "lease.overrun": EventKind(
        ("identity",),
        WARNING,
        "a handler runs longer than max_run; its key is taken from it",
        "A handler ran longer than `max_run`.",
    ),
    "lapse": EventKind(
        ("count", "by"),
        NONE,
        "leases that were past: %(count)s",
        "Leases were past and whoever held them gone: found by a `request` or by `maintenance`.",
    ),
    "doubt": EventKind(
        ("count", "why"),
        NONE,
        "outcomes nobody knows: %(count)s (%(why)s)",
        "Records became `unknown`: their handlers said so (`suspended`), or their leases `lapsed`.",
    ),
    "write.lost": EventKind(
        ("why",),
        ERROR,
        "%(why)s",
        "An outcome could not be recorded although it was tried again and again.",
    ),
    "notables.dropped": EventKind(
        ("count",),
        WARNING,
        "notables were not written: %(count)s",
        "Notables found no room, or the store did not take them.",
    ),
    # ── the store ────────────────────────────────────────────────────────────────────────────────
    "store.error": EventKind(
        ("during", "operation"),
        WARNING,
        "the store failed (%(during)s, %(operation)s): %(error)s",
        "The store gave no usable answer.",
    ),
    "store.failover": EventKind(
        ("was", "now"),
        NONE,
        "the primary %(was)s was replaced by %(now)s",
        "Sentinels replaced the primary: what it acknowledged last may be lost.",
    ),
    "store.health": EventKind(
        ("up", "seconds", "circuit"),
        NONE,
        "the store is up: %(up)s",
        "Somebody asked whether the store can be reached.",
    ),
    "pool": EventKind(
        ("pool", "size", "in_use", "waiting", "opened", "closed"),
        NONE,
        "the pool for %(pool)s has %(size)s connections",
        "The connections of a pool in this process were counted; `opened` and `closed` since the "
        "last time.",
    ),
    "breaker": EventKind(
        ("circuit",),
        WARNING,
        "the circuit to the store is %(circuit)s",
        "The circuit breaker opened: requests are refused at once. Or it closed again.",
    ),
    "depths": EventKind(
        ("pending", "in_progress", "unknown", "dead", "waiting_effects", "dead_effects"),
        NONE,
        "depths",
        "How much there is of what somebody must look after, counted by maintenance.",
    ),
    # ── background loops ─────────────────────────────────────────────────────────────────────────
    "maintenance": EventKind(
        (
            *("note", "lapsed", "abandoned", "expired", "forgotten", "effects", "events"),
            *("more", "seconds"),
        ),
        INFO,
        "maintenance: %(note)s",
        "A round of maintenance ended.",
    ),
    "leader": EventKind(
        ("leading",),
        INFO,
        "maintenance is with this process: %(leading)s",
        "This process leads maintenance from now on, or does not any more.",
    ),
    "round.failed": EventKind(
        ("loop",),
        WARNING,
        "a round of %(loop)s failed: %(error)s",
        "A background loop met an error, and comes again later.",
    ),
    "reconcile": EventKind(
        (*_RECORD, "came", "state", "reason", "by"),
        INFO,
        "%(where)s [%(identity)s]: %(came)s: %(reason)s",
        "A record with an unknown outcome was asked about, or told about.",
    ),
    "left_alone": EventKind(
        ("count", "routes"),
        NONE,
        "%(count)s records are due that nobody here knows, and are left alone: %(routes)s",
        "A worker has counted what is due of applications and routes that it does not know.",
    ),
    "run": EventKind(
        (*_RECORD, "came"),
        INFO,
        "a worker's run of %(where)s [%(identity)s]: %(came)s (%(error)s)",
        "A worker ran a stored request.",
    ),
    "delivery": EventKind(
        ("effect", "ending", "tries", "reason"),
        NONE,
        "an effect %(effect)r, try %(tries)s: %(ending)s: %(reason)s",
        "A try at delivering an effect ended.",
    ),
    "inbox": EventKind(
        ("source", "came", "reason"),
        INFO,
        "an event of %(source)s: %(came)s: %(reason)s",
        "A provider's webhook was taken in, or refused.",
    ),
    "operator": EventKind(
        ("act", "by", "identity", "effect", "reason"),
        WARNING,
        "%(by)s %(act)s %(identity)s: %(reason)s",
        "An operator did something to a record or an effect: `settled`, `gave up`, `evicted` …",
    ),
}
