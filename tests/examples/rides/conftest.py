"""Both stores that the example runs on, empty; and a ground that several tests stand on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.rides.campaign import Ground, ground
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


@pytest.fixture(scope="module", params=["postgresql", *in_proof("sqlite")])
def standing(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[Ground]:
    """For tests that do not start anything of their own: it would take longer than they do."""
    with thrown_away() as folder, postgres.database() as url:
        store = url if request.param == "postgresql" else f"sqlite:///{folder / 'rides.db'}"
        with ground(store, folder) as made:
            yield made
