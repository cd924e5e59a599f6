"""A dependency that commits after its ``yield``: before the answer is kept, or warned of."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from fastapi import Depends, FastAPI

import semel
from tests.web.client import new_key
from tests.web.conftest import Drive
from tests.web.drive import Ask

SCHEMA = """
    CREATE TABLE parents (id INTEGER PRIMARY KEY);
    CREATE TABLE orders (parent INT REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
"""


def shop(path: Path, guard: semel.Guard, scope: Literal["function", "request"]) -> Any:
    """Its commit fails: the constraint is looked at then."""
    app = FastAPI()

    def session() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(path, check_same_thread=False)) as db:
            db.execute("PRAGMA foreign_keys=ON")
            yield db
            db.commit()

    @app.post("/x", status_code=201)
    async def order(db: Annotated[Any, Depends(session, scope=scope)]) -> str:
        db.execute("INSERT INTO orders VALUES (99)")
        return "ordered"

    guard.fastapi(app)
    return app


def test_a_function_scoped_dependency_commits_before_the_answer_is_kept(
    tmp_path: Path, guard: semel.Guard, drive: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        file.executescript(SCHEMA)
    send = drive(shop(tmp_path / "shop.db", guard, "function"))
    key = new_key()
    first, again = send(Ask(key=key)), send(Ask(key=key))
    assert (first.status, first.code, again.code) == (500, "outcome-unknown", "outcome-unknown")
    assert "commits after its yield" not in caplog.text


def test_a_dependency_that_commits_too_late_is_warned_of_once(
    tmp_path: Path, guard: semel.Guard, drive: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        file.executescript(SCHEMA)
    send = drive(shop(tmp_path / "shop.db", guard, "request"))
    for _ in range(2):
        send(Ask(key=new_key()))
    assert caplog.text.count("/x: the dependency session commits after its yield") == 1
