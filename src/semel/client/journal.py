"""The journal: each call is written to a file before it is sent, so that a crash forgets none.

The file is SQLite (WAL, synchronous=FULL), and several processes may share it. It holds requests,
so only its owner may read it. Below: the journal, its rows and their seals, the names of the
processes that hold calls, and the file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self, TypeAlias
from uuid import uuid4

from semel.client.model import CallAnswer, KeyTerms, LogicalCall
from semel.client.responses import kept_for
from semel.core.frozen import frozen, replace
from semel.core.records import HeaderView, Request
from semel.core.request.fingerprint import FingerprintRule, fingerprint
from semel.core.request.key_places import BodyField
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreUnavailable

APPLICATION: Final = 0x53454D4A
"""SQLite's application_id: "SEMJ"."""
VERSION: Final = 2
LEASE: Final = 60.0
"""Seconds that a call is held at least; a call that waits is held longer."""
_PURGED: Final = 100
"""Old rows that are deleted, at most, whenever a call is finished."""
_HEADER: Final = 512
"""Bytes of the smallest page: no database is smaller."""
_SQL: Final = Path(__file__).with_name("sql")

_Row: TypeAlias = Mapping[str, Any]


@frozen
class KeptAnswer:
    """What is kept of an answer; ``body`` is None if only its size is kept."""

    status: int
    size: int
    body: bytes | None


@frozen
class JournaledCall:
    """A call in the journal."""

    call: LogicalCall
    held: bool
    """A process works on it now."""
    finished_at: float | None = None
    answer: KeptAnswer | None = None
    is_other: bool = False
    """The row with this key is of another request."""


class CallJournal:
    """A journal in a file. It opens on first use, and again in a forked child; it may be shared.

    ``keep``: how long finished calls are remembered. ``keep_answers``: the largest body of an
    answer that is kept with them, in bytes; of a larger body only its size is kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: timedelta = timedelta(days=2),
        keep_answers: int = 64 * 1024,
        timeout: float = 5.0,
    ) -> None:
        if keep <= timedelta(0) or keep_answers < 0 or timeout <= 0:
            raise ConfigurationError("keep, keep_answers and timeout cannot be negative")
        self.path = Path(path)
        self._keep, self._keep_answers, self._timeout = keep, keep_answers, timeout
        self._opened: _Opened | None = None
        self._opening = threading.Lock()

    # ── for people and programs ───────────────────────────────────────────────────────────────────

    def pending(self) -> list[JournaledCall]:
        """All calls without an answer, oldest first, held ones included."""
        return [_read_row(row) for row in self._query("pending")]

    def finished(self, limit: int = 100) -> list[JournaledCall]:
        """The calls that were finished last, with what is kept of their answers."""
        return [_read_row(row) for row in self._query("finished", limit=limit)]

    def forget(self, call: LogicalCall) -> None:
        """Delete a call, whatever its outcome: nobody will resume it."""
        self._write("forget", id=call.row)

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and opened.pid == os.getpid():
            with opened.lock:
                opened.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── for the client ────────────────────────────────────────────────────────────────────────────

    def begin(self, call: LogicalCall) -> LogicalCall | JournaledCall:
        """Write the call, and hold it; or return the call that already has its key."""
        omitted, headers = json.dumps(call.omitted), json.dumps(call.headers)
        columns = {**_identity(call), "omitted": omitted, "headers": headers, "body": call.body}
        columns["terms"] = _write_terms(call.terms)
        for row in self._write("begin", **columns, **_hold(), seal=_seal(columns, _REQUEST)):
            return replace(call, row=row["id"])
        found = self._find(call)
        if found is None:
            return self.begin(call)  # forgotten in between
        return replace(_read_row(found), is_other=found["fingerprint"] != columns["fingerprint"])

    def take(self, entry: JournaledCall) -> LogicalCall | None:
        """Hold a pending call that no living process holds; None if one does, or it is finished."""
        row = self._find(entry.call)
        if row is None or row["finished_at"] is not None or _is_held(row):
            return None
        seen = {"id": row["id"], "seen_by": row["held_by"], "seen_until": row["held_until"]}
        taken = self._write("take", **seen, **_hold())
        return replace(_read_row(row).call, resumed=True) if taken else None

    def extend_hold(self, call: LogicalCall, seconds: float) -> None:
        """Hold the call for so many seconds and a lease more; never shortens a hold."""
        needed = time.time() + seconds + LEASE / 2
        self._write("hold", id=call.row, needed=needed, **_hold(seconds))

    def release(self, call: LogicalCall) -> None:
        """End this process's hold; the call stays pending."""
        self._write("release", id=call.row, held_by=this_process())

    def record_status_url(self, call: LogicalCall, url: str) -> None:
        self._write("status_url", id=call.row, status_url=url)

    def record_answer(self, call: LogicalCall, answer: CallAnswer) -> None:
        """Finish the call with its answer; delete some calls that were finished long ago."""
        now = time.time()
        told = kept_for(call, answer, now)
        terms = call.terms if told is None else replace(call.terms, lifetime=told)
        columns = {
            **_identity(call),
            "terms": _write_terms(terms),
            "finished_at": now,
            "answer_status": answer.status,
            "answer_size": len(answer.body),
            "answer_body": answer.body if len(answer.body) <= self._keep_answers else None,
        }
        columns |= {"id": call.row, "seal": _seal(columns, _ANSWER)}
        before = now - self._keep.total_seconds()
        with self._using() as connection, _transaction(connection):
            connection.execute(_statement("finish"), columns)
            connection.execute(_statement("purge"), {"before": before, "limit": _PURGED})

    # ── the connection ────────────────────────────────────────────────────────────────────────────

    def _find(self, call: LogicalCall) -> _Row | None:
        found = self._query("find", method=call.method, url=call.url, key=call.key)
        return found[0] if found else None

    def _query(self, query: str, **values: Any) -> list[_Row]:
        with self._using() as connection:
            return [dict(row) for row in connection.execute(_statement(query), values)]

    def _write(self, query: str, **values: Any) -> list[_Row]:
        with self._using() as connection, _transaction(connection):
            return [dict(row) for row in connection.execute(_statement(query), values)]

    @contextmanager
    def _using(self) -> Generator[sqlite3.Connection]:
        opened = self._open()
        with opened.lock, _errors_mapped(self.path):
            yield opened.connection

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            return opened
        if opened is not None:
            # A parent's connection must be neither used nor closed here: SQLite would tidy up.
            _INHERITED.append(opened)
            self._opening = threading.Lock()
        with self._opening:
            if self._opened is None or self._opened.pid != os.getpid():
                self._opened = _Opened(self.path, self._timeout)
            return self._opened


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────

