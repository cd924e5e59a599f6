"""The crowd, and what befalls it: a campaign ends when all that was planned has happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import semel
from tests.proof.faults.books import Books
from tests.proof.faults.crowd import Crowd, through
from tests.proof.faults.records import States
from tests.proof.faults.verdict import Verdict, audit
from tests.waiting import PATIENCE

Plan = Callable[[Crowd], None]
"""What befalls: runs in a thread beside the crowd, which goes on until it returns."""


@dataclass(frozen=True)
class Scene:
    """A guarded application, its books, and a look at its store from behind."""

    guard: semel.Guard
    books: Books
    states: States
    colour: str = "asgi"
    lanes: int = 8
    twins: int = 2
    patience: float = PATIENCE


def run(scene: Scene, plan: Plan, faults: Counter[str]) -> Verdict:
    with asyncio.Runner() as runner:
        return runner.run(_run(scene, plan, faults))


async def _run(scene: Scene, plan: Plan, faults: Counter[str]) -> Verdict:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
    crowd = Crowd(
        through(scene.colour, scene.guard, scene.books), scene.lanes, scene.twins, scene.patience
    )
    try:
        befalls = asyncio.ensure_future(asyncio.to_thread(plan, crowd))
        await crowd.run(befalls.done)
        await befalls
        await crowd.come_back()
        verdict = audit(crowd.told, scene.books.entries(), scene.states())
    finally:
        await scene.guard.aclose()
    verdict.requests, verdict.refusals, verdict.faults = crowd.requests, crowd.refusals, faults
    return verdict
