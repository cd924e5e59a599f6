"""What a ``django://`` URL names: semel's own pools, and transactions on Django's connection.

semel's own backend connects with its own drivers, so Django's settings become a store URL here:
the NAME, USER and OPTIONS of each engine, and the option file that a MySQL driver reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db import utils as django_errors

from semel.core.frozen import replace
from semel.core.operations.requests import Found, NoRecord, Read, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SchemaError, SemelError
from semel.stores import base
from semel.stores.django.transaction import (
    ENGINES,
    AsyncDjangoTransaction,
    DjangoEngine,
    DjangoTransaction,
    SchemaHintStore,
    missing,
)
from semel.stores.mysql.option_files import encryption, in_file
from semel.stores.open_transactions import HeldIdentities
from semel.stores.options import in_url
from semel.stores.sql.backend import ServerBackend
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import upgrade
from semel.stores.sql.pooled import PoolStatistics, total
from semel.stores.sql.statements import drive

R = TypeVar("R")
T = TypeVar("T", bound=DjangoTransaction)

_CAPABILITIES: Final = {
    "sqlite": base.Capabilities(durable=True, shared=True, transactions=True, one_writer=True),
    "postgresql": base.Capabilities(durable=True, shared=True, transactions=True),
    "mysql": base.Capabilities(durable=True, shared=True, transactions=True),
}
_ENGINES: Final = {
    "sqlite3": "sqlite",
    "spatialite": "sqlite",
    "postgresql": "postgresql",
    "postgis": "postgresql",
    "mysql": "mysql",
}
"""By the last part of the engine's name."""

_NAMES: Final = {
    **{name.lower(): name for name in ("USER", "PASSWORD", "HOST", "PORT")},
    "database": "NAME",
}
_SPELT: Final = {"passwd": "password", "db": "database", "unix_socket": "socket"}
"""Other names that drivers have for an option."""


class DjangoBackend(base.PrintableBackend):
    """Records in the database of a Django project.

    Claims and completions go through semel's own pools, with the settings of the alias. With
    mode="atomic", and in a phase, the transaction is on Django's own connection. While Django's
    tests run, everything is: a test case then undoes what its requests wrote.

    pool_size, timeout: options of semel's own pools, also in the URL's query.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._alias, asked = parse(url)
        options.pop("migrate", None)  # `manage.py migrate` does it
        self.url = f"django://{self._alias}"
        self._options = {**asked, **options}
        self._backends: dict[str, base.Backend] = {}
        self._held = HeldIdentities()

    @property
    def capabilities(self) -> base.Capabilities:
        able = _CAPABILITIES[engine_of(self._alias)]
        return replace(able, threads=False) if self._private else able

    @property
    def _engine(self) -> DjangoEngine:
        return ENGINES[engine_of(self._alias)]

    @property
    def _private(self) -> bool:
        """Whether only Django's own connections may be used: the database is in memory, or Django's
        tests run.

        A test's transaction must undo what its requests wrote, and a connection of semel's own
        would keep a test database from being dropped.
        """
        engine, wrapper = engine_of(self._alias), cast("Any", connections[self._alias])
        return testing() or (engine == "sqlite" and wrapper.is_in_memory_db())

    def _own(self) -> base.Backend:
        """semel's own backend on the same database, whose name changes while Django's tests run."""
        name = str(settings_of(self._alias)["NAME"])
        made = self._backends.get(name)
        return made or self._backends.setdefault(name, own_backend(self._alias, self._options))

    def blocking(self) -> base.Store:
        if self._private:
            return DjangoConnectionStore(connections[self._alias], self._engine)
        return SchemaHintStore(self._own().blocking())

    def awaited(self) -> base.AsyncStore:
        return AsyncDjangoStore(self, None if self._private else self._own().awaited())

    def on(self, connection: Any) -> Any:
        """A store in the caller's transaction. ``connection``: Django's, or the driver's own."""
        if not hasattr(connection, "settings_dict"):
            own: Any = self._own()
            return own.on(connection)
        if not connection.in_atomic_block:
            raise ConfigurationError("on(connection) works inside of transaction.atomic()")
        return self._engine.joined(connection)

    # ── transactions ─────────────────────────────────────────────────────────────────────────────

    def begin(
        self, identity: Identity | None, limit: float | None = None
    ) -> base.Transaction | None:
        return self._begin(DjangoTransaction, identity, limit)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> base.AsyncTransaction | None:
        return await sync_to_async(self._begin)(AsyncDjangoTransaction, identity, limit)

    def _begin(self, kind: type[T], identity: Identity | None, limit: float | None) -> T | None:
        """A transaction on the calling thread's connection; None when another has the key."""
        hold = self._held.take(identity)
        if hold is None:
            return None
        wrapper = connections[self._alias]
        lost: tuple[type[Exception], ...] = (django_errors.OperationalError, *_driver_losses())
        for again in (True, False):
            opened = kind(wrapper, self._engine, hold)
            try:
                wrapper.ensure_connection()
                return opened if opened.begin(identity, limit) else None
            except SemelError:
                raise
            except Exception as error:
                # Django may have kept a connection that has died: try once more with a new one.
                if not (again and isinstance(error, lost) and not wrapper.in_atomic_block):
                    raise self._engine.semel_error(error, applied=False) from error
                wrapper.close()
        raise AssertionError("the second try returns or raises")

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """The outcome of a commit in doubt."""
        if self._private:
            return self.blocking().perform(Read(identity))
        return cast("base.Transactional", self._own()).ascertain(identity)

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return await sync_to_async(self.ascertain)(identity)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def migrate(self) -> int:
        """`manage.py migrate` does the same and records it."""
        if self._private:
            migrate(connections[self._alias])
        return self._own().migrate()

    def examine(self) -> tuple[base.Finding, ...]:
        """What semel's own backend on the same database finds."""
        own = None if self._private else self._own()
        return own.examine() if isinstance(own, base.Examined) else ()

    def pool_statistics(self) -> dict[str, PoolStatistics]:
        """Of semel's own connections; Django's are Django's."""
        found = [each.pool_statistics() for each in self._servers()]
        return {name: total(each[name] for each in found) for name in found[0]} if found else {}

    def trim_pools(self) -> None:
        for backend in self._servers():
            backend.trim_pools()

    def _servers(self) -> list[ServerBackend]:
        return [each for each in list(self._backends.values()) if isinstance(each, ServerBackend)]

    def close(self) -> None:
        for backend in list(self._backends.values()):
            backend.close()

    async def aclose(self) -> None:
        for backend in list(self._backends.values()):
            await backend.aclose()


