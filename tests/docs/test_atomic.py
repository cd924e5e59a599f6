"""The banks of the guide to atomic handlers pay once, with their effect, on real databases."""

from __future__ import annotations

import asyncio
import json
import runpy
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import semel
from tests.databases import connect, executed
from tests.docs.pages import Block, page
from tests.web.drive import AsgiDriver, Ask, Driver, WsgiDriver

URLS = {"postgres": "postgresql://localhost/bank", "mariadb": "mysql://shop@db.example/shop"}
PAGES = ("docs/howto/policies/atomic.md", "docs/howto/stores/mariadb.md")
BANKS = [block for name in PAGES for block in page(name).blocks if block.title]
TABLES = {
    "sqlite": "CREATE TABLE payment (id INTEGER PRIMARY KEY, amount INT)",
    "postgres": "CREATE TABLE payment (id SERIAL PRIMARY KEY, amount INT)",
    "mariadb": "CREATE TABLE payment (id INTEGER PRIMARY KEY AUTO_INCREMENT, amount INT)",
}
ASK = Ask(path=b"/payments", query=b"amount=5", body=b"")


def test_there_is_a_bank_for_each_way() -> None:
    assert [bank.title for bank in BANKS] == [
        "bank_psycopg.py",
        "bank_sqlite3.py",
        "bank_session.py",
        "bank_async_session.py",
        "bank_pymysql.py",
    ]


@pytest.mark.parametrize("block", BANKS, ids=lambda block: block.title)
def test_the_bank_pays_once(
    block: Block,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert block.title is not None
    store, url, text = "sqlite", f"sqlite:///{tmp_path / 'bank.db'}", block.text
    for name, said in URLS.items():
        if said in text:
            store, url = name, request.getfixturevalue(f"{name}_url")
            text = text.replace(said, url)
    (tmp_path / block.title).write_text(text)
    with closing(connect(url)) as connection:
        executed(connection, TABLES[store])
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
    with closing(connect(url)) as connection:
        assert executed(connection, counted) == [(1, 1)]


def driver(app: Any, runner: asyncio.Runner) -> Driver:
    if hasattr(app, "wsgi_app"):
        return WsgiDriver(app)
    return AsgiDriver(app, runner)
