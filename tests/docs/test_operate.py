"""What the guides tell an operator to run does what they say, and nothing else."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from semel.core.contract import Claim, Claimed, Complete, Found, Read, Suspend
from semel.core.model import Fence, Identity, Origin, Record, State
from semel.core.snapshot import Snapshot, decode, encode
from semel.stores import open_backend
from semel.stores.base import Backend
from tests.docs.pages import page

HOUR = 3_600_000_000
ORIGIN = Origin("tern", "POST", "/payments", "order-1002")
NAMES = {
    name: Identity(bytes([number]) * 32) for number, name in enumerate(("old", "live", "lost"))
}


def sql(name: str, dialect: str) -> list[str]:
    """The statements of a page for one kind of database."""
    found = [b.text for b in page(name).blocks if b.language == "sql" and dialect in b.marks]
    assert found, f"{name} has no SQL for {dialect}"
    return found


def fill(backend: Backend) -> None:
    """One record whose time is over, one that is kept, one that is unknown."""
    store = backend.blocking()
    for name, identity in NAMES.items():
        fence = Fence(name.encode().ljust(16))
        store.perform(Claim(identity, fence, "v1.raw.sha256.x", b"", ORIGIN, HOUR))
        if name == "lost":
            store.perform(Suspend(identity, fence, "TimeoutError"))
        else:
            # A retention of minus two hours ended two hours ago.
            retention = -2 * HOUR if name == "old" else HOUR
            kept = encode(Snapshot(201, (), b"", 0))
            store.perform(Complete(identity, fence, kept, retention, 0))


def record(backend: Backend, name: str) -> Record | None:
    reply = backend.blocking().perform(Read(NAMES[name]))
    return reply.record if isinstance(reply, Found) else None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "semel.db"


@pytest.fixture
def backend(file: Path) -> Iterator[Backend]:
    opened = open_backend(f"sqlite:///{file}")
    fill(opened)
    yield opened
    opened.close()


@pytest.fixture
def postgres_backend(postgres_url: str) -> Iterator[Backend]:
    opened = open_backend(postgres_url, migrate=True)
    fill(opened)
    yield opened
    opened.close()


def test_old_records_are_deleted_and_no_others_in_sqlite(backend: Backend, file: Path) -> None:
    (statement,) = sql("docs/howto/delete-old-records.md", "sqlite")
    connection = sqlite3.connect(file)
    assert connection.execute(statement).rowcount == 1
    connection.commit()
    connection.close()
    assert [record(backend, name) is None for name in ("old", "live", "lost")] == [1, 0, 0]


def test_old_records_are_deleted_and_no_others_in_postgresql(
    postgres_backend: Backend, postgres_url: str
) -> None:
    (statement,) = sql("docs/howto/delete-old-records.md", "postgresql")
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(statement.encode()).rowcount == 1
    found = [record(postgres_backend, name) is None for name in ("old", "live", "lost")]
    assert found == [1, 0, 0]


def test_unknown_records_are_found_in_postgresql(
    postgres_backend: Backend, postgres_url: str
) -> None:
    (statement,) = sql("docs/howto/operate-unknown.md", "postgresql")
    with psycopg.connect(postgres_url) as connection:
        (row,) = connection.execute(statement.encode()).fetchall()
    assert row[0] == NAMES["lost"].hex()
    assert row[1:7] == ("tern", "POST", "/payments", "order-1002", "unknown", "TimeoutError")


def test_a_role_without_rights_to_the_schema_can_claim(postgres_url: str) -> None:
    (statements,) = sql("docs/howto/postgresql.md", "postgresql")
    with psycopg.connect(postgres_url) as connection:
        connection.execute(statements.encode())
    open_backend(postgres_url.replace("postgres@", "semel_owner@")).migrate()
    app = open_backend(postgres_url.replace("postgres@", "shop@"))
    claim = Claim(NAMES["live"], Fence(bytes(16)), "v1.raw.sha256.x", b"", ORIGIN, HOUR)
    assert isinstance(app.blocking().perform(claim), Claimed)
    app.close()


class TestSettling:
    """`settle.py` of the guide, run as a command."""

    @pytest.fixture
    def unknown(self, backend: Backend, file: Path) -> str:
        """The identity that the guide's query finds."""
        (statement,) = sql("docs/howto/operate-unknown.md", "sqlite")
        connection = sqlite3.connect(file)
        (row,) = connection.execute(statement).fetchall()
        connection.close()
        assert row[1:7] == ("tern", "POST", "/payments", "order-1002", "unknown", "TimeoutError")
        return str(row[0])

    def settle(self, file: Path, *arguments: str) -> str:
        (script,) = [b for b in page("docs/howto/operate-unknown.md").blocks if b.title]
        path = file.with_name("settle.py")
        path.write_text(script.text)
        command = [sys.executable, str(path), f"sqlite:///{file}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def test_what_happened_is_completed_with_its_answer(
        self, backend: Backend, file: Path, unknown: str
    ) -> None:
        said = self.settle(file, unknown, "happened", "ch_0007", "201", '{"charge": "ch_0007"}')
        assert said == "settled\n"
        settled = record(backend, "lost")
        assert settled is not None
        assert (settled.state, settled.reason) == (State.COMPLETED, "ch_0007")
        assert decode(settled.snapshot or b"").body == b'{"charge": "ch_0007"}'

    def test_what_did_not_happen_may_run_again_and_is_settled_once(
        self, backend: Backend, file: Path, unknown: str
    ) -> None:
        assert self.settle(file, unknown, "absent", "voided") == "settled\n"
        settled = record(backend, "lost")
        assert settled is not None
        assert settled.state is State.FAILED_RETRYABLE
        assert self.settle(file, unknown, "absent", "again").startswith("not settled")