def _driver_losses() -> Iterator[type[Exception]]:
    """What drivers that are loaded raise when a connection is lost."""
    for name in ("psycopg", "pymysql", "MySQLdb"):
        driver: Any = sys.modules.get(name)
        if driver is not None:
            yield from (driver.OperationalError, driver.InterfaceError)


class DjangoConnectionStore:
    """One operation at a time on the calling thread's Django connection, for a private database."""

    def __init__(self, wrapper: Any, engine: DjangoEngine) -> None:
        self._wrapper = wrapper
        self._engine = engine

    def perform(self, op: StoreOperation[R], /) -> R:
        wrapper = self._wrapper
        opened = wrapper.connection is None
        try:
            with transaction.atomic(using=wrapper.alias):
                return self._engine.joined(wrapper).perform(op)
        except SemelError:
            raise
        except Exception as error:
            raise self._engine.semel_error(error, applied=False) from error
        finally:
            if opened and not wrapper.in_atomic_block:
                wrapper.close()  # a thread of semel's own must not keep a test database open


class AsyncDjangoStore:
    """For event loops. ``own``: semel's own store; without one, Django's connection is used."""

    def __init__(self, backend: DjangoBackend, own: base.AsyncStore | None) -> None:
        self._backend = backend
        self._own = own

    async def perform(self, op: StoreOperation[R], /) -> R:
        if self._own is None:
            # The connection of the thread that Django's async code uses.
            return await sync_to_async(lambda: self._backend.blocking().perform(op))()
        try:
            return await self._own.perform(op)
        except SchemaError as error:
            raise missing(error) from error


