"""A viewer's console works with a database role that may only read; nothing is written."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest

import semel
from semel.console import Role, routes
from tests.console.browser import Browser, by_header


@pytest.fixture
def reader(postgres_url: str) -> Iterator[str]:
    """The URL of a role with SELECT and nothing else, on a store with records."""
    guard = semel.Guard(postgres_url, tenant=None, migrate=True)
    guard.once("key-1", lambda: 1, name="charge")
    guard.close()
    name = f"reader_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN".encode())
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}".encode())
        yield f"{postgres_url}{'&' if '?' in postgres_url else '?'}user={name}"
        owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_every_screen_works_with_a_role_that_may_only_read(reader: str, postgres_url: str) -> None:
    guard = semel.Guard(reader, tenant=None)
    browser = Browser(guard.console(authorize=by_header), "wsgi", Role.VIEWER)
    (only,) = browser.json("/records")["rows"]
    for screen in routes.SCREENS:
        if screen.role is Role.VIEWER:
            path = screen.path.replace("{identity}", only["identity"])
            answer = browser.get(f"/{path}")
            decided = path.startswith("unknown/")  # it is not unknown, which is told
            assert answer.status_code == 200 or decided, (path, answer.text)
            assert "permission denied" not in answer.text or path == "doctor"
    with pytest.raises(semel.Refused):  # the role is what it should be
        guard.once("key-2", lambda: 1, name="charge")
    guard.close()


def test_a_console_looks_without_leading_or_beating() -> None:
    """It starts no maintenance, takes no lease and leaves no heartbeat, in memory as elsewhere."""
    guard = semel.Guard("memory://", tenant=None)
    browser = Browser(guard.console(authorize=by_header), "asgi", Role.VIEWER)
    browser.get("/")
    assert guard.runtime.begun is False
