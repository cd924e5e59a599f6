"""What a store declares, it does; what it does not, it refuses."""

from __future__ import annotations

import pytest

from semel.core import operations as ops
from semel.errors import ConfigurationError
from semel.testing.contract.harness import Harness


class WithOutbox:
    """A store that keeps effects."""

    def test_it_says_so(self, harness: Harness) -> None:
        assert harness.backend.capabilities.outbox
        assert harness.perform(ops.BrowseEffects(ops.Shelf.WAITING, 1)).effects == ()


class WithoutOutbox:
    """A store that keeps none. To take one and lose it would be worse than to refuse it."""

    def test_it_says_so(self, harness: Harness) -> None:
        assert not harness.backend.capabilities.outbox

    @pytest.mark.parametrize(
        "op", [ops.Enqueue("key", None, "mail", b""), ops.BrowseEffects(ops.Shelf.WAITING, 1)]
    )
    def test_it_refuses_effects(self, harness: Harness, op: ops.StoreOperation[object]) -> None:
        with pytest.raises(ConfigurationError, match="has no outbox"):
            harness.perform(op)
