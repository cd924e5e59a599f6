"""What a ``django://`` URL names: semel's own pools, and transactions on Django's connection."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from django.db import transaction
from django.db import utils as django_errors

from semel.core.operations.requests import Found, NoRecord, Read, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SchemaError, SemelError
from semel.stores.base import (
    AsyncStore,
    AsyncTransaction,
    Backend,
    Capabilities,
    Examined,
    Finding,
    Store,
    Transaction,
    Transactional,
)
from semel.stores.django.database import DjangoDatabase, migrate
from semel.stores.django.transactions import (
    AsyncDjangoTransaction,
    DjangoEngine,
    DjangoTransaction,
    SchemaHintStore,
    engine,
    in_thread,
    missing,
)
from semel.stores.open_transactions import HeldIdentities
from semel.stores.options import in_url

R = TypeVar("R")

_CAPABILITIES: Final = {
    "sqlite": Capabilities(durable=True, shared=True, transactions=True, one_writer=True),
    "postgresql": Capabilities(durable=True, shared=True, transactions=True),
    "mysql": Capabilities(durable=True, shared=True, transactions=False),
}


class DjangoBackend:
    """Records in the database of a Django project.

    Claims and completions go through semel's own pools, with the settings of the alias. With
    mode="atomic", and in a phase, the transaction is on Django's own connection. While Django's
    tests run, everything is: a test case then undoes what its requests wrote.

    pool_size, timeout: options of semel's own pools, also in the URL's query.
    """

    def __init__(self, url: str, **options: Any) -> None:
        alias, asked = parse(url)
        options.pop("migrate", None)  # `manage.py migrate` does it
        self._url = f"django://{alias}"
        self._options = {**asked, **options}
        self._database = DjangoDatabase(alias)
        self._backends: dict[str, Backend] = {}
        self._held = HeldIdentities()

    def __repr__(self) -> str:
        return f"DjangoBackend({self.url!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES[self._database.engine]

    def blocking(self) -> Store:
        if self._database.private:
            return DjangoConnectionStore(self._database.wrapper, self._engine)
        return SchemaHintStore(self._own().blocking())

    def awaited(self) -> AsyncStore:
        if self._database.private:
            return AsyncDjangoConnectionStore(self.blocking)
        return _AsyncSchemaHintStore(self._own().awaited())

    def on(self, connection: Any) -> Any:
        """A store in the caller's transaction. ``connection``: Django's, or the driver's own."""
        if not hasattr(connection, "settings_dict"):
            own: Any = self._own()
            return own.on(connection)
        if not connection.in_atomic_block:
            raise ConfigurationError("on(connection) works inside of transaction.atomic()")
        return self._engine.joined(connection)

    # ── transactions ─────────────────────────────────────────────────────────────────────────────

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        """A transaction on the calling thread's connection; None when another has the key."""
        hold = self._held.take(identity)
        if hold is None:
            return None
        wrapper = self._database.wrapper
        psycopg: Any = sys.modules.get("psycopg")
        lost = (django_errors.OperationalError, *((psycopg.OperationalError,) if psycopg else ()))
        for again in (True, False):
            opened = DjangoTransaction(wrapper, self._engine, hold)
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

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        opened = await in_thread(self.begin, identity, limit)
        if opened is None:
            return None
        return AsyncDjangoTransaction(cast("DjangoTransaction", opened))

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """The outcome of a commit in doubt."""
        if self._database.private:
            return self.blocking().perform(Read(identity))
        return cast("Transactional", self._own()).ascertain(identity)

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return await in_thread(self.ascertain, identity)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def migrate(self) -> int:
        """`manage.py migrate` does the same and records it."""
        if self._database.private:
            migrate(self._database.wrapper)
        return self._own().migrate()

    def examine(self) -> tuple[Finding, ...]:
        """What semel's own backend on the same database finds."""
        own = None if self._database.private else self._own()
        return own.examine() if isinstance(own, Examined) else ()

    def close(self) -> None:
        for backend in list(self._backends.values()):
            backend.close()

    async def aclose(self) -> None:
        for backend in list(self._backends.values()):
            await backend.aclose()

    @property
    def _engine(self) -> DjangoEngine:
        return engine(self._database.engine)

    def _own(self) -> Backend:
        """semel's own backend on the same database, whose name changes while Django's tests run."""
        name = str(self._database.settings["NAME"])
        made = self._backends.get(name)
        return made or self._backends.setdefault(name, self._database.backend(self._options))


class _AsyncSchemaHintStore:
    """`SchemaHintStore` for event loops."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def perform(self, op: StoreOperation[R], /) -> R:
        try:
            return await self._store.perform(op)
        except SchemaError as error:
            raise missing(error) from error


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


class AsyncDjangoConnectionStore:
    """The same for event loops, in the thread that Django's async code uses."""

    def __init__(self, blocking: Callable[[], Store]) -> None:
        self._blocking = blocking

    async def perform(self, op: StoreOperation[R], /) -> R:
        return await in_thread(lambda: self._blocking().perform(op))


def parse(url: str) -> tuple[str, dict[str, str]]:
    """The alias and the options of ``django://alias?pool_size=5``."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is no IPv6 address
        parts = None
    if parts is None or not parts.netloc or parts.path not in ("", "/"):
        raise ConfigurationError("write django://default, with an alias of Django's DATABASES")
    return parts.netloc, in_url(parts.query, ("pool_size", "timeout"), "Django")
