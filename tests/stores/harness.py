"""A backend under test: one way to ask, to race and to travel in time, whatever its colour."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from semel.core.records import DUTY_NUMBERS, Identity, Micros
from semel.stores import open_backend
from semel.stores.memory import MemoryBackend
from semel.stores.redis.commands import Keys
from semel.stores.redis.layout import RANK
from semel.stores.sqlite import SqliteBackend
from semel.testing.contract.harness import Harness as Harness
from semel.testing.contract.harness import Kept
from tests.docs.pages import page
from tests.servers import MariadbServer, PostgresServer, ValkeyCluster, ValkeyServer
from tests.waiting import PATIENCE

R = TypeVar("R")
T = TypeVar("T")

TIMES = {
    "semel_record": "created_at leased_until forget_at due_at abandon_at retired_at",
    "semel_recipe": "alive_until",
    "semel_effect": "created_at due_at leased_until delivered_at dead_at",
    "semel_event": "forget_at",
    "semel_leader": "leased_until",
    "semel_notable": "at forget_at",
    "semel_worker": "seen_at until",
}
"""Every column that holds a time."""
TABLES = (*TIMES, "semel_terms", "semel_audit")

START: Micros = 1_700_000_000_000_000
SLACK: Micros = 30_000_000
"""How far times may be off, where the clock is not ours: half of what any of them is apart, and so
much that a test may stand still for a while."""


class FakeClock:
    """A clock that only moves when told to."""

    def __init__(self, now: Micros = START) -> None:
        self.now = now

    def __call__(self) -> Micros:
        return self.now

    def travel(self, duration: Micros) -> None:
        self.now += duration


@contextmanager
def memory(colour: str, folder: Path, postgres: Callable[[], PostgresServer]) -> Iterator[Harness]:
    clock = FakeClock()
    yield from _run(Harness(MemoryBackend(clock=clock), clock.travel, 0, colour))


@contextmanager
def sqlite(colour: str, folder: Path, postgres: Callable[[], PostgresServer]) -> Iterator[Harness]:
    clock = FakeClock()
    backend = SqliteBackend(f"sqlite:///{folder}/records.db", timeout=PATIENCE, clock=clock)
    text = KEPT.format("?")
    file = folder / "records.db"
    with closing(sqlite3.connect(file, PATIENCE, isolation_level=None)) as connection:

        def kept(identity: Identity) -> Kept | None:
            return _kept(connection.execute(text, (identity,)).fetchone())

        def clear() -> None:
            if there := [name for name in TABLES if name in tables()]:
                connection.executescript(emptying(there))

        def tables() -> set[str]:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {name for (name,) in names}

        yield from _run(Harness(backend, clock.travel, 0, colour, kept, clear))


def emptying(tables: Iterable[str]) -> str:
    """Everything in one step, which is one round trip."""
    return "; ".join(["BEGIN", *(f"DELETE FROM {table}" for table in tables), "COMMIT"])


KEPT = "SELECT duty, due_at FROM semel_record WHERE identity = {}"
_DUTIES = {number: duty for duty, number in DUTY_NUMBERS.items()}


def _kept(row: tuple[Any, ...] | None) -> Kept | None:
    return None if row is None else Kept(_DUTIES[row[0]], row[1], renewals_move_it=False)


@contextmanager
def postgresql(
    colour: str, folder: Path, postgres: Callable[[], PostgresServer]
) -> Iterator[Harness]:
    with postgres().prepared(migrate, TABLES) as url:
        yield from _postgresql(url, colour)


@contextmanager
def partitioned(
    colour: str, folder: Path, postgres: Callable[[], PostgresServer]
) -> Iterator[Harness]:
    """PostgreSQL, its records in partitions, made as the guide says."""
    with postgres().prepared(divide, TABLES) as url:
        yield from _postgresql(url, colour)


def migrate(url: str) -> None:
    open_backend(url).migrate()


def divide(url: str) -> None:
    migrate(url)
    guide = page("docs/howto/stores/postgresql-cluster.md")
    (text,) = [block.text for block in guide.blocks if "partitions" in block.marks]
    with psycopg.connect(url) as connection:
        connection.execute(text.encode())


def _postgresql(url: str, colour: str) -> Iterator[Harness]:
    with psycopg.connect(url, autocommit=True) as connection:

        def travel(duration: Micros) -> None:
            """The server's clock cannot be moved, so its rows are moved into the past."""
            connection.execute("; ".join(earlier(duration)).encode())

        def kept(identity: Identity) -> Kept | None:
            text = KEPT.format("%s").encode()
            return _kept(connection.execute(text, (bytes(identity),)).fetchone())

        def clear() -> None:
            connection.execute(emptying(TABLES).encode())

        backend = open_backend(url, timeout=PATIENCE)
        yield from _run(Harness(backend, travel, SLACK, colour, kept, clear))


