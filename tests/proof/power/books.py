"""What was asked of the store, what it acknowledged, and what was in the file then."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from semel.core.records import Fence, Identity, State
from tests.proof.power.disk import Begun, Event, Told

Rows: TypeAlias = tuple[tuple[Any, ...], ...]
Contents: TypeAlias = dict[str, Rows]
"""All rows of a subject (a key, and what belongs to it), by subject."""

KEYED: Final = ("semel_record", "semel_effect", "semel_audit", "ride")
NAMED: Final = ("semel_event", "semel_leader", "semel_recipe")


@dataclass(frozen=True)
class Promise:
    """What a caller was told of a key, in the caller's own words."""

    identity: Identity
    state: State
    fence: Fence
    snapshot: bytes | None = None


@dataclass
class Act:
    """One thing asked of the store; ``after``: the subjects that it changed, as they were then."""

    what: str
    promise: Promise | None = None
    after: dict[str, Rows | None] = field(default_factory=dict)


def subject(identity: bytes | None) -> str:
    """A damaged file may hold anything, which is then nobody's."""
    return identity.hex() if isinstance(identity, bytes) else repr(identity)


def rows_of(connection: sqlite3.Connection, identity: bytes) -> Rows | None:
    found: list[tuple[Any, ...]] = []
    for table in KEYED:
        text = f"SELECT '{table}', * FROM {table} WHERE identity = ? ORDER BY rowid"
        found += connection.execute(text, (identity,))
    return tuple(found) or None


def all_rows(connection: sqlite3.Connection) -> Contents:
    there = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master")}
    found: dict[str, list[tuple[Any, ...]]] = {}
    for table in (name for name in (*KEYED, *NAMED) if name in there):
        cursor = connection.execute(f"SELECT '{table}', * FROM {table} ORDER BY rowid")
        columns = [column[0] for column in cursor.description]
        at = columns.index("identity") if table in KEYED else None
        for row in cursor:
            name = f"{table} {row[1]}" if at is None else subject(row[at])
            found.setdefault(name, []).append(row)
    return {name: tuple(rows) for name, rows in found.items()}


class Books:
    """Kept while the store works. A subject is asked about by one thread at a time."""

    def __init__(self, path: Path, log: list[Event], said: Contents) -> None:
        self._path = path
        self._log = log
        self._lock = threading.Lock()
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self.acts: list[Act] = []
        self.state: Contents = dict(said)

    @contextmanager
    def act(
        self, what: str, identity: bytes | None = None, promise: Promise | None = None
    ) -> Iterator[None]:
        """Without an identity it may change anything, and nobody else does anything meanwhile."""
        act = Act(what, promise)
        with self._lock:
            number = len(self.acts)
            self.acts.append(act)
        self._log.append(Begun(number))
        yield
        self._log.append(Told(number))
        if identity is None:
            act.after = dict(self._differences())
        else:
            act.after = {subject(identity): rows_of(self._connection(), identity)}
        self._enter(act)

    def _differences(self) -> Iterator[tuple[str, Rows | None]]:
        now = all_rows(self._connection())
        for name in now.keys() | self.state.keys():
            if now.get(name) != self.state.get(name):
                yield name, now.get(name)

    def _enter(self, act: Act) -> None:
        with self._lock:
            change(self.state, act)

    def _connection(self) -> sqlite3.Connection:
        with suppress(AttributeError):
            known: sqlite3.Connection = self._local.connection
            return known
        made = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._local.connection = made
        with self._lock:
            self._connections.append(made)
        return made

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
        self._local = threading.local()


def change(state: Contents, act: Act) -> None:
    for name, rows in act.after.items():
        if rows is None:
            state.pop(name, None)
        else:
            state[name] = rows
