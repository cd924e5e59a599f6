"""Each example, started by its README's line and attacked over HTTP: the same verdicts for all."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.examples.frameworks.example import ExampleServer, found, start_line
from tests.examples.frameworks.shop import Shop
from tests.examples.frameworks.verdicts import (
    VERDICTS,
    Verdict,
    a_server_killed_in_the_middle_of_a_payment_does_not_pay_twice,
)


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with ExampleServer(start_line(request.param)) as server:
        yield Shop(server)


def pairs() -> list[Any]:
    return [
        pytest.param(name, verdict, id=f"{name}-{verdict.__name__}", marks=marks(name, verdict))
        for name in found()
        for verdict in VERDICTS
    ]


def marks(name: str, verdict: Verdict) -> list[pytest.MarkDecorator]:
    """Starting a server once more takes longer than all the rest. What then answers is the same
    adapter in these three, and one of them does it in any case."""
    again = verdict is a_server_killed_in_the_middle_of_a_payment_does_not_pay_twice
    return [pytest.mark.proof] if again and name in ("fastapi", "litestar") else []


@pytest.mark.parametrize(("shop", "verdict"), pairs(), indirect=["shop"])
def test_in_this_shop(shop: Shop, verdict: Verdict) -> None:
    verdict(shop)
