"""What MariaDB and MySQL are sent for each step of a transaction: their `TransactionSteps`.

The identity's lock is one of GET_LOCK: it is the connection's, not the transaction's, so it is
taken before the transaction begins and released when that has ended, with all others that a handler
took. It ends with the connection, after the server has undone what was open.

The savepoint is set once, after the claim, and is gone when the transaction is: whatever statement
has committed it, RELEASE SAVEPOINT fails then, and COMMIT is not reached. The session does not
commit by itself: what a handler writes after its transaction was undone, in a deadlock for example,
is not committed either.
"""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from math import ceil
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pymysql.constants import COMMAND, SERVER_STATUS

from semel.core.operations.requests import Read, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.mysql import protocol
from semel.stores.mysql.errors import (
    CONTENTION,
    NO_SUCH_SAVEPOINT,
    WAITED,
    MysqlFault,
    error_code,
)
from semel.stores.mysql.protocol import Exchange
from semel.stores.mysql.values import literal
from semel.stores.open_transactions import ENDED, SAVEPOINT
from semel.stores.sql.plans import plan
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import StatementFault
from semel.stores.sql.transaction import ConnectionTurn, Standing

if TYPE_CHECKING:
    from semel.stores.mysql.handler_connections import (
        AsyncMysqlHandlerConnection,
        MysqlHandlerConnection,
    )
    from semel.stores.mysql.pool_sync import MysqlConnection

COM_RESET_CONNECTION: Final = b"\x1f"
_ONE_STATEMENT: Final = bytes((COMMAND.COM_SET_OPTION, 1, 0))
_MANY_STATEMENTS: Final = bytes((COMMAND.COM_SET_OPTION, 0, 0))
OF_CLUSTER: Final = (
    "this server is a node of a Galera cluster, whose locks (GET_LOCK) other nodes do not see: "
    "mode='atomic' and phases are not possible there, leased and deferred routes are"
)
_UNDONE: Final = (
    "the server has rolled the whole transaction back ({}), with all that was written in it: "
    "nothing more can be written, answer or raise"
)
KEPT: Final = (
    "the handler wrote into a table without transactions, of MyISAM or Aria for example: what it "
    "wrote there could not be rolled back. Make it a table of InnoDB"
)
ALL_UNDONE: Final = "the whole transaction was rolled back, because of temporary tables in it"
NOT_COMPLETE: Final = 1196
"""The warning after a rollback that has left something."""
_ENDS_ALL: Final = (*CONTENTION, WAITED)
"""Errors after which the server may have rolled a transaction back. After any other one that is
gone, a statement has committed it, even if it failed: CREATE TABLE does."""


def lock_name(identity: Identity) -> str:
    """As SQL. Such names are the server's, not the database's; they have 64 characters at most, and
    no case."""
    said = f"SHA2(CONCAT(DATABASE(), '/{identity.hex()}'), 256)"
    return f"CONCAT('semel.', LEFT({said}, 56))"


# ── its statements, as exchanges ──────────────────────────────────────────────────────────────────


def begin(conn: MysqlConnection, identity: Identity | None, limit: float | None) -> Exchange:
    """Whether the transaction is begun with the identity's lock; it waits for nobody.

    Its isolation level is that of the session, READ COMMITTED: what follows the lock sees what came
    before it. The server ends a connection that is idle for longer than the limit.
    """
    if conn.soiled:
        yield COM_RESET_CONNECTION
        conn.soiled = conn.single = False
        yield f"USE `{conn.settings.database.replace('`', '``')}`"
        role = conn.server.role
        conn.server = yield from protocol.handshake(conn.settings, warn=False)
        if conn.server.role != role:  # a reset leaves what SET ROLE has set
            yield f"SET ROLE {role}"
            conn.server = conn.server._replace(role=role)
    elif monotonic() >= conn.server.check_at:
        conn.server = yield from protocol.handshake(conn.settings, warn=False)
    if conn.server.separately:
        raise ConfigurationError(OF_CLUSTER)
    conn.undone = conn.lock = None
    conn.kept = False
    own = "@@GLOBAL.wait_timeout"
    # MySQL makes a decimal of the two, which the variable does not take.
    idle = own if limit is None else f"CAST(LEAST({own}, {max(1, ceil(limit))}) AS UNSIGNED)"
    ready = f"SET autocommit = 0, wait_timeout = {idle}"
    if identity is None:
        yield f"{ready}; START TRANSACTION; SAVEPOINT {SAVEPOINT}"
        return [(True,)]
    name = lock_name(identity)
    results = yield f"{ready}; SELECT {name}, GET_LOCK({name}, 0); START TRANSACTION"
    ((held, won),) = results[-1][1]
    conn.lock = held if won == 1 else None
    return [(won == 1,)]


