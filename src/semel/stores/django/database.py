"""One alias of Django's DATABASES: its engine, semel's own backend on it, and its migrations.

semel's own backend connects with its own drivers, so Django's settings become a store URL here:
the NAME, USER and OPTIONS of each engine, and the option file that a MySQL driver reads.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from configparser import Error, RawConfigParser
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from semel.errors import ConfigurationError
from semel.stores.base import Backend, system_clock
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, upgrade
from semel.stores.sql.plans import Rows

_ENGINES: Final = {
    "sqlite3": "sqlite",
    "spatialite": "sqlite",
    "postgresql": "postgresql",
    "postgis": "postgresql",
    "mysql": "mysql",
}
"""By the last part of the engine's name."""

_NAMES: Final = {
    "user": "USER",
    "password": "PASSWORD",
    "host": "HOST",
    "port": "PORT",
    "database": "NAME",
}
_SPELT: Final = {"passwd": "password", "db": "database", "unix_socket": "socket"}
"""Other names that drivers have for an option."""
_FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")
_MODES: Final[dict[str, dict[str, str]]] = {
    "DISABLED": {"ssl": "off"},
    "PREFERRED": {},
    "REQUIRED": {"ssl": "on", "ssl_verify": "off"},
    "VERIFY_CA": {"ssl": "on", "ssl_verify": "ca"},
    "VERIFY_IDENTITY": {"ssl": "on", "ssl_verify": "identity"},
}


class DjangoDatabase:
    """One alias. Settings are read on use: they may not exist yet when a guard is made."""

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
        """Django's connection of the calling thread."""
        return connections[self.alias]

    @property
    def private(self) -> bool:
        """Whether only Django's own connections may be used: the database is in memory, or Django's
        tests run.

        A test's transaction must undo what its requests wrote, and a connection of semel's own
        would keep a test database from being dropped. MySQL drops it in any case, and semel never
        uses Django's connection to MySQL.
        """
        engine = self.engine
        if engine == "mysql":
            return False
        return testing() or (engine == "sqlite" and self.wrapper.is_in_memory_db())

    def backend(self, options: Mapping[str, Any]) -> Backend:
        """semel's own backend on the same database, with Django's settings."""
        from semel.stores import open_backend

        return open_backend(_MAKERS[self.engine](self.settings), **options)


def migrate(wrapper: Any) -> None:
    """Bring semel's tables up to date over Django's own connection, in Django's transaction.

    MySQL commits after each statement of a migration, so there semel's own backend migrates.
    """
    database = DjangoDatabase(wrapper.alias)
    engine = database.engine
    if engine == "mysql":
        database.backend({}).migrate()
        return
    database.wrapper.ensure_connection()
    connection, steps = database.wrapper.connection, upgrade(dialect(engine))
    rows: Rows | None = None
    while True:
        try:
            step = next(steps) if rows is None else steps.send(rows)
        except StopIteration:
            return
        if isinstance(step, Ddl):
            text, params = step.text, None
        else:
            text, params = dialect(engine).text(step.name), step.params
        # With the driver itself: Django's cursors rewrite parameters.
        if engine == "sqlite":
            cursor: Any = connection.execute(text, {**(params or {}), "now": system_clock()})
        else:
            from psycopg import Cursor

            cursor = Cursor(connection).execute(text.encode(), params)
        rows = cursor.fetchall() if cursor.description else []


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
    given = _from_file(options)
    given |= {ours: settings[theirs] for ours, theirs in _NAMES.items() if settings[theirs]}
    given |= {_SPELT.get(name, name): value for name, value in options.items() if value}
    host = str(given.get("host") or "localhost")
    if host.startswith("/"):
        host, given["socket"] = "localhost", host
    user, password, database = (
        quote(str(given.get(name) or ""), safe="") for name in ("user", "password", "database")
    )
    port = f":{given['port']}" if given.get("port") else ""
    asked = {"socket": given.get("socket")} | _encryption(given)
    query = _query({name: value for name, value in asked.items() if value})
    return f"mysql://{user}:{password}@{host}{port}/{database}{query}"


def _encryption(given: Mapping[str, Any]) -> dict[str, Any]:
    """The TLS options. An unknown ``ssl_mode`` may demand more than is done here: it is refused."""
    ssl: Any = given.get("ssl")
    parts = cast("dict[str, Any]", ssl) if isinstance(ssl, dict) else {}
    files = {name: given.get(name) or parts.get(name.removeprefix("ssl_")) for name in _FILES}
    mode = str(given.get("ssl_mode") or "PREFERRED").upper()
    if mode not in _MODES:
        raise ConfigurationError(f"ssl_mode={mode}: expected one of {', '.join(_MODES)}")
    demanded = dict(_MODES[mode])
    if mode == "DISABLED":
        return demanded
    if mode == "REQUIRED" and files["ssl_ca"]:
        demanded["ssl_verify"] = "ca"  # as the server's own clients do
    return files | ({"ssl": "on"} if ssl else {}) | demanded


def _from_file(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in ``read_default_file``: group ``client``, then the named group over it."""
    named = options.get("read_default_file")
    if not named:
        return {}
    found = RawConfigParser(allow_no_value=True, strict=False)
    try:
        found.read_string(Path(named).expanduser().read_text("utf-8"))
    except (OSError, UnicodeError, Error) as error:
        raise ConfigurationError(f"read_default_file {named}: {type(error).__name__}") from None
    given: dict[str, Any] = {}
    for group in ("client", str(options.get("read_default_group") or "client")):
        for name, value in found.items(group) if found.has_section(group) else ():
            if value:
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
                given[name.replace("-", "_")] = value[1:-1] if quoted else value
    return given


_MAKERS: Final = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": mysql_url}
