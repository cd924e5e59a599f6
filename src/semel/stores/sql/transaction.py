"""Transactions that semel begins on a database server, for a handler's writes and the record's.

The rules stand here once for all servers: who may use the connection, how the transaction stands,
how it ends. What a server must send for each step is its `TransactionSteps`; how its answer is
waited for is known to its pool (`sql.pool_sync`, `sql.pool_async`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.background import keep
from semel.stores.open_transactions import ENDED, OVER, SHARED, HeldIdentity, in_event_loop
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import StatementFault, adrive, drive, usable_after

if TYPE_CHECKING:
    from semel.stores.sql.pool_async import AsyncTransactionPool
    from semel.stores.sql.pool_sync import TransactionPool
    from semel.stores.sqlalchemy_sessions import JoinedSessions

R = TypeVar("R")
C = TypeVar("C", contravariant=True)
P = TypeVar("P", bound="TransactionPool[Any] | AsyncTransactionPool[Any]")

Exchange: TypeAlias = Generator[Any, Any, Rows]
"""What a server is asked, as its pool understands it; returns the rows."""


class Standing(Enum):
    """How a transaction stands, by what the driver knows without asking the server."""

    OPEN = "open"
    FAILED = "failed"
    """A failed statement has aborted it: only going back to a savepoint, or its end, is left."""
    ENDED = "ended"
    """No transaction is open."""
    LOST = "lost"
    """The connection is lost, or in the middle of an answer."""


class TransactionSteps(Protocol[C]):
    """One server's part of a transaction: a module or an object. ``conn``: its connection."""

    def begin(self, conn: C, identity: Identity | None, limit: float | None, /) -> Exchange:
        """One row: whether it is begun with the identity's lock. It waits for nobody. Without an
        identity there is no lock, and the savepoint is set at once. ``limit``: see `Transactional`.
        """
        ...

    def perform(self, conn: C, op: StoreOperation[Any], /) -> Exchange:
        """The reply, as the only value of the only row."""
        ...

    def savepoint(self, conn: C, /) -> Exchange: ...

    def undo(self, conn: C, /) -> Exchange:
        """Go back to the savepoint. ConfigurationError: the handler has removed it."""
        ...

    def commit(self, conn: C, /, *, marked: bool) -> Exchange:
        """``marked``: there is a savepoint, which only the transaction that was begun can release.
        Raises when it is not surely committed."""
        ...

    def refused_commit(self, fault: StatementFault, /) -> SemelError:
        """What became of a commit that was not answered with success."""
        ...

    def roll_back(self, conn: C, /) -> Exchange:
        """Undo what is left of it, if anything."""
        ...

    def wipe(self, conn: C, /) -> Exchange:
        """Leave nothing of a handler in the session."""
        ...

    def ascertain(self, conn: C, identity: Identity, deadline: float, /) -> Exchange:
        """Wait until nobody has the identity's lock, then read: see `perform`."""
        ...

    def connection(self, conn: C, turn: ConnectionTurn, awaited: bool, /) -> Any:
        """A new connection of the driver's for the handler, which may not end the transaction."""
        ...

    def take_back(self, conn: C, /) -> None:
        """The handler is done: nobody else hears what the server says."""
        ...

    def standing(self, conn: C, /) -> Standing: ...

    def usable(self, conn: C, /) -> bool:
        """Whether the connection can serve another transaction, after a rollback."""
        ...

    def cancel(self, conn: C, /) -> None:
        """Cancel a statement that the server may still be busy with: it keeps locks until then."""
        ...

    def hang_up(self, conn: C, /) -> None:
        """Cut the connection from any thread, while another uses it. What is open is undone."""
        ...


class ConnectionTurn:
    """Lets one user at a time use a connection, which cannot serve two at once.

    Ending the transaction takes the last turn: later users are refused, and a user in the middle
    of a statement is noticed.
    """

    def __init__(self, steps: TransactionSteps[Any], conn: object) -> None:
        self._steps = steps
        self._conn = conn
        self.over = False
        self.ended_by_handler = False
        """The handler ended the transaction itself."""
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """In a forked child: the socket is still the parent's."""
        return os.getpid() != self._pid

    def check(self) -> None:
        if self.over or self.forked:
            raise ConfigurationError(OVER)
        if self.ended_by_handler:
            raise ConfigurationError(ENDED)

    def take(self) -> None:
        self.check()
        if not self._lock.acquire(blocking=False):
            raise ConfigurationError(OVER if self.over else SHARED)

    def give(self) -> None:
        if not self.over:
            self._lock.release()

    @contextmanager
    def taken(self) -> Generator[None]:
        """For a handler's statement."""
        self.take()
        try:
            yield
        finally:
            ended = self._steps.standing(self._conn) is Standing.ENDED
            self.ended_by_handler = self.ended_by_handler or ended
            self.give()
        if self.ended_by_handler:
            raise ConfigurationError(ENDED)

    def end(self) -> bool:
        """Nobody uses the connection from now on; False when somebody is in the middle of it."""
        self.over = True
        if self.forked or not self._lock.acquire(blocking=False):
            return False
        self._steps.take_back(self._conn)
        return True


