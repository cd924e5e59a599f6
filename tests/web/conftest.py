"""What the in-process tests of the adapters share."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from tests.web.effects import Effects

MakeGuard = Callable[..., semel.Guard]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of all pairs that a module's fixtures make, those that it says are tried."""
    items[:] = [item for item in items if _is_tried(item)]


def _is_tried(item: pytest.Item) -> bool:
    pairs = getattr(getattr(item, "module", None), "PAIRS_TRIED", None)
    params = getattr(getattr(item, "callspec", None), "params", {})
    pair = (params.get("colour"), params.get("ledger"))
    return pairs is None or None in pair or pair in pairs


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all requests of a test, as a server has."""
    with asyncio.Runner() as one:
        yield one


@pytest.fixture
def make_guard() -> Iterator[MakeGuard]:
    """Guards that are closed at the end; memory store and a single tenant unless told."""
    made: list[semel.Guard] = []

    def make(store: Any = "memory://", *, tenant: Any = None, **options: Any) -> semel.Guard:
        guard = semel.Guard(store, tenant=tenant, **options)
        made.append(guard)
        return guard

    yield make
    for guard in made:
        guard.close()


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")
