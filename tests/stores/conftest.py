"""A database of one's own, in every SQL dialect."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.stores.dialects import DIALECTS, Database


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """On the server of the whole run."""
    kind = DIALECTS[request.param]
    server = request.getfixturevalue(kind.SERVER)
    with server.database() as url:
        yield kind(server, url)


@pytest.fixture(scope="module", params=DIALECTS)
def lone_server(request: pytest.FixtureRequest) -> Iterator[tuple[type[Database], Any]]:
    kind = DIALECTS[request.param]
    request.getfixturevalue(kind.SERVER)  # skips, and says so, where there is none
    with kind.own_server() as server:
        yield kind, server


@pytest.fixture
def own_database(lone_server: tuple[type[Database], Any]) -> Iterator[Database]:
    """On a server where nobody else writes. Who stops it starts it again."""
    kind, server = lone_server
    with server.database() as url:
        yield kind(server, url)
