"""What a store cannot do is refused when the guard is made, not when a request needs it."""

from typing import Any

import pytest

import semel
from semel.errors import ConfigurationError

pytestmark = pytest.mark.parametrize("url", ["redis://h/0"])


@pytest.mark.parametrize("mode", ["atomic", "resumable"])
def test_a_policy_that_needs_a_transaction_is_refused_at_start(url: str, mode: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{url} has no transactions"):
        semel.Guard(url, tenant=None, policy=semel.ietf(mode=mode))


def test_a_deliverer_of_effects_is_refused_where_nothing_could_write_one(url: str) -> None:
    guard = semel.Guard(url, tenant=None)
    with pytest.raises(ConfigurationError, match=f"{url} has no outbox that"):
        guard.delivers("mail")
    with pytest.raises(ConfigurationError, match=f"{url} has no transactions"):
        guard.enqueue(None, "mail", {})
