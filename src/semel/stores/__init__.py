"""Stores: where records live, behind one verb.

A store has one method, `perform(op)`. The operations and their replies are the frozen classes in
`semel.core.operations`; `semel.stores.base` has the protocols. A store keeps the rules below and
decides nothing else: which status a client gets, when to retry and what a failed handler means is
decided above it. `memory` is the rules as short code, and the suite in `semel.testing.contract`
proves the same properties for every store.

**One operation is one atomic step.** `Claim` looks for the record and inserts it in the same step.
With "get" and "set" instead, every caller would have to close the race between the two, and one
that forgets it charges a card twice.

**A fence proves ownership.** Every claim brings a random fence, and the record keeps it. A write
names the fence it holds, or the fence it has seen, and changes the record only while that fence is
still there. A process that slept through its lease finds another fence and writes nothing: the
reply is `Lost`. Leases are compared with the store's clock, never with a caller's.

**Every write can be sent again.** An operation whose reply was lost is simply repeated with the
same fence. If the first try took effect, the record looks exactly as that try left it, and the
reply is the same; nothing is applied twice. Retries, batches that fall back to single statements,
and failovers all rest on this.

**Expected results are values, trouble is an exception.** A taken key, a lost lease or a missing
record is a reply. `StoreUnavailable` means that no usable answer came, and its ``applied`` says
what is known: False, nothing was written; None, it is in doubt. Doubt is never rounded to either
side: the caller repeats the operation, or reads the record, until it is settled. An acknowledged
write is on disk (`Capabilities.durable`); a store that finds its server set otherwise refuses.

**Two colours.** `Backend.blocking()` is for threads, `Backend.awaited()` for the running event
loop. Making a backend does no I/O. It opens on first use, once per process and per loop, and again
in a forked child: connections and locks are never shared across a fork.

Where things are::

    base                 the protocols: Backend, Store, Transaction and async twins; BackendWrapper
    memory, sqlite       stores of this process and of this machine
    postgres, mysql      stores on a server; sql/ has what the three SQL stores share
    redis                one server, a primary that Sentinels watch, or a cluster
    django               the database of a Django project, by its alias
    encryption           any store with its values encrypted, and the keys
    body_cache           any store with large answers cached nearby
    per_loop             what a backend has open in each process and event loop
    open_transactions    which keys have a transaction here, and what its handler may not do
    sqlalchemy_sessions  SQLAlchemy sessions inside such a transaction
    background           work that goes on when its caller is cancelled
    token_functions      calls the functions that return passwords and tokens
    options              values of options in URLs, keywords, environment and file
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.stores.base import Backend

__all__ = ["open_backend"]

_KNOWN: Final = (
    "memory://, sqlite:///file.db, postgresql://user@host/database, mysql://user@host/database, "
    "redis://host:port/0, rediscluster://host:port,host:port, "
    "redis+sentinel://host:port,host:port/name, django://default"
)
_DRIVERS: Final = {
    "psycopg": "PostgreSQL needs psycopg; install it with: pip install 'semel[postgres-binary]'",
    **dict.fromkeys(
        ("pymysql", "asyncmy"),
        "MariaDB and MySQL need PyMySQL and asyncmy; install them with: pip install 'semel[mysql]'",
    ),
    "hiredis": "Redis needs hiredis; install it with: pip install 'semel[redis]'",
    **dict.fromkeys(
        ("django", "asgiref"),
        "django:// needs Django; install it with: pip install 'semel[django]'",
    ),
}
"""By the package that is missing: what to do about it."""


_BACKENDS: Final = {
    "memory": ("memory", "MemoryBackend"),
    "sqlite": ("sqlite", "SqliteBackend"),
    **dict.fromkeys(("postgresql", "postgres"), ("postgres", "PostgresBackend")),
    **dict.fromkeys(("mysql", "mariadb"), ("mysql", "MysqlBackend")),
    **dict.fromkeys(
        ("redis", "rediss", "redis+unix", "rediscluster", "redis+sentinel", "rediss+sentinel"),
        ("redis", "RedisBackend"),
    ),
    "django": ("django", "DjangoBackend"),
}
"""By the scheme of the URL: the folder and the class. Each is imported only when it is used."""


_ENGINES: Final = {
    **dict.fromkeys(
        ("postgresql", "postgres"), ("psycopg", "psycopg_async", "psycopg2", "asyncpg")
    ),
    **dict.fromkeys(("mysql", "mariadb"), ("pymysql", "asyncmy", "aiomysql", "mysqldb")),
    "sqlite": ("pysqlite", "aiosqlite"),
}
"""By the scheme: the drivers that SQLAlchemy's URLs may name. semel has its own."""

_MEANT: Final = {
    **dict.fromkeys(("pg", "pgsql", "psql", "postgis"), "postgresql"),
    **dict.fromkeys(("file", "sqlite3"), "sqlite"),
}
"""Schemes that people write, and the one that is meant."""


def open_backend(url: str, **options: Any) -> Backend:
    """The backend that a URL names. It does no I/O before its first use."""
    name = scheme(url)
    if name == "memory" and url.lower() != "memory://":
        raise ConfigurationError("a memory store takes no path or options: memory://")
    if name not in _BACKENDS:
        raise ConfigurationError(_unknown(name))
    url = f"{name}://{url.partition('://')[2]}"
    folder, kind = _BACKENDS[name]
    try:
        backend: Callable[..., Backend] = getattr(import_module(f"{__name__}.{folder}"), kind)
    except ModuleNotFoundError as missing:
        advice = _DRIVERS.get((missing.name or "").partition(".")[0])
        if advice is None:
            raise
        raise ConfigurationError(advice) from missing
    except ImportError as unusable:
        if folder != "postgres":
            raise
        raise ConfigurationError(
            f"psycopg cannot be used ({str(unusable).splitlines()[0]}): it needs libpq, of the "
            "machine or of its own wheel: pip install 'semel[postgres-binary]'"
        ) from unusable
    if folder in ("memory", "sqlite", "redis"):
        options.pop("migrate", None)  # SQLite always does; the others have nothing to migrate
    return backend(**options) if name == "memory" else backend(url, **options)


def scheme(url: str) -> str:
    """The part before ``://`` in lower case; empty when there is none.

    Without the driver of SQLAlchemy, as in ``postgresql+asyncpg://``: the database is the same.
    """
    name, found, _ = url.lower().partition("://")
    if not found:
        return ""
    base, _, driver = name.partition("+")
    return base if driver in _ENGINES.get(base, ()) else name


def _unknown(name: str) -> str:
    """Which URL to write instead. Of the one that was given only the scheme is shown: the rest may
    hold a password."""
    if not name:
        return f"a store is a URL; known are {_KNOWN}"
    base = name.partition("+")[0]
    meant = _MEANT.get(base, base)
    if meant in _ENGINES:
        return f"unknown store {name!r}: write {meant}://…, semel brings its own driver"
    return f"unknown store {name!r}; known are {_KNOWN}"
