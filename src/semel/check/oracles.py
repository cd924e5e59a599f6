"""What counts effects. An equal answer does not prove that something happened once; a count does.

``http://…#$.total``       a URL that answers with JSON, and where in it the count is
``sql:URL SELECT …``       a query on the API's own database, read-only by intent
``cmd:…``                  a shell command that prints the count

The fourth one is a provider that is part of the check: the API under test is told to call it in
place of its real provider. It counts what arrives, and it can make the API wait, which puts a
request in flight for as long as a probe needs.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from semel.check.json_values import is_array
from semel.errors import ConfigurationError, SemelError

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_STEP: Final = re.compile(r"\.([\w-]+)|\[(\d+)\]|\['([^']*)'\]")


class OracleFailed(SemelError):
    """The oracle gave no number."""


class Oracle(Protocol):
    """Counts effects, from any beginning: only differences are looked at."""

    words: str

    def count(self) -> int: ...


class CountingUrl:
    """A URL whose JSON has the count; a list counts its members."""

    def __init__(self, url: str, timeout: float, headers: dict[str, str]) -> None:
        self._url, _, path = url.partition("#")
        self._steps = _json_path(path)
        self._timeout, self._headers = timeout, headers
        self.words = f"{self._url} {path}".strip()

    def count(self) -> int:
        request = urllib.request.Request(self._url, headers=self._headers)  # noqa: S310 - http(s)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:  # noqa: S310
                value: Any = json.load(response)
            for step in self._steps:
                value = value[step]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise OracleFailed(f"{self.words} gave no count: {error}") from error
        return _number(len(value) if is_array(value) else value, self.words)


def _json_path(text: str) -> list[str | int]:
    """The steps of ``$.a.b[0]``: names and places, no filters."""
    rest = text.removeprefix("$")
    steps: list[str | int] = []
    at = 0
    for match in _STEP.finditer(rest):
        if match.start() != at:
            break
        at = match.end()
        steps.append(int(match[2]) if match[2] else match[1] or match[3])
    if at != len(rest):
        raise ConfigurationError(f"{text!r} is no path: write $.name.name[0]")
    return steps


class CommandOracle:
    """A shell command that prints one whole number."""

    def __init__(self, command: str, timeout: float) -> None:
        self._command, self._timeout, self.words = command, timeout, command

    def count(self) -> int:
        try:
            done = subprocess.run(  # noqa: S602 - the user's own command
                self._command,
                shell=True,
                capture_output=True,
                text=True,
                timeout=self._timeout,
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise OracleFailed(f"{self.words}: {error}") from error
        return _number(done.stdout.strip(), self.words)


class SqlOracle:
    """A query whose first row and column is the count; a connection for each count."""

    def __init__(self, url: str, query: str, timeout: float) -> None:
        self._connect = _connector(url, timeout)
        self._query, self.words = query, query

    def count(self) -> int:
        try:
            connection = self._connect()
            try:
                cursor = connection.cursor()
                cursor.execute(self._query)
                row = cursor.fetchone()
            finally:
                connection.close()
        except Exception as error:  # three drivers, three trees of errors
            raise OracleFailed(f"{self.words}: {error}") from error
        return _number(row[0] if row else None, self.words)


def _connector(url: str, timeout: float) -> Callable[[], Any]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = url.removeprefix("sqlite:///")
        return lambda: sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=timeout)
    if parts.scheme in ("postgresql", "postgres"):
        import psycopg

        return lambda: psycopg.connect(url, connect_timeout=max(2, int(timeout)), autocommit=True)
    if parts.scheme in ("mysql", "mariadb"):
        import pymysql

        where: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port or 3306,
            "user": parts.username,
            "password": parts.password or "",
            "database": parts.path.lstrip("/"),
        }
        return lambda: pymysql.connect(
            **where, autocommit=True, connect_timeout=max(2, int(timeout))
        )
    raise ConfigurationError(f"sql: takes sqlite:///, postgresql:// and mysql://, not {url!r}")


def _number(value: Any, words: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise OracleFailed(f"{words} gave {value!r:.60}, which is no whole number") from None


class RecordingProvider:
    """Stands for the provider that the API calls: counts what arrives, and can hold it up."""

    def __init__(self, host: str, port: int, answer: bytes, status: int = 200) -> None:
        self._arrived = 0
        self._changed = threading.Condition()
        self._open = threading.Event()
        self._open.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.command not in SAFE:
                    provider.arrive()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Says nothing: standard error is for the check's own progress."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self.words = f"the recording provider at {self.url}"

    def count(self) -> int:
        with self._changed:
            return self._arrived

    def arrive(self) -> None:
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()
        self._open.wait(timeout=60)

    def hold(self) -> None:
        """From now on what arrives waits for `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def wait_for(self, count: int, seconds: float) -> bool:
        """Whether so many have arrived in all, before the time is over."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._arrived < count:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    return self._arrived >= count
        return True

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()


def oracle_at(text: str, timeout: float, headers: dict[str, str]) -> Oracle:
    """The oracle that ``--effects`` names."""
    kind, _, rest = text.partition(":")
    if kind in ("http", "https"):
        return CountingUrl(text, timeout, headers)
    if kind == "cmd" and rest:
        return CommandOracle(rest, timeout)
    url, _, query = rest.partition(" ")
    if kind == "sql" and query:
        return SqlOracle(url, query, timeout)
    raise ConfigurationError(
        f"--effects {text!r}: write http://…#$.path, 'sql:URL SELECT …' or 'cmd:COMMAND'"
    )
