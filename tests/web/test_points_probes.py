"""A probe that a resumed call asks may hang or leave: the call is in doubt, the process goes on."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.unknown.evidence import Happened, Inquiry
from semel.runtime import recovery_points
from tests import waiting
from tests.stores.harness import server_of
from tests.web.colours import COLOURS
from tests.web.rides import Rides, rides_on


@pytest.fixture(params=COLOURS)
def rides(
    request: pytest.FixtureRequest, tmp_path: Path, runner: asyncio.Runner
) -> Iterator[Rides]:
    with rides_on("sqlite", request.param, tmp_path, runner, server_of(request, "sqlite")) as made:
        yield made


def refused(key: str, amount: int) -> Any:
    raise semel.NotExecuted("the provider is down")


def in_doubt(rides: Rides) -> None:
    rides.script.charge = refused
    assert rides.send().status == 503
    rides.a_holder_dies_with("made", intent="charged")
    rides.script.charged.clear()


@pytest.mark.parametrize("awaited", [False, True])
def test_a_probe_that_leaves_the_process(rides: Rides, awaited: bool) -> None:
    def leave(inquiry: Inquiry) -> Happened:
        sys.exit(5)

    async def leave_awaited(inquiry: Inquiry) -> Happened:
        sys.exit(5)

    rides.guard.probe("charged")(leave_awaited if awaited else leave)
    in_doubt(rides)
    assert rides.send().status == 500
    assert (rides.state, rides.script.charged) == ("unknown", [])


@pytest.mark.parametrize("awaited", [False, True])
def test_a_probe_that_hangs(rides: Rides, awaited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def hang(inquiry: Inquiry) -> Happened:
        go_on.wait(waiting.PATIENCE)
        return Happened("late")

    async def hang_awaited(inquiry: Inquiry) -> Happened:
        await asyncio.Event().wait()
        return Happened("late")

    monkeypatch.setattr(recovery_points, "PATIENCE", 0.1)
    rides.guard.probe("charged")(hang_awaited if awaited else hang)
    in_doubt(rides)
    assert rides.send().status == 500
    go_on.set()
    assert (rides.state, rides.script.charged) == ("unknown", [])
