"""What counts effects. An equal answer does not prove that something happened once; a count does.

``http://…#$.total``       a URL that answers with JSON, and where in it the count is
``sql:URL SELECT …``       a query on the API's own database, read-only by intent
``cmd:…``                  a shell command that prints the count

The fourth one is a provider that is part of the check: the API under test is told to call it in
place of its real provider. It counts what arrives, and it can make the API wait, which puts a
request in flight for as long as a probe needs.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from semel.check.json_values import NO_JSON, is_array
from semel.check.safety import allowed_origin
from semel.check.wire import Caller, NoReply, Pairs, RequestBudget, WireRequest, target_of
from semel.errors import ConfigurationError, SemelError

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MOST_COUNTS: Final = 100_000
_STEP: Final = re.compile(r"\.([\w-]+)|\[(\d+)\]|\['([^']*)'\]")


class OracleFailed(SemelError):
    """The oracle gave no number."""


class Oracle(Protocol):
    """Counts effects, from any beginning: only differences are looked at."""

    words: str

    def count(self) -> int: ...


class CountingUrl:
    """A URL whose JSON has the count; a list counts its members. No redirect is followed: it would
    carry the token to whoever it names."""

    def __init__(self, url: str, timeout: float, headers: Pairs, allowed: Collection[str]) -> None:
        address, _, path = url.partition("#")
        origin = allowed_origin(address, allowed)
        self._steps = _json_path(path)
        self._request = WireRequest("GET", target_of(origin), headers)
        self._caller = Caller(origin, timeout, RequestBudget(MOST_COUNTS))
        # Without the query, which may have a key in it.
        self.words = f"{origin.scheme}://{origin.netloc}{origin.path} {path}".strip()

    def count(self) -> int:
        try:
            answer = self._caller.send(self._request)
        except NoReply as error:
            raise OracleFailed(f"{self.words} gave no count: {error.__cause__}") from error
        finally:
            self._caller.log.clear()
        value = answer.document
        if answer.status != 200 or value is NO_JSON:
            raise OracleFailed(f"{self.words} gave no count: {answer.status}, or no JSON")
        try:
            for step in self._steps:
                value = value[step]
        except (LookupError, TypeError) as error:
            raise OracleFailed(f"{self.words} gave no count: nothing is at that path") from error
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
    """A shell command that prints one whole number. It may have secrets in it: it is not shown."""

    words = "the command of --effects"

    def __init__(self, command: str, timeout: float) -> None:
        self._command, self._timeout = command, timeout

    def count(self) -> int:
        return _number(_shell(self._command, self._timeout, self.words).strip(), self.words)


def _shell(command: str, timeout: float, words: str) -> str:
    """What the user's command prints. At the end of its time whatever it has started ends with it:
    a child that is left would hold the pipe open."""
    process = subprocess.Popen(  # noqa: S602 - the user's own command
        command, shell=True, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise OracleFailed(f"{words} did not end in {timeout:g} s") from None
        raise
    if process.returncode:
        raise OracleFailed(f"{words} ended with exit code {process.returncode}")
    return printed.decode("utf-8", "replace")


class SqlOracle:
    """A query whose first row and column is the count; a connection for each count, read-only."""

    words = "the query of --effects"

    def __init__(self, url: str, query: str, timeout: float) -> None:
        self._connect = _connector(url, timeout)
        self._query, self._password = query, urlsplit(url).password

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
            said = str(error) if not self._password else str(error).replace(self._password, "…")
            raise OracleFailed(f"{self.words}: {said}") from error
        return _number(row[0] if row else None, self.words)


def _connector(url: str, timeout: float) -> Callable[[], Any]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = quote(url.removeprefix("sqlite:///"))
        return lambda: sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=timeout)
    try:
        if parts.scheme in ("postgresql", "postgres"):
            return _postgres(url, timeout)
        if parts.scheme in ("mysql", "mariadb"):
            return _mysql(url, timeout)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"for sql:{parts.scheme}:// install {error.name}") from error
    raise ConfigurationError("sql: takes sqlite:///, postgresql:// and mysql://")


def _postgres(url: str, timeout: float) -> Callable[[], Any]:
    import psycopg

    def connect() -> Any:
        connection = psycopg.connect(url, connect_timeout=max(2, int(timeout)))
        connection.read_only = True
        connection.execute("SELECT set_config('statement_timeout', %s, true)", [f"{timeout}s"])
        return connection

    return connect


def _mysql(url: str, timeout: float) -> Callable[[], Any]:
    import pymysql

    parts, seconds = urlsplit(url), max(2, int(timeout))
    where: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/"),
    }

    def connect() -> Any:
        connection = pymysql.connect(**where, connect_timeout=seconds, read_timeout=seconds)
        connection.cursor().execute("START TRANSACTION READ ONLY")
        return connection

    return connect


def _number(value: Any, words: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise OracleFailed(f"{words} gave {value!r:.60}, which is no whole number") from None
    if isinstance(value, bool) or (isinstance(value, float) and value != number):
        raise OracleFailed(f"{words} gave {value!r}, which is no whole number")
    return number


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
                body_is_read = self._skip_body()
                self.close_connection = self.close_connection or not body_is_read
                if self.command not in SAFE:
                    provider.arrive()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            def _skip_body(self) -> bool:
                """Read the body, of a known length or in chunks; False where it cannot be."""
                try:
                    if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                        while size := int(self.rfile.readline(100).split(b";")[0], 16):
                            self.rfile.read(size + 2)
                        return self.rfile.readline(100).strip() == b""
                    self.rfile.read(max(0, int(self.headers.get("Content-Length") or 0)))
                except ValueError:
                    return False
                return True

            do_GET = do_HEAD = do_OPTIONS = handle_any  # noqa: N815
            do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Says nothing: standard error is for the check's own progress."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """An API that leaves, or sends no HTTP, is nothing to print."""

        try:
            self._server = Server((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"--provider {host}:{port}: {error}") from error
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


def oracle_at(text: str, timeout: float, headers: Pairs, allowed: Collection[str]) -> Oracle:
    """The oracle that ``--effects`` names. ``headers`` are for a URL."""
    kind, _, rest = text.partition(":")
    if kind in ("http", "https"):
        return CountingUrl(text, timeout, headers, allowed)
    if kind == "cmd" and rest:
        return CommandOracle(rest, timeout)
    url, _, query = rest.partition(" ")
    if kind == "sql" and query:
        return SqlOracle(url, query, timeout)
    raise ConfigurationError(
        "--effects: write http://…#$.path, 'sql:URL SELECT …' or 'cmd:COMMAND'"
    )
