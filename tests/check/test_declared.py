"""What a contract promises on an operation, as `semel check` reads it."""

from __future__ import annotations

import pytest

from semel.check.contract import _promises_on

DEFAULT = {"methods": ["POST"], "lifetime": 5}
OWN = {"method": "POST", "path": "/pay/{order}", "methods": ["POST"], "lifetime": 7}
FREE = {"method": "POST", "path": "/free", "methods": []}
CONTRACT = {"version": 1, "routes": [FREE, OWN], "default": DEFAULT}


@pytest.mark.parametrize(
    ("method", "target", "promised"),
    [
        ("POST", "/pay/17?a=b", OWN),
        ("POST", "/other", DEFAULT),
        ("POST", "/free", {}),  # and not what the default promises
        ("PUT", "/other", {}),
    ],
)
def test_the_promises_of_the_first_route_that_fits(
    method: str, target: str, promised: object
) -> None:
    assert _promises_on(CONTRACT, method, target) == promised
