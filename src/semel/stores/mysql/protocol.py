"""Packets to the server and what its answers mean, without I/O: shared by both colours.

An exchange is a generator. It yields the text of one packet, which is one round trip however many
statements are in it, and is sent the result sets. A packet that fails throws in a `MysqlFault`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from json import loads
from math import ceil
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

from semel.errors import ConfigurationError
from semel.log import log
from semel.stores.base import CHECK_AGAIN
from semel.stores.mysql.errors import DUPLICATE, TOO_LARGE, WAITED, MysqlFault
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.mysql.values import rendered
from semel.stores.sql.dialect import dialect
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement

DIALECT: Final = "mysql"

ResultSet: TypeAlias = tuple[Sequence[str], Rows]
"""The names of the columns, and the rows."""

Exchange: TypeAlias = Generator[Any, Sequence[ResultSet], Rows]
"""A transaction's may also yield a command that is no statement, as bytes (`mysql.transaction`)."""

INSERTS: Final = frozenset(("claim", "accept", "register", "agree", "enqueue", "note"))
"""Queries with one statement that writes. A rival that was first is an error: no row, no undo."""

MANY: Final = frozenset(("claim_many", "complete_many", "renew_many"))
"""Queries for a batch: they wait for no lock, because one locked row must not hold up all."""

_TEXTS: Final = frozenset(
    (
        *("tenant", "resource", "recipe", "previous", "key", "name", "order_key", "source"),
        *("event", "subject", "application", "route"),
    )
)
"""Columns of text that is stored as bytes, so that it is compared exactly."""

BEGIN, COMMIT = "START TRANSACTION", "COMMIT"
NO_WAIT: Final = "SET innodb_lock_wait_timeout = @semel_hurry"
NORMAL_WAIT: Final = "SET innodb_lock_wait_timeout = @semel_patience"

RIVALS: Final = 3
"""How often rivals may come first before the operations of a batch go alone."""

CATCH_UP: Final = "SET SESSION wsrep_sync_wait = 3"
"""A node of a Galera cluster has received what others acknowledged, but may not have applied it:
without this, a completion there might not find its claim. Inserts need not wait: they are
certified."""

STRICT: Final = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
LARGEST: Final = 16 * 1024 * 1024
"""The default limit of a policy for an answer."""


def exchange(
    statement: Statement, *, separately: bool = False, within: bool = False, first: str = ""
) -> Exchange:
    """One statement of a plan, as one step. ``separately``: see `ServerProfile`. ``within``: in a
    transaction that is open, and stays so. ``first``: what is sent there before it."""
    begin, commit = (first, "") if within else (BEGIN, COMMIT)
    parts = dialect(DIALECT).queries[statement.name].parts
    params = dict(statement.params)
    if isinstance(wanted := params.get("names"), str):  # of {among}: JSON, listed here
        params["names"] = list(loads(wanted))
    try:
        if statement.name in MANY:
            return (yield from _without_waiting(parts, params))
        send = partial(_send_parts, params=params, separately=separately)
        if within and statement.name in INSERTS:
            return (yield from send(parts, first, ""))
        if len(parts) == 1 or statement.name in INSERTS:
            return rows_of((yield packet(parts, params, first, "")))
        if ":picked" not in parts[-1]:
            return (yield from send(parts, begin, commit))
        # The first part locks rows and returns their keys, which the other parts use.
        picked = yield from send(parts[:1], begin, "")
        if not picked:
            if commit:
                yield commit
            return []
        params["picked"] = [tuple(row) for row in picked]
        return (yield from send(parts[1:], "", commit))
    except MysqlFault as fault:
        if fault.code == DUPLICATE and statement.name in INSERTS:
            return []
        if statement.name in INSERTS and fault.after > _first_write(parts):
            fault.doubt = True  # the write was done, the read after it failed
        raise


def _first_write(parts: Sequence[str]) -> int:
    return next(place for place, part in enumerate(parts) if not part.startswith("SELECT"))


def _send_parts(
    parts: Sequence[str], begin: str, end: str, *, params: Mapping[str, object], separately: bool
) -> Exchange:
    """Send a transaction, or a part of it; each statement in its own packet if ``separately``."""
    texts = _texts(parts, params, begin, end)
    results: list[ResultSet] = []
    for text in texts if separately else ["; ".join(texts)]:
        results += yield text
    return rows_of(results)


def _without_waiting(parts: Sequence[str], params: dict[str, object]) -> Exchange:
    """Sent again where a rival was first: the read sees it now. No row: each goes alone."""
    text = packet(parts, params, NO_WAIT, NORMAL_WAIT)
    for _ in range(RIVALS):
        try:
            return rows_of((yield text))
        except MysqlFault as fault:
            if fault.after > 1 + _first_write(parts):
                # It was done; and the session still waits for no lock.
                fault.doubt = fault.broken = True
                raise
            if fault.broken and fault.code != WAITED:
                raise
            yield NORMAL_WAIT
            fault.broken = False  # the one statement that waited was undone
            if fault.code != DUPLICATE:
                raise
    return []


def packet(parts: Iterable[str], params: Mapping[str, object], begin: str, end: str) -> str:
    return "; ".join(_texts(parts, params, begin, end))


def _texts(parts: Iterable[str], params: Mapping[str, object], begin: str, end: str) -> list[str]:
    texts = (begin, *(rendered(part, params) for part in parts), end)
    return [text for text in texts if text]


