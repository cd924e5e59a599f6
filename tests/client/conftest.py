"""The shop as a process of its own, with its books."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers import AppServer, uvicorn
from tests.waiting import patient
from tests.web.effects import Effects


@dataclass(frozen=True)
class Shop:
    """A running shop."""

    server: AppServer
    effects: Effects
    seen: Path

    @property
    def url(self) -> str:
        return self.server.url

    def keys(self, order: str) -> list[str]:
        """The keys that came with an order, in their order."""
        lines = [line.split(" ") for line in self.seen.read_text().splitlines()]
        return [key for each, key in lines if each == order]


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    env = {
        "SEMEL_TEST_STORE": patient(f"sqlite:///{folder / 'keys.db'}"),
        "SEMEL_TEST_EFFECTS": str(folder / "effects"),
        "SEMEL_TEST_SEEN": str(folder / "seen"),
    }
    (folder / "seen").touch()
    with uvicorn("tests.client.shop:app", env=env) as server:
        yield Shop(server, Effects(folder / "effects"), folder / "seen")


@pytest.fixture
def order() -> str:
    return f"order-{uuid4().hex}"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"
