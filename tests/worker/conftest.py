"""Scenes on every store, and the process that workers are forked from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proof.crash.zygote import Zygote
from tests.scene import quick, scene
from tests.worker import forked_workers

__all__ = ["hatchery", "quick", "scene"]


@pytest.fixture(scope="module")
def hatchery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Where worker processes come from."""
    with Zygote(forked_workers.MODULE, {}, tmp_path_factory.mktemp("hatchery") / "log") as made:
        yield made
