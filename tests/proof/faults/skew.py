"""Nodes hours apart on one store: who holds a key, and until when, is the store's to say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.servers import AppServer, uvicorn
from tests.waiting import until
from tests.web.client import Client, Reply, new_key
from tests.web.effects import Effects

HOURS = 5
SHIFTS = {"ahead": HOURS * 3600, "behind": -HOURS * 3600}
"""The store between them is right."""


@dataclass(frozen=True)
class Nodes:
    """The same application in several processes, each with a clock of its own."""

    clients: Mapping[str, Client]
    effects: Effects
    folder: Path

    def hours_off(self) -> dict[str, int]:
        """By how much each node's time of day is wrong."""
        told = {name: float(one.post("/-/clock", None).body) for name, one in self.clients.items()}
        return {name: round((at - time.time()) / 3600) for name, at in told.items()}

    def disagreements(self, store: str) -> Iterator[str]:
        """Each node holds a key while the others look, sweep, and ask for it."""
        for holder in self.clients:
            yield from self._held(store, holder)

    def _held(self, store: str, holder: str) -> Iterator[str]:
        key, gate = new_key(), self.folder / f"gate-{uuid4().hex}"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._post, store, holder, key, str(gate))
            until(lambda: self.effects.of(key) or running.done())
            for other in self._others(holder):
                yield from self._tended(store, other, f"held by {holder}")
                reply = self._post(store, other, key)
                if (reply.status, reply.code) != (409, "in-flight"):
                    yield f"held by {holder}, {other} says {reply.status} {reply.code}"
            gate.touch()
            first = running.result()
        yield from self._completed(store, holder, key, first)
        if (runs := len(self.effects.of(key))) != 1:
            yield f"held by {holder}: {runs} effects"

    def _completed(self, store: str, holder: str, key: str, first: Reply) -> Iterator[str]:
        if first.status != 201:
            yield f"held by {holder}: answered {first.status}"
        for other in self._others(holder):
            yield from self._tended(store, other, f"completed by {holder}")
            again = self._post(store, other, key)
            if (again.status, again.body) != (201, first.body):
                yield f"completed by {holder}, {other} answers {again.status}"
            if again.one("idempotency-expires") != first.one("idempotency-expires"):
                yield f"completed by {holder}, {other} tells another end"

    def _tended(self, store: str, node: str, when: str) -> Iterator[str]:
        done = self.clients[node].post(f"/{store}/tend", None).body.decode()
        if done:
            yield f"{when}, maintenance of {node}: {done}"

    def _others(self, holder: str) -> list[str]:
        return [name for name in self.clients if name != holder]

    def _post(self, store: str, node: str, key: str, gate: str | None = None) -> Reply:
        more = {} if gate is None else {"x_gate": gate}
        return self.clients[node].post(f"/{store}/pay", key, **more)


@contextmanager
def nodes_on(urls: Mapping[str, str], folder: Path) -> Iterator[Nodes]:
    log = folder / "effects"
    with ExitStack() as stack:

        def started(shift: int) -> AppServer:
            env = {
                "SEMEL_TEST_SHIFT": str(shift),
                "SEMEL_TEST_STORES": json.dumps(dict(urls)),
                "SEMEL_TEST_EFFECTS": str(log),
            }
            return stack.enter_context(uvicorn("tests.proof.faults.clocks:app", env=env))

        clients = {name: Client(started(shift).url) for name, shift in SHIFTS.items()}
        yield Nodes(clients, Effects(log), folder)
