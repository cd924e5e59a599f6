"""Every order of two runs in shadow, with one fault at any step; then the key is enforced.

Whatever was done to the store and to the two runs, the request that is sent under enforcement gets
no answer that contradicts one that was given, and does not run what has been done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import pytest

from semel.core import operations as ops
from semel.core.exchange import answers, claim, shadow
from semel.core.exchange.answers import Answer, Outcome
from semel.core.exchange.claim import claim as enforced_claim
from semel.core.exchange.exchange import Exchange, Progress, ShadowRun
from semel.core.exchange.settle import Flowing
from semel.core.flow import run as drive
from semel.core.frozen import replace
from semel.core.operations.handler import Returned
from semel.core.policy import ietf
from semel.core.records import Fence, Response
from semel.errors import StoreUnavailable
from semel.stores.memory import MemoryBackend
from tests.core.world import call

HOUR: Final = 3_600_000_000
FAULTS: Final = ("dies", "applied", "lost", "refused")
"""At a step: the process is killed; the operation is applied and not answered, or not applied and
not answered, or surely not applied."""


class Broken(Exception):
    """A promise was."""


@dataclass
class Run:
    """One request in shadow, driven step by step."""

    says: Response
    flow: Generator[Any, Any, Any]
    op: Any = None
    acted: bool = False
    given: Response | None = None

    @property
    def over(self) -> bool:
        return self.op is None

    def go(self, step: Callable[[], Any]) -> None:
        try:
            self.op = step()
        except StopIteration as done:
            self.op, self.given = None, done.value


@dataclass
class World:
    """A store, two runs in shadow, and what is pursued for them."""

    says: tuple[Response, Response]
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    pursued: list[ops.Pursue] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.backend.blocking()
        self.runs = [self._begin(number) for number in range(2)]

    def _exchange(self, fence: bytes, **options: Any) -> Exchange:
        ex = call(b'{"amount": 1}', ietf(**options))
        ex.fence = Fence(fence)
        return ex

    def _begin(self, number: int) -> Run:
        ex = self._exchange(bytes([number + 1]) * 16, enforce="shadow")
        ex.shadow = ShadowRun()
        run = Run(self.says[number], self._whole(ex, number))
        run.go(lambda: next(run.flow))
        return run

    def _whole(self, ex: Exchange, number: int) -> Generator[Any, Any, Response | None]:
        entry = yield from shadow.claim(ex)
        if isinstance(entry, Answer):
            return None
        yield "handler"
        self.runs[number].acted = self.runs[number].says.status < 300
        answer = yield from shadow.settle(ex, Returned(self.says[number]), Progress())
        assert not isinstance(answer, Flowing)
        return answer.response

    def step(self, number: int, fault: str | None) -> None:
        run, op = self.runs[number], self.runs[number].op
        if fault == "dies":
            run.op = None
            return None
        if op == "handler":
            return run.go(lambda: run.flow.send(None))
        if isinstance(op, ops.Pursue):
            self.pursued.append(op)
            return run.go(lambda: run.flow.send(None))
        if fault in ("lost", "refused"):
            error = StoreUnavailable("out", applied=False if fault == "refused" else None)
            return run.go(lambda: run.flow.throw(error))
        reply = self.store.perform(op)
        if fault == "applied":
            error = StoreUnavailable("out", applied=None)
            return run.go(lambda: run.flow.throw(error))
        return run.go(lambda: run.flow.send(reply))

    def enforced(self) -> Outcome | Response:
        """What is pursued is done; then the request is sent under enforcement."""
        for pursuit in self.pursued:
            if pursuit.claim is not None:
                self.store.perform(pursuit.claim)
            self.store.perform(pursuit.op)
        perform: Any = self.store.perform
        entry = drive(enforced_claim(self._exchange(b"z" * 16)), perform)
        if isinstance(entry, ops.Claimed):
            return Outcome.EXECUTED
        replayed = entry.outcome is Outcome.REPLAYED and entry.response is not None
        return entry.response if replayed and entry.response else entry.outcome

    def check(self, schedule: tuple[Any, ...]) -> None:
        came = self.enforced()
        given = [run.given for run in self.runs if run.given is not None]
        if isinstance(came, Response):
            for answer in given:
                if answer.status < 300 and answer.body != came.body:
                    raise Broken(f"{came.body!r} was replayed after {answer.body!r}: {schedule}")
        if came is Outcome.EXECUTED and any(run.acted for run in self.runs):
            raise Broken(f"it ran again: {schedule}")


def schedules(says: tuple[Response, Response]) -> Iterator[tuple[World, tuple[Any, ...]]]:
    """Every order of the steps of two runs, with at most one fault, each played from its start.

    The first step is the first run's: the runs differ only in what they say.
    """
    waiting: list[tuple[Any, ...]] = [()]
    while waiting:
        schedule = waiting.pop()
        world = World(says)
        for number, fault in schedule:
            world.step(number, fault)
        live = [n for n, run in enumerate(world.runs) if not run.over]
        if not live:
            yield world, schedule
        faults = (None,) if any(fault for _, fault in schedule) else (None, *FAULTS)
        for number in live if schedule else live[:1]:
            own = isinstance(world.runs[number].op, ops.StoreOperation)
            may = faults if own else [it for it in faults if it in (None, "dies")]
            waiting += [(*schedule, (number, fault)) for fault in may]


def said(body: bytes, status: int = 201) -> Response:
    return Response(status, ((b"content-type", b"text/plain"),), body)


WORLDS: Final = {
    "differ": (said(b"one"), said(b"two")),
    "same": (said(b"one"), said(b"one")),
    "the first fails": (said(b"out", 503), said(b"two")),
    "the second fails": (said(b"one"), said(b"out", 503)),
}


def explore(name: str) -> int:
    number = count()
    for world, schedule in schedules(WORLDS[name]):
        next(number)
        world.check(schedule)
    return next(number)


@pytest.mark.parametrize("name", WORLDS)
def test_no_schedule_leads_to_a_promise_that_is_broken(name: str) -> None:
    assert explore(name) > 500


def test_runs_that_say_the_same_one_after_the_other_are_replayed() -> None:
    """Beside each other there may be nothing to compare with, and a doubt stays."""
    for world, schedule in schedules(WORLDS["same"]):
        in_turn = list(schedule) == sorted(schedule, key=lambda step: step[0])
        if in_turn and not any(fault for _, fault in schedule):
            assert isinstance(world.enforced(), Response), schedule


# ── with one guard taken out the search finds a schedule that breaks a promise ────────────────────

Patch = Callable[[pytest.MonkeyPatch], None]


def _without(module: Any, name: str, instead: Any) -> Patch:
    return lambda patch: patch.setattr(module, name, instead)


def _nothing(*_: Any) -> Generator[Any, Any, bool]:
    yield from ()
    return False


def _unmarked(snapshot: Any, **changes: Any) -> Any:
    return replace(snapshot, **{**changes, "shadow": False} if "shadow" in changes else changes)


MUTANTS: Final[dict[str, tuple[str, Patch]]] = {
    "nobody looks for a second run": ("differ", _without(answers, "ran_again", _nothing)),
    "a failed key is run without a look": (
        "the first fails",
        _without(claim, "ran_again", _nothing),
    ),
    "the fence does not tell": ("the first fails", _without(shadow, "shadow_fence", Fence)),
    "the answer is not marked": ("differ", _without(shadow, "replace", _unmarked)),
    "a second run is not compared": ("differ", _without(shadow, "_compare", _nothing)),
    "a run beside another is not announced": (
        "the first fails",
        _without(shadow, "_mark", _nothing),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_taken_out_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, patch = MUTANTS[name]
    patch(monkeypatch)
    with pytest.raises(Broken):
        explore(world)


def test_a_write_that_is_not_pursued_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(self: World) -> Outcome | Response:
        self.pursued.clear()
        return enforced(self)

    enforced = World.enforced
    monkeypatch.setattr(World, "enforced", dropped)
    with pytest.raises(Broken):
        explore("differ")