_IDENTITY: Final = ("method", "url", "key", "name", "created_at", "fingerprint")
_REQUEST: Final = (*_IDENTITY, "terms", "omitted", "headers", "body")
_ANSWER: Final = (
    *(*_IDENTITY, "terms", "finished_at"),
    *("answer_status", "answer_size", "answer_body"),
)
_RULE: Final = FingerprintRule()


def _identity(call: LogicalCall) -> dict[str, Any]:
    """The columns that a call has for ever.

    The fingerprint is made as a server makes it: JSON in another order is the same call.
    """
    given = {name.lower(): text for name, text in call.headers}
    named = [name for name in ("content-type", "content-encoding") if name in given]
    lines = [(name.encode(), given[name].encode("utf-8", "surrogatepass")) for name in named]
    sent = Request(call.method, call.url, b"", HeaderView(lines), None)
    columns = {name: getattr(call, name) for name in _IDENTITY[:-1]}
    return {**columns, "fingerprint": fingerprint(sent, call.body, _RULE).text}


def _seal(row: _Row, columns: tuple[str, ...]) -> bytes:
    """SHA-256 over the columns, each with its type and length, so that no two rows look alike."""
    hashed = sha256(b"semel j1\n")
    for column in columns:
        held = row[column]
        octets = held if isinstance(held, bytes) else str(held).encode("utf-8", "surrogatepass")
        hashed.update(f"{type(held).__name__} {len(octets)}\n".encode() + octets)
    return hashed.digest()


def _read_row(row: _Row) -> JournaledCall:
    """The call of a row; a row that was changed since it was written is refused."""
    finished = row["finished_at"] is not None
    if _seal(row, _ANSWER if finished else _REQUEST) != row["seal"]:
        raise StoreCorrupt(
            f"row {row['id']} of the journal is damaged; nothing of it is sent. Look at it by hand"
        )
    copied = ("key", "name", "method", "url", "created_at", "status_url")
    call = LogicalCall(
        **{name: row[name] for name in copied},
        headers=() if finished else tuple([(n, text) for n, text in json.loads(row["headers"])]),
        body=row["body"] or b"",
        omitted=() if finished else tuple(json.loads(row["omitted"])),
        terms=_read_terms(row["terms"]),
        row=row["id"],
    )
    if not finished:
        return JournaledCall(call, _is_held(row))
    kept = KeptAnswer(row["answer_status"], row["answer_size"], row["answer_body"])
    return JournaledCall(call, False, row["finished_at"], kept)


def _write_terms(terms: KeyTerms) -> str:
    in_body = isinstance(terms.key_in, BodyField)
    place = terms.key_in.name if isinstance(terms.key_in, BodyField) else terms.key_in
    return json.dumps([in_body, place, terms.quoted, terms.lifetime])


