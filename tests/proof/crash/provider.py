"""The world outside: what really happened, in files that semel knows nothing of.

One file for each downstream key, with a line for everything that was done under it. The auditor
counts here, never by what an application answers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.proof.crash.boundaries import Boundaries


@dataclass(frozen=True)
class Entry:
    """charged: it took effect. known: asked for again, under a key that is honoured. ran: a handler
    without an effect. voided: called off before it was asked for."""

    what: str
    order: str
    nonce: str


class Provider:
    def __init__(self, folder: Path, at: Boundaries | None = None) -> None:
        self._folder = folder
        self._at = at or Boundaries()
        folder.mkdir(exist_ok=True)

    def charge(self, key: str, order: str, *, honours: bool) -> str | None:
        """From here on it has happened. None: it was called off."""
        with self._books(key) as books:
            entries = _read(books)
            if any(entry.what == "voided" for entry in entries):
                return None
            charged = _charge(entries) if honours else None
            return _write(books, "known" if charged else "charged", order, charged)

    def run(self, key: str, order: str) -> str:
        """Note a run that does nothing outside."""
        with self._books(key) as books:
            return _write(books, "ran", order)

    def asked(self, key: str) -> str | None:
        """Whether it was charged: by which nonce."""
        with self._books(key) as books:
            return _charge(_read(books))

    def call_off(self, key: str) -> str | None:
        """The same; and if it was not, it never will be."""
        with self._books(key) as books:
            charged = _charge(_read(books))
            if charged is None:
                _write(books, "voided", "-")
            return charged

    def entries(self) -> list[Entry]:
        lines = [line for file in self._folder.iterdir() for line in file.read_text().splitlines()]
        return [Entry(*line.split()) for line in lines]

    @contextmanager
    def _books(self, key: str) -> Iterator[int]:
        """For one process at a time; a death gives them back, and nobody is stopped with them."""
        with self._at.busy():
            books = os.open(self._folder / key, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                fcntl.flock(books, fcntl.LOCK_EX)
                yield books
            finally:
                os.close(books)


def _read(books: int) -> list[Entry]:
    return [Entry(*line.split()) for line in os.pread(books, 65536, 0).decode().splitlines()]


def _write(books: int, what: str, order: str, nonce: str | None = None) -> str:
    nonce = nonce or uuid4().hex
    os.write(books, f"{what} {order} {nonce}\n".encode())
    return nonce


def _charge(entries: list[Entry]) -> str | None:
    return next((entry.nonce for entry in entries if entry.what == "charged"), None)
