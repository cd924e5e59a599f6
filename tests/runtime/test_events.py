"""The hub: everybody hears everything, and nobody who listens can hurt whoever speaks."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import semel
from semel.runtime import events
from semel.runtime.events import CATALOGUE, ERROR, INFO, NONE, Event, Events, Subscriber
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who closes the hub waits for its listeners, however slow the machine."""
    monkeypatch.setattr(events, "_LAST_WORDS", PATIENCE)


class Inline:
    """Hears on the spot."""

    inline = True

    def __init__(self, raises: type[Exception] | None = None) -> None:
        self.heard: list[Event] = []
        self._raises = raises

    def __call__(self, event: Event) -> None:
        self.heard.append(event)
        if self._raises is not None:
            raise self._raises("of the subscriber")


def test_every_subscriber_hears_every_event() -> None:
    one, two, later = Inline(), Inline(), list[Event]()
    hub = Events([one, two, later.append])
    hub.emit("lease.lost", identity="0123")
    hub.emit("lapse", count=2)
    hub.close()
    assert [event.name for event in one.heard] == ["lease.lost", "lapse"]
    assert one.heard == two.heard == later
    assert one.heard[1]["count"] == 2
    assert one.heard[1].get("nothing") is None


def test_with_nobody_listening_only_what_is_notable_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = Events()
    assert not hub.heard
    with caplog.at_level(logging.DEBUG, "semel"):
        hub.emit("lapse", count=1)
        hub.emit("lease.lost", identity="0123")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert vars(record)["semel_event"] == "lease.lost"
    assert vars(record)["semel_identity"] == "0123"


def test_a_line_of_the_log_says_what_was_raised_and_of_strangers_where(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = Events()
    hub.emit(
        "store.error", error=semel.StoreUnavailable("no answer"), during="renew", operation="Renew"
    )
    hub.emit("round.failed", error=ValueError("a bug"), loop="run")
    own, strange = caplog.records
    assert own.getMessage() == "semel: the store failed (renew, Renew): no answer"
    assert own.exc_info is None
    assert vars(own)["semel_error"] == "StoreUnavailable"
    assert strange.exc_info is not None
    assert strange.exc_info[0] is ValueError


def test_a_record_of_the_log_is_one_line_whatever_its_fields_say(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forged = "x\r\nERROR semel: forged\x1b]0;title\x07\u2028\u202e"
    fields: dict[str, Any] = {"by": forged, "act": "settled", "identity": "0123", "effect": None}
    Events().emit("operator", error=semel.StoreUnavailable(forged), reason=forged, **fields)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.getMessage().count("forged") == 3, "all of it is there to be read"
    assert str(vars(record)["semel_reason"]).isprintable()


def test_a_subscriber_that_raises_hurts_nobody_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Inline(ValueError), Inline()
    hub = Events([bad, good])
    for _ in range(50):
        hub.emit("lapse", count=1)
    assert len(good.heard) == 50
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_subscriber_that_blocks_keeps_nobody_waiting_and_loses_what_is_too_much(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "ROOM", 5)
    gate, begun, heard, other = threading.Event(), threading.Event(), list[Event](), list[Event]()

    def block(event: Event) -> None:
        begun.set()
        gate.wait(PATIENCE)
        heard.append(event)

    hub = Events([block, other.append])
    hub.emit("lapse", count=0)
    assert begun.wait(PATIENCE)
    for number in range(1, 20):
        hub.emit("lapse", count=number)
        until(lambda: len(other) == number + 1)  # noqa: B023 - called at once
    assert heard == []
    gate.set()
    hub.close()
    assert [event["count"] for event in heard] == [0, 1, 2, 3, 4, 5]
    assert "too slow: 1 events" in caplog.text


def test_a_forked_child_has_ears_of_its_own() -> None:
    read, write = os.pipe()
    hub = Events(lambda event: os.write(write, f"{event['count']};".encode()))
    hub.emit("lapse", count=1)
    assert os.read(read, 10) == b"1;"
    child = os.fork()
    if not child:
        hub.emit("lapse", count=2)
        hub.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"2;"
    hub.close()


def test_a_guard_that_was_closed_goes_on_telling() -> None:
    heard: list[Event] = []
    guard = semel.Guard("memory://", tenant=None, on_event=heard.append)
    for _ in range(2):
        guard.events.emit("lapse", count=1)
        guard.close()
    assert len(heard) == 2


@pytest.mark.parametrize("wrong", [3, "text", [None], ["text"]])
def test_what_is_no_function_is_refused(wrong: object) -> None:
    given: Callable[..., Subscriber] = lambda: wrong  # type: ignore[return-value,assignment]  # noqa: E731
    with pytest.raises(semel.ConfigurationError, match="on_event="):
        Events(given())


async def coroutine(event: Event) -> None:
    """Nobody would await it."""


def test_a_coroutine_function_is_refused() -> None:
    with pytest.raises(semel.ConfigurationError, match="coroutines"):
        Events(coroutine)


def test_the_fields_of_an_event_do_not_hide_those_of_a_record_of_the_log() -> None:
    own = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    for name, kind in CATALOGUE.items():
        assert not {f"semel_{field}" for field in kind.fields} & own, name
        assert "error" not in kind.fields, name
        assert "event" not in kind.fields, name


def test_levels_are_those_of_logging() -> None:
    assert (NONE, INFO, ERROR) == (logging.NOTSET, logging.INFO, logging.ERROR)
