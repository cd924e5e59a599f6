"""The ground of a world: its store, and the plays of those who take part.

What is written is checked at once (`promises`), and what follows from it is remembered.
"""

from __future__ import annotations

from typing import Any, Final

from semel.core import operations as ops
from semel.core.maintenance import tend
from semel.core.records import Fence, Record
from semel.core.records import State as RecordState
from semel.core.stored import snapshot
from tests.core.whole import Discard
from tests.proof.explorer import promises
from tests.proof.explorer.cast import Cast
from tests.proof.explorer.plays import Node, Token
from tests.proof.explorer.promises import Change
from tests.proof.explorer.state import (
    DONE,
    IDLE,
    Actor,
    Pursuit,
    State,
    Transaction,
    with_actor,
)
from tests.proof.explorer.store import Shelf
from tests.proof.explorer.worlds import KNOWN, LEASE, World

HORIZON: Final = 15 * LEASE
"""After which a process gives up a write it pursues (`runtime/write_retries.py`)."""
START: Final = 1_700_000_000_000_000


class Ground:
    """One world's store and plays, with numbers for all that was met."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cast = Cast(world)
        self.shelf = Shelf(self.cast.identities, world.terms)
        self.tree = self.cast.tree
        self._upkeep = [self.shelf.op_number(op) for op in _steps_of_maintenance()]
        self._due = {work: self.shelf.op_number(ops.Due(work, 10, KNOWN)) for work in ops.Work}
        self._snapshots: list[bytes] = []
        self._snapshot_numbers: dict[bytes, int] = {}
        self._fine: set[Any] = set()
        """Answers and changes that were looked at already, with all that was looked at."""

    def start(self) -> State:
        cast, world = self.cast, self.world
        actors = tuple(Actor(cast.roots[who].number) for who in range(world.requests))
        spots = len(cast.identities)
        return State(
            entries=(0,) * spots,
            now=START,
            actors=(*actors, *(Actor() for _ in range(cast.size - world.requests))),
            faults=world.faults,
            jumps=world.jumps,
            lives=world.lives,
            epochs=(0,) * spots,
        )

    def outline(self, state: State) -> tuple[Any, ...]:
        """All that is left in the end, whoever has done it."""
        records = [entry and entry.record for entry in map(self.shelf.entry, state.entries)]
        kept = [(at, epoch, self._status(number)) for at, epoch, number in state.kept]
        return (
            tuple(record and (record.state, record.reason) for record in records),
            tuple(sorted(state.effects)),
            tuple(sorted(kept)),
            state.epochs,
            tuple(sorted(actor.node for actor in state.actors[: self.world.requests])),
        )

    def _status(self, number: int) -> int:
        return snapshot.decode(self._snapshots[number]).status

    # ── the store ─────────────────────────────────────────────────────────────────────────────────

    def _read(self, state: State, who: int) -> Any:
        op = self.shelf.op_number(ops.Read(self.cast.identities[self._spot(state, who)]))
        return self.shelf.perform(state.entries, op, state.now)[0]

    def _spot(self, state: State, who: int) -> int:
        """Whose record it is about: its own, or that of the case it has found."""
        if self.cast.is_request(who):
            return self.cast.spots[who]
        case = self.cast.case_of(self.tree.nodes[state.actors[who].node])
        return 0 if case is None else self.cast.identities.index(case.record.identity)

    def _holding(self, who: int, state: State) -> tuple[Any, Fence]:
        identity = self.cast.identities[self._spot(state, who)]
        return identity, self.cast.fence(who, state.actors[who].life)

    def _apply(self, state: State, who: int, number: int) -> tuple[Any, State]:
        inside = self._inside(state, who)
        if inside is not None:
            # What others have committed is seen until there is an own write, which locks.
            entries = (inside.entry, *state.entries[1:]) if inside.written else state.entries
            reply, after = self.shelf.perform(entries, number, state.now)
            if after != entries:
                inside = inside._replace(entry=after[0], written=True)
                state = state._replace(transaction=inside)
            return reply, state
        reply, after = self.shelf.perform(state.entries, number, state.now)
        if after == state.entries:
            return reply, state
        return reply, self._changed(state, who, self.shelf.op(number), after)

    def _changed(self, state: State, who: int | None, op: Any, after: tuple[int, ...]) -> State:
        """Records were changed: check what was promised of it, and remember."""
        for spot, (old, new) in enumerate(zip(state.entries, after, strict=True)):
            if old != new:
                state = self._change(state, who, op, spot, new)
        return state._replace(entries=after)

    def _change(self, state: State, who: int | None, op: Any, spot: int, new: int) -> State:
        before, after = self.shelf.entry(state.entries[spot]), self.shelf.entry(new)
        epoch = state.epochs[spot]
        change = Change(
            before,
            after,
            op,
            state.now,
            state.burnt,
            own=not self.cast.is_request(who) or self.cast.spots[who or 0] == spot,
            alike=who is None or self.cast.means_the_same(who, before),
            epoch=epoch,
            effects=state.effects.count((spot, epoch)),
        )
        promises.check_write(change)
        if before is not None and (after is None or after.record.fence != before.record.fence):
            state = state._replace(burnt=state.burnt | {bytes(before.record.fence)})
        if after is None:
            epochs = (*state.epochs[:spot], epoch + 1, *state.epochs[spot + 1 :])
            return state._replace(epochs=epochs)
        return self._kept(
            state, spot, epoch, None if before is None else before.record, after.record
        )

    def _kept(
        self, state: State, spot: int, epoch: int, before: Record | None, after: Record
    ) -> State:
        done = RecordState.COMPLETED
        if after.state is not done or after.snapshot is None:
            return state
        if before is not None and before.state is done and before.snapshot == after.snapshot:
            return state
        number = self._snapshot_numbers.setdefault(after.snapshot, len(self._snapshots))
        if number == len(self._snapshots):
            self._snapshots.append(after.snapshot)
        earlier = [each for at, when, each in state.kept if (at, when) == (spot, epoch)]
        promises.p2_an_answer_never_changes(earlier, number)
        return state._replace(kept=(*state.kept, (spot, epoch, number)))

    def _inside(self, state: State, who: int) -> Transaction | None:
        transaction = state.transaction
        own = transaction is not None and transaction.owner == who and not transaction.limbo
        return transaction if own else None

    def _rolled_back(self, state: State, who: int) -> State:
        inside = self._inside(state, who)
        return state if inside is None else state._replace(transaction=None)

    # ── plays ─────────────────────────────────────────────────────────────────────────────────────

    def feed(self, state: State, who: int, token: Token) -> State:
        node = self.tree.child(self.tree.nodes[state.actors[who].node], token)
        return self._arrive(state, who, node)

    def _arrive(self, state: State, who: int, node: Node) -> State:
        """At its next operation that concerns others; what it does alone is done on the way."""
        while node.op is not None:
            if isinstance(node.op, ops.Pursue):
                state = self._take_on(state, who, node.op)
            elif isinstance(node.op, ops.Save | ops.Undo):
                state = self._savepoint(state, node.op)
            elif not isinstance(node.op, Discard | ops.Flush | ops.PauseBetweenLooks):
                break
            node = self.tree.child(node, ("reply", None))
        if node.op is None:
            return self._finish(state, who, node)
        if isinstance(node.op, ops.Await) and self.world.together:
            state = state._replace(watched=bytes(node.op.fence or b""))
        return with_actor(state, who, state.actors[who]._replace(node=node.number))

    def _take_on(self, state: State, who: int, op: ops.Pursue) -> State:
        claim = -1 if op.claim is None else self.shelf.op_number(op.claim)
        number = self.shelf.op_number(op.op)
        pursuit = Pursuit(number, claim, False, state.now + HORIZON, op.seen)
        actor = state.actors[who]
        return with_actor(state, who, actor._replace(write_retries=(*actor.write_retries, pursuit)))

    def _savepoint(self, state: State, op: ops.Save | ops.Undo) -> State:
        transaction = state.transaction
        if transaction is None:
            return state
        if isinstance(op, ops.Save):
            return state._replace(transaction=transaction._replace(saved=transaction.entry))
        undone = transaction._replace(staged=0, entry=transaction.saved)
        return state._replace(transaction=undone)

    def _finish(self, state: State, who: int, node: Node) -> State:
        actor = state.actors[who]
        state = self._rolled_back(state, who)
        if self.cast.is_request(who):
            if node.error is not None:
                raise promises.Violation("8 fail closed", f"an exchange raised {node.error!r}")
            if not actor.alone:
                self._answered(state, who, actor, node)
            left = Actor(DONE, write_retries=actor.write_retries)
        else:
            left = Actor(IDLE, write_retries=actor.write_retries, life=actor.life + 1)
        return with_actor(state, who, left)

    def _answered(self, state: State, who: int, actor: Actor, node: Node) -> None:
        late = (actor.found, state.now) if who == self.cast.late else ()
        seen = (who, node.number, state.kept, actor.acted, late)
        if seen not in self._fine:
            self._look_at_answer(state, who, actor, node)
            self._fine.add(seen)

    def _look_at_answer(self, state: State, who: int, actor: Actor, node: Node) -> None:
        spot = self._spot(state, who)
        kept = [self._snapshots[number] for at, _, number in state.kept if at == spot]
        answer, cast, world = node.result, self.cast, self.world
        promises.check_answer(answer, kept, actor.acted)
        promises.p7_answers_stay_in_their_scope(answer, cast.runs_apart(who, world.elsewhere))
        promises.p7_answers_stay_in_their_scope(answer, cast.runs_apart(who, world.foreign))
        promises.p9_answers_are_for_their_payload(answer, cast.runs_apart(who, world.strangers))
        if who == cast.late:
            found = self.shelf.entry(actor.found)
            alike = found is None or cast.calls[who].prints.match(found.record)
            promises.p12_no_permanent_conflict(answer, found, alike, state.now)


def _steps_of_maintenance() -> list[ops.StoreOperation[Any]]:
    """Those that can change a record: `Prune` forgets notables, which no decision looks at."""
    flow, steps = tend(), []
    op = next(flow)
    try:
        while True:
            assert isinstance(op, ops.StoreOperation)
            if not isinstance(op, ops.Prune):
                steps.append(op)
            op = flow.send(ops.Tended({}, False, 0))
    except StopIteration:
        return steps
