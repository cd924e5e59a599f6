"""The engine: which moves a state allows.

A move is one step of one actor, or something that befalls it, or something that happens by itself
(maintenance, time, a late message). Each store operation is one atomic step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from semel.core import operations as ops
from semel.core.records import Fence, Identity
from semel.core.records import State as RecordState
from semel.core.request import keys
from tests.core.whole import Drain
from tests.proof.explorer import promises
from tests.proof.explorer.handlers import (
    CALL,
    Choose,
    Send,
)
from tests.proof.explorer.outcomes import Outcomes
from tests.proof.explorer.plays import Node
from tests.proof.explorer.state import (
    IDLE,
    Actor,
    Pursuit,
    State,
    later,
    spent,
    with_actor,
)
from tests.proof.explorer.worlds import LEASE, OURS, ROUTE, World

Move: TypeAlias = tuple[str, Callable[[], State]]

READS: Final = (ops.Read, ops.Recall, ops.Fetch, ops.Due)
_OPERATOR: Final = ops.Act("operator", "the world wants it")


class Engine(Outcomes):
    """One world, and all that was learnt about it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._renewals: dict[tuple[Identity, Fence], int] = {}

    def moves(self, state: State) -> list[Move]:
        """All of them, each by a name that is the same in every run."""
        if self.world.reduced:
            quiet = self._quiet_moves(state)
            if quiet:
                return quiet
        found: list[Move] = []
        for who, actor in enumerate(state.actors):
            name = self.cast.names[who]
            if actor.node >= 0:
                if self._may_begin(state, who):
                    found += self._of_actor(state, who, actor, name)
            elif actor.node == IDLE and state.lives:
                found += self._beginnings(state, who, name)
            for pursuit in actor.write_retries:
                found += self._pursuing(state, who, pursuit, name)
        found += self._by_themselves(state)
        return found

    def _quiet_moves(self, state: State) -> list[Move]:
        """A step that reads and changes only what is its actor's own commutes with every other
        step, and whatever befalls the actor befalls it as well right after: so it is taken first,
        alone. `Choose` is such a step while the lease is good, since nothing but the clock is read;
        so the clock must not be able to pass the lease before: no jump may be left."""
        if state.jumps or state.faults:
            return []
        for who, actor in enumerate(state.actors):
            if actor.node >= 0:
                node = self.tree.nodes[actor.node]
                if isinstance(node.op, Choose | ops.Pause | ops.Held):
                    return list(self._of_actor(state, who, actor, self.cast.names[who]))
        return []

    def _may_begin(self, state: State, who: int) -> bool:
        """Of requests that are alike the next one comes when the one before has begun: every other
        schedule is one of these with the names exchanged."""
        before = self.cast.alike[who]
        if before is None or not self.world.symmetric:
            return True
        roots = self.cast.roots
        if state.actors[who].node != roots[who].number:
            return True
        return state.actors[before].node != roots[before].number

    def _of_actor(self, state: State, who: int, actor: Actor, name: str) -> Iterator[Move]:
        node = self.tree.nodes[actor.node]
        op = node.op
        match op:
            case ops.StoreOperation():
                if not self._blocked(state, who, op):
                    yield f"{name}.{type(op).__name__}", partial(self._perform, state, who, node)
                    yield from self._store_faults(state, who, node, name)
            case Choose():
                yield from self._choices(state, who, actor, node, name)
            case Send():
                yield f"{name}.acts", partial(self._send, state, who, node)
                if self._breaks(state, "cancel"):
                    yield f"{name}.acts-cancelled", self._fault(state, who, ("stopped", None))
                    yield f"{name}.acts+cancelled", partial(self._send, state, who, node, True)
            case ops.Do():
                yield from self._calls(state, who, node, name)
            case ops.Held() | ops.Pause():
                held = state.now < actor.good_until
                word = type(op).__name__.lower()
                yield f"{name}.{word}", partial(self._reply, state, who, held)
            case ops.Ask():
                yield f"{name}.asks", partial(self._ask, state, who, node)
            case ops.Await():
                yield from self._waits(state, who, op, name)
            case Drain():
                yield from self._sends(state, who, node, name)
            case _:
                yield from self._of_transaction(state, who, op, name)
        if state.faults and "dies" in self.world.breaks and not self._is_root(who, node):
            yield f"{name}.dies", partial(self._die, state, who)
        if (
            op is not None
            and isinstance(op, ops.Await | ops.Ask | ops.Begin)
            and self._breaks(state, "cancel")
        ):
            yield f"{name}.leaves", self._fault(state, who, ("interrupted", None), alone=True)
        if node.in_handler and not self.world.atomic:
            yield from self._renewal(state, who, name)

    def _is_root(self, who: int, node: Node) -> bool:
        return who < self.world.requests and node.number == self.cast.roots[who].number

    def _breaks(self, state: State, fault: str) -> bool:
        return state.faults > 0 and fault in self.world.breaks

    def _blocked(self, state: State, who: int, op: ops.StoreOperation[Any]) -> bool:
        """A write on a record that an open transaction has written waits for its end."""
        transaction = state.transaction
        if transaction is None or isinstance(op, READS):
            return False
        return transaction.written and (transaction.owner != who or transaction.limbo)

    def _store_faults(self, state: State, who: int, node: Node, name: str) -> Iterator[Move]:
        op, breaks = node.op, partial(self._breaks, state)
        if op is None or not state.faults:
            return
        label = f"{name}.{type(op).__name__}"
        inside = self._inside(state, who) is not None
        durable = not isinstance(op, READS) and not inside
        if breaks("lost"):
            yield f"{label}?lost", self._fault(state, who, ("unanswered", None))
        if durable:
            if breaks("refused"):
                yield f"{label}?refused", self._fault(state, who, ("refused", None))
            if breaks("applied"):
                yield f"{label}?applied", partial(self._unanswered, state, who, node)
            if breaks("late"):
                yield f"{label}?late", partial(self._float, state, who, node)
        if not breaks("cancel"):
            return
        if not op.finishing:
            yield f"{label}-cancelled", self._fault(state, who, ("interrupted", None), alone=True)
            if durable:
                yield f"{label}+cancelled", partial(self._interrupted, state, who, node)
        elif durable:
            yield f"{label}~cancelled", partial(self._carried_through, state, who, node)

    def _choices(
        self, state: State, who: int, actor: Actor, node: Node, name: str
    ) -> Iterator[Move]:
        promises.p8_only_a_holder_runs(actor.granted)
        promises.p12_one_waiter_acts(actor.passed_over)
        if state.now >= actor.good_until:
            yield f"{name}.too-late", partial(self._reply, state, who, "late")
            return
        for kind in self._kinds(who):
            yield f"{name}.runs:{kind}", partial(self._reply, state, who, kind)
        if self._breaks(state, "cancel"):
            yield f"{name}.runs-cancelled", self._fault(state, who, ("stopped", None))

    def _kinds(self, who: int) -> tuple[str, ...]:
        # The one who comes when all is over shows by its effect that the key was free.
        kinds = self.world.courses if self.world.resumable else self.world.kinds
        return kinds[:1] if who == self.cast.late else kinds

    def _calls(self, state: State, who: int, node: Node, name: str) -> Iterator[Move]:
        assert isinstance(node.op, ops.Do)
        identity = self.cast.identities[self._spot(state, who)]
        promises.p4_a_call_looks_at_its_lease(node.before is ops.Held)
        promises.p10_same_key_downstream(node.op.arguments[0], self._key_sent(state, who, identity))
        for way in self.world.ways:
            yield f"{name}.calls:{way}", partial(self._call, state, who, way)
        if self._breaks(state, "cancel"):
            for way in ("cancelled", "cancelled!"):
                yield f"{name}.calls:{way}", partial(self._call, spent(state), who, way)

    def _sends(self, state: State, who: int, node: Node, name: str) -> Iterator[Move]:
        yield f"{name}.sends", partial(self._drain, state, who, node)
        if self._breaks(state, "cancel"):
            part = partial(self._drain, spent(state), who, node, whole=False)
            yield f"{name}.sends-part", part

    def _waits(self, state: State, who: int, op: ops.Await, name: str) -> Iterator[Move]:
        yield f"{name}.impatient", partial(self._reply, state, who, ops.Unwoken())
        found = self._read(state, who)
        if op.fence is None:
            if isinstance(found, ops.Found):
                yield f"{name}.woken", partial(self._wake, state, who, found)
        elif isinstance(found, ops.NoRecord):
            return
        elif not _unchanged(found, state.watched if self.world.together else op.fence):
            yield f"{name}.woken", partial(self._wake, state, who, found)

    def _of_transaction(self, state: State, who: int, op: Any, name: str) -> Iterator[Move]:
        label = f"{name}.{type(op).__name__}"
        match op:
            case ops.Begin():
                yield label, partial(self._begin, state, who)
                if self._breaks(state, "refused"):
                    yield f"{label}?refused", self._fault(state, who, ("refused", None))
            case ops.RollBack():
                yield label, partial(self._reply, self._rolled_back(state, who), who, None)
            case ops.Commit():
                yield label, partial(self._commit, state, who)
                yield from self._commit_faults(state, who, label)
            case ops.Ascertain():
                if state.transaction is None:
                    yield label, partial(self._reply, state, who, self._read(state, who))
                    if self._breaks(state, "lost"):
                        yield f"{label}?lost", self._fault(state, who, ("unanswered", None))
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    def _commit_faults(self, state: State, who: int, label: str) -> Iterator[Move]:
        gone = self._rolled_back(state, who)
        if self._breaks(state, "lost"):
            yield f"{label}?lost", self._fault(gone, who, ("unanswered", None))
        if self._breaks(state, "refused"):
            yield f"{label}?refused", self._fault(gone, who, ("refused", None))
        if self._breaks(state, "applied"):
            yield f"{label}?applied", partial(self._commit, state, who, "unanswered")
        if self._breaks(state, "late"):
            yield f"{label}?late", partial(self._limbo, state, who)

    def _key_sent(self, state: State, who: int, identity: Identity) -> str:
        entry = self.shelf.entry(state.entries[self._spot(state, who)])
        assert entry is not None
        epoch = keys.ONE_LIFE if self.world.atomic else entry.record.created_at
        return keys.downstream_key(identity, epoch, "call", CALL)

    def _renewal(self, state: State, who: int, name: str) -> Iterator[Move]:
        """The process renews beside the handler; where that changes nothing it is no move."""
        op = self._renewing(*self._holding(who, state))
        _, entries = self.shelf.perform(state.entries, op, state.now)
        if entries != state.entries:
            yield f"{name}.renews", partial(self._renew, state, who, op)

    def _renewing(self, identity: Identity, fence: Fence) -> int:
        number = self._renewals.get((identity, fence))
        if number is None:
            number = self.shelf.op_number(ops.Renew(identity, fence, LEASE))
            self._renewals[identity, fence] = number
        return number

    def _beginnings(self, state: State, who: int, name: str) -> Iterator[Move]:
        """Those who look for work: one of each kind at a time."""
        works = self.cast.works.get(who, ())
        for work in works:
            listed, _ = self.shelf.perform(state.entries, self._due[work], state.now)
            for case in listed.cases:
                promises.p13_own_records(case, OURS, ROUTE)
                root = self.cast.errand(who, state.actors[who].life, case, listed.now)
                actor = state.actors[who]._replace(node=root.number)
                begun = with_actor(state, who, actor)._replace(lives=state.lives - 1)
                yield f"{name}.finds-{work.value}", partial(self._arrive, begun, who, root)

    def _pursuing(self, state: State, who: int, pursuit: Pursuit, name: str) -> Iterator[Move]:
        number = pursuit.op if pursuit.claimed or pursuit.claim < 0 else pursuit.claim
        if self._blocked(state, who, self.shelf.op(number)):
            return
        after = self._pursue(state, who, pursuit, number)
        if after != state:
            yield f"{name}.pursues:{type(self.shelf.op(number)).__name__}", lambda: after

    def _by_themselves(self, state: State) -> Iterator[Move]:
        for floating in dict.fromkeys(state.wire):
            op = self.shelf.op(floating.op)
            if not self._blocked(state, -1, op):
                name = f"{self.cast.names[floating.who]}.{type(op).__name__}"
                yield f"{name}-lands", partial(self._land, state, floating)
        transaction = state.transaction
        if transaction is not None and transaction.limbo:
            yield "limbo-commits", partial(self._commit, state, transaction.owner, "landed")
            yield "limbo-aborts", lambda: state._replace(transaction=None)
        elif transaction is None or not transaction.written:
            for number in self._upkeep:
                after = self.shelf.perform(state.entries, number, state.now)[1]
                if after != state.entries:
                    name = type(self.shelf.op(number)).__name__.lower()
                    yield name, partial(self._tended, state, number, after)
            if self.world.evicts:
                yield from self._evictions(state)
        if state.jumps and (any(state.entries) or state.transaction or state.wire):
            yield "time-passes", lambda: later(state)

    def _evictions(self, state: State) -> Iterator[Move]:
        entry = self.shelf.entry(state.entries[0])
        if state.lives and entry is not None:
            record = entry.record
            op = self.shelf.op_number(ops.Evict(record.identity, record.fence, _OPERATOR))
            after = self.shelf.perform(state.entries, op, state.now)[1]
            if after != state.entries:
                fewer = state._replace(lives=state.lives - 1)
                yield "operator-evicts", partial(self._tended, fewer, op, after)


def _unchanged(found: ops.Found, fence: bytes) -> bool:
    """As `runtime/waiters.py` looks at it."""
    record = found.record
    running = record.state in (RecordState.IN_PROGRESS, RecordState.PENDING)
    return running and record.fence == fence and not record.lapsed(found.now)
