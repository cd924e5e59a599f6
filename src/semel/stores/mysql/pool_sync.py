"""Blocking connections, by PyMySQL, and their pool: a packet out, its result sets in, up to a
deadline."""

from __future__ import annotations

import os
import select
import socket
from concurrent.futures import Executor
from time import monotonic
from typing import Any, Final

import pymysql
from pymysql.constants import CLIENT

from semel.stores.mysql import protocol, transaction
from semel.stores.mysql.errors import driver_fault, is_answer, not_connected, store_error
from semel.stores.mysql.protocol import ResultSet
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.mysql.values import KINDS
from semel.stores.sql.pool_sync import ConnectionPool, TransactionPool, connected
from semel.stores.sql.pooled import PooledConnection
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, drive
from semel.stores.sql.transaction import Exchange

FLAGS: Final = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS
"""Several statements in a packet; a row that was set to what it was counts as changed."""
CHUNK: Final = 64 * 1024
A_DAY: Final = 86_400.0
"""The longest time-out: a socket takes no infinity."""


class _Reader:
    """Reads up to one deadline. PyMySQL's own reader has a time-out for each of many reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held = bytearray()
        self.deadline = 0.0

    def read(self, size: int) -> bytes:
        held = self._held
        while len(held) < size:
            self._sock.settimeout(seconds_left(self.deadline))
            chunk = self._sock.recv(max(CHUNK, size - len(held)))
            if not chunk:
                break
            held += chunk
        data = bytes(held[:size])
        del held[:size]
        return data

    def close(self) -> None:
        self._held.clear()


def seconds_left(deadline: float) -> float:
    seconds = deadline - monotonic()
    if seconds <= 0:
        raise TimeoutError("the time limit is past")
    return min(seconds, A_DAY)


def connect(settings: MysqlSettings) -> Any:
    """A connection of PyMySQL's over a socket of ours, which is closed if the server refuses it."""
    connection: Any = pymysql.Connection(
        user=settings.user,
        password=settings.password,
        host=settings.host,
        port=settings.port,
        database=settings.database,
        charset="utf8mb4",
        ssl=settings.tls,
        ssl_disabled=settings.tls is None,  # else PyMySQL encrypts without checking anything
        client_flag=FLAGS,
        read_timeout=settings.timeout,
        write_timeout=settings.timeout,
        autocommit=None,  # the handshake sets it
        defer_connect=True,
    )
    sock = _socket(settings)
    connection._secure = settings.socket is not None  # for passwords in the clear
    try:
        connection.connect(sock)
    except BaseException:
        sock.close()
        raise
    return connection


