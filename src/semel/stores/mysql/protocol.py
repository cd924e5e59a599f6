"""What is said to the server and what its answers mean, without I/O: shared by both colours.

An exchange yields the text of one packet, which is one round trip however many statements are in
it, and is sent the result sets. A `Fault` is thrown in where the packet failed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from json import loads
from math import ceil
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

from semel.errors import ConfigurationError
from semel.log import log
from semel.stores.base import CHECK_AGAIN
from semel.stores.mysql.errors import DUPLICATE, TOO_LARGE, WAITED, Fault
from semel.stores.mysql.literals import rendered
from semel.stores.mysql.settings import Settings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import require_current, standing
from semel.stores.sql.plans import Rows, Statement

DIALECT: Final = "mysql"

ResultSet: TypeAlias = tuple[Sequence[str], Rows]
"""The names of the columns, and the rows."""

Exchange: TypeAlias = Generator[str, Sequence[ResultSet], Rows]

INSERTS: Final = frozenset(("claim", "accept", "register", "agree", "enqueue", "note"))
"""One statement writes, and a rival who was first is an error: no row, and nothing to undo."""

MANY: Final = frozenset(("claim_many", "complete_many", "renew_many"))
"""One statement writes, for a batch, which waits for nobody: one of many is not to hold up all."""

_TEXTS: Final = frozenset(
    (
        *("tenant", "resource", "recipe", "previous", "key", "name", "order_key", "source"),
        *("event", "subject", "application", "route"),
    )
)
"""Columns of text that is kept as bytes, for the sake of comparing it exactly."""

BEGIN, COMMIT = "START TRANSACTION", "COMMIT"
HURRY, PATIENCE = (f"SET innodb_lock_wait_timeout = @semel_{how}" for how in ("hurry", "patience"))

RIVALS: Final = 3
"""How often rivals may come first before a batch gives up being one."""

CATCH_UP: Final = "SET SESSION wsrep_sync_wait = 3"
"""A node of a Galera cluster has received what others acknowledged, but may not have applied it:
without this, a completion there would be told that its claim is not there. Inserts need not wait,
for they are certified."""

STRICT: Final = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
LARGEST: Final = 16 * 1024 * 1024
"""What a policy lets an answer be unless it says otherwise."""


def exchange(statement: Statement, *, apart: bool = False) -> Exchange:
    """One statement of a plan, as one step; ``apart``: no transaction in one packet (`Manners`)."""
    parts = dialect(DIALECT).queries[statement.name].parts
    params = _params(statement.params)
    try:
        if statement.name in MANY:
            return (yield from _hurried(parts, params))
        if ":picked" in parts[-1]:
            return (yield from _picking(parts, params, apart=apart))
        if len(parts) == 1 or statement.name in INSERTS:
            return told((yield packet(parts, params, "", "")))
        return told((yield from _sent(parts, params, BEGIN, COMMIT, apart=apart)))
    except Fault as fault:
        if fault.code == DUPLICATE and statement.name in INSERTS:
            return []
        if statement.name in INSERTS and fault.after > _first_write(parts):
            fault.doubt = True  # what failed is the look at what had been done
        raise


def _first_write(parts: Sequence[str]) -> int:
    return next(place for place, part in enumerate(parts) if not part.startswith("SELECT"))


def _sent(
    parts: Sequence[str], params: Mapping[str, object], begin: str, end: str, *, apart: bool
) -> Generator[str, Sequence[ResultSet], list[ResultSet]]:
    """Part of a transaction, or all of it; each statement by itself where that is needed."""
    texts = _texts(parts, params, begin, end)
    results: list[ResultSet] = []
    for text in texts if apart else ["; ".join(texts)]:
        results += yield text
    return results


def _picking(parts: Sequence[str], params: dict[str, object], *, apart: bool) -> Exchange:
    """The first part locks rows and gives their keys, for the others to name."""
    picked = told((yield from _sent(parts[:1], params, BEGIN, "", apart=apart)))
    if not picked:
        yield COMMIT
        return []
    params["picked"] = [tuple(row) for row in picked]
    return told((yield from _sent(parts[1:], params, "", COMMIT, apart=apart)))


def _hurried(parts: Sequence[str], params: dict[str, object]) -> Exchange:
    """Asked again where a rival was first: the look sees it now. No row: each goes alone."""
    text = packet(parts, params, HURRY, PATIENCE)
    for _ in range(RIVALS):
        try:
            return told((yield text))
        except Fault as fault:
            if fault.after > 1 + _first_write(parts):
                fault.doubt = fault.broken = True  # it was done; and the session is in a hurry
                raise
            if fault.broken and fault.code != WAITED:
                raise
            yield PATIENCE
            fault.broken = False  # what waited, one statement, was undone
            if fault.code != DUPLICATE:
                raise
    return []


def packet(parts: Iterable[str], params: Mapping[str, object], begin: str, end: str) -> str:
    return "; ".join(_texts(parts, params, begin, end))


def _texts(parts: Iterable[str], params: Mapping[str, object], begin: str, end: str) -> list[str]:
    texts = (begin, *(rendered(part, params) for part in parts), end)
    return [text for text in texts if text]


def told(results: Sequence[ResultSet]) -> Rows:
    """The rows of the one statement that gives some."""
    if not results:
        return []
    names, rows = results[-1]
    texts = [place for place, name in enumerate(names) if name in _TEXTS]
    return [_with_texts(row, texts) for row in rows] if texts else rows


def _with_texts(row: Sequence[Any], texts: Sequence[int]) -> list[Any]:
    cells = list(row)
    for place in texts:
        if isinstance(cells[place], bytes):
            cells[place] = cells[place].decode("utf-8", "replace")
    return cells


def _params(params: Mapping[str, object]) -> dict[str, object]:
    """The names of ``{among}`` come as JSON, and are listed here."""
    given = dict(params)
    if isinstance(wanted := given.get("names"), str):
        given["names"] = list(loads(wanted))
    return given


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


class Manners(NamedTuple):
    """How a server wants to be spoken to."""

    most: int
    """The length of the longest packet."""
    check_at: float
    """When it is to be greeted again, by the monotonic clock."""
    apart: bool
    """A transaction is not sent in one packet. A Galera node that undoes it between two of its
    statements, for another node was first, tells so with the next *packet*: the rest of this one
    goes on as if nothing had been, and its COMMIT is acknowledged."""


def greet(settings: Settings, *, warn: bool) -> Generator[str, Sequence[ResultSet], Manners]:
    """Set the session, and make sure that this is a primary that keeps what it acknowledges.

    ``warn``: say also what can be put up with.
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
            "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'",
            f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in _SEEN)}",
        )
    )
    of_cluster = bool(told(results[:1])) and _on(told(results[:1])[0][1])
    if of_cluster:
        yield CATCH_UP
    rows = told(results)
    seen: dict[str, Any] = dict(zip(_SEEN, rows[0], strict=True))
    _check_version(str(seen["version"]))
    if _on(seen["read_only"]):
        raise Fault("this server is read-only, semel needs the primary")
    _check_log(seen)
    _check_durable(seen, settings.durable, warn=warn)
    most = int(seen["max_allowed_packet"])
    if warn:
        _check_packet(most)
    return Manners(most, monotonic() + CHECK_AGAIN, apart=of_cluster)