class OpenTransaction(Generic[P]):
    """What both colours share: the connection, who uses it, how it stands, and how it ends."""

    def __init__(
        self,
        pool: P,
        conn: Any,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> None:
        self._pool = pool
        self._steps: TransactionSteps[Any] = pool.steps
        self._conn = conn
        self._turn = ConnectionTurn(pool.steps, conn)
        self._marked = identity is None
        self._broken = False
        self._hold: HeldIdentity | None = hold
        self._made: dict[bool, Any] = {}
        self._used = False
        """A handler had the session, which must then be wiped for the next."""
        self._sessions: JoinedSessions | None = None
        self._end_lock = threading.Lock()
        self._ending_began = False
        self._severed: StoreUnavailable | None = None

    @property
    def connection(self) -> Any:
        """One for each colour, made when first asked for."""
        self._turn.check()
        awaited = in_event_loop()
        if awaited not in self._made:
            self._made[awaited] = self._another(awaited)
        return self._made[awaited]

    @property
    def session(self) -> Any:
        self._turn.check()
        if self._sessions is None:
            self._sessions = self._pool.sessions.open(self._another)
        return self._sessions.session

    def _another(self, awaited: bool) -> Any:
        """A session has one that is not the handler's own."""
        self._used = True
        return self._steps.connection(self._conn, self._turn, awaited)

    def sever(self, why: str) -> bool:
        # Until its end has begun the connection is nobody else's, so nobody else's is cut.
        with self._end_lock:
            if self._ending_began or self._severed is not None or self._turn.forked:
                return True
            self._severed = self._unavailable(why)
            self._hold = None
            self._steps.hang_up(self._conn)
            self._pool.free_slot()  # however long its handler goes on
            return True

    def _begin_end(self) -> None:
        with self._end_lock:
            self._ending_began = True

    def _ending(self, *, commit: bool) -> Generator[Exchange, Rows, SemelError | None]:
        """End the transaction and give its connection back; returns why it is not committed."""
        self._drop_sessions()
        sealed = self._turn.end()
        error: SemelError | None
        error = StoreUnavailable("the transaction was rolled back", applied=False)
        try:
            if commit:
                error = (yield from self._committing()) if sealed else ConfigurationError(SHARED)
            self._hold = None  # its key can be asked for again before the answer to a ROLLBACK
            if sealed and self._usable():
                yield self._steps.roll_back(self._conn)  # what is left of it
        except StatementFault:
            self._broken = True
        except BaseException:
            self._broken = True
            raise
        finally:
            self._leave(sealed=sealed)
        return error

    def _committing(self) -> Generator[Exchange, Rows, SemelError | None]:
        if error := self._why_not_commit():
            return error
        try:
            yield self._steps.commit(self._conn, marked=self._marked)
        except StatementFault as fault:
            self._broken = True
            return self._steps.refused_commit(fault)
        except SemelError as error:
            # In a loop, the connection counts as broken after any error but a fault; this is an
            # answer.
            self._broken = getattr(error, "applied", None) is not False
            return error
        return None

    def _leave(self, *, sealed: bool) -> None:
        self._hold = None
        if self._severed is not None:  # it was cut off, and its slot is free
            if sealed:
                self._conn.close()
        elif sealed:
            self._pool.give_back(self._conn, usable=self._usable(), wipe=self._used)
        elif not self._turn.forked:
            # Somebody is in the middle of a statement: they are cut off, the rest is left to them.
            self._steps.hang_up(self._conn)
            self._pool.free_slot()

    def _drop_sessions(self) -> None:
        """Before the transaction ends or is undone, of which a session would not know."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            with suppress(Exception):
                sessions.leave()

    def _require_begun(self) -> None:
        """Refuse a statement after the handler's own COMMIT: it would commit by itself."""
        if self._steps.standing(self._conn) is Standing.ENDED:
            self._turn.ended_by_handler = True
            raise ConfigurationError(ENDED)
        if lost := self._lost():
            raise lost

    def _lost(self) -> StoreUnavailable | None:
        """The error if the connection is lost: its socket's number may be another's by now."""
        if self._severed is not None:
            return self._severed
        standing = self._steps.standing(self._conn)
        if self._broken or standing not in (Standing.OPEN, Standing.FAILED):
            self._broken = True
            return self._unavailable("the connection was lost")
        return None

    def _why_not_commit(self) -> SemelError | None:
        """The error if it is known already that this cannot be committed."""
        standing = self._steps.standing(self._conn)
        if self._turn.ended_by_handler or standing is Standing.ENDED:
            self._broken = True  # the handler may have done more to it
            return ConfigurationError(ENDED)
        if lost := self._lost():
            return lost
        if standing is Standing.FAILED:
            return self._unavailable("a failed statement has aborted the transaction")
        return None

    def _usable(self) -> bool:
        healthy = not self._broken and self._severed is None
        return healthy and self._steps.usable(self._conn)

    def _unavailable(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self._pool.DATABASE}: {why}", applied=False)


class ServerTransaction(OpenTransaction["TransactionPool[Any]"]):
    """See `semel.stores.base.Transaction`."""

    _end: SemelError | str | None = None

    def perform(self, op: StoreOperation[R], /) -> R:
        return cast("R", self._run(self._steps.perform(self._conn, op))[0][0])

    def savepoint(self) -> None:
        self._run(self._steps.savepoint(self._conn))
        self._marked = True

    def undo(self) -> None:
        self._drop_sessions()
        self._run(self._steps.undo(self._conn))

    def flush(self) -> None:
        if self._sessions is not None:
            self._sessions.flush()

    def commit(self) -> None:
        self._begin_end()
        if self._end is None:
            said = f"{self._pool.DATABASE}: the commit was interrupted"
            self._end = StoreUnavailable(said, applied=None)
            self._end = drive(self._ending(commit=True), self._send) or "committed"
        if isinstance(self._end, SemelError):
            raise self._end

    def roll_back(self) -> None:
        self._begin_end()
        if self._end is None:
            self._end = StoreUnavailable("the transaction was rolled back", applied=False)
            with suppress(Exception):
                drive(self._ending(commit=False), self._send)

    def _send(self, exchange: Exchange) -> Rows:
        return self._pool.exchange(self._conn, exchange, self._pool.deadline())

    def _run(self, exchange: Exchange) -> Rows:
        self._turn.take()
        try:
            self._require_begun()
            try:
                return self._send(exchange)
            except StatementFault as fault:
                self._broken = self._broken or fault.broken
                # Whatever it was, nothing is committed.
                raise self._pool.store_error(fault, doubt=False) from None
            except BaseException:
                self._broken = True  # an answer is still to come, or is not what was asked for
                raise
        finally:
            self._turn.give()


class AsyncServerTransaction(OpenTransaction["AsyncTransactionPool[Any]"]):
    """See `semel.stores.base.AsyncTransaction`."""

    _under_way: asyncio.Future[None] | None = None
    _outcome: asyncio.Task[SemelError | None] | None = None

    async def perform(self, op: StoreOperation[R], /) -> R:
        return cast("R", (await self._run(self._steps.perform(self._conn, op)))[0][0])

    async def savepoint(self) -> None:
        await self._run(self._steps.savepoint(self._conn))
        self._marked = True

    async def undo(self) -> None:
        self._drop_sessions()
        await self._run(self._steps.undo(self._conn))

    async def flush(self) -> None:
        if self._sessions is not None:
            await self._sessions.aflush()

    async def commit(self) -> None:
        error = await asyncio.shield(self.begin_end(commit=True))
        if error is not None:
            raise error

    async def roll_back(self) -> None:
        with suppress(Exception):
            await asyncio.shield(self.begin_end(commit=False))

    def begin_end(self, *, commit: bool) -> asyncio.Task[SemelError | None]:
        """It ends in a task, whether or not it is awaited. Asked again, it has the same outcome."""
        self._begin_end()
        if self._outcome is None:
            self._outcome = keep(self._end(commit=commit))
        return self._outcome

    async def begin(self, identity: Identity | None, limit: float | None) -> bool:
        self._turn.take()
        rows = await self._send(self._steps.begin(self._conn, identity, limit))
        return bool(rows[0][0])

    async def _run(self, exchange: Exchange) -> Rows:
        self._turn.take()
        try:
            self._require_begun()
        except BaseException:
            self._turn.give()
            raise
        try:
            return await self._send(exchange)
        except StatementFault as fault:
            # Whatever it was, nothing is committed.
            raise self._pool.store_error(fault, doubt=False) from None

    def _send(self, exchange: Exchange) -> asyncio.Future[Rows]:
        """The answer is read whether or not anybody still awaits it."""
        self._under_way = self._pool.loop.create_future()
        deadline = self._pool.deadline()
        return self._pool.exchange(self._conn, exchange, deadline, self._exchange_over)

    def _exchange_over(self, conn: object, error: BaseException | None) -> None:
        self._broken = self._broken or not usable_after(error)
        self._turn.give()
        if self._under_way is not None:
            self._under_way.set_result(None)
            self._under_way = None

    async def _end(self, *, commit: bool) -> SemelError | None:
        if self._under_way is not None:
            await self._under_way
        return await adrive(self._ending(commit=commit), self._send)
