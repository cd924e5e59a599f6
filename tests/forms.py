"""The two forms of a test: all combinations in `make proof`, those that differ in `make test`."""

from typing import Any

import pytest


def in_proof(*values: Any) -> list[Any]:
    """Parameters that `make test` leaves out: others run the same code, or nearly."""
    return [pytest.param(value, marks=pytest.mark.proof) for value in values]
