"""What the in-process tests of the adapters share."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

import semel
from tests.web.colours import COLOURS, Handle, driver, once
from tests.web.drive import AsgiDriver, Driver
from tests.web.effects import Effects

MakeGuard = Callable[..., semel.Guard]
Drive = Callable[[Any], AsgiDriver]


class Serve(Protocol):
    def __call__(
        self,
        handle: Handle | None = None,
        *,
        guard: semel.Guard | None = None,
        strict: bool = True,
        **options: Any,
    ) -> Driver: ...


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
def guard(make_guard: MakeGuard) -> semel.Guard:
    return make_guard()


@pytest.fixture
def drive(runner: asyncio.Runner) -> Drive:
    """Sends requests to an ASGI application."""
    return lambda app: AsgiDriver(app, runner)


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner) -> Serve:
    """Sends requests to a handler, one with an effect unless told, behind a guard: that one, or a
    new one with these options. In both colours."""

    def start(
        handle: Handle | None = None,
        *,
        guard: semel.Guard | None = None,
        strict: bool = True,
        **options: Any,
    ) -> Driver:
        guard = guard or make_guard(**options)
        return driver(colour, guard, handle or once(effects), runner, strict=strict)

    return start
