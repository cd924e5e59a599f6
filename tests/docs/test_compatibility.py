"""The versions on the compatibility page are those that were tried."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, page
from tools.servers import SERVERS, tried

PAGE = page("docs/reference/compatibility.md")
PINNED = dict[str, set[str]]()
for name, pin in re.findall(
    r"^([\w-]+)==([\d.]+)", (ROOT / "requirements/test.txt").read_text(), re.MULTILINE
):
    PINNED.setdefault(name, set()).add(pin)
ALSO_CALLED = {
    "django rest framework": "djangorestframework",
    "flask-sqlalchemy": "flask-sqlalchemy",
}


def package(cell: str) -> str:
    named = cell.partition(",")[0].lower()
    return ALSO_CALLED.get(named, named.replace(" ", "-"))


def versions(cell: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)+", cell))


@pytest.mark.parametrize("heading", ["Frameworks", "Servers", "Databases and drivers"])
def test_what_is_pinned_was_tried_in_that_version(heading: str) -> None:
    rows = [(package(row[0]), versions(row[1])) for row in PAGE.table(heading)]
    compared = [(name, tried_with) for name, tried_with in rows if name in PINNED and tried_with]
    assert compared
    assert [(name, found) for name, found in compared if not PINNED[name] <= found] == []


def test_drivers_are_those_that_are_pinned() -> None:
    named = dict(re.findall(r"(psycopg|PyMySQL|asyncmy|hiredis) ([\d.]+)", PAGE.text))
    assert {name: {pin} for name, pin in named.items()} == {
        name: PINNED[name.lower()] for name in ("psycopg", "PyMySQL", "asyncmy", "hiredis")
    }


def test_every_server_that_can_be_tried_is_listed() -> None:
    listed = " ".join(row[0].lower() for row in PAGE.table("Servers"))
    assert [name for name in SERVERS if name.lower().split()[0].split(".")[0] not in listed] == []


@pytest.mark.parametrize("name", ["uvicorn", "hypercorn", "gunicorn (threads)"])
def test_under_a_server_a_handler_runs_once(name: str) -> None:
    assert tried(SERVERS[name][1]) == ["yes"] * 4


def test_without_a_guard_the_trial_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVED_UNGUARDED", "1")
    assert tried(SERVERS["uvicorn"][1])[:2] == ["NO", "NO"]
