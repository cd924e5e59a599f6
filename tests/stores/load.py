"""Claims and completes keys until its input ends, and says on its output what it was told.

``python -m tests.stores.load URL COLOUR LANES``, a process of a campaign: see `Load`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Self, TypeAlias

from semel.core.operations.requests import Applied, Claimed, Found, Read, StoreOperation
from semel.errors import StoreUnavailable
from semel.stores import open_backend
from semel.stores.base import Backend
from semel.testing.contract.records import claim, complete, new_fence, new_identity
from tests.servers.child import ROOT
from tests.waiting import PATIENCE

Say: TypeAlias = Callable[[str, bytes], None]
Lane: TypeAlias = Generator[StoreOperation[Any], Any, None]

REST = 0.02
"""Seconds between two tries at a store that is not there, so that two cores can do the rest."""

# ── one lane: a client that asks again with the same fence until it is told ───────────────────────


def lane(say: Say) -> Lane:
    while True:
        identity, fence = new_identity(), new_fence()
        key = identity + fence
        reply = yield from asked(claim(identity, fence), key, say)
        if isinstance(reply, Claimed):
            say("claimed", key)
            reply = yield from asked(complete(identity, fence), key, say, insist=True)
            say("completed" if isinstance(reply, Applied) else "refused", key)
        elif reply is not None:
            say("taken", key)


def asked(
    op: StoreOperation[Any], key: bytes, say: Say, *, insist: bool = False
) -> Generator[StoreOperation[Any], Any, Any]:
    """The answer, in the end; None for a key that surely was not claimed, and is left alone."""
    doubt = False
    while True:
        try:
            reply = yield op
        except StoreUnavailable as error:
            doubt = doubt or error.applied is None
            say("doubt" if error.applied is None else "nothing", key)
            if not (doubt or insist):
                say("left", key)
                return None
            if isinstance(reply := (yield from looked(op, key, say)), Found) and not insist:
                say("applied", key)
        else:
            return reply


def looked(op: Any, key: bytes, say: Say) -> Generator[StoreOperation[Any], Any, Any]:
    while True:
        try:
            return (yield Read(op.identity))
        except StoreUnavailable:
            say("down", key)


# ── a process ─────────────────────────────────────────────────────────────────────────────────────


def main(url: str, colour: str, lanes: str) -> None:
    backend = open_backend(url)
    stop = threading.Event()
    threading.Thread(target=heed, args=(stop,), daemon=True).start()
    if colour == "sync":
        threads = [threading.Thread(target=drive, args=(backend, stop)) for _ in range(int(lanes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        backend.close()
    else:
        asyncio.run(drive_all(backend, stop, int(lanes)))


def heed(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def say(kind: str, key: bytes) -> None:
    sys.stdout.write(f"{kind} {key.hex()}\n")  # in one write: lanes do not mix their lines
    sys.stdout.flush()


def drive(backend: Backend, stop: threading.Event) -> None:
    steps, store = lane(say), backend.blocking()
    op = next(steps)
    while not stop.is_set():
        try:
            reply = store.perform(op)
        except StoreUnavailable as error:
            time.sleep(REST)
            op = steps.throw(error)
        else:
            op = steps.send(reply)


async def drive_all(backend: Backend, stop: threading.Event, lanes: int) -> None:
    await asyncio.gather(*(adrive(backend, stop) for _ in range(lanes)))
    await backend.aclose()


async def adrive(backend: Backend, stop: threading.Event) -> None:
    steps, store = lane(say), backend.awaited()
    op = next(steps)
    while not stop.is_set():
        try:
            reply = await store.perform(op)
        except StoreUnavailable as error:
            await asyncio.sleep(REST)
            op = steps.throw(error)
        else:
            op = steps.send(reply)


# ── many of them, seen from a test ────────────────────────────────────────────────────────────────


class Told:
    """What each key was told."""

    def __init__(self) -> None:
        self.told: dict[str, set[bytes]] = {}
        self.counts: Counter[str] = Counter()

    def say(self, kind: str, key: bytes) -> None:
        self.told.setdefault(kind, set()).add(key)
        self.counts[kind] += 1

    def keys(self, kind: str) -> set[bytes]:
        return self.told.get(kind, set())

    def by_hand(self, perform: Callable[[StoreOperation[Any]], Any], count: int) -> None:
        """One lane in this process, where nothing happens to the store: so many keys more."""
        steps, goal = lane(self.say), self.counts["completed"] + count
        op = next(steps)
        while self.counts["completed"] < goal:
            op = steps.send(perform(op))


class Load(Told):
    """Processes of both colours at work."""

    def __init__(self, urls: list[str], *, lanes: int = 4) -> None:
        super().__init__()
        self._each = [Counter[str]() for _ in range(2 * len(urls))]
        self._news = threading.Condition()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.stores.load", url, colour, str(lanes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for url in urls
            for colour in ("sync", "async")
        ]
        self._readers = [
            threading.Thread(target=self._read, args=(process, each))
            for process, each in zip(self._processes, self._each, strict=True)
        ]

    def __enter__(self) -> Self:
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self, process: subprocess.Popen[str], each: Counter[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            kind, key = line.split()
            with self._news:
                self.say(kind, bytes.fromhex(key))
                each[kind] += 1
                self._news.notify_all()

    def more(self, count: int, kind: str = "completed") -> None:
        """Until each process was told so as often again."""
        with self._news:
            goals = [each[kind] + count for each in self._each]

            def reached() -> bool:
                return all(each[kind] >= goal for each, goal in zip(self._each, goals, strict=True))

            assert self._news.wait_for(reached, PATIENCE), self._state()

    def _state(self) -> str:
        return f"{[dict(each) for each in self._each]}, {[p.poll() for p in self._processes]}"

    def stop(self) -> None:
        """Let everybody finish what they are at, and hear the last of it."""
        for process in self._processes:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join()
        for process in self._processes:
            if process.stdout is not None:
                process.stdout.close()

    @property
    def codes(self) -> set[int | None]:
        return {process.returncode for process in self._processes}


if __name__ == "__main__":
    main(*sys.argv[1:])
