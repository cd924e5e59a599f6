"""What the in-process tests of the adapters share."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from tests.web.effects import Effects

MakeGuard = Callable[..., semel.Guard]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of all pairs that a module's fixtures make, `make test` tries those that it says."""
    pairs = getattr(getattr(item, "module", None), "PAIRS_TRIED", None)
    params = getattr(getattr(item, "callspec", None), "params", {})
    pair = (params.get("colour"), params.get("ledger"))
    if pairs is not None and None not in pair and pair not in pairs:
        item.add_marker("proof")


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
