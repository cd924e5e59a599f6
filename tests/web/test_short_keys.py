"""Short keys are taken and told of; where a route asks for strong ones they are refused."""

from __future__ import annotations

import asyncio
import logging

import pytest

import semel
from tests.ears import Ear
from tests.web.colours import COLOURS, driver, once
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask
from tests.web.effects import Effects


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_short_key_is_a_key_counted_each_time_and_warned_of_once(
    colour: str,
    make_guard: MakeGuard,
    effects: Effects,
    runner: asyncio.Runner,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Ear()
    send = driver(colour, make_guard(on_event=told), once(effects), runner)
    with caplog.at_level(logging.WARNING, "semel"):
        for key in ("order-1001", "order-1002", "k"):
            first, second = send(Ask(key=key)), send(Ask(key=key))
            assert (first.status, second.replayed) == (200, True)
            assert second.body == first.body
    assert len(effects.all()) == 3
    assert [event["length"] for event in told.all("key.short")] == [10, 10, 1]
    (warned,) = [line for line in caplog.messages if "characters" in line]
    assert "key='strong'" in warned
    assert "order" not in warned


def test_a_strong_key_is_not_told_of(
    colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    told = Ear()
    send = driver(colour, make_guard(on_event=told), once(effects), runner)
    assert send(Ask(key="k" * 16)).status == 200
    assert not told.all("key.short")


@pytest.mark.parametrize("key", ["order-1001", '"order-1001"', "k" * 15])
def test_a_route_may_refuse_short_keys(
    colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner, key: str
) -> None:
    guard = make_guard(policy=semel.ietf(key="strong"))
    send = driver(colour, guard, once(effects), runner)
    reply = send(Ask(key=key))
    assert (reply.status, reply.code) == (400, "malformed-key")
    assert "16 to 255" in reply.problem["detail"]
    assert send(Ask(key="k" * 16)).status == 200
    assert len(effects.all()) == 1