def rows_of(results: Sequence[ResultSet]) -> Rows:
    """The rows of the last statement that returned some, its texts decoded."""
    if not results:
        return []
    names, rows = results[-1]
    texts = [place for place, name in enumerate(names) if name in _TEXTS]
    if not texts:
        return rows
    decoded = [list(row) for row in rows]
    for cells in decoded:
        for place in texts:
            if isinstance(cells[place], bytes):
                cells[place] = cells[place].decode("utf-8", "replace")
    return decoded


# ── the beginning of a connection ─────────────────────────────────────────────────────────────────

_SEEN: Final = (
    "version",
    "read_only",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "binlog_format",
    "max_allowed_packet",
)
OLDEST: Final = {"MariaDB": (10, 6), "MySQL": (8, 0, 16)}


class ServerProfile(NamedTuple):
    """What the handshake found out about a server."""

    max_packet: int
    """``max_allowed_packet``."""
    check_at: float
    """When the next handshake is due, by the monotonic clock."""
    separately: bool
    """Each statement of a transaction has its own packet. A Galera node that undoes a transaction
    between two statements, because another node was first, reports it with the next *packet*: the
    rest of this one goes on as if nothing had happened, and its COMMIT is acknowledged."""
    role: str = "NONE"
    """Of the session, as SET ROLE takes it."""
    clock: str = "SET sql_select_limit = DEFAULT, timestamp = DEFAULT"
    """Undoes what a handler may have set and what changes the answers to semel's statements."""


def handshake(
    settings: MysqlSettings, *, warn: bool
) -> Generator[str, Sequence[ResultSet], ServerProfile]:
    """Set up the session, and check that this is a primary that keeps what it acknowledges.

    ``warn``: log also what is bad but tolerated.
    """
    patience = max(1, ceil(settings.timeout) - 1)
    results = yield "; ".join(
        (
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            f"SET SESSION sql_mode = '{STRICT}', time_zone = '+00:00', autocommit = 1, "
            f"innodb_lock_wait_timeout = {patience}",
            # MySQL knows no less than a second.
            f"SET @semel_patience = {patience}, "
            "@semel_hurry = IF(LOWER(@@version) LIKE '%mariadb%', 0, 1)",
            "SHOW GLOBAL VARIABLES WHERE variable_name IN ('wsrep_on', 'secure_timestamp')",
            f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in _SEEN)}, CURRENT_ROLE()",
        )
    )
    of_some: dict[str, Any] = {str(name): value for name, value in rows_of(results[:1])}
    of_cluster = _on(of_some.get("wsrep_on", "OFF"))
    if of_cluster:
        yield CATCH_UP
    rows = rows_of(results)
    seen: dict[str, Any] = dict(zip((*_SEEN, "role"), rows[0], strict=True))
    _check_version(str(seen["version"]))
    if _on(seen["read_only"]):
        raise MysqlFault("this server is read-only, semel needs the primary")
    _check_durable(seen, settings.durable, warn=warn)
    max_packet = int(seen["max_allowed_packet"])
    needed = LARGEST * 4 // 3 + 64 * 1024
    if warn and max_packet < needed:
        log.warning(
            "max_allowed_packet is %d: answers above %d bytes cannot be kept; set it to 64M, or "
            "max_response_body to less",
            max_packet,
            (max_packet - 64 * 1024) * 3 // 4,
        )
    profile = ServerProfile(max_packet, monotonic() + CHECK_AGAIN, separately=of_cluster)
    role = seen["role"] or "NONE"
    if role != "NONE" and "mariadb" in str(seen["version"]).lower():
        role = f"`{role.replace('`', '``')}`"  # MySQL quotes them by itself
    if _on(of_some.get("secure_timestamp", "NO")):  # then nobody can have set it
        return profile._replace(role=role, clock="SET sql_select_limit = DEFAULT")
    return profile._replace(role=role)


def _check_version(version: str) -> None:
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    number = tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdecimal())
    if number < OLDEST[kind]:
        oldest = ".".join(map(str, OLDEST[kind]))
        raise ConfigurationError(f"this is {kind} {version}, semel needs {oldest} or newer")


def _check_durable(seen: Mapping[str, object], durable: bool, *, warn: bool) -> None:
    if _on(seen["log_bin"]) and seen["binlog_format"] == "STATEMENT":
        raise ConfigurationError(
            "binlog_format is STATEMENT, which cannot log what READ COMMITTED does: set it to ROW "
            "or MIXED"
        )
    flush, sync = seen["innodb_flush_log_at_trx_commit"], seen["sync_binlog"]
    wrong = f"innodb_flush_log_at_trx_commit is {flush}" if str(flush) != "1" else ""
    if not wrong and _on(seen["log_bin"]) and str(sync) != "1":
        wrong = f"sync_binlog is {sync}"
    if not wrong:
        return
    lost = f"{wrong}: acknowledged keys would be lost in a crash or power cut; set it to 1"
    if durable:
        raise MysqlFault(f"{lost}, or say durable=off to put up with it")
    if warn:
        log.warning("%s", lost)


def late(after: int = 0) -> MysqlFault:
    """The fault for an answer that did not come in time. ``after``: see `MysqlFault`."""
    fault = MysqlFault("no answer within the time limit", doubt=True)
    fault.after = after
    return fault


def unsendable(text: str | bytes, max_packet: int, deadline: float) -> MysqlFault | None:
    """Why ``text`` is not sent at all; then there is no doubt."""
    if monotonic() >= deadline:
        return MysqlFault("no time was left")
    if len(text) <= max_packet:
        return None
    return MysqlFault(
        f"{len(text)} bytes are more than the server's max_allowed_packet, {max_packet}",
        code=TOO_LARGE,
        broken=False,
    )


def _on(value: object) -> bool:
    return str(value).upper() not in ("0", "OFF", "NO", "NONE", "")
