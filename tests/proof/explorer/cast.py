"""Who takes part in a world, and the flow that each of them is."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Final

from semel.core.exchange.deferred import take
from semel.core.flow import Flow
from semel.core.operations.maintenance import Work
from semel.core.operations.requests import Claimed
from semel.core.records import Case, Fence, Micros
from semel.core.unknown.probe import Doubt, reconcile
from semel.core.unknown.settle_unknown import in_doubt
from semel.stores.memory.rows import Row
from tests.core.whole import adopted, exchange, varied, workers_run
from tests.proof.explorer.handlers import fence_of, operation, plain, run_of
from tests.proof.explorer.plays import Node, Play, Script, Tree
from tests.proof.explorer.worlds import SECOND, World, ask_provider

LETTERS: Final = "ABCDEFGH"


class Cast:
    """The requests by letters, then Z, who comes when all is over, a reconciler and a worker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.tree = Tree()
        self.late = world.requests
        self._reconciler = world.requests + 1
        self._worker = world.requests + 2
        self.names = [*LETTERS[: world.requests], "Z", "reconciler", "worker"]
        self.size = len(self.names)
        self.calls = [world.call(who, self.names[who]) for who in range(world.requests + 1)]
        self.fences = [call.fence for call in self.calls]
        self.identities = tuple(dict.fromkeys(call.identity for call in self.calls))
        self.spots = [self.identities.index(call.identity) for call in self.calls]
        self._alike: dict[tuple[int, int], bool] = {}
        """By the ids of entries, which a shelf keeps for as long as it is there."""
        self._script: Script = plain
        if world.resumable:
            asked = ask_provider if world.provider else None
            self._script = operation(world.repeatable, asked)
        self.roots = [self._request(who) for who in range(world.requests + 1)]
        self.alike = [self._one_before(who) for who in range(self.size)]
        self.works: dict[int, tuple[Work, ...]] = {
            self._reconciler: (Work.UNKNOWN,),
            self._worker: (Work.LAPSED,),
        }
        if world.policy.mode == "deferred":
            self.works[self._worker] = (Work.LAPSED, Work.PENDING)

    def is_request(self, who: int | None) -> bool:
        return who is not None and who <= self.late

    def fence(self, who: int, life: int) -> Fence:
        return self.fences[who] if self.is_request(who) else fence_of(self.names[who], life)

    def means_the_same(self, who: int, entry: Row | None) -> bool:
        if entry is None or who >= self.late:
            return True
        known = self._alike.get((who, id(entry)))
        if known is None:
            known = self.calls[who].prints.match(entry.record)
            self._alike[who, id(entry)] = known
        return known

    def runs_apart(self, who: int, some: tuple[int, ...]) -> set[bytes]:
        """The runs of those who are among ``some``, if ``who`` is not; or else of the others."""
        own = who in some
        others = [each for each in range(self.late) if (each in some) != own]
        return {run_of(self.fences[each]) for each in others}

    def case_of(self, node: Node) -> Case | None:
        case: Case | None = getattr(node.root, "case", None)
        return case

    def _one_before(self, who: int) -> int | None:
        """Of the requests before it, the last that is alike but for its fence."""
        kind = self._kind(who)
        before = [each for each in range(min(who, self.late)) if self._kind(each) == kind]
        return before[-1] if before and who < self.late else None

    def _kind(self, who: int) -> tuple[bool, bool, bool]:
        world = self._world
        return who in world.strangers, who in world.elsewhere, who in world.foreign

    def _request(self, who: int) -> Node:
        call, script = self.calls[who], self._script
        return self.tree.root(("request", who), lambda: Play(exchange(copy(call)), script))

    def errand(self, who: int, life: int, case: Case, now: Micros) -> Node:
        """What a reconciler or a worker does with a case it found."""
        fence = self.fence(who, life)
        flow = self._asking if who == self._reconciler else self._running
        return self.tree.root(
            (who, life, case, now), _Errand(case, lambda: flow(case, now, fence), self._script)
        )

    def _asking(self, case: Case, now: Micros, fence: Fence) -> Flow[Any]:
        assert case.terms is not None
        doubt = Doubt(case, now, case.terms, in_doubt(case), self._world.policy.probe)
        return reconcile(doubt, fence, 1.0)

    def _running(self, case: Case, now: Micros, fence: Fence) -> Flow[Any]:
        """As `worker/stored_runs.py` does it."""
        owner = next(it for it in self.calls if it.identity == case.record.identity)
        policy = self._world.policy
        if not (yield from take(case, fence, policy)):
            return None
        overdue = now - case.record.created_at > policy.give_up_micros
        run = workers_run(case, overdue=overdue, requeue=SECOND)
        ex = varied(owner, fence=fence, worker=run, stored=None)
        return (yield from adopted(ex, Claimed(0, 0, case.record.created_at, again=True)))


class _Errand:
    """A way to begin the play of a case, which can be asked for the case."""

    def __init__(self, case: Case, flow: Callable[[], Flow[Any]], script: Script) -> None:
        self.case = case
        self._flow = flow
        self._script = script

    def __call__(self) -> Play:
        return Play(self._flow(), self._script)
