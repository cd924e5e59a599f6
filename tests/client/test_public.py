"""The client's public face, and the page that describes it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel.client
import semel.client.httpx
from semel.client import Budget, CallJournal, errors
from semel.client.clients import KEPT_HEADERS, BaseClient
from semel.client.journal import APPLICATION, VERSION
from tests.docs.pages import page, plain

PAGE = page("docs/reference/client.md")
NAMES = page("docs/reference/public-names.md")


def spoken(value: Any) -> str:
    """A default as the tables write it."""
    match value:
        case timedelta() if value.total_seconds() >= 3600:
            return f"{value.total_seconds() / 3600:g} h"
        case timedelta() if value.total_seconds() >= 60:
            return f"{value.total_seconds() / 60:g} min"
        case timedelta() if value.total_seconds() < 1:
            return f"{value.total_seconds() * 1000:g} ms"
        case timedelta():
            return f"{value.total_seconds():g} s"
        case float():
            return f"{value:g} s"
        case int() if not isinstance(value, bool) and value >= 1024**2:
            return f"{value // 1024**2} MiB"
        case int() if not isinstance(value, bool) and value >= 1024:
            return f"{value // 1024} KiB"
        case str():
            return f'`"{value}"`'
        case Budget():
            return "`Budget()`"
        case _:
            return f"`{value!r}`"


ERRORS = [
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.CallError)
]


def defaults(kind: Any) -> dict[str, str]:
    taken = inspect.signature(kind).parameters.values()
    return {each.name: spoken(each.default) for each in taken if each.default is not each.empty}


def documented(heading: str) -> dict[str, str]:
    return {plain(row[0]): row[1] for row in PAGE.table(heading)}


def test_the_public_names_are_exactly_these_and_documented() -> None:
    assert semel.client.__all__ == [
        "AnswerLost",
        "Budget",
        "BudgetSpent",
        "CallError",
        "CallJournal",
        "CallOutcomeUnknown",
        "CallRefused",
        "ContractError",
        "JournaledCall",
        "KeptAnswer",
        "KeyExpired",
        "KeyReused",
        "LogicalCall",
        "Resumed",
        "Unanswered",
        "new_key",
    ]
    listed = NAMES.text
    for name in semel.client.__all__:
        assert getattr(semel.client, name).__doc__, name
        assert f"`{name}`" in listed, name
    for name in (*semel.client.httpx.__all__, *ERRORS):
        assert f"`{name}`" in listed, name


def test_every_option_is_listed_with_its_default() -> None:
    assert documented("Options") == defaults(BaseClient)
    assert list(documented("Options")) == list(defaults(BaseClient))


def test_the_budget_and_the_journal_are_what_the_page_says() -> None:
    given = Budget()
    fields = ("tries", "within", "first_pause", "longest_pause")
    assert documented("Budget") == {name: spoken(getattr(given, name)) for name in fields}
    assert documented("Journal") == defaults(CallJournal)


def test_the_tree_of_errors_is_that_of_the_module() -> None:
    shown = next(block.text for block in PAGE.blocks if "SemelError" in block.text)
    told = inspect.getdoc(errors) or ""
    assert [line.strip() for line in shown.splitlines()] == [
        line.strip() for line in told.split("::\n\n")[1].split("\n\n")[0].splitlines()
    ]
    for name in ERRORS:
        assert name in shown


def test_the_headers_that_are_kept_are_listed() -> None:
    section = PAGE.section("Headers that are kept")
    assert {word.lower() for word in section.split("`")[1::2]} == KEPT_HEADERS | {"keep_headers"}


def test_the_table_of_the_file_is_what_the_page_says(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with CallJournal(path) as journal:
        journal.pending()
        columns = [
            row["name"]
            for row in journal._open().connection.execute(
                "SELECT name FROM pragma_table_info('call')"
            )
        ]
    rows = [line for line in PAGE.section("Journal").splitlines() if line.startswith("| `")]
    shown = [word for row in rows for word in row.split("|")[1].split("`")[1::2]]
    assert sorted(shown[3:]) == sorted(columns)  # the first three are the options
    assert f"0x{APPLICATION:X}, version {VERSION}" in PAGE.text


def test_a_library_that_is_not_there_is_named_in_one_sentence() -> None:
    for library in ("requests", "aiohttp"):
        script = f"import sys; sys.modules[{library!r}] = None; import semel.client.{library}"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert f"pip install 'semel[{library}]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", ["semel.client", "semel.client.httpx"])
def test_no_http_library_is_loaded_that_is_not_used(module: str) -> None:
    script = f"import sys, {module}; print(*{{n.partition('.')[0] for n in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert {"httpx", "httpx2", "requests", "aiohttp", "starlette"}.isdisjoint(done.stdout.split())
