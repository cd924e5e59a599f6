"""Where a world stands, in tuples that can be hashed: records, operations and plays by number."""

from __future__ import annotations

from typing import Final, NamedTuple

IDLE: Final = -3
"""Nothing begun: a request that has not come, a worker without work."""
DONE: Final = -4
"""At its end; how it came there matters to nobody any more."""
DEAD: Final = -5
"""Killed. Nothing of its process is left."""


class Pursuit(NamedTuple):
    """A write that a process goes on trying to make."""

    op: int
    claim: int
    """Made before it, each time; -1: none."""
    claimed: bool
    until: int
    seen: bytes | None
    """The fence that a record must no longer have, for an answer to be one."""


class Actor(NamedTuple):
    """Somebody who takes part, in a process of its own unless the world says otherwise."""

    node: int = IDLE
    good_until: int = 0
    """The end of its lease, as it believes."""
    alone: bool = False
    """It was cancelled: nobody waits for its answer."""
    acted: int = 0
    """Effects it has made."""
    granted: bool = False
    """A store told it that it holds the record."""
    passed_over: bool = False
    """It waited, and another was elected to act."""
    write_retries: tuple[Pursuit, ...] = ()
    life: int = 0
    """Of a worker: how often it has begun something."""
    found: int = 0
    """Of the one who comes when all is over: the record that is there."""


class Transaction(NamedTuple):
    """An open one, with the identity's lock."""

    owner: int
    entry: int
    """The record as it is seen inside."""
    written: bool
    staged: int
    """Writes of the handler's own."""
    saved: int
    """The record at the savepoint."""
    limbo: bool = False
    """Its commit was sent and nobody knows yet what became of it."""


class Floating(NamedTuple):
    """An operation whose sender was told "no answer", and which arrives later."""

    who: int
    op: int


class State(NamedTuple):
    entries: tuple[int, ...]
    """By identity; 0 is no record."""
    now: int
    actors: tuple[Actor, ...]
    faults: int
    jumps: tuple[int, ...]
    lives: int
    epochs: tuple[int, ...]
    effects: tuple[tuple[int, int], ...] = ()
    """(identity, epoch) of each, as the provider counts them."""
    kept: tuple[tuple[int, int, int], ...] = ()
    """(identity, epoch, snapshot) of all that was ever completed."""
    burnt: frozenset[bytes] = frozenset()
    """Fences that were replaced by others."""
    wire: tuple[Floating, ...] = ()
    transaction: Transaction | None = None
    voids: frozenset[bytes] = frozenset()
    """Which runs can have no effect any more: the provider has given final evidence."""
    watched: bytes = b""
    """The fence that the latest of those who wait in one process saw."""


def with_actor(state: State, who: int, actor: Actor) -> State:
    """What every step comes to: written out, since `_replace` takes twice as long."""
    actors = state.actors
    return State._make((*state[:2], (*actors[:who], actor, *actors[who + 1 :]), *state[3:]))


def spent(state: State) -> State:
    """With one fault less to come."""
    return state._replace(faults=state.faults - 1)


def later(state: State) -> State:
    return state._replace(now=state.now + state.jumps[0], jumps=state.jumps[1:])