def check_schema() -> Exchange:
    """Refuse to work with a schema that is not for this program."""
    steps = standing()
    asked = next(steps)
    while True:
        rows = yield from exchange(asked)
        try:
            asked = steps.send(rows)
        except StopIteration as found:
            require_current(dialect(DIALECT), found.value)
            return rows


def _check_version(version: str) -> None:
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    number = tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdecimal())
    if number < OLDEST[kind]:
        oldest = ".".join(map(str, OLDEST[kind]))
        raise ConfigurationError(f"this is {kind} {version}, semel needs {oldest} or newer")


def _check_log(seen: Mapping[str, object]) -> None:
    if _on(seen["log_bin"]) and seen["binlog_format"] == "STATEMENT":
        raise ConfigurationError(
            "binlog_format is STATEMENT, which cannot log what READ COMMITTED does: set it to ROW "
            "or MIXED"
        )


def _check_durable(seen: Mapping[str, object], durable: bool, *, warn: bool) -> None:
    flush, sync = seen["innodb_flush_log_at_trx_commit"], seen["sync_binlog"]
    wrong = f"innodb_flush_log_at_trx_commit is {flush}" if str(flush) != "1" else ""
    if not wrong and _on(seen["log_bin"]) and str(sync) != "1":
        wrong = f"sync_binlog is {sync}"
    if not wrong:
        return
    lost = f"{wrong}: acknowledged keys would be lost in a crash or power cut; set it to 1"
    if durable:
        raise Fault(f"{lost}, or say durable=off to put up with it")
    if warn:
        log.warning("%s", lost)


def obstacle(text: str, most: int, deadline: float) -> Fault | None:
    """Why ``text`` is not sent at all: nothing is in doubt then."""
    if monotonic() >= deadline:
        return Fault("no time was left")
    if len(text) <= most:
        return None
    return Fault(
        f"{len(text)} bytes are more than the server's max_allowed_packet, {most}",
        code=TOO_LARGE,
        broken=False,
    )


def _check_packet(most: int) -> None:
    needed = LARGEST * 4 // 3 + 64 * 1024
    if most < needed:
        log.warning(
            "max_allowed_packet is %d: answers above %d bytes cannot be kept; set it to 64M, or "
            "max_response_body to less",
            most,
            (most - 64 * 1024) * 3 // 4,
        )


def _on(value: object) -> bool:
    return str(value).upper() not in ("0", "OFF", "NONE", "")
