"""A clock that is set while handlers run, and handlers that take their time."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

from semel.core.records import Micros
from semel.stores.base import system_clock
from tests.proof.faults.books import Log
from tests.waiting import PATIENCE

HOUR: Micros = 3_600_000_000
WORK = 0.01
"""Seconds that a handler takes after its effect."""


class Jumping:
    """The machine's clock, as somebody sets it: never further off than so many hours."""

    def __init__(self, dice: random.Random, hours: int) -> None:
        self._dice = dice
        self._hours = hours
        self._off: Micros = 0
        self.jumps: Counter[str] = Counter()

    def __call__(self) -> Micros:
        return system_clock() + self._off

    def jump(self) -> None:
        hours = range(-self._hours, self._hours + 1)
        self.set(self._dice.choice([hour for hour in hours if hour * HOUR != self._off]))

    def set(self, hours: int) -> None:
        """So far from what it would be."""
        to = hours * HOUR
        self.jumps["jumps ahead" if to > self._off else "jumps back"] += 1
        self._off = to


class Lingering(Log):
    """Books whose entries take a while, so that somebody is always at it."""

    _news = threading.Condition()
    _begun = 0

    async def aenter(self, key: str) -> str:
        nonce = await super().aenter(key)
        with self._news:
            self._begun += 1
            self._news.notify_all()
        await asyncio.sleep(WORK)
        return nonce

    def await_someone(self) -> None:
        """Until a handler has begun."""
        with self._news:
            goal = self._begun + 1
            assert self._news.wait_for(lambda: self._begun >= goal, PATIENCE)
