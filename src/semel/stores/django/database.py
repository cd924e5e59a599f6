"""An alias of Django's DATABASES taken apart, and semel's own backend on the same database."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from semel.errors import ConfigurationError
from semel.stores.base import Backend
from semel.stores.django.mysql_options import mysql_url

_ENGINES: Final = {
    "sqlite3": "sqlite",
    "spatialite": "sqlite",
    "postgresql": "postgresql",
    "postgis": "postgresql",
    "mysql": "mysql",
}
"""By the last part of an engine's name."""


class DjangoDatabase:
    """One alias. Read when it is used: settings may not be there yet when a guard is made."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def settings(self) -> Mapping[str, Any]:
        try:
            settings: Mapping[str, Any] = connections.settings[self.alias]
        except KeyError:
            raise ConfigurationError(f"Django's DATABASES has no {self.alias!r}") from None
        except (ImproperlyConfigured, ImportError) as error:
            raise ConfigurationError(
                f"django://{self.alias} needs Django's settings: set DJANGO_SETTINGS_MODULE "
                f"({' '.join(str(error).split())[:120]})"
            ) from error
        return settings

    @property
    def engine(self) -> str:
        """sqlite, postgresql or mysql."""
        named = str(self.settings["ENGINE"])
        engine = _ENGINES.get(named.rpartition(".")[2])
        if engine is None:
            raise ConfigurationError(
                f"django://{self.alias}: {named} is not one of SQLite, PostgreSQL, MySQL"
            )
        return engine

    @property
    def wrapper(self) -> Any:
        """Django's connection, of the calling thread."""
        return connections[self.alias]

    @property
    def private(self) -> bool:
        """Only Django's own connections may be used: it is in memory, or Django tests are run.

        What they leave in a test's transaction must go with it, and a connection of semel's own
        would keep a test database from being dropped. MySQL drops it all the same, and nothing
        here speaks to it over Django's connection.
        """
        engine = self.engine
        if engine == "mysql":
            return False
        return testing() or (engine == "sqlite" and self.wrapper.is_in_memory_db())

    @property
    def name(self) -> str:
        """Which database; another one while Django's tests are run."""
        return str(self.settings["NAME"])

    def backend(self, options: Mapping[str, Any]) -> Backend:
        """semel's own, with the settings of Django's."""
        from semel.stores import open_backend

        return open_backend(_MAKERS[self.engine](self.settings), **options)


def testing() -> bool:
    """Whether Django's test environment is set up."""
    utilities: Any = sys.modules.get("django.test.utils")
    return utilities is not None and hasattr(utilities._TestState, "saved_data")


def _sqlite(settings: Mapping[str, Any]) -> str:
    path, timeout = str(settings["NAME"]), settings["OPTIONS"].get("timeout")
    if path.startswith("file:"):
        raise ConfigurationError("django:// needs a SQLite database that is named by its path")
    return f"sqlite:///{quote(str(Path(path).absolute()))}" + _query({"timeout": timeout})


def _postgresql(settings: Mapping[str, Any]) -> str:
    from psycopg import pq

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    options: dict[str, Any] = settings["OPTIONS"]
    told = {name: value for name, value in options.items() if name in known}
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST"}
    told |= {ours: settings[theirs] for ours, theirs in names.items() if settings[theirs]}
    if settings["PORT"]:
        told["port"] = settings["PORT"]
    if role := options.get("assume_role"):
        told["options"] = f"{told.get('options', '')} -c role={role}".strip()
    return f"postgresql://{_query(told)}"


def _query(options: Mapping[str, Any]) -> str:
    given = {name: str(value) for name, value in options.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""


_MAKERS: Final = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": mysql_url}
