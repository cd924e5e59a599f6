"""A scene on every store, for the tests of reconciliation and maintenance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.effects import crew
from tests.effects.doubts import NAMES, Scene, scene_on
from tests.proof.crash.zygote import Zygote


@pytest.fixture(params=NAMES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene_on(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def quick(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """In memory, for what does not depend on the store."""
    with scene_on("memory-sync", tmp_path, request) as made:
        yield made


@pytest.fixture(scope="module")
def hatchery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Where worker processes come from."""
    with Zygote(crew.MODULE, {}, tmp_path_factory.mktemp("hatchery") / "log") as made:
        yield made
