"""Both stores that the example runs on, empty."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PostgresServer
from tests.servers.postgres import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is room: a kill is no power cut."""
    made = short_folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'rides.db'}"
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with postgres.database() as url:
        yield url