def earlier(duration: Micros) -> list[str]:
    """Statements that move every time that is kept into the past."""
    return [
        f"UPDATE {table} SET "
        + ", ".join(f"{column} = {column} - {duration}" for column in columns.split())
        for table, columns in TIMES.items()
    ]


@contextmanager
def mysql(colour: str, folder: Path, mariadb: Callable[[], MariadbServer]) -> Iterator[Harness]:
    server = mariadb()
    with server.prepared(migrate, TABLES) as url, server.connect(database_of(url)) as connection:

        def travel(duration: Micros) -> None:
            """As on PostgreSQL."""
            ask("BEGIN", *earlier(duration), "COMMIT")

        def ask(*statements: str) -> None:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        def kept(identity: Identity) -> Kept | None:
            with connection.cursor() as cursor:
                cursor.execute(KEPT.format(f"x'{identity.hex()}'"))
                return _kept(cursor.fetchone())

        def clear() -> None:
            ask(*emptying(TABLES).split("; "))

        backend = open_backend(url, timeout=PATIENCE)
        yield from _run(Harness(backend, travel, SLACK, colour, kept, clear))


def database_of(url: str) -> str:
    return url.rpartition("?")[0].rpartition("/")[2]


@contextmanager
def redis(colour: str, folder: Path, valkey: Callable[[], ValkeyServer]) -> Iterator[Harness]:
    server = valkey()
    yield from _redis(server.socket_url, [server], colour)


@contextmanager
def rediscluster(
    colour: str, folder: Path, valkeys: Callable[[], ValkeyCluster]
) -> Iterator[Harness]:
    cluster = valkeys()
    yield from _redis(cluster.url, cluster.primaries, colour)


def _redis(url: str, nodes: Sequence[ValkeyServer], colour: str) -> Iterator[Harness]:
    """Keys of a prefix of its own, removed in the end."""
    prefix = f"test{os.urandom(6).hex()}"
    keys = Keys(prefix)

    def travel(duration: Micros) -> None:
        """The server's clock cannot be moved, so what it keeps is moved into the past."""
        for node in nodes:
            node.ask("EVAL", TRAVEL, 0, f"{prefix}:*", duration)

    def kept(identity: Identity) -> Kept | None:
        return _indexed(nodes[0], keys, identity) if len(nodes) == 1 else None

    def clear() -> None:
        for node in nodes:
            node.ask("EVAL", CLEAR, 0, f"{prefix}:*")

    try:
        backend = open_backend(url, prefix=prefix, timeout=PATIENCE)
        yield from _run(Harness(backend, travel, SLACK, colour, kept, clear))
    finally:
        clear()


def _indexed(node: ValkeyServer, keys: Keys, identity: Identity) -> Kept | None:
    """What the index itself says, which is what is gone by."""
    score = node.ask("ZSCORE", keys.due(identity), identity)
    if score is None:
        return None
    number, at = divmod(int(float(score)), RANK)
    duty = {known: duty for duty, known in DUTY_NUMBERS.items()}[number]
    return Kept(duty, None if at == RANK - 1 else at * 1000, renewals_move_it=True)


@contextmanager
def own_redis(url: str, colour: str = "sync", **options: Any) -> Iterator[Harness]:
    """A backend with options of the test's, and time enough if it says nothing of that; nothing
    that is kept is moved into the past."""

    def travel(duration: Micros) -> None:
        raise AssertionError("time does not travel here")

    backend = open_backend(url, **{"timeout": PATIENCE, **options})
    harness = Harness(backend, travel, SLACK, colour)
    try:
        yield harness
    finally:
        harness.close()


