"""Private names of PyMySQL and asyncmy that are used, and the check that they are there.

Read in PyMySQL 1.2.4 and asyncmy 0.2.17; ``pyproject.toml`` has the versions that are allowed. A
PyMySQL without one of them is refused when a backend is made, an asyncmy with its first connection
(none can be made without an event loop): what they do instead is not known.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from pymysql import connections

from semel.errors import ConfigurationError

PYMYSQL: Final = (
    *("_sock", "_rfile", "_secure", "_write_timeout", "_result", "_affected_rows"),
    *("_force_close", "_execute_command", "_read_packet", "_read_query_result"),
)
"""Of a connection: its socket, what reads it, the commands; `MysqlConnection` has its own reader,
and `MysqlHandlerConnection` shares the socket."""
RESULT: Final = ("has_next", "affected_rows", "server_status")
"""Of the result of a statement of PyMySQL's."""
ASYNCMY: Final = ("_transport", "_result", "_stream_broken")


@cache
def check_pymysql() -> None:
    """Refuse a PyMySQL that lacks what is used of it."""
    made: Any = connections.Connection
    plain = made(defer_connect=True)
    check("PyMySQL", plain, PYMYSQL)
    check("PyMySQL", connections.MySQLResult(plain), RESULT)


def check(driver: str, made: object, names: tuple[str, ...]) -> None:
    for name in names:
        if not hasattr(made, name):
            raise ConfigurationError(
                f"{driver} {installed(driver)} is not known to semel: {type(made).__name__}.{name} "
                "is not there. Install the version that `pip install 'semel[mysql]'` brings"
            )


def installed(driver: str) -> str:
    try:
        return version(driver)
    except PackageNotFoundError:
        return "(of unknown version)"
