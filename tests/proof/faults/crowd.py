"""Clients: each key is sent several times at once, and again until there is an end to it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import semel
from tests.proof.faults import books as book
from tests.waiting import PATIENCE
from tests.web.client import Reply, new_key
from tests.web.drive import Ask, WsgiDriver, call

Send = Callable[[Ask], Awaitable[Reply]]

PAUSE = 0.02
"""Between two tries; clients of tests do not wait as long as they are told to."""
OK = 201


def through(colour: str, guard: semel.Guard, books: book.Books) -> Send:
    """The guarded application, in this process."""
    if colour == "asgi":
        app = guard.asgi(book.asgi(books))

        async def send(ask: Ask) -> Reply:
            reply, _ = await call(app, ask)
            return reply

        return send
    application = guard.wsgi(book.wsgi(books))
    return lambda ask: asyncio.to_thread(WsgiDriver(application, strict=False), ask)


@dataclass
class Crowd:
    """``lanes`` keys are under way at once, each sent by as many ``twins`` at the same time."""

    send: Send
    lanes: int = 8
    twins: int = 2
    patience: float = PATIENCE
    """Seconds after which a key without an end is wedged."""
    told: dict[str, list[Reply]] = field(default_factory=dict)
    """The last answer that each sender of a key got."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Why anybody was asked to come again."""
    requests: int = 0

    @property
    def served(self) -> int:
        """Keys that have had their answers."""
        return len(self.told)

    async def run(self, enough: Callable[[], bool]) -> None:
        """New keys until it is enough, and then those that are under way to their ends."""
        await asyncio.gather(*(self._lane(enough) for _ in range(self.lanes)))

    async def _lane(self, enough: Callable[[], bool]) -> None:
        while not enough():
            key = new_key()
            self.told[key] = await asyncio.gather(*(self.insist(key) for _ in range(self.twins)))

    async def come_back(self) -> None:
        """Everybody asks once more, when all is over."""
        keys = iter(list(self.told))

        async def lane() -> None:
            for key in keys:
                self.told[key].append(await self.insist(key))

        await asyncio.gather(*(lane() for _ in range(self.lanes)))

    async def insist(self, key: str) -> Reply:
        deadline = time.monotonic() + self.patience
        while True:
            self.requests += 1
            reply = await self.send(Ask(key=key))
            if self._over(reply) or time.monotonic() > deadline:
                return reply
            await asyncio.sleep(PAUSE)

    def _over(self, reply: Reply) -> bool:
        if reply.status == 0 or not reply.final:
            self.refusals[reply.code if reply.status else "nothing"] += 1
            return False
        return True
