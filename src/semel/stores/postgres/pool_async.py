"""The pool of one event loop.

The answer to a statement is read by the loop's own callbacks, whether or not anybody still awaits
it: a cancelled caller leaves at once, and the connection comes back to the pool with the answer, or
is closed at the deadline. Nothing here waits for the server because of a cancellation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeAlias, TypeVar

import psycopg

from semel.core.operations.requests import StoreOperation
from semel.stores.postgres.connection import WRITE, AsyncConnection, Exchange, Link
from semel.stores.postgres.errors import Fault, not_connected, verdict
from semel.stores.postgres.migration import migrate
from semel.stores.postgres.settings import Settings
from semel.stores.sql.plans import Rows, Statement
from semel.stores.sql.statement_retry import adrive, errand

R = TypeVar("R")

OnEnd: TypeAlias = "Callable[[Wire, Exception | None], None]"

_A_TICK: Final = 0.001
"""Seconds by which a timer may be early."""


class Wire:
    """A link that is watched by an event loop."""

    __slots__ = (
        "_answer",
        "_deadline",
        "_exchange",
        "_loop",
        "_on_end",
        "_timer",
        "_watched",
        "_writing",
        "link",
    )

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self._loop = loop
        self._exchange: Exchange | None = None
        self._on_end: OnEnd = _nothing
        self._watched = self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self.watch()

    def run(self, exchange: Exchange, deadline: float, on_end: OnEnd) -> asyncio.Future[Rows]:
        """Start ``exchange``. At its end ``on_end`` is told what went wrong, if anything did."""
        self._exchange, self._deadline, self._on_end = exchange, deadline, on_end
        self._answer: asyncio.Future[Rows] = self._loop.create_future()
        if self._timer is None or self._timer.when() > deadline:
            self._set_timer()
        answer = self._answer
        self._awake()
        return answer

    def rest(self, on_lost: OnEnd) -> None:
        """Nothing to do for now: ``on_lost`` is called should the server hang up."""
        self._on_end = on_lost

    def watch(self) -> None:
        if not self._watched:
            self._loop.add_reader(self.link.fd, self._awake)
            self._watched = True

    def unwatch(self) -> None:
        """Leave the socket to others. libpq may close it meanwhile, and its number be given to
        another socket of the same loop: it is not touched again before ``watch``."""
        if self._watched and not self._loop.is_closed():
            self._loop.remove_reader(self.link.fd)
        self._watched = False

    def close(self) -> None:
        self._on_end = _nothing
        self.unwatch()
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._watch_for_room(False)
        self.link.close()

    def _awake(self) -> None:
        """The socket is ready for something."""
        if self._exchange is None:
            if not self.link.alive():
                self._on_end(self, None)
            return
        try:
            want = next(self._exchange)
        except StopIteration as done:
            self._end(done.value, None)
        except Exception as error:
            self._end([], error)
        else:
            if self._writing or want & WRITE:
                self._watch_for_room(bool(want & WRITE))

    def _watch_for_room(self, writing: bool) -> None:
        if writing and not self._writing:
            self._loop.add_writer(self.link.fd, self._awake)
        elif self._writing and not writing:
            self._loop.remove_writer(self.link.fd)
        self._writing = writing

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, self._deadline - monotonic()), self._expire)

    def _expire(self) -> None:
        """The timer may be that of an earlier exchange: it is set again only when it has run out,
        for nearly all exchanges are over long before."""
        self._timer = None
        if self._exchange is None:
            return
        if self._deadline > monotonic() + _A_TICK:
            self._set_timer()
        else:
            self._end([], Fault("no answer within the time limit", doubt=True))

    def _end(self, rows: Rows, error: Exception | None) -> None:
        if self._writing:
            self._watch_for_room(False)
        self._exchange = None
        self._on_end(self, error)
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(rows)
        else:
            self._answer.set_exception(error)


def usable_after(error: Exception | None) -> bool:
    """Whether a wire can be used again."""
    return error is None or (isinstance(error, Fault) and not error.broken)


def _nothing(wire: Wire, error: Exception | None) -> None:
    """For those who look after the wire themselves."""


class AwaitedPool:
    """At most ``pool_size`` connections; the one used last is used next.

    Who finds none waits in line for a wire, or for None: the right to open one.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._idle: list[Wire] = []
        self._line: deque[asyncio.Future[Wire | None]] = deque()
        self._opening: set[asyncio.Task[Wire]] = set()
        self._taken = 0
        self._ready = False
        self._drained: asyncio.Future[None] | None = None

    async def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = errand(op, verdict, doubt=doubt)
        return await adrive(steps, lambda statement: self.execute(statement, deadline))

    async def aclose(self) -> None:
        """Close idle connections now, and those at work when they are done: by their deadline."""
        self._drained = self._loop.create_future()
        self.abandon()
        if self._taken:
            await asyncio.wait([self._drained], timeout=self._settings.timeout)

    def abandon(self) -> None:
        """Close what is idle, without the loop, which may be closed already."""
        while self._idle:
            self._idle.pop().close()

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        """Sent at once where a connection is idle."""
        if not self._idle or deadline <= monotonic():
            return self._loop.create_task(self.execute(statement, deadline))
        self._taken += 1
        wire = self._idle.pop()
        return wire.run(wire.link.execute(statement), deadline, self._put)

    async def execute(self, statement: Statement, deadline: float) -> Rows:
        wire = await self._take(deadline)
        return await wire.run(wire.link.execute(statement), deadline, self._put)

    async def _take(self, deadline: float) -> Wire:
        if deadline <= monotonic():
            raise Fault("no time was left")
        if self._idle:
            self._taken += 1
            return self._idle.pop()
        if self._taken < self._settings.pool_size:
            self._taken += 1
            wire = None
        else:
            wire = await self._stand_in_line(deadline)
        return wire or await self._open(deadline)

    async def _stand_in_line(self, deadline: float) -> Wire | None:
        place: asyncio.Future[Wire | None] = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._send_away, place)
        self._line.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            # It may have been served and cancelled in one turn of the loop: pass it on.
            if place.done() and not place.cancelled() and place.exception() is None:
                self._hand_on(place.result())
            raise
        finally:
            timer.cancel()

    def _send_away(self, place: asyncio.Future[Wire | None]) -> None:
        size = self._settings.pool_size
        if not place.done():
            place.set_exception(
                Fault(f"no connection came free within the time limit (pool_size={size})")
            )

    def _put(self, wire: Wire, error: Exception | None) -> None:
        """Its exchange is over: it is idle, or closed, and with it the others where what ended it
        has probably ended them."""
        if isinstance(error, Fault) and error.contagious:
            self.abandon()
        if not usable_after(error) or self._drained is not None:
            wire.close()
            self._hand_on(None)
        else:
            self._hand_on(wire)

    def _hand_on(self, wire: Wire | None) -> None:
        """Give a wire, or the right to open one, to the next in line; else keep it."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                if wire is not None:
                    wire.rest(_nothing)  # its next user will notice
                place.set_result(wire)
                return
        self._taken -= 1
        if wire is not None:
            wire.rest(self._lost)
            self._idle.append(wire)
        elif self._drained is not None and not self._taken and not self._drained.done():
            self._drained.set_result(None)

    def _lost(self, wire: Wire, error: Exception | None) -> None:
        """The server hung up on an idle connection."""
        self._idle.remove(wire)
        wire.close()

    async def _open(self, deadline: float) -> Wire:
        """In a task of its own: a connection half made for a cancelled caller serves the next."""
        opening = self._loop.create_task(self._connect_in_time(deadline))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._opening.add(opening)  # the loop itself holds its tasks only weakly
            opening.add_done_callback(self._opened_for_nobody)
            raise
        except BaseException:
            self._hand_on(None)
            raise

    def _opened_for_nobody(self, opening: asyncio.Task[Wire]) -> None:
        self._opening.discard(opening)
        if opening.cancelled() or opening.exception() is not None:
            self._hand_on(None)
        else:
            self._put(opening.result(), None)

    async def _connect_in_time(self, deadline: float) -> Wire:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                return await self._connect(deadline)
        except TimeoutError:
            raise Fault("no connection within the time limit") from None
        except psycopg.Error as error:
            raise not_connected(error, self._settings.without_secrets) from None

    async def _connect(self, deadline: float) -> Wire:
        if self._settings.migrate and not self._ready:
            await asyncio.to_thread(migrate, self._settings)
        connection = await AsyncConnection.connect(self._settings.conninfo, autocommit=True)
        wire = Wire(Link(connection, self._settings.prepare), self._loop)
        try:
            await wire.run(wire.link.greet(), deadline, _nothing)
            await wire.run(wire.link.descend(self._settings.lineage), deadline, _nothing)
            if not self._ready:
                await wire.run(wire.link.check_schema(), deadline, _nothing)
                self._ready = True
        except BaseException:
            wire.close()
            raise
        return wire
