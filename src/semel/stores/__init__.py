"""Durable stores behind one verb."""

from __future__ import annotations

from typing import Any

from semel.errors import ConfigurationError
from semel.stores.base import Backend

__all__ = ["open_backend"]

_KNOWN = (
    "memory://, sqlite:///file.db, postgresql://user@host/database, mysql://user@host/database, "
    "redis://host:port/0, rediscluster://host:port,host:port, "
    "django://default"
)


def open_backend(url: str, **options: Any) -> Backend:
    """The backend a URL names. No I/O: it opens on first use."""
    match scheme(url):
        case "memory":
            return _memory(url, options)
        case "sqlite":
            from semel.stores.sqlite import SqliteBackend

            options.pop("migrate", None)  # it always does
            return SqliteBackend(url, **options)
        case "postgresql" | "postgres":
            return _postgres(url, options)
        case "mysql" | "mariadb":
            return _mysql(url, options)
        case "redis" | "rediss" | "redis+unix" | "rediscluster":
            return _redis(url, options)
        case "django":
            return _django(url, options)
        case other:
            # The rest of the URL may hold a password: only the scheme is shown.
            raise ConfigurationError(f"unknown store {other!r}; known are {_KNOWN}")


def scheme(url: str) -> str:
    """What stands before ``://``; empty when nothing does."""
    name, found, _ = url.partition("://")
    return name.lower() if found else ""


def _memory(url: str, options: dict[str, Any]) -> Backend:
    from semel.stores.memory import MemoryBackend

    if url.lower() != "memory://":
        raise ConfigurationError("a memory store takes no path or options: memory://")
    options.pop("migrate", None)  # there is nothing to migrate
    return MemoryBackend(**options)


def _postgres(url: str, options: dict[str, Any]) -> Backend:
    try:
        from semel.stores.postgres import PostgresBackend
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        raise ConfigurationError(
            "PostgreSQL needs psycopg; install it with: pip install 'semel[postgres]'"
        ) from missing
    return PostgresBackend(url, **options)


def _mysql(url: str, options: dict[str, Any]) -> Backend:
    try:
        from semel.stores.mysql import MysqlBackend
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("pymysql", "asyncmy"):
            raise
        raise ConfigurationError(
            "MariaDB and MySQL need PyMySQL and asyncmy; install them with: "
            "pip install 'semel[mysql]'"
        ) from missing
    return MysqlBackend(url, **options)


def _redis(url: str, options: dict[str, Any]) -> Backend:
    try:
        from semel.stores.redis import RedisBackend
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "hiredis":
            raise
        raise ConfigurationError(
            "Redis needs hiredis; install it with: pip install 'semel[redis]'"
        ) from missing
    options.pop("migrate", None)  # there is nothing to migrate
    return RedisBackend(url, **options)


def _django(url: str, options: dict[str, Any]) -> Backend:
    try:
        from semel.stores.django import DjangoBackend
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("django", "asgiref"):
            raise
        raise ConfigurationError(
            "django:// needs Django; install it with: pip install 'semel[django]'"
        ) from missing
    return DjangoBackend(url, **options)
