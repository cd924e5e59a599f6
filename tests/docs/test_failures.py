"""The page about failures lists every exception and code that the code knows, as what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

import grpc
import pytest

from semel.core.recovery.client_internals import READ
from semel.core.recovery.was_sent import ANSWERED_CODES, KNOWN, By, Rule, WasSent
from tests.docs.pages import page, plain

PAGE = page("docs/reference/failures.md")
COLUMNS = ("not sent", "look closer", "ambiguous", "none")
MODULES = {
    "urllib3": ("urllib3.exceptions",),
    "requests": ("requests.exceptions",),
    "aiohttp": ("aiohttp.client_exceptions", "aiohttp.http_exceptions"),
}


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def documented() -> Iterator[tuple[str, str, str]]:
    """Library, exception and column."""
    for library, *cells in PAGE.table("Which exception is which"):
        for column, cell in zip(COLUMNS, cells, strict=True):
            yield from ((plain(library), name, column) for name in names(cell))


def column_of(rule: Rule) -> str:
    match rule:
        case None:
            return "none"
        case By():
            return "look closer"
        case WasSent():
            return rule.value


def exception(library: str, name: str) -> type[BaseException]:
    modules = map(import_module, MODULES.get(library, (library,)))
    found: type[BaseException] = next(
        getattr(module, name) for module in modules if hasattr(module, name)
    )
    return found


def listed(kind: type[BaseException]) -> Rule:
    """The rule of the nearest class that is listed, as the page promises it."""
    for each in kind.__mro__:
        rules = KNOWN.get(each.__module__.partition(".")[0], {})
        if each.__name__ in rules:
            return rules[each.__name__]
    raise AssertionError(f"{kind} is not listed")


@pytest.mark.parametrize(("library", "name", "column"), list(documented()))
def test_an_exception_is_what_the_page_says(library: str, name: str, column: str) -> None:
    assert column_of(listed(exception(library, name))) == column


def test_every_known_exception_is_on_the_page() -> None:
    known = {(package, name) for package, rules in KNOWN.items() for name in rules}
    shown = {(library.partition(".")[0], name) for library, name, _ in documented()}
    assert known - shown == set()


def test_every_known_name_is_one_of_its_librarys() -> None:
    """A name that a library drops or moves would silently match nothing."""
    full = {library.partition(".")[0]: library for library, _, _ in documented()}
    for package, rules in KNOWN.items():
        for name in rules:
            assert exception(full[package], name).__module__.partition(".")[0] == package


def test_every_code_is_on_the_page_in_its_class() -> None:
    shown = {code: row[1] for row in PAGE.table("gRPC") for code in names(row[0])}
    codes = {code.name for code in grpc.StatusCode} - {"OK"}
    assert shown == {code: "answered" if code in ANSWERED_CODES else "ambiguous" for code in codes}


def test_the_classes_are_the_ones_explained() -> None:
    explained = [row[0] for row in PAGE.table("Failures of calls")]
    assert explained == [*(each.value for each in WasSent), "none"]


def test_the_versions_that_were_read_are_on_the_page() -> None:
    shown = {
        plain(library): (oldest, unread)
        for library, oldest, unread in PAGE.table('The proof of "not sent"')
    }
    assert shown == {
        package: tuple(".".join(map(str, version)) for version in versions)
        for package, versions in READ.items()
    }