def perform(conn: MysqlConnection, op: StoreOperation[Any]) -> Exchange:
    """The reply, as the only value of the only row. After an error nothing can be committed."""
    _demand_not_undone(conn)
    first = conn.server.clock if conn.single else ""
    yield from _allow_many(conn)
    steps = plan(op)
    asked = next(steps)
    while True:
        try:
            rows = yield from protocol.exchange(asked, within=True, first=first)
            first = ""
        except MysqlFault as fault:
            fault.broken = True
            if conn.soiled and conn.busy is None and fault.code not in _ENDS_ALL:
                yield from _demand_begun()  # after LOCK TABLES every statement fails
            raise
        try:
            asked = steps.send(rows)
        except StopIteration as done:
            return [(done.value,)]


def savepoint(conn: MysqlConnection) -> Exchange:
    yield f"SAVEPOINT {SAVEPOINT}"
    return []


def undo(conn: MysqlConnection) -> Exchange:
    """A rollback leaves a warning when it could not undo all. One to a savepoint does so for
    temporary tables as well, which harm nobody: that of the whole transaction tells them apart.
    MySQL warns of their creation even then, by another number."""
    _demand_not_undone(conn)
    yield from _demand_begun()
    if conn.warned:
        yield "ROLLBACK"
        conn.undone, conn.kept = ALL_UNDONE, conn.warned > 0
        if conn.kept:
            conn.kept = _has_kept(protocol.rows_of((yield "SHOW WARNINGS")))
    _demand_not_undone(conn)
    return []


def _has_kept(warnings: Rows) -> bool:
    return any(code == NOT_COMPLETE for _, code, _ in warnings)


def _demand_begun() -> Exchange:
    """Go back to the savepoint, which is gone when a handler's statement has committed."""
    try:
        yield f"ROLLBACK TO SAVEPOINT {SAVEPOINT}"
    except MysqlFault as fault:
        if fault.code == NO_SUCH_SAVEPOINT:
            raise ConfigurationError(ENDED) from None
        raise
    return []


def _demand_not_undone(conn: MysqlConnection) -> None:
    if conn.kept:
        raise ConfigurationError(KEPT)
    if conn.undone:
        raise StoreUnavailable(f"MySQL: {conn.undone}", applied=False)


def commit(conn: MysqlConnection, *, marked: bool) -> Exchange:
    """``marked``: there is a savepoint, which only the transaction that was begun can release.

    In one packet: where a statement fails, those after it are not carried out.
    """
    yield from _allow_many(conn)
    statements = [f"RELEASE SAVEPOINT {SAVEPOINT}"] if marked else []
    statements += ["COMMIT", "DO RELEASE_ALL_LOCKS()"]
    try:
        yield "; ".join(statements)
    except MysqlFault as fault:
        if fault.after < len(statements) - 1:
            refusal = refused_commit(fault)
            raise refusal from refusal.__cause__
        conn.busy = conn.busy or ""  # it is committed; the locks end with the connection
    conn.lock = None
    return []


def roll_back(conn: MysqlConnection) -> Exchange:
    if conn.lock is not None or in_transaction(conn):
        yield from _allow_many(conn)
        yield "ROLLBACK; DO RELEASE_ALL_LOCKS()"
        conn.lock = None
    return []


def wipe(conn: MysqlConnection) -> Exchange:
    """Whoever uses it next resets it (`begin`); its locks are released already."""
    conn.soiled = True
    yield from ()
    return []


def ascertain(conn: MysqlConnection, identity: Identity, deadline: float) -> Exchange:
    """Wait until nobody has the identity's lock, nor that of its row, then read."""
    seconds = max(0.0, (deadline - monotonic()) * 0.9)
    results = yield f"SELECT GET_LOCK({lock_name(identity)}, {seconds:.3f})"
    if results[-1][1][0][0] != 1:
        raise MysqlFault("the transaction in doubt is still under way")
    # A server that has restarted knows the locks of rows, but no longer those of connections.
    yield f"SELECT 1 FROM semel_record WHERE identity = {literal(identity)} FOR UPDATE"  # noqa: S608
    return (yield from perform(conn, Read(identity)))


