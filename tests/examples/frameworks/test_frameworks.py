"""Each example, started by its README's line and attacked over HTTP: the same verdicts for all."""

from collections.abc import Iterator

import pytest

from tests.examples.frameworks.example import ExampleServer, found, start_line
from tests.examples.frameworks.shop import Shop
from tests.examples.frameworks.verdicts import VERDICTS, Verdict


@pytest.fixture(scope="module", params=found())
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with ExampleServer(start_line(request.param)) as server:
        yield Shop(server)


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: verdict.__name__)
def test_in_this_shop(shop: Shop, verdict: Verdict) -> None:
    verdict(shop)
