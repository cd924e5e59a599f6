"""What is asked of the application: each play is gone through once for every operation in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.proof.operations.stage import Stage
from tests.web.faulty import Mishap

MANY = 60
"""More than any play asks of its store."""
OTHER = b'{"another": "payload"}'

Act = Callable[[Stage, str], object]


@dataclass(frozen=True)
class Play:
    """before: goes well, always. Then the acts, of which one operation fails."""

    name: str
    path: str
    acts: tuple[Act, ...]
    before: Act | None = None


def ask(path: str) -> Act:
    return lambda stage, key: stage.ask(path, key)


def mismatch(path: str) -> Act:
    """Of a key that is known: where nothing ran yet, another payload would be the first."""
    return lambda stage, key: key in stage.told and stage.ask(path, key, OTHER)


def travel(stage: Stage, _: str) -> None:
    stage.travel()


def tend(stage: Stage, _: str) -> None:
    stage.tend()


def reconcile(stage: Stage, _: str) -> None:
    stage.reconcile()


def resume(stage: Stage, _: str) -> None:
    stage.resume()


def stopped(stage: Stage, key: str) -> None:
    assert stage.ask("/refused", key).status == 503
    stage.stop_holder(key)


def plain(path: str) -> tuple[Act, ...]:
    """First run, duplicate, other payload."""
    return ask(path), ask(path), mismatch(path)


PLAYS = (
    Play("first", "/pay", plain("/pay")),
    Play("released", "/refused", plain("/refused")),
    Play("doubted", "/doubtful", (ask("/doubtful"), reconcile, *plain("/doubtful"))),
    Play("stopped", "/refused", (travel, tend, reconcile, *plain("/refused")), before=stopped),
)
IN_TRANSACTIONS = (
    Play("resumed", "/stepwise", (ask("/stepwise"), travel, reconcile, resume, ask("/stepwise"))),
    Play("atomic", "/atomic", plain("/atomic")),
)


@dataclass
class Counted:
    """failed: which operations have, and how often."""

    failed: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.failed.values())


def go_through(stage: Stage, play: Play, mishap: Mishap, counted: Counted) -> int:
    """Until nothing fails any more: how many operations the play has."""
    for at in range(1, MANY):
        key = f"{play.name}-{mishap.replace(' ', '-')}-{at:020}"
        if play.before is not None:
            play.before(stage, key)
        stage.forget()
        stage.pursue()  # what is still written in the background must not be among what is counted
        stage.faults.set(at, mishap)
        for act in play.acts:
            act(stage, key)
        hit = list(stage.faults.hit)
        stage.faults.heal()
        audit(stage, play, key, hit)
        if not hit:
            return at - 1
        counted.failed[hit[0]] = counted.failed.get(hit[0], 0) + 1
    raise AssertionError("it never ends")


def audit(stage: Stage, play: Play, key: str, hit: list[str]) -> None:
    """One effect, one answer that tells of it, no other payload's; and the key is not stuck."""
    try:
        stage.until_final(play.path, key)
        stage.until_final(play.path, key)
        assert stage.ask(play.path, key, OTHER).status == 422
        (nonce, *more) = stage.effects(play.path, key)
        assert not more, f"{len(more) + 1} effects"
        (told, *others) = stage.told[key]
        assert not others, f"told {told}, and {others}"
        assert json.loads(told[2])["charged"] == nonce, f"told {told}, of {nonce}"
    except AssertionError as error:
        raise AssertionError(f"{play.name}, {stage.faults.mishap} at {hit}: {error}") from error
