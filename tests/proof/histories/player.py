"""Lanes of one process, threads and tasks, that ask one store about few keys, all at once.

``python -m tests.proof.histories.player``: told over its input what to do, in pickles.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final, TypeAlias

from semel.core.operations.requests import Agree, Read, Recall, StoreOperation
from semel.core.records import Identity
from semel.errors import StoreUnavailable
from semel.stores import open_backend
from semel.stores.base import Backend
from semel.testing.contract.event_loop_thread import PATIENCE, EventLoopThread
from tests.proof.histories.calls import ROUNDS, Call, Outcome
from tests.proof.histories.orders import Leave, Look, Order, Place, Round
from tests.stores.moves import TERMS, Board, Dice
from tests.stores.relay import Relay

CUTS: Final = 0.08
"""How often a lane lets a line be cut, where lines can be cut."""
TRIES: Final = 10
PAST: Final = 0.4

Lane: TypeAlias = Generator[StoreOperation[Any], Any, None]


class Player:
    """One process at one store."""

    def __init__(self, name: str, backend: Backend, relay: Relay | None = None) -> None:
        self._name = name
        self._backend = backend
        self._relay = relay
        self._portal = EventLoopThread()
        self._store = backend.blocking()
        self._awaited = self._portal.call(self._opened())
        for terms in TERMS:
            self._store.perform(Agree(terms))

    async def _opened(self) -> Any:
        awaited = self._backend.awaited()
        await awaited.perform(Read(Identity(bytes(32))))
        return awaited

    def close(self) -> None:
        self._portal.call(self._backend.aclose())
        self._portal.close()
        self._backend.close()
        if self._relay is not None:
            self._relay.close()

    def play(self, round_: Round) -> list[Call]:
        calls: list[Call] = []
        boards = [Board(identity) for identity in round_.identities]
        lanes = [self._lane(round_, boards, number, calls) for number in range(2 * round_.lanes)]
        start = threading.Barrier(round_.lanes + 1)
        failed: list[BaseException] = []
        threads = [
            threading.Thread(target=self._run, args=(lane, start, failed))
            for lane in lanes[: round_.lanes]
        ]
        for thread in threads:
            thread.start()
        start.wait(PATIENCE)
        self._portal.call(self._gather(lanes[round_.lanes :]))
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return calls

    def look(self, identities: tuple[Identity, ...]) -> list[Call]:
        """What it came to, when all is quiet; over a new line where the old one was cut."""
        if self._relay is not None:
            self._relay.drop = self._relay.refuse = None
        calls: list[Call] = []
        for identity in identities:
            for _ in range(TRIES):
                drive(timed(Recall(identity), f"{self._name}:end", calls), self._store.perform)
                if calls[-1].outcome is Outcome.TOLD:
                    break
        return calls

    # ── lanes ─────────────────────────────────────────────────────────────────────────────────────

    def _lane(self, round_: Round, boards: list[Board], number: int, calls: list[Call]) -> Lane:
        dice = Dice(f"{round_.seed} {self._name} {number}")
        dice.past = PAST
        for _ in range(round_.moves):
            board = dice.choice(boards)
            op = board.choose(dice)
            self._tempt(dice)
            reply = yield from timed(op, f"{self._name}:{number}", calls)
            if reply is not None and not isinstance(op, ROUNDS):
                board.learn(op, reply)

    def _tempt(self, dice: Dice) -> None:
        """Now and then a few messages get lost, or the answers to them: stores ask once again."""
        if self._relay is not None and dice.random() < CUTS:
            lose(self._relay, dice.choice((1, 3, 3, 4)))

    def _run(self, lane: Lane, start: threading.Barrier, failed: list[BaseException]) -> None:
        start.wait(PATIENCE)
        try:
            drive(lane, self._store.perform)
        except BaseException as error:
            failed.append(error)

    async def _gather(self, lanes: list[Lane]) -> None:
        await asyncio.gather(*(self._adrive(lane) for lane in lanes))

    async def _adrive(self, lane: Lane) -> None:
        op = next(lane)
        with suppress(StopIteration):
            while True:
                await asyncio.sleep(0)  # a store that never waits gives the others a turn
                try:
                    reply = await self._awaited.perform(op)
                except StoreUnavailable as error:
                    op = lane.throw(error)
                else:
                    op = lane.send(reply)


def lose(relay: Relay, messages: int) -> None:
    """By turns: the answer to a message gets lost, then a message."""

    def refused(message: bytes) -> bool:
        lose(relay, messages - 2)
        return True

    def dropped(message: bytes) -> bool:
        relay.refuse = refused if messages > 1 else None
        return True

    relay.drop = dropped if messages > 0 else None


def timed(
    op: StoreOperation[Any], lane: str, calls: list[Call]
) -> Generator[StoreOperation[Any], Any, Any]:
    """One call, put on record with its times."""
    began = time.monotonic_ns()
    try:
        reply = yield op
    except StoreUnavailable as error:
        outcome = Outcome.NOTHING if error.applied is False else Outcome.DOUBT
        calls.append(Call(lane, op, began, time.monotonic_ns(), outcome))
        return None
    calls.append(Call(lane, op, began, time.monotonic_ns(), Outcome.TOLD, reply))
    return reply


def drive(lane: Lane, perform: Callable[[StoreOperation[Any]], Any]) -> None:
    op = next(lane)
    with suppress(StopIteration):
        while True:
            try:
                reply = perform(op)
            except StoreUnavailable as error:
                op = lane.throw(error)
            else:
                op = lane.send(reply)


def opened(place: Place) -> Player:
    if place.through is None:
        return Player(place.player, open_backend(place.url, **place.options))
    relay = Relay(place.through).__enter__()
    url = place.url.format(port=relay.port)
    return Player(place.player, open_backend(url, **place.options), relay)


# ── a process of its own ──────────────────────────────────────────────────────────────────────────


def main() -> None:
    sys.setswitchinterval(1e-4)  # so that threads of one process overlap
    player: Player | None = None
    while True:
        try:
            order: Order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        calls: list[Call] = []
        if isinstance(order, Place):
            player = opened(order)
        elif player is not None:
            calls = obeyed(player, order)
        pickle.dump(calls, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def obeyed(player: Player, order: Round | Look | Leave) -> list[Call]:
    match order:
        case Round():
            return player.play(order)
        case Look():
            return player.look(order.identities)
        case Leave():
            player.close()
            return []


if __name__ == "__main__":
    main()