def parse(url: str) -> tuple[str, dict[str, str]]:
    """The alias and the options of ``django://alias?pool_size=5``."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is no IPv6 address
        parts = None
    if parts is None or not parts.netloc or parts.path not in ("", "/"):
        raise ConfigurationError("write django://default, with an alias of Django's DATABASES")
    return parts.netloc, in_url(parts.query, ("pool_size", "timeout"), "Django")


# ── one alias of DATABASES ────────────────────────────────────────────────────────────────────────


def settings_of(alias: str) -> Mapping[str, Any]:
    """Django's settings. They are read on use: they may not exist yet when a guard is made."""
    try:
        settings: Mapping[str, Any] = connections.settings[alias]
    except KeyError:
        raise ConfigurationError(f"Django's DATABASES has no {alias!r}") from None
    except (ImproperlyConfigured, ImportError) as error:
        raise ConfigurationError(
            f"django://{alias} needs Django's settings: set DJANGO_SETTINGS_MODULE "
            f"({' '.join(str(error).split())[:120]})"
        ) from error
    return settings


def engine_of(alias: str) -> str:
    """sqlite, postgresql or mysql."""
    named = str(settings_of(alias)["ENGINE"])
    engine = _ENGINES.get(named.rpartition(".")[2])
    if engine is None:
        raise ConfigurationError(
            f"django://{alias}: {named} is not one of SQLite, PostgreSQL, MySQL"
        )
    return engine


def own_backend(alias: str, options: Mapping[str, Any]) -> base.Backend:
    """semel's own backend on the same database, with Django's settings."""
    from semel.stores import open_backend

    return open_backend(_URLS[engine_of(alias)](settings_of(alias)), **options)


def migrate(wrapper: Any) -> None:
    """Bring semel's tables up to date over Django's own connection, in Django's transaction.

    MySQL commits after each statement of a migration, so there semel's own backend migrates.
    """
    engine = engine_of(wrapper.alias)
    if engine == "mysql":
        own_backend(wrapper.alias, {}).migrate()
        return
    wrapper = connections[wrapper.alias]
    wrapper.ensure_connection()
    # With the driver itself: Django's cursors rewrite parameters.
    if engine == "sqlite":
        from semel.stores.sqlite.connection import run

        run(wrapper.connection, upgrade(dialect(engine)), base.system_clock())
    else:
        from semel.stores.postgres.backend import PostgresSchema

        drive(upgrade(dialect(engine)), PostgresSchema(wrapper.connection).execute)


def testing() -> bool:
    """Whether Django's test environment is set up."""
    utilities: Any = sys.modules.get("django.test.utils")
    return utilities is not None and hasattr(utilities._TestState, "saved_data")


# ── its settings as a store URL ───────────────────────────────────────────────────────────────────


def _sqlite(settings: Mapping[str, Any]) -> str:
    path, timeout = str(settings["NAME"]), settings["OPTIONS"].get("timeout")
    if path.startswith("file:"):
        raise ConfigurationError("django:// needs a SQLite database that is named by its path")
    return f"sqlite:///{quote(str(Path(path).absolute()))}" + _query({"timeout": timeout})


def _postgresql(settings: Mapping[str, Any]) -> str:
    from psycopg import pq

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    options: dict[str, Any] = settings["OPTIONS"]
    given = {name: value for name, value in options.items() if name in known}
    names = {"dbname" if name == "database" else name: theirs for name, theirs in _NAMES.items()}
    given |= {ours: settings[theirs] for ours, theirs in names.items() if settings[theirs]}
    if role := options.get("assume_role"):
        given["options"] = f"{given.get('options', '')} -c role={role}".strip()
    return f"postgresql://{_query(given)}"


def _query(options: Mapping[str, Any]) -> str:
    given = {name: str(value) for name, value in options.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""


def mysql_url(settings: Mapping[str, Any]) -> str:
    """The URL for semel's own driver. As in Django, OPTIONS win over the settings, and both win
    over the option file."""
    options: dict[str, Any] = settings["OPTIONS"]
    file = options.get("read_default_file")
    given: dict[str, Any] = {}
    if file:
        given |= in_file(str(file), options.get("read_default_group"))
    given |= {ours: settings[theirs] for ours, theirs in _NAMES.items() if settings[theirs]}
    given |= {_SPELT.get(name, name): value for name, value in options.items() if value}
    host = str(given.get("host") or "localhost")
    if host.startswith("/"):
        host, given["socket"] = "localhost", host
    user, password, database = (
        quote(str(given.get(name) or ""), safe="") for name in ("user", "password", "database")
    )
    port = f":{given['port']}" if given.get("port") else ""
    asked = {"socket": given.get("socket")} | encryption(given)
    query = _query({name: value for name, value in asked.items() if value})
    return f"mysql://{user}:{password}@{host}{port}/{database}{query}"


_URLS: Final = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": mysql_url}
