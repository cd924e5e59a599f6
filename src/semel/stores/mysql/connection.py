"""One blocking connection, by PyMySQL: a packet out, its result sets in, up to a deadline."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any, Final, TypeVar

import pymysql
from pymysql.constants import CLIENT

from semel.stores.mysql.errors import MysqlFault, driver_fault
from semel.stores.mysql.protocol import (
    DIALECT,
    ResultSet,
    ServerProfile,
    exchange,
    handshake,
    unsendable,
)
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import check_schema
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, drive

T = TypeVar("T")

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


class MysqlConnection:
    """A connection to a primary that is ready for packets."""

    __slots__ = ("_pid", "_reader", "_server", "_settings", "connection")

    def __init__(self, connection: Any, settings: MysqlSettings) -> None:
        self.connection = connection
        self._settings = settings
        self._reader = connection._rfile = _Reader(connection._sock)
        self._pid = os.getpid()
        self._server = ServerProfile(CHUNK, 0.0, separately=False)

    def handshake(self, deadline: float, *, warn: bool) -> None:
        self._server = self._drive(handshake(self._settings, warn=warn), deadline)

    def run(self, statement: Statement, deadline: float) -> Rows:
        if monotonic() >= self._server.check_at:
            self.handshake(deadline, warn=False)
        return self._drive(exchange(statement, separately=self._server.separately), deadline)

    def check_schema(self, deadline: float) -> None:
        drive(check_schema(dialect(DIALECT)), lambda asked: self.run(asked, deadline))

    def _drive(self, steps: Generator[str, Sequence[ResultSet], T], deadline: float) -> T:
        return drive(steps, lambda text: self.ask(text, deadline))

    def ask(self, text: str, deadline: float) -> list[ResultSet]:
        """One round trip."""
        if fault := unsendable(text, self._server.max_packet, deadline):
            raise fault
        results: list[ResultSet] = []
        done = 0
        try:
            self._reader.deadline = deadline
            self.connection._write_timeout = seconds_left(deadline)
            with self.connection.cursor() as cursor:
                cursor.execute(text)
                while True:
                    if cursor.description is not None:
                        names = [column[0] for column in cursor.description]
                        results.append((names, cursor.fetchall()))
                    done += 1
                    if not cursor.nextset():
                        return results
        except Exception as error:
            if monotonic() >= deadline:
                raise MysqlFault("no answer within the time limit", doubt=True) from None
            raise driver_fault(error, done) from None

    def alive(self) -> bool:
        """Whether an idle connection is open: it has something to read when the server hung up."""
        poll = select.poll()
        poll.register(self.connection._sock, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        # A forked child must not say goodbye on its parent's socket.
        if os.getpid() == self._pid:
            self.connection._force_close()
