"""The banks of the guide to atomic handlers pay once, with their effect, on real databases."""

from __future__ import annotations

import asyncio
import json
import runpy
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import semel
from tests.docs.pages import Block, page
from tests.web.drive import AsgiDriver, Ask, Driver, WsgiDriver

URL = "postgresql://localhost/bank"
BANKS = [block for block in page("docs/howto/policies/atomic.md").blocks if block.title]
ASK = Ask(path=b"/payments", query=b"amount=5", body=b"")


def test_there_is_a_bank_for_each_way() -> None:
    assert [bank.title for bank in BANKS] == [
        "bank_psycopg.py",
        "bank_sqlite3.py",
        "bank_session.py",
        "bank_async_session.py",
    ]


@pytest.mark.parametrize("block", BANKS, ids=lambda block: block.title)
def test_the_bank_pays_once(
    block: Block, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert block.title is not None
    (tmp_path / block.title).write_text(block.text.replace(URL, postgres_url))
    if URL in block.text:
        found_on_postgres(postgres_url)
    else:
        found_on_sqlite(tmp_path / "bank.db")
    module = runpy.run_path(block.title)
    guard: semel.Guard = module["guard"]
    guard.migrate()
    with asyncio.Runner() as runner:
        send = driver(module["app"], runner)
        first, again = send(ASK), send(ASK)
        runner.run(guard.aclose())
    assert (first.status, again.status, again.replayed) == (200, 200, True)
    assert json.loads(first.body) == json.loads(again.body) == {"payment": 1}
    counted = "SELECT (SELECT count(*) FROM payment), (SELECT count(*) FROM semel_effect)"
    if URL in block.text:
        with psycopg.connect(postgres_url) as connection:
            assert connection.execute(counted).fetchall() == [(1, 1)]
    else:
        with closing(sqlite3.connect(tmp_path / "bank.db")) as file:
            assert file.execute(counted).fetchall() == [(1, 1)]


def driver(app: Any, runner: asyncio.Runner) -> Driver:
    if hasattr(app, "wsgi_app"):
        return WsgiDriver(app)
    return AsgiDriver(app, runner)


def found_on_postgres(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE payment (id SERIAL PRIMARY KEY, amount INT)")


def found_on_sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE payment (id INTEGER PRIMARY KEY, amount INT)")
