"""Canaries in the keys, bodies, answers and tokens of tests, and who looks where they may not be.

What tests send through the usual makers (`tests.web.client`, `tests.web.drive`, `tests.scene`,
`semel.testing.contract`) has a word in it that nothing else has. `watch` looks for these words in
everything semel says, whatever its level: lines of the log with their tracebacks, the fields of
events (from which the labels of metrics and the attributes of spans are taken), its own exceptions,
problem documents, and what servers and workers have written to their logs. tests/conftest.py fails
the test in which one is found. Exceptions of handlers are the application's own, and none of the
tests' has one in it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

BODY = "canary-of-a-body"
ANSWER = "canary-of-an-answer"
TOKEN = "canary-of-a-token"
_IN_KEYS = "-ca4a-4a7e-8a4e-"

CANARIES = (
    _IN_KEYS,
    "-40d5-43e8-bc93-",  # the key of tests.web.drive
    "opaque-key-of-some",  # and that of tests.scene
    "a-key-of-",  # those of tests of stores and commands
    BODY,
    ANSWER,
    TOKEN,
)

escaped: list[str] = []
"""Where a canary was found since this was last looked at."""


def new_key() -> str:
    """A UUID, version 4, that can be told from all others."""
    bits = uuid4().hex
    return f"{bits[:8]}{_IN_KEYS}{bits[:12]}"


def look(where: str, said: object) -> None:
    """Note it when something that is said has a canary in it."""
    text = str(said)
    escaped.extend(
        f"{where}: {canary!r} in {_around(text, canary)!r}" for canary in CANARIES if canary in text
    )


def _around(text: str, canary: str) -> str:
    at = text.index(canary)
    return text[max(0, at - 120) : at + 120]


@contextmanager
def watch() -> Iterator[None]:
    """Listen to everything that semel says in this process."""
    from semel.errors import SemelError
    from semel.log import log
    from semel.runtime.events import Events

    with pytest.MonkeyPatch.context() as patch:
        for name in ("debug", "info", "warning", "error", "exception", "critical", "log"):
            patch.setattr(log, name, _heard(name, getattr(log, name)))
        patch.setattr(Events, "emit", _emitting(Events.emit))
        patch.setattr(SemelError, "__init__", _raising(SemelError.__init__))
        yield


def _heard(name: str, method: Callable[..., None]) -> Callable[..., None]:
    """A method of the logger; its lines are looked at also where the level keeps them silent."""

    def speak(*arguments: Any, **how: Any) -> None:
        said = arguments[1:] if name == "log" else arguments
        look("a line of the log", _line(*said, traced=name == "exception", **how))
        method(*arguments, **how)

    return speak


def _line(text: str, *arguments: Any, traced: bool = False, **how: Any) -> str:
    record = logging.LogRecord("semel", 0, "", 0, text, arguments, None)
    error = how.get("exc_info")
    told = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
    told += traceback.format_exc() if traced else ""
    return f"{record.getMessage()} {how.get('extra')} {told}"


def _emitting(emit: Callable[..., None]) -> Callable[..., None]:
    def told(self: Any, name: str, /, **fields: Any) -> None:
        # The tenant is for subscribers; the log and the metrics have to leave it out themselves.
        look(f"the event {name}", {field: fields[field] for field in fields if field != "tenant"})
        emit(self, name, **fields)

    return told


def _raising(init: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, *arguments: Any, **options: Any) -> None:
        look(f"the exception {type(self).__name__}", (arguments, options))
        init(self, *arguments, **options)

    return made