def _allow_many(conn: MysqlConnection) -> Exchange:
    """Several statements in a packet are not for handlers: what somebody has smuggled into their
    texts must not end with a statement of its own."""
    if conn.single:
        yield _MANY_STATEMENTS
        conn.single = False
    return []


def refused_commit(fault: StatementFault) -> SemelError:
    """What became of a COMMIT that was not answered with success."""
    if fault.code == NO_SUCH_SAVEPOINT:
        return ConfigurationError(ENDED)
    if fault.doubt:
        return StoreUnavailable(f"MySQL: {fault}, at COMMIT", applied=None)
    return StoreUnavailable(f"MySQL refused the commit: {fault} ({fault.code})", applied=False)


# ── the connection, and how the transaction stands ────────────────────────────────────────────────


def connection(
    conn: MysqlConnection, turn: ConnectionTurn, awaited: bool
) -> MysqlHandlerConnection | AsyncMysqlHandlerConnection:
    from semel.stores.mysql import handler_connections as made

    conn.soiled = True
    blocking = made.MysqlHandlerConnection(conn, turn)
    return made.AsyncMysqlHandlerConnection(blocking, conn.threads) if awaited else blocking


def before_handler(conn: MysqlConnection, statement: str | bytes) -> None:
    """A handler is about to send a statement, which may take as long as it likes."""
    if conn.undone:
        raise MysqlFault(conn.undone)
    deadline = monotonic() + conn.settings.timeout
    if not conn.single:
        conn.ask(_ONE_STATEMENT, deadline)
        conn.single = True
    conn.expect(statement, float("inf"))


def after_handler(conn: MysqlConnection, error: Exception | None) -> None:
    """A handler's statement is answered. An error does not tell what has become of the transaction;
    the answer to the next statement does."""
    if error is None:
        conn.busy = None
        return
    conn.answered(error)
    if conn.busy is not None:
        return
    deadline = monotonic() + conn.settings.timeout
    may_end_all = error_code(error) in _ENDS_ALL
    warnings: Rows = []
    with suppress(MysqlFault):
        if may_end_all:
            warnings = protocol.rows_of(conn.ask("SHOW WARNINGS", deadline))
        conn.ask("DO 0", deadline)
    if may_end_all and not in_transaction(conn):
        conn.undone = _UNDONE.format(error.args[-1])
        conn.kept = _has_kept(warnings)


def in_transaction(conn: MysqlConnection) -> bool:
    return bool(conn.connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)


def take_back(conn: MysqlConnection) -> None:
    """What a handler has is a connection of its own."""


def standing(conn: MysqlConnection) -> Standing:
    if not usable(conn):
        return Standing.LOST
    if conn.undone:
        return Standing.FAILED
    return Standing.OPEN if in_transaction(conn) else Standing.ENDED


def usable(conn: MysqlConnection) -> bool:
    sock = conn.connection._sock
    return conn.busy is None and sock is not None and sock.fileno() != -1


def cancel(conn: MysqlConnection) -> None:
    """A server that is busy does not notice that its client is gone. A commit is left to its end:
    one that waits for a replica is done when it is interrupted, but not safe."""
    if conn.lock is not None and conn.busy is not None and "COMMIT" not in str(conn.busy):
        kill(conn.settings, conn.lock, conn.connection.thread_id())


def kill(settings: Any, lock: str, number: int) -> None:
    """Let the server end the connection of that number, if it has that lock: after a failover the
    number may be another's. In a thread, because nobody waits for it."""
    Thread(target=_kill, args=(settings, lock, number), daemon=True).start()


def _kill(settings: Any, lock: str, number: int) -> None:
    from semel.stores.mysql.pool_sync import connect

    with suppress(Exception), closing(connect(settings)) as other, other.cursor() as cursor:
        cursor.execute(f"SELECT IS_USED_LOCK('{lock}') = {number}")
        if cursor.fetchone() == (1,):
            cursor.execute(f"KILL {number}")


def hang_up(conn: MysqlConnection) -> None:
    cancel(conn)
    sock = conn.connection._sock
    with suppress(OSError):
        if sock is not None:
            # Not that of TLS, which would change what another thread is using.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
