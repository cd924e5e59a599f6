"""The pytest plugin of semel. Beside the package, not in it: pytest imports it in every run, and a
run that uses nothing of it must not pay for importing semel.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from semel import Guard
    from semel.check import CheckReport
    from semel.testing import PrivateStore, StoreClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("semel_guard", "the guard of the application under test, say shop.app:guard")


@pytest.fixture
def semel_guard(request: pytest.FixtureRequest) -> Guard:
    """The guard of the application under test: ``semel_guard`` of pytest's settings.

    A fixture of this name in your conftest.py goes first.
    """
    module, _, name = str(request.config.getini("semel_guard")).partition(":")
    if not module or not name:
        raise pytest.UsageError(
            "semel_store needs to know your guard: write semel_guard = shop.app:guard into "
            "pytest's settings, or a fixture semel_guard that returns it into conftest.py"
        )
    guard: Guard = getattr(importlib.import_module(module), name)
    return guard


@pytest.fixture
def semel_store(semel_guard: Guard, tmp_path: Path) -> Iterator[PrivateStore]:
    """A store for this test alone, in the place of the guard's."""
    from semel.testing import PrivateStore

    with PrivateStore(semel_guard, folder=tmp_path) as store:
        yield store


@pytest.fixture
def semel_clock(semel_store: PrivateStore) -> StoreClock:
    """The clock of ``semel_store``."""
    return semel_store.clock


@pytest.fixture
def semel_check() -> Callable[..., CheckReport]:
    """`semel check` for a running API: ``semel_check(url, body)`` gives the report."""
    from semel.check import check_url

    return check_url


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that has left a guard on its private store has failed."""
    if _not_given_back():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _not_given_back():
        terminalreporter.write_line(f"semel: {line}, which was never given back", red=True)


def _not_given_back() -> list[str]:
    taken: Any = sys.modules.get("semel.testing.private_store")
    return [] if taken is None else taken.not_given_back()
