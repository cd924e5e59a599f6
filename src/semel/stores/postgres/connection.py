"""One connection. A statement is a generator that yields what it waits for; the pools wait.

Each statement is a transaction of its own, and nothing is ever set in the session: a pooler may
send each of them over another server connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import cache
from hashlib import sha256
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGconn, PGresult

from semel.stores.base import CHECK_AGAIN
from semel.stores.postgres.errors import NO_SUCH_STATEMENT, connection_lost, server_fault
from semel.stores.postgres.failover import TIMELINE_QUERY, FailoverTimeline
from semel.stores.postgres.values import BINARY, LOADERS, encoded
from semel.stores.sql.dialect import dialect
from semel.stores.sql.pooled import PooledConnection
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault

READ: Final = 1
WRITE: Final = 2

Exchange: TypeAlias = Generator[int, None, Rows]
"""Yields READ, or READ | WRITE; to be resumed when the socket is ready for one of them."""

DIALECT: Final = "postgresql"
_GOOD: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)

_HANDSHAKE: Final = (
    b"SELECT pg_backend_pid(), pg_is_in_recovery()::int, current_setting('transaction_read_only'),"
    b" current_setting('synchronous_commit')"
)


POOLED: Final = (
    "configure= needs sessions of its own, and a pooler is in between: connect to the server "
    "itself, or use ALTER ROLE ... SET"
)


class LibpqQuery(NamedTuple):
    """A statement as libpq wants it."""

    name: bytes
    text: bytes
    order: tuple[str, ...]


@cache
def query(name: str) -> LibpqQuery:
    """The query of that name, made once per process."""
    asked = dialect(DIALECT).queries[name]
    text = asked.text.encode()
    # With the digest, another version of semel behind the same pooler cannot have meant another
    # statement by the same name.
    digest = sha256(text).hexdigest()[:16]
    return LibpqQuery(f"semel_{name}_{digest}".encode(), text, asked.takes)


class QuietConnection(psycopg.Connection[Any]):
    """Warns of nothing when collected: an application may end, or fork, without closing it."""

    def __del__(self, *_: object) -> None: ...


class QuietAsyncConnection(psycopg.AsyncConnection[Any]):
    """The same."""

    def __del__(self, *_: object) -> None: ...


class PostgresConnection(PooledConnection):
    """A connection to a primary that is ready for statements."""

    __slots__ = (
        "_check_at",
        "_configure",
        "_connection",
        "_ended",
        "_pid",
        "_prepared",
        "_rows",
        "_unsure",
        "fd",
        "pgconn",
        "pooled",
        "prepare",
        "unread",
    )

    def __init__(
        self,
        connection: QuietConnection | QuietAsyncConnection,
        prepare: bool | None,
        configure: str = "",
    ) -> None:
        self._connection = connection  # kept, so that it is not collected
        self.pgconn: PGconn = connection.pgconn
        self.pgconn.notice_handler = self._noticed
        self._pid = os.getpid()
        self._prepared: set[bytes] = set()
        self._rows = Transformer(LOADERS)
        self._unsure = False
        self._ended = False
        self._check_at = 0.0
        self._configure = configure.encode()
        self.fd = self.pgconn.socket
        self.prepare = prepare
        self.pooled = False
        """The session behind it is a pooler's, and shared with others."""
        self.unread: Exchange | None = None
        """A statement that was sent, whose answer the next user reads."""

    def execute(self, statement: Statement) -> Exchange:
        """Send one statement and collect its rows."""
        if monotonic() >= self._check_at:
            yield from self.handshake()
        asked = query(statement.name)
        values, formats = encoded([statement.params[name] for name in asked.order])
        if self.prepare:
            try:
                if asked.name not in self._prepared:
                    yield from self._ask(self.pgconn.send_prepare, asked.name, asked.text)
                    self._prepared.add(asked.name)
                again = self.pgconn.send_query_prepared
                return (yield from self._ask(again, asked.name, values, formats, BINARY))
            except StatementFault as fault:
                if fault.code not in NO_SUCH_STATEMENT:
                    raise
                # A pooler that the handshake did not notice; nothing was executed.
                self.prepare, self.pooled = False, True
                if self._configure:
                    raise StatementFault(POOLED) from None
        send = self.pgconn.send_query_params
        return (yield from self._ask(send, asked.text, values, None, formats, BINARY))

    def greet(self, failover: FailoverTimeline) -> Exchange:
        """Of a new connection: checks, and what its session is to be like."""
        yield from self.handshake()
        if self._configure:
            yield from self.configure()
            yield from self.handshake()  # of the session as it is now
        return (yield from self._check_timeline(failover))

    def configure(self) -> Exchange:
        """Make the session what ``configure`` says. Never a pooler's, which others get next."""
        if not self._configure:
            return []
        if self.pooled:
            raise StatementFault(POOLED)
        try:
            yield from self.result_of(self._configure)
        except StatementFault as fault:
            raise StatementFault(f"configure= failed: {fault}", doubt=fault.doubt) from None
        return []

    def handshake(self) -> Exchange:
        """Check that this is a primary that keeps what it acknowledges; notice a pooler."""
        send = self.pgconn.send_query_params
        rows = yield from self._ask(send, _HANDSHAKE, None, None, None, BINARY)
        pid, recovering, read_only, synchronous = rows[0]
        if recovering or read_only == "on":
            what = "a standby" if recovering else "read-only"
            raise StatementFault(f"this server is {what}, semel needs the primary")
        if synchronous == "off":
            raise StatementFault(
                "synchronous_commit is off, for the server, the role or the database: acknowledged "
                "keys would be lost in a crash; set it to on"
            )
        self._check_at = monotonic() + CHECK_AGAIN
        # A pooler invents the process id it reports at login, and does not know our statements.
        self.pooled = pid != self.pgconn.backend_pid
        if self.prepare is None:
            self.prepare = not self.pooled
        return rows

    def _check_timeline(self, failover: FailoverTimeline) -> Exchange:
        """Check that no newer timeline was seen. A server that cannot answer is accepted."""
        send = self.pgconn.send_query_params
        try:
            rows = yield from self._ask(send, TIMELINE_QUERY, None, None, None, BINARY)
        except StatementFault as fault:
            if fault.broken:
                raise
            return []
        (system, timeline) = rows[0]
        failover.check(system, timeline, self.pgconn.host.decode(), self.pgconn.port.decode())
        return rows

    def alive(self) -> bool:
        """Whether an idle connection that has something to read is open: mostly it is closed."""
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            return False
        # is_busy parses what was read; a last message of the server goes to the notice handler.
        return not self.pgconn.is_busy() and not self._ended

    def close(self) -> None:
        self.left()
        # A forked child must not say goodbye on its parent's socket.
        if os.getpid() == self._pid:
            self.pgconn.finish()

    def hear_notices_first(self) -> None:
        """Before the connection that psycopg has made over this one. One of them reports a commit
        that no standby confirmed."""
        theirs = self.pgconn.notice_handler

        def both(notice: PGresult) -> None:
            self._noticed(notice)
            if theirs is not None:
                theirs(notice)

        self.pgconn.notice_handler = both

    def result_of(self, text: bytes) -> Generator[int, None, PGresult]:
        """The result of the last of some statements without parameters, in one trip."""
        try:
            self.pgconn.send_query(text)
            return (yield from self._last_result())
        except psycopg.Error as error:
            raise connection_lost(error) from None

    def _ask(self, send: Callable[..., None], *message: object) -> Exchange:
        try:
            send(*message)
            result = yield from self._last_result()
        except psycopg.Error as error:
            raise connection_lost(error) from None
        if self._unsure:
            raise StatementFault("committed here, but no standby confirmed it", doubt=True)
        self._rows.set_pgresult(result)
        return self._rows.load_rows(0, result.ntuples, tuple)

    def _last_result(self) -> Generator[int, None, PGresult]:
        """All results up to the end: an error at commit comes after the rows."""
        pgconn = self.pgconn
        while pgconn.flush():
            yield READ | WRITE
            pgconn.consume_input()
        good = bad = None
        while True:
            while pgconn.is_busy():
                yield READ
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            if result.status in _GOOD:
                good = result
            elif bad is None:
                bad = result
        if bad is not None or good is None:
            raise server_fault(bad)
        return good

    def _noticed(self, notice: PGresult) -> None:
        # A commit whose wait for its standbys was cancelled is called a success, with a warning.
        if notice.error_field(pq.DiagnosticField.SOURCE_FUNCTION) == b"SyncRepWaitForLSN":
            self._unsure = True
        if notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL":
            self._ended = True
