"""The canaries sing: taken out, the masking of keys is missed by the tests that send them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import semel
from semel.core.exchange.problems import refuse
from semel.core.request import keys
from semel.log import log
from semel.runtime.events import Events
from tests import canary
from tests.servers.child import Child
from tests.web.client import Reply
from tests.web.colours import COLOURS, Said, driver
from tests.web.drive import Ask


@pytest.fixture
def caught() -> Iterator[list[str]]:
    """What is found in these tests is wanted."""
    canary.escaped.clear()
    yield canary.escaped
    canary.escaped.clear()


def test_a_key_is_a_uuid_that_can_be_recognised(caught: list[str]) -> None:
    key = canary.new_key()
    assert keys.check_format(key, "uuid") == key
    assert key != canary.new_key()
    canary.look("here", f"the key {key} was used")
    assert len(caught) == 1
    canary.look("here", keys.mask(key))
    assert len(caught) == 1


@pytest.mark.parametrize("colour", COLOURS)
def test_an_unmasked_key_is_caught(
    colour: str, caught: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields of events are where labels of metrics, attributes of spans and lines come from."""
    monkeypatch.setattr("semel.web.request_events.mask", lambda key: key)
    guard = semel.Guard("memory://", tenant=None, maintenance=None, on_event=lambda event: None)
    with asyncio.Runner() as runner:
        driver(colour, guard, lambda: Said(b"x"), runner)(Ask(key=canary.new_key()))
    guard.close()
    assert [each.partition(":")[0] for each in caught] == ["the event exchange"]


def test_a_line_of_the_log_is_looked_at_whatever_its_level(caught: list[str]) -> None:
    log.debug("semel: the body was %s", {"note": canary.BODY})
    assert len(caught) == 1


def test_so_is_the_traceback_below_it(caught: list[str]) -> None:
    log.error("semel: it failed", exc_info=ValueError(canary.TOKEN))
    try:
        raise LookupError(canary.ANSWER)
    except LookupError:
        log.exception("semel: it failed")
    assert len(caught) == 2


def test_so_are_fields_that_no_line_shows(caught: list[str]) -> None:
    Events().emit("lapse", count=1, by=canary.new_key())
    assert len(caught) == 1


def test_so_are_semels_own_exceptions_and_problem_documents(caught: list[str]) -> None:
    semel.StoreUnavailable(f"cannot write {canary.new_key()}")
    response = refuse("malformed-key", detail=canary.TOKEN)
    Reply(400, (("content-type", "application/problem+json"),), response.body)
    assert len(caught) == 2


def test_so_is_what_a_process_has_written(caught: list[str], tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", f"print({canary.BODY!r})"], folder=tmp_path)
    assert child.wait() == 0
    assert len(caught) == 1
