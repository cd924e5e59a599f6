"""What the first version leaves in each store, in files that people can read: ``first/``.

``python -m tests.proof.versions.frozen`` writes them, with the code that is there. Once a version
is released its files stay as they are: a later one gets a folder of its own. Times are written as
distances from the moment, ``{now+60000000}``, for leases and retention run on.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from semel.stores import open_backend
from semel.stores.base import system_clock
from semel.stores.redis.layout import HEAD, RANK
from tests.proof.versions import first
from tests.servers import MariadbServer, PostgresServer, ValkeyServer
from tests.stores.harness import TABLES, TIMES, database_of

FOLDER = Path(__file__).parent / "first"
MIGRATIONS = Path(__file__).parents[3] / "src/semel/stores/sql/migrations"
PREFIX = "frozen"
LATER = 300_000_000
"""Leases are past when somebody looks, and retention is not."""
_COMMENT = re.compile(r"--[^\n]*")
_TIME = re.compile(r"\{now([+-]\d+)\}")

Execute = Callable[[str], Sequence[Sequence[Any]]]
Ask = Callable[..., Any]


# ── databases ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def executing(dialect: str, server: Any) -> Iterator[tuple[str, Execute]]:
    """An empty database: its URL, and what executes there."""
    if dialect == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "first.db")
            with closing(sqlite3.connect(path, isolation_level=None)) as file:
                yield f"sqlite:///{path}", lambda text: file.execute(text).fetchall()
    elif dialect == "postgresql":
        with server.database() as url, psycopg.connect(url, autocommit=True) as connection:
            yield url, lambda text: _rows(connection.execute(text.encode()))
    else:
        with server.database() as url, server.connect(database_of(url)) as connection:

            def execute(text: str) -> Sequence[Sequence[Any]]:
                with connection.cursor() as cursor:
                    cursor.execute(text)
                    found: Sequence[Sequence[Any]] = cursor.fetchall()
                    return found

            yield url, execute


def _rows(cursor: psycopg.Cursor[Any]) -> Sequence[Sequence[Any]]:
    return cursor.fetchall() if cursor.description else []


def frozen_rows(dialect: str, execute: Execute, now: int) -> Iterator[str]:
    """All rows, one statement each, in their order."""
    for table in (*TABLES, "semel_schema"):
        columns = _columns(dialect, execute, table)
        quote = "`" if dialect == "mysql" else '"'
        names = ", ".join(f"{quote}{column}{quote}" for column in columns)
        times = {*TIMES.get(table, "").split(), "at", "applied_at"}
        for row in execute(f"SELECT {names} FROM {table} ORDER BY 1"):
            values = [
                f"{{now{value - now:+}}}" if column in times and value else _literal(dialect, value)
                for column, value in zip(columns, row, strict=True)
            ]
            yield f"INSERT INTO {table} ({names}) VALUES ({', '.join(values)});"


def _columns(dialect: str, execute: Execute, table: str) -> list[str]:
    if dialect == "sqlite":
        return [row[1] for row in execute(f"PRAGMA table_info({table})")]
    schema = "current_schema()" if dialect == "postgresql" else "DATABASE()"
    # What PostgreSQL counts by itself it has to go on counting.
    given = "AND is_identity = 'NO' " if dialect == "postgresql" else ""
    return [
        row[0]
        for row in execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = "
            f"'{table}' AND table_schema = {schema} {given}ORDER BY ordinal_position"
        )
    ]


def _literal(dialect: str, value: Any) -> str:
    if value is None or isinstance(value, int):
        return "NULL" if value is None else str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    text = bytes(value).hex()
    return f"decode('{text}', 'hex')" if dialect == "postgresql" else f"x'{text}'"


def thaw_rows(dialect: str, execute: Execute, folder: Path = FOLDER) -> None:
    for name in (f"{dialect}.schema.sql", f"{dialect}.rows.sql"):
        text = (
            _COMMENT.sub("", (folder / name).read_text())
            if "schema" in name
            else (folder / name).read_text()
        )
        for statement in re.split(r";\s*\n", at_this_moment(text)):
            if statement.strip():
                execute(statement)


def at_this_moment(text: str) -> str:
    now = system_clock()
    return _TIME.sub(lambda found: str(now + int(found[1])), text)


# ── Redis ─────────────────────────────────────────────────────────────────────────────────────────

_SLOTS = range(4, 8)
"""Where the head of a record has times."""
_FIELDS = {"abandon_at"} | {column for columns in TIMES.values() for column in columns.split()}


def frozen_keys(ask: Ask, now: int) -> Iterator[str]:
    """The command that makes each key, as a line of JSON, in Latin-1."""
    for key in sorted(ask("KEYS", f"{PREFIX}:*")):
        kind = ask("TYPE", key)
        if kind == b"hash":
            yield _line("HSET", key, *_fields(ask("HGETALL", key), now))
        elif kind == b"string":
            yield _line(*_record(key, ask("GET", key), now))
        elif key.endswith(b":due"):
            found = ask("ZRANGE", key, 0, -1, "WITHSCORES")
            for member, score in zip(found[::2], found[1::2], strict=True):
                yield _line("DUE", key, *_due(int(float(score)), now), member)
        elif kind == b"zset":
            found = ask("ZRANGE", key, 0, -1, "WITHSCORES")
            pairs = zip(found[1::2], found[::2], strict=True)
            timed = not key.endswith(b":made")
            for score, member in pairs:
                yield _line("ZADD", key, _moment(score, now) if timed else score, member)
        elif kind == b"stream":
            for _, fields in ask("XRANGE", key, "-", "+"):
                yield _line("XADD", key, "*", *fields)
        else:
            raise AssertionError(f"{key!r} is a {kind!r}")


def _fields(found: Sequence[bytes], now: int) -> Iterator[bytes]:
    for name, value in zip(found[::2], found[1::2], strict=True):
        yield name
        yield _moment(value, now) if name.decode() in _FIELDS else value


def _record(key: bytes, data: bytes, now: int) -> Iterator[str | bytes]:
    """The head of a record in words, its times as distances; then the rest as it is."""
    yield from ("RECORD", key)
    for place, part in enumerate(HEAD.unpack_from(data)):
        if isinstance(part, bytes):
            yield part
        else:
            yield _moment(b"%d" % part, now) if place in _SLOTS and part else str(part)
    yield data[HEAD.size :]


def _due(score: int, now: int) -> tuple[str, bytes]:
    number, at = divmod(score, RANK)
    return str(number), b"never" if at == RANK - 1 else _moment(b"%d" % (at * 1000), now)


def _moment(value: bytes, now: int) -> bytes:
    return value if value in (b"inf", b"") else b"{now%+d}" % (int(float(value)) - now)


def _line(*words: str | bytes) -> str:
    said = [word if isinstance(word, str) else word.decode("latin-1") for word in words]
    return json.dumps(said)


def _packed(words: Sequence[bytes]) -> bytes:
    *parts, rest = words
    return (
        HEAD.pack(*(part if place == 3 else int(part) for place, part in enumerate(parts))) + rest
    )


def _score(number: bytes, at: bytes) -> int:
    return int(number) * RANK + (RANK - 1 if at == b"never" else -(-int(at) // 1000))


def thaw_keys(ask: Ask, prefix: str, folder: Path = FOLDER) -> None:
    for line in (folder / "redis.jsonl").read_text().splitlines():
        command, key, *words = json.loads(line)
        given = [at_this_moment(word).encode("latin-1") for word in words]
        if command == "RECORD":
            command, given = "SET", [_packed(given)]
        elif command == "DUE":
            command, given = "ZADD", [b"%d" % _score(*given[:2]), given[2]]
        ask(command, key.replace(PREFIX, prefix, 1).encode("latin-1"), *given)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


def freeze(dialect: str, server: Any) -> None:
    with executing(dialect, server) as (url, execute):
        backend = open_backend(url)
        backend.migrate()
        first.leave_behind(backend.blocking(), outbox=True)
        backend.close()
        lines = list(frozen_rows(dialect, execute, system_clock() + LATER))
    (FOLDER / f"{dialect}.rows.sql").write_text("\n".join(lines) + "\n")
    schema = (MIGRATIONS / dialect / "0001_records.sql").read_text()
    (FOLDER / f"{dialect}.schema.sql").write_text(schema)


def freeze_redis(server: ValkeyServer) -> None:
    backend = open_backend(server.socket_url, prefix=PREFIX)
    first.leave_behind(backend.blocking(), outbox=False)
    backend.close()
    lines = list(frozen_keys(server.ask, system_clock() + LATER))
    (FOLDER / "redis.jsonl").write_text("\n".join(lines) + "\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with PostgresServer() as postgres, MariadbServer() as mariadb, ValkeyServer() as valkey:
        for dialect, server in (("sqlite", None), ("postgresql", postgres), ("mysql", mariadb)):
            freeze(dialect, server)
        freeze_redis(valkey)


if __name__ == "__main__":
    main()