CLEAR = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('UNLINK', key) end"
TRAVEL = """
local function moved(time) return string.format('%.0f', time - ARGV[2]) end
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'hash' then
    for _, name in ipairs({'leased_until', 'abandon_at', 'alive_until'}) do
      local time = redis.call('HGET', key, name)
      if time then redis.call('HSET', key, name, moved(time)) end
    end
  elseif kind == 'string' and string.find(key, '}:r:') then
    for place = 19, 43, 8 do
      local time = struct.unpack('>I8', redis.call('GETRANGE', key, place, place + 7))
      if time > 0 then redis.call('SETRANGE', key, place, struct.pack('>I8', time - ARGV[2])) end
    end
  elseif kind == 'zset' and string.find(key, '}:due$') then
    local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for n = 1, #all, 2 do
      if (all[n + 1] + 1) % 17592186044416 ~= 0 then
        redis.call('ZADD', key, string.format('%.0f', all[n + 1] - ARGV[2] / 1000), all[n])
      end
    end
  elseif kind == 'stream' and string.find(key, ':notables$') then
    local all = redis.call('XRANGE', key, '-', '+')
    redis.call('DEL', key)
    for _, entry in ipairs(all) do
      for n = 2, 4, 2 do entry[2][n] = moved(entry[2][n]) end
      redis.call('XADD', key, entry[1], unpack(entry[2]))
    end
  elseif kind == 'zset' and not string.find(key, ':made$') then
    local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for n = 1, #all, 2 do
      if all[n + 1] ~= 'inf' then redis.call('ZADD', key, moved(all[n + 1]), all[n]) end
    end
  end
end
"""
"""Every slot, field and index that holds a time."""


def _run(harness: Harness) -> Iterator[Harness]:
    try:
        yield harness
    finally:
        harness.close()


# Adding a store is one line here, and where it needs a server another.
STORES: dict[str, Callable[..., Any]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgresql": postgresql,
    "partitioned": partitioned,
    "mysql": mysql,
    "redis": redis,
    "rediscluster": rediscluster,
}
SERVERS = {"mysql": "mariadb", "redis": "valkey", "rediscluster": "valkey_cluster"}
WITHOUT_OUTBOX = ("redis", "rediscluster")
HARNESSES = [
    f"{store}-{colour}"
    for store in STORES
    for colour in ("sync", "async")
    # How a table is divided, or a cluster, tells one colour as much as two.
    if (store, colour) not in (("partitioned", "sync"), ("rediscluster", "async"))
]
EACH_ONCE = [
    f"{store}-{'async' if store in ('partitioned', 'sqlite', 'mysql') else 'sync'}"
    for store in STORES
]
"""For what travels alone: both colours do the same, so each store takes one."""
OUTBOXES = [name for name in HARNESSES if name.split("-")[0] not in WITHOUT_OUTBOX]


def server_of(request: pytest.FixtureRequest, name: str) -> Callable[[], Any]:
    """What asks for the server of a harness, when it is needed."""
    return lambda: request.getfixturevalue(SERVERS.get(name.split("-")[0], "postgres"))


def open_harness(
    name: str, folder: Path, server: Callable[[], Any]
) -> Any:  # a context manager of a Harness
    store, colour = name.split("-")
    return STORES[store](colour, folder, server)


@contextmanager
def emptied(name: str, folder: Path, server: Callable[[], Any]) -> Iterator[Callable[[], Harness]]:
    """What gives a test a store of its own: that of the test before, with nothing in it.

    To empty one is far cheaper than to open one, which is what most tests would spend their time
    with. What they share are connections and prepared statements.
    """
    with ExitStack() as stack:
        opened: list[Harness] = []

        def fresh() -> Harness:
            if opened and (clear := opened[-1].clear) is not None:
                clear()
            else:
                opened.append(stack.enter_context(open_harness(name, folder, server)))
            return opened[-1]

        yield fresh
