"""One recording and its cuts, in a process of its own."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.proof.power.audit import Auditor, Cut, Verdict, walk
from tests.proof.power.disk import Begun, Disk, Survival, Told, Wrote
from tests.proof.power.recording import Recording, Without, recorded
from tests.proof.power.vfs import Recorder
from tests.servers.child import Child

FAST = Path("/dev/shm")
"""Memory, where there is such a folder: what is synced here is only pretended to be a disk."""


@dataclass(frozen=True)
class Plan:
    """cuts: about so many; 0 means several at every place of the log."""

    seed: int
    rounds: int
    lives: int
    cuts: int = 0
    variants: int = 3
    deep_each: int = 1
    """Of so many images one is checked through and through, and worked with."""
    generations: int = 1
    without: Without = ""


_recorder = cache(Recorder)
"""One for the process."""


def campaign(plan: Plan) -> Verdict:
    """Each generation begins with what a cut has left of the one before."""
    dice = random.Random(plan.seed)
    whole = Verdict()
    with tempfile.TemporaryDirectory(dir=FAST if os.access(FAST, os.W_OK) else None) as folder:
        image: dict[str, bytes] = {}
        for generation in range(plan.generations):
            home = Path(folder, f"home {generation}")
            home.mkdir()
            for name, content in image.items():
                (home / name).write_bytes(content)
            recording = recorded(
                _recorder(), home, dice, rounds=plan.rounds, lives=plan.lives, without=plan.without
            )
            whole.add(_walked(recording, plan, Path(folder, "image"), dice))
            image = somewhere(recording, dice)
    return whole


def _walked(recording: Recording, plan: Plan, folder: Path, dice: random.Random) -> Verdict:
    lying = plan.without == "true disk"
    places, auditor = cuts(recording, plan, dice), Auditor(folder, dice)
    verdict = walk(recording, places, auditor, dice, lying=lying, deep_each=plan.deep_each)
    verdict.writes = sum(isinstance(event, Wrote) for event in recording.log)
    return verdict


def somewhere(recording: Recording, dice: random.Random) -> dict[str, bytes]:
    """What a cut in the later half may leave."""
    disk, end = Disk(recording.start), len(recording.log)
    for at, event in enumerate(recording.log[: dice.randrange(end // 2, end)]):
        disk.follow(at, event)
    return disk.image("sectors", dice)


def cuts(recording: Recording, plan: Plan, dice: random.Random) -> Iterator[Cut]:
    """Where: at all places or at some. Each with nothing kept, with all, and with what may be."""
    ways: list[Survival] = ["none", "all", "prefix"]
    ways += ["sectors"] * plan.variants
    places = [at for at, event in enumerate(recording.log, 1) if not isinstance(event, Begun)]
    if not plan.cuts:
        yield from (Cut(at, way) for at in places for way in ways)
        return
    # Right after an acknowledgement is where most can be lost.
    told = [at for at in places if isinstance(recording.log[at - 1], Told)]
    some = [Cut(at, "none") for at in dice.sample(told, min(len(told), plan.cuts // 4))]
    some += [Cut(dice.choice(places), dice.choice(ways)) for _ in range(plan.cuts - len(some))]
    yield from sorted(some, key=lambda cut: cut.at)


def started(plans: Sequence[Plan], folder: Path) -> Child:
    """A process that carries them out, one after the other."""
    folder.mkdir(parents=True)
    arguments = [json.dumps([asdict(plan) for plan in plans]), str(folder / "verdicts")]
    return Child([sys.executable, "-m", "tests.proof.power", *arguments], folder=folder)


def verdicts_of(child: Child, folder: Path, seconds: float = 3_600) -> list[Verdict]:
    assert child.wait(seconds) == 0, child.logs()
    told = json.loads((folder / "verdicts").read_text())
    return [Verdict(**{**each, "cuts": Counter(each["cuts"])}) for each in told]


def main(plans: str, result: str) -> None:
    verdicts = [campaign(Plan(**plan)) for plan in json.loads(plans)]
    Path(result).write_text(json.dumps([verdict.told() for verdict in verdicts]))
