"""The stores that the example runs on, empty; and a ground that several tests stand on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.rides.campaign import Ground, database, ground
from tests.forms import in_proof
from tests.proof.crash.grounds import thrown_away


@pytest.fixture
def folder() -> Iterator[Path]:
    with thrown_away() as made:
        yield made


@pytest.fixture(params=["postgresql", *in_proof("sqlite", "mariadb")])
def store(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    with database(request.param, folder, request.getfixturevalue) as url:
        yield url


@pytest.fixture(scope="module", params=["postgresql", "mariadb", *in_proof("sqlite")])
def standing(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """For tests that do not start anything of their own: it would take longer than they do."""
    with (
        thrown_away() as folder,
        database(request.param, folder, request.getfixturevalue) as url,
        ground(url, folder) as made,
    ):
        yield made
