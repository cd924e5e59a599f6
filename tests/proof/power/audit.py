"""After a cut: the store is opened as it would be, and must know all that it ever acknowledged."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.core.operations.requests import Applied, Claim, Claimed, Complete, Fetch, Fetched, Found
from semel.core.records import Fence, Identity, Micros, State
from semel.errors import SemelError
from semel.stores.base import Store
from semel.stores.sqlite import SqliteBackend
from semel.testing.contract.records import LEASE, ORIGIN, RETENTION, TOMBSTONE
from tests.proof.power.books import Act, Contents, Promise, Rows, all_rows, change, subject
from tests.proof.power.disk import Begun, Disk, Event, Survival, Told
from tests.proof.power.recording import NAME, Recording
from tests.stores.harness import FakeClock

ASKED = 3
"""Keys that somebody asks about after a cut."""


@dataclass
class Verdict:
    """Cuts, by what survived them; and what was wrong afterwards, by what it was."""

    cuts: Counter[str] = field(default_factory=Counter)
    unsafe: int = 0
    """Cuts at which something was not synced."""
    acts: int = 0
    writes: int = 0
    checked: int = 0
    """Keys and other subjects with all their rows, as the last act that was acknowledged of each
    had left them, compared with those of an image; one is compared again in every image."""
    deep: int = 0
    """Images that SQLite checked, and that were worked with."""
    asked: int = 0
    """Acknowledged keys that were asked for there, and neither run nor answered otherwise."""
    wrong: dict[str, list[str]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not self.wrong

    def told(self) -> dict[str, Any]:
        return dict(vars(self))

    def add(self, other: Verdict) -> None:
        self.cuts += other.cuts
        self.unsafe += other.unsafe
        self.acts += other.acts
        self.writes += other.writes
        self.checked += other.checked
        self.deep += other.deep
        self.asked += other.asked
        for kind, lines in other.wrong.items():
            self.wrong.setdefault(kind, []).extend(lines)


class Wrong(Exception):
    """kind: lost, came back, half there, damaged, refused, run twice."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Expected:
    """Follows a recording: what must be in the file, and what may be."""

    def __init__(self, recording: Recording) -> None:
        self._acts = recording.acts
        self.state: Contents = dict(recording.said)
        self.promises: dict[str, Promise] = {}
        self.under_way: dict[int, Act] = {}

    def follow(self, event: Event) -> None:
        match event:
            case Begun(number):
                self.under_way[number] = self._acts[number]
            case Told(number):
                act = self.under_way.pop(number)
                change(self.state, act)
                for name in act.after:
                    self.promises.pop(name, None)
                if act.promise is not None:
                    self.promises[subject(act.promise.identity)] = act.promise
            case _:
                pass

    def compare(self, found: Contents) -> int:
        """Each act under way is there wholly or not at all; all else is as it was acknowledged.

        Returns how many subjects were there to be compared.
        """
        state = dict(self.state)
        for act in self.under_way.values():
            after = [found.get(name) == rows for name, rows in act.after.items()]
            if all(after):
                change(state, act)
            elif any(
                found.get(name) == rows and found.get(name) != state.get(name)
                for name, rows in act.after.items()
            ):
                raise Wrong("half there", f"{act.what} is there in part")
        for name in state.keys() | found.keys():
            if state.get(name) != found.get(name):
                kind = "lost" if name in state else "came back"
                raise Wrong(
                    kind, f"{name}: {_named(found.get(name))}, not {_named(state.get(name))}"
                )
        return len(state)


def _named(rows: Rows | None) -> str:
    """The tables and states that a subject has rows in."""
    return ", ".join(f"{row[0]} {row[2]!s:.20}" for row in rows or ()) or "nothing"