def _socket(settings: MysqlSettings) -> socket.socket:
    if settings.socket is None:
        sock = socket.create_connection((settings.host, settings.port), settings.timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(settings.timeout)
        sock.connect(settings.socket)
    except BaseException:
        sock.close()
        raise
    return sock


class MysqlConnection(PooledConnection):
    """A connection to a primary that is ready for packets."""

    __slots__ = (
        *("_pid", "_reader", "connection", "server", "settings"),
        *("busy", "kept", "lock", "single", "soiled", "threads", "undone", "warned"),
    )

    def __init__(
        self, connection: Any, settings: MysqlSettings, threads: Executor | None = None
    ) -> None:
        self.connection = connection
        self.settings = settings
        self._reader = connection._rfile = _Reader(connection._sock)
        self._pid = os.getpid()
        self.server = protocol.ServerProfile(CHUNK, 0.0, separately=False)
        self.busy: str | bytes | None = None
        """What was sent and is not answered in full."""
        # For transactions (`mysql.transaction`):
        self.threads = threads
        """Of an event loop, whose thread must not wait for an answer."""
        self.lock: str | None = None
        """The name of the lock that it holds."""
        self.undone: str | None = None
        """Why the server has rolled the whole transaction back."""
        self.kept = False
        """That rollback has left what was written into tables without transactions."""
        self.warned = 0
        """How many warnings the last statement left."""
        self.single = False
        """A handler uses it: the server takes one statement at a time."""
        self.soiled = False
        """A handler has used it: the session must be reset."""

    def handshake(self, deadline: float, *, warn: bool) -> None:
        steps = protocol.handshake(self.settings, warn=warn)
        self.server = drive(steps, lambda text: self.ask(text, deadline))

    def run(self, statement: Statement, deadline: float) -> Rows:
        if monotonic() >= self.server.check_at:
            self.handshake(deadline, warn=False)
        steps = protocol.exchange(statement, separately=self.server.separately)
        return drive(steps, lambda text: self.ask(text, deadline))

    def ask(self, packet: str | bytes, deadline: float) -> list[ResultSet]:
        """One round trip: of statements, or of another command as bytes, which has no rows."""
        if fault := protocol.unsendable(packet, self.server.max_packet, deadline):
            raise fault
        results: list[ResultSet] = []
        try:
            self.expect(packet, deadline)
            if isinstance(packet, bytes):
                self.connection._execute_command(packet[0], packet[1:])
                self.connection._read_packet()
            else:
                self._collect(packet, results)
        except Exception as error:
            if monotonic() >= deadline:
                raise protocol.late(len(results)) from None
            self.answered(error)
            raise driver_fault(error, len(results)) from None
        self.busy = None
        return [result for result in results if result[0]]

    def _collect(self, text: str, results: list[ResultSet]) -> None:
        """One for each statement; those that give no rows have no columns."""
        with self.connection.cursor() as cursor:
            cursor.execute(text)
            while True:
                names = [column[0] for column in cursor.description or ()]
                results.append((names, cursor.fetchall() if names else ()))
                self.warned = cursor.warning_count
                if not cursor.nextset():
                    return

    def expect(self, packet: str | bytes, deadline: float) -> None:
        """``packet`` is about to be sent; its answer may be read until the deadline."""
        self.busy = packet
        self._reader.deadline = deadline
        self.connection._write_timeout = seconds_left(deadline)

    def answered(self, error: Exception) -> None:
        """An error that the server sent is an answer; any other leaves the connection unusable."""
        if is_answer(error):
            self.busy = None

    def lost(self) -> bool:
        """An idle connection has something to read when the server has hung up."""
        poll = select.poll()
        poll.register(self.connection._sock, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.left()
        # A forked child must not say goodbye on its parent's socket.
        if os.getpid() == self._pid:
            self.connection._force_close()


class MysqlPool(ConnectionPool[MysqlConnection]):
    """Connections of PyMySQL's."""

    DIALECT = protocol.DIALECT
    KINDS = KINDS
    store_error = staticmethod(store_error)
    _settings: MysqlSettings

    def _run(self, conn: MysqlConnection, statement: Statement, deadline: float) -> Rows:
        return conn.run(statement, deadline)

    def _connect(self, deadline: float) -> MysqlConnection:
        settings = self._settings
        try:
            connection = connected(
                lambda: connect(settings), lambda late: late._force_close(), deadline
            )
        except StatementFault:
            raise
        except Exception as error:
            raise not_connected(error, settings.without_secrets) from None
        return MysqlConnection(connection, settings)

    def _greet(self, conn: MysqlConnection, deadline: float) -> None:
        conn.handshake(deadline, warn=not self._ready)


class MysqlTransactionPool(TransactionPool[MysqlConnection], MysqlPool):
    """Connections for transactions."""

    DATABASE = "MySQL"
    steps = transaction

    def exchange(self, conn: MysqlConnection, exchange: Exchange, deadline: float) -> Rows:
        return drive(exchange, lambda packet: conn.ask(packet, deadline))

    def _send_last(self, conn: MysqlConnection, exchange: Exchange) -> None:
        self.exchange(conn, exchange, self.deadline())
