"""Ears for tests: who hears every event of a guard, on the spot."""

from __future__ import annotations

from collections import Counter

import semel
from semel.runtime.events import Event, Events


class Ear:
    """A subscriber that keeps what it hears."""

    inline = True

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.heard.append(event)

    def all(self, name: str) -> list[Event]:
        return [event for event in self.heard if event.name == name]

    def one(self, name: str) -> Event:
        (event,) = self.all(name)
        return event

    def last(self, name: str) -> Event:
        return self.all(name)[-1]

    def tally(self, name: str, field: str) -> Counter[object]:
        return Counter(event[field] for event in self.all(name))

    def total(self, name: str, field: str = "count") -> float:
        return sum(float(event[field] or 0) for event in self.all(name))


def listen(guard: semel.Guard) -> Ear:
    """Hear what a guard tells from now on, though it was made without ``on_event``."""
    ear = Ear()
    made = Events(ear)
    # Whoever tells has these events already, so they are not replaced.
    guard.events.heard, guard.events._listeners = made.heard, made._listeners
    return ear