def _read_terms(text: str) -> KeyTerms:
    in_body, place, quoted, lifetime = json.loads(text)
    return KeyTerms(BodyField(place) if in_body else place, quoted, lifetime)


def _hold(seconds: float = 0.0) -> dict[str, Any]:
    """This process holds a call, for so many seconds and a lease more."""
    return {"held_by": this_process(), "held_until": time.time() + seconds + LEASE}


def _is_held(row: _Row) -> bool:
    holder, until = row["held_by"], row["held_until"]
    if not isinstance(holder, str) or not isinstance(until, float):
        return False  # damaged; reading the row says so
    return bool(holder) and until > time.time() and not is_dead(holder)


# ── who holds a call ──────────────────────────────────────────────────────────────────────────────
# A process has a name by which others can tell whether it has ended: the machine's boot, its
# process namespace, its process number, and when it started. Numbers are used again; all four
# together are not. Without /proc a name says nothing, and a hold ends only by time.

_PROC: Final = Path("/proc")
_NOWHERE: Final = "-"
_names: dict[int, str] = {}


def this_process() -> str:
    """The name of this process; a forked child has another."""
    pid = os.getpid()
    if pid not in _names:
        place = _place()
        # Without a place the name must still be unique.
        started = _started(pid) if place != _NOWHERE else uuid4().hex
        _names[pid] = f"{place} {pid} {started}"
    return _names[pid]


def is_dead(name: str) -> bool:
    """Whether the process has surely ended; False also if that cannot be known from here."""
    place, _, rest = name.partition(" ")
    pid, _, started = rest.partition(" ")
    if place == _NOWHERE or place != _place() or not pid.isdecimal():
        return False
    return _started(int(pid)) != started


def _place() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return _NOWHERE


def _started(pid: int) -> str:
    """When the process started, in ticks since boot; empty if it has ended."""
    try:
        # The second field is the command in parentheses and may itself hold any character.
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # ended, and its parent has not looked yet
    except (OSError, IndexError):
        return ""


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


class _Opened:
    """A connection of this process."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        _make_private(path)
        with _errors_mapped(path):
            self.connection = sqlite3.connect(
                path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(path, time.monotonic() + timeout)
            except BaseException:
                self.connection.close()
                raise

    def _prepare(self, path: Path, deadline: float) -> None:
        """Set the file up, or check that it is a whole journal of this version."""
        connection = self.connection
        connection.row_factory = sqlite3.Row
        mode = None
        while mode is None:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                # Processes that switch a new file at once get BUSY, without the busy timeout.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(0.005)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        if mode != "wal":
            raise ConfigurationError(f"{path} cannot be used: is it on a network file system?")
        with _transaction(connection):
            _create_or_check(connection, path)


_INHERITED: list[_Opened] = []


@cache
def _statement(name: str) -> str:
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _make_private(path: Path) -> None:
    """Create the file for its owner only; SQLite gives its companions the same mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        found = path.stat()
    except OSError as error:
        said = f"the journal {path} cannot be opened: {error.strerror}"
        raise ConfigurationError(said) from error
    if 0 < found.st_size < _HEADER:
        raise _damaged(path)  # SQLite would take the stump for an empty file, and begin anew
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"the journal {path} holds requests, and others may read it: chmod 600 {path}"
        )


def _create_or_check(connection: sqlite3.Connection, path: Path) -> None:
    # The statements as SQLite remembers them: from CREATE on.
    parts = _statement("schema").split(";\n")
    schema = [part[part.index("CREATE") :] for part in parts if "CREATE" in part]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    made = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master").fetchall()}
    if not made and not application and not version:
        for statement in schema:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        return
    if application != APPLICATION:
        raise ConfigurationError(f"{path} is no journal of semel's; nothing in it was changed")
    if version != VERSION:
        raise SchemaError(f"the journal {path} has version {version}, this semel reads {VERSION}")
    checked = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if made != set(schema) or checked != "ok":
        raise _damaged(path)


def _damaged(path: Path) -> StoreCorrupt:
    return StoreCorrupt(
        f"the journal {path} is damaged: calls in it may be pending. Move it away, look at it by "
        "hand, and start with a new one"
    )


@contextmanager
def _errors_mapped(path: Path) -> Generator[None]:
    """Raise semel's error for one of the driver; a damaged file is not an outage that passes.

    A damaged file may put odd bytes into the driver's message: then it is a UnicodeDecodeError.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
        # The driver's own errors have no code: it could not decode what SQLite gave it.
        if code in (sqlite3.SQLITE_OK, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _damaged(path) from error
        said = f"the journal {path} cannot be written or read: {error}"
        raise StoreUnavailable(said) from error