class Auditor:
    """Opens images in a folder of its own, and counts in its verdict."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._folder = folder
        self._dice = dice
        self.verdict = Verdict()

    def audit(self, image: dict[str, bytes], expected: Expected, now: Micros, deep: bool) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for name, content in image.items():
            (self._folder / name).write_bytes(content)
        path = self._folder / NAME
        backend = SqliteBackend(f"sqlite:///{path}", timeout=60, clock=FakeClock(now))
        try:
            self._ask(backend, path, expected, deep)
        except (SemelError, sqlite3.Error) as error:
            raise Wrong("damaged", repr(error)) from error
        finally:
            backend.close()

    def _ask(self, backend: SqliteBackend, path: Path, expected: Expected, deep: bool) -> None:
        store = backend.blocking()
        self._claim_anew(store)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            found = all_rows(connection)
            found.pop(subject(NEW))
            self.verdict.checked += expected.compare(found)
            if deep:
                self.verdict.deep += 1
                (said,) = connection.execute("PRAGMA integrity_check").fetchone()
                if said != "ok":
                    raise Wrong("damaged", str(said))
        finally:
            connection.close()
        for promise in self._some(expected) if deep else ():
            self._go_on(store, promise)
            self.verdict.asked += 1

    def _claim_anew(self, store: Store) -> None:
        """The first thing after a cut is an ordinary request."""
        reply = store.perform(_claim(NEW, Fence(bytes(16))))
        if not isinstance(reply, Claimed):
            raise Wrong("refused", f"a new key: {reply}")

    def _some(self, expected: Expected) -> list[Promise]:
        busy = {name for act in expected.under_way.values() for name in act.after}
        able = [each for name, each in expected.promises.items() if name not in busy]
        return self._dice.sample(able, min(ASKED, len(able)))

    def _go_on(self, store: Store, promise: Promise) -> None:
        identity, fence = promise.identity, promise.fence
        reply = store.perform(_claim(identity, Fence(self._dice.randbytes(16))))
        if not isinstance(reply, Found):
            raise Wrong("run twice", f"{promise.state} was claimed again: {reply}")
        record = reply.record
        if (record.state, record.fence) != (promise.state, fence):
            raise Wrong("lost", f"{promise.state} is {record.state}")
        if promise.snapshot is not None:
            assert record.snapshot is not None
            whole = store.perform(Fetch(identity, fence, record.snapshot))
            if whole != Fetched(promise.snapshot):
                raise Wrong("lost", "the answer is another")
        if promise.state is State.IN_PROGRESS:
            done = store.perform(Complete(identity, fence, b"at last", RETENTION, TOMBSTONE))
            if not isinstance(done, Applied):
                raise Wrong("refused", f"its holder's completion: {done}")


NEW = Identity(bytes(32))


def _claim(identity: Identity, fence: Fence) -> Claim:
    return Claim(identity, fence, "v1:abc", b"\0fields", ORIGIN, LEASE)


@dataclass(frozen=True)
class Cut:
    """at: so many entries of the log have happened."""

    at: int
    survival: Survival


def walk(
    recording: Recording,
    cuts: Iterator[Cut],
    auditor: Auditor,
    dice: random.Random,
    *,
    lying: bool = False,
    deep_each: int = 1,
) -> Verdict:
    """Through the log once; ``cuts`` are in its order."""
    verdict = auditor.verdict
    verdict.acts = len(recording.acts)
    disk, expected, at = Disk(recording.start, lying=lying), Expected(recording), 0
    for number, cut in enumerate(cuts):
        while at < cut.at:
            disk.follow(at, recording.log[at])
            expected.follow(recording.log[at])
            at += 1
        verdict.cuts[cut.survival] += 1
        verdict.unsafe += bool(disk.unsafe)
        try:
            image = disk.image(cut.survival, dice)
            auditor.audit(image, expected, recording.ended_at, number % deep_each == 0)
        except Wrong as wrong:
            last = recording.log[cut.at - 1] if cut.at else None
            line = f"{wrong} (cut at {cut.at}, {cut.survival} survived, after {str(last)[:80]})"
            verdict.wrong.setdefault(wrong.kind, []).append(line)
    return verdict
