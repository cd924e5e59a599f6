"""Both stores that the example runs on, empty."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forms import in_proof
from tests.proof.crash.grounds import thrown_away
from tests.servers import PostgresServer


@pytest.fixture
def folder() -> Iterator[Path]:
    with thrown_away() as made:
        yield made


@pytest.fixture(params=["postgresql", *in_proof("sqlite")])
def store(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'rides.db'}"
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with postgres.database() as url:
        yield url
