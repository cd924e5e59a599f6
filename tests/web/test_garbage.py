"""A request leaves nothing to the garbage collector: circles made one costly for every request."""

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.web.colours import Said
from tests.web.conftest import Serve
from tests.web.drive import Ask

REQUESTS = 50


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """What was there before is not looked at again and again: there is a lot of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def kept() -> Iterator[None]:
    """What is found to be garbage is kept, to be looked at."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("again", [False, True], ids=["fresh", "replayed"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_request_leaves_no_circles(
    store: str, serve: Serve, again: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    send = serve(
        lambda: Said(b"done"),
        store="memory://" if store == "memory" else f"sqlite:///{tmp_path}/semel.db",
        strict=False,
    )
    keys = [uuid4().hex for _ in range(REQUESTS)]
    for key in keys if again else [uuid4().hex]:
        send(Ask(key=key))  # the first of a route registers its settings, and loads modules
    request.getfixturevalue("kept")
    for key in keys:
        assert send(Ask(key=key)).replayed is again
    gc.collect()
    found = Counter(type(each).__qualname__ for each in gc.garbage)
    ours = {name: count for name, count in found.items() if count >= REQUESTS // 2}
    assert ours == {}
