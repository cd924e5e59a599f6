"""The engine: which moves a state allows, and where each leads.

A move is one step of one actor, or something that befalls it, or something that happens by itself
(maintenance, time, a late message). Each store operation is one atomic step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from semel.core import keys
from semel.core.acts import Act
from semel.core.contract import (
    Applied,
    Claimed,
    Evict,
    Fetch,
    Found,
    NoRecord,
    Read,
    Recall,
    Renew,
    Resume,
    Retake,
    StoreOperation,
    Take,
)
from semel.core.evidence import Absent, Evidence
from semel.core.maintenance import tend
from semel.core.model import Fence, Record
from semel.core.model import State as RecordState
from semel.core.runner import (
    Ascertain,
    Ask,
    Await,
    Begin,
    Begun,
    Commit,
    Discard,
    Do,
    Drain,
    Drained,
    Flush,
    Held,
    Occupied,
    Pause,
    Pursue,
    Rest,
    RollBack,
    Save,
    Undo,
    Unwoken,
    Woken,
)
from semel.core.upkeep import Due, Tended, Work
from tests.proof.explorer import promises
from tests.proof.explorer.cast import Cast
from tests.proof.explorer.handlers import (
    CALL,
    WAYS,
    Choose,
    Redone,
    Send,
    happened,
)
from tests.proof.explorer.plays import Node, Token
from tests.proof.explorer.promises import Change
from tests.proof.explorer.state import (
    DEAD,
    DONE,
    IDLE,
    Actor,
    Floating,
    Pursuit,
    State,
    Transaction,
    with_actor,
)
from tests.proof.explorer.store import Shelf
from tests.proof.explorer.worlds import LEASE, World

Move: TypeAlias = tuple[str, Callable[[], State]]

READS: Final = (Read, Recall, Fetch, Due)
HORIZON: Final = 15 * LEASE
"""After which a process gives up a write it pursues (`process/pursuit.py`)."""
START: Final = 1_700_000_000_000_000
_OPERATOR: Final = Act("operator", "the world wants it")


class Engine:
    """One world, and all that was learnt about it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cast = Cast(world)
        self.shelf = Shelf(self.cast.identities)
        self.tree = self.cast.tree
        self._upkeep = [self.shelf.op_number(op) for op in _steps_of_maintenance(world)]
        self._due = {work: self.shelf.op_number(Due(work, 10)) for work in Work}
        self._snapshots: list[bytes] = []
        self._snapshot_numbers: dict[bytes, int] = {}

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

    # ── which moves there are ─────────────────────────────────────────────────────────────────────

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
            for pursuit in actor.pursuits:
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
                if isinstance(node.op, Choose | Pause | Held):
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
            case StoreOperation():
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
            case Do():
                yield from self._calls(state, who, node, name)
            case Held() | Pause():
                held = state.now < actor.good_until
                word = type(op).__name__.lower()
                yield f"{name}.{word}", partial(self._reply, state, who, held)
            case Ask():
                yield f"{name}.asks", partial(self._ask, state, who, node)
            case Await():
                yield from self._waits(state, who, op, name)
            case Drain():
                yield f"{name}.sends", partial(self._drain, state, who, node)
            case _:
                yield from self._of_transaction(state, who, op, name)
        if state.faults and "dies" in self.world.breaks and not self._is_root(who, node):
            yield f"{name}.dies", partial(self._die, state, who)
        if op is not None and isinstance(op, Await | Ask | Begin) and self._breaks(state, "cancel"):
            yield f"{name}.leaves", self._fault(state, who, ("interrupted", None), alone=True)
        if node.in_handler and not self.world.atomic:
            yield from self._renewal(state, who, name)

    def _is_root(self, who: int, node: Node) -> bool:
        return who < self.world.requests and node.number == self.cast.roots[who].number

    def _breaks(self, state: State, fault: str) -> bool:
        return state.faults > 0 and fault in self.world.breaks

    def _blocked(self, state: State, who: int, op: StoreOperation[Any]) -> bool:
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
        for kind in ("go",) if self.world.resumable else self._kinds(who):
            yield f"{name}.runs:{kind}", partial(self._reply, state, who, kind)
        if self._breaks(state, "cancel"):
            yield f"{name}.runs-cancelled", self._fault(state, who, ("stopped", None))

    def _kinds(self, who: int) -> tuple[str, ...]:
        # The one who comes when all is over shows by its effect that the key was free.
        return self.world.kinds[:1] if who == self.cast.late else self.world.kinds

    def _calls(self, state: State, who: int, node: Node, name: str) -> Iterator[Move]:
        assert isinstance(node.op, Do)
        identity = self.cast.identities[self._spot(state, who)]
        promises.p4_a_call_looks_at_its_lease(node.before is Held)
        promises.p10_same_key_downstream(node.op.arguments[0], keys.downstream_key(identity, CALL))
        for way in self.world.ways:
            yield f"{name}.calls:{way}", partial(self._call, state, who, way)
        if self._breaks(state, "cancel"):
            for way in ("cancelled", "cancelled!"):
                yield f"{name}.calls:{way}", partial(self._call, _spent(state), who, way)

    def _waits(self, state: State, who: int, op: Await, name: str) -> Iterator[Move]:
        yield f"{name}.impatient", partial(self._reply, state, who, Unwoken())
        found = self._read(state, who)
        if op.fence is None:
            if isinstance(found, Found):
                yield f"{name}.woken", partial(self._wake, state, who, found)
        elif isinstance(found, NoRecord):
            return
        elif not _unchanged(found, state.watched if self.world.together else op.fence):
            yield f"{name}.woken", partial(self._wake, state, who, found)

    def _of_transaction(self, state: State, who: int, op: Any, name: str) -> Iterator[Move]:
        label = f"{name}.{type(op).__name__}"
        match op:
            case Begin():
                yield label, partial(self._begin, state, who)
                if self._breaks(state, "refused"):
                    yield f"{label}?refused", self._fault(state, who, ("refused", None))
            case RollBack():
                yield label, partial(self._reply, self._rolled_back(state, who), who, None)
            case Commit():
                yield label, partial(self._commit, state, who)
                yield from self._commit_faults(state, who, label)
            case Ascertain():
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

    def _renewal(self, state: State, who: int, name: str) -> Iterator[Move]:
        """The process renews beside the handler; where that changes nothing it is no move."""
        op = self.shelf.op_number(Renew(*self._holding(who, state), LEASE))
        _, entries = self.shelf.perform(state.entries, op, state.now)
        if entries != state.entries:
            yield f"{name}.renews", partial(self._renew, state, who, op)

    def _beginnings(self, state: State, who: int, name: str) -> Iterator[Move]:
        """Those who look for work: one of each kind at a time."""
        works = self.cast.works.get(who, ())
        for work in works:
            listed, _ = self.shelf.perform(state.entries, self._due[work], state.now)
            for case in listed.cases:
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
            yield "time-passes", lambda: _later(state)

    def _evictions(self, state: State) -> Iterator[Move]:
        entry = self.shelf.entry(state.entries[0])
        if state.lives and entry is not None:
            record = entry.record
            op = self.shelf.op_number(Evict(record.identity, record.fence, _OPERATOR))
            after = self.shelf.perform(state.entries, op, state.now)[1]
            if after != state.entries:
                fewer = state._replace(lives=state.lives - 1)
                yield "operator-evicts", partial(self._tended, fewer, op, after)

    # ── where they lead ───────────────────────────────────────────────────────────────────────────

    def _perform(self, state: State, who: int, node: Node) -> State:
        reply, state = self._apply(state, who, self._number(node))
        return self._reply(self._granted(state, who, node.op, reply), who, reply)

    def _number(self, node: Node) -> int:
        assert isinstance(node.op, StoreOperation)
        return self.shelf.op_number(node.op)

    def _granted(self, state: State, who: int, op: Any, reply: Any) -> State:
        taken = isinstance(op, Retake | Resume | Take) and isinstance(reply, Applied)
        if not taken and not isinstance(reply, Claimed):
            return state
        actor = state.actors[who]._replace(good_until=state.now + LEASE, granted=True)
        return with_actor(state, who, actor)

    def _reply(self, state: State, who: int, value: Any) -> State:
        return self.feed(state, who, ("reply", value))

    def _fault(
        self, state: State, who: int, token: Token, alone: bool = False
    ) -> Callable[[], State]:
        return lambda: self.feed(self._alone(_spent(state), who, alone), who, token)

    def _alone(self, state: State, who: int, alone: bool = True) -> State:
        return with_actor(state, who, state.actors[who]._replace(alone=True)) if alone else state

    def _unanswered(self, state: State, who: int, node: Node) -> State:
        _, state = self._apply(_spent(state), who, self._number(node))
        return self.feed(state, who, ("unanswered", None))

    def _interrupted(self, state: State, who: int, node: Node) -> State:
        _, state = self._apply(_spent(state), who, self._number(node))
        return self.feed(self._alone(state, who), who, ("interrupted", None))

    def _float(self, state: State, who: int, node: Node) -> State:
        floating = Floating(who, self._number(node))
        state = _spent(state)._replace(wire=(*state.wire, floating))
        return self.feed(state, who, ("unanswered", None))

    def _carried_through(self, state: State, who: int, node: Node) -> State:
        """Cancelled in a finishing operation: it has been applied, and is performed once more."""
        number = self._number(node)
        _, state = self._apply(_spent(state), who, number)
        if not node.in_handler:
            return self._alone(state, who)
        reply, state = self._apply(state, who, number)
        return self._reply(state, who, Redone(reply))

    def _land(self, state: State, floating: Floating) -> State:
        wire = list(state.wire)
        wire.remove(floating)
        return self._apply(state._replace(wire=tuple(wire)), floating.who, floating.op)[1]

    def _renew(self, state: State, who: int, op: int) -> State:
        _, state = self._apply(state, who, op)
        actor = state.actors[who]._replace(good_until=state.now + LEASE)
        return with_actor(state, who, actor)

    def _tended(self, state: State, number: int, after: tuple[int, ...]) -> State:
        return self._changed(state, None, self.shelf.op(number), after)

    def _pursue(self, state: State, who: int, pursuit: Pursuit, number: int) -> State:
        """One try, as `process/pursuit.py` makes it."""
        reply, after = self._apply(state, who, number)
        if number != pursuit.op:
            return self._pursuits(after, who, pursuit, pursuit._replace(claimed=True))
        answered = isinstance(reply, Applied) or reply.record is not None
        if answered or state.now >= pursuit.until:
            return self._pursuits(after, who, pursuit, None)
        return self._pursuits(after, who, pursuit, pursuit._replace(claimed=False))

    def _pursuits(self, state: State, who: int, old: Pursuit, new: Pursuit | None) -> State:
        actor = state.actors[who]
        kept = [each for each in actor.pursuits if each != old]
        kept += [] if new is None else [new]
        return with_actor(state, who, actor._replace(pursuits=tuple(kept)))

    def _die(self, state: State, who: int) -> State:
        """A process is killed, and with it what it pursues and what it has open."""
        state = _spent(state)
        if not self.cast.is_request(who):  # there will be another one
            return with_actor(state, who, Actor(life=state.actors[who].life + 1))
        for each in range(self.world.requests) if self.world.together else [who]:
            if state.actors[each].node != DONE or state.actors[each].pursuits:
                state = with_actor(self._rolled_back(state, each), each, Actor(DEAD))
        return state

    def _wake(self, state: State, who: int, found: Found) -> State:
        """All who wait in the process wake at once, and the first is elected."""
        elected = True
        for each, actor in enumerate(state.actors):
            if actor.node < 0 or (each != who and not self.world.together):
                continue
            if isinstance(self.tree.nodes[actor.node].op, Await):
                passed = actor._replace(passed_over=not elected)
                state = with_actor(state, each, passed)
                state = self._reply(state, each, Woken(found.record, found.now, elected))
                elected = False
        return state

    def _send(self, state: State, who: int, node: Node, cancelled: bool = False) -> State:
        op = node.op
        assert isinstance(op, Send)
        if op.inside:
            transaction = state.transaction
            assert transaction is not None
            staged = transaction._replace(staged=transaction.staged + 1)
            state = state._replace(transaction=staged)
        else:
            state = self._effect(state, who, op.fence)
        if cancelled:
            return self.feed(_spent(state), who, ("stopped", None))
        return self._reply(state, who, None)

    def _call(self, state: State, who: int, name: str) -> State:
        way = WAYS[name]
        if way.acts:
            state = self._effect(state, who, self._holding(who, state)[1])
        return self.feed(state, who, ("made", way.end))

    def _effect(self, state: State, who: int, fence: Fence) -> State:
        """What the provider makes of it. What it has called final evidence against is void; with
        repeatable calls it takes our key once."""
        spot = self._spot(state, who)
        effect = (spot, state.epochs[spot])
        void = self.world.provider == "final" and fence in state.voids
        twice = self.world.repeatable and effect in state.effects
        if void or twice:
            return state
        state = state._replace(effects=(*state.effects, effect))
        promises.p1_one_effect(state.effects.count(effect))
        actor = state.actors[who]
        return with_actor(state, who, actor._replace(acted=actor.acted + 1))

    def _ask(self, state: State, who: int, node: Node) -> State:
        said, state = self._evidence(state, who, node)
        return self._reply(state, who, said)

    def _evidence(self, state: State, who: int, node: Node) -> tuple[Evidence, State]:
        """What an honest provider says; "never" makes void what an earlier run may still send."""
        spot = self._spot(state, who)
        if (spot, state.epochs[spot]) in state.effects:
            return happened(self.cast.identities[spot], self.world.resumable), state
        if self.world.provider != "final":
            return Absent(final=False), state
        case = self.cast.case_of(node)
        seen = frozenset() if case is None else frozenset({bytes(case.record.fence)})
        return Absent(final=True), state._replace(voids=state.voids | state.burnt | seen)

    def _drain(self, state: State, who: int, node: Node) -> State:
        fence = self._holding(who, state)[1]
        entry = self.shelf.entry(state.entries[self._spot(state, who)])
        if self.world.kinds[0] == "stream":
            promises.p11_a_stream_begins_on_record(entry, fence)
        return self._reply(state, who, Drained(3, b"digest", whole=True))

    # ── transactions ──────────────────────────────────────────────────────────────────────────────

    def _inside(self, state: State, who: int) -> Transaction | None:
        transaction = state.transaction
        own = transaction is not None and transaction.owner == who and not transaction.limbo
        return transaction if own else None

    def _begin(self, state: State, who: int) -> State:
        if state.transaction is not None:
            return self._reply(state, who, Occupied())
        opened = Transaction(who, state.entries[0], False, 0, state.entries[0])
        return self._reply(state._replace(transaction=opened), who, Begun())

    def _rolled_back(self, state: State, who: int) -> State:
        inside = self._inside(state, who)
        return state if inside is None else state._replace(transaction=None)

    def _commit(self, state: State, who: int, how: str = "answered") -> State:
        transaction = state.transaction
        assert transaction is not None
        state = state._replace(transaction=None)
        entry = self.shelf.entry(transaction.entry if transaction.written else state.entries[0])
        promises.p10_writes_commit_with_their_record(
            transaction.staged, entry, self.cast.fences[who]
        )
        after = (transaction.entry, *state.entries[1:])
        if transaction.written:
            state = self._changed(state, who, Commit(), after)
        for _ in range(transaction.staged):
            effect = (0, state.epochs[0])
            state = state._replace(effects=(*state.effects, effect))
            promises.p1_one_effect(state.effects.count(effect))
            actor = state.actors[who]
            if actor.node >= 0:
                state = with_actor(state, who, actor._replace(acted=actor.acted + 1))
        if how == "landed":
            return state
        if how == "unanswered":
            return self.feed(_spent(state), who, ("unanswered", None))
        return self._reply(state, who, None)

    def _limbo(self, state: State, who: int) -> State:
        transaction = state.transaction
        assert transaction is not None
        state = _spent(state)._replace(transaction=transaction._replace(limbo=True))
        return self.feed(state, who, ("unanswered", None))

    # ── the store ─────────────────────────────────────────────────────────────────────────────────

    def _read(self, state: State, who: int) -> Any:
        op = self.shelf.op_number(Read(self.cast.identities[self._spot(state, who)]))
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
        promises.check_write(
            Change(
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
        )
        if before is not None and (after is None or after.record.fence != before.record.fence):
            state = state._replace(burnt=state.burnt | {bytes(before.record.fence)})
        if after is None:
            epochs = (*state.epochs[:spot], epoch + 1, *state.epochs[spot + 1 :])
            return state._replace(epochs=epochs)
        return self._kept(state, spot, epoch, before and before.record, after.record)

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

    # ── plays ─────────────────────────────────────────────────────────────────────────────────────

    def feed(self, state: State, who: int, token: Token) -> State:
        node = self.tree.child(self.tree.nodes[state.actors[who].node], token)
        return self._arrive(state, who, node)

    def _arrive(self, state: State, who: int, node: Node) -> State:
        """At its next operation that concerns others; what it does alone is done on the way."""
        while node.op is not None:
            if isinstance(node.op, Pursue):
                state = self._take_on(state, who, node.op)
            elif isinstance(node.op, Save | Undo):
                state = self._savepoint(state, node.op)
            elif not isinstance(node.op, Discard | Flush | Rest):
                break
            node = self.tree.child(node, ("reply", None))
        if node.op is None:
            return self._finish(state, who, node)
        if isinstance(node.op, Await) and self.world.together:
            state = state._replace(watched=bytes(node.op.fence or b""))
        return with_actor(state, who, state.actors[who]._replace(node=node.number))

    def _take_on(self, state: State, who: int, op: Pursue) -> State:
        claim = -1 if op.claim is None else self.shelf.op_number(op.claim)
        number = self.shelf.op_number(op.op)
        pursuit = Pursuit(number, claim, False, state.now + HORIZON)
        actor = state.actors[who]
        return with_actor(state, who, actor._replace(pursuits=(*actor.pursuits, pursuit)))

    def _savepoint(self, state: State, op: Save | Undo) -> State:
        transaction = state.transaction
        if transaction is None:
            return state
        if isinstance(op, Save):
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
            left = Actor(DONE, pursuits=actor.pursuits)
        else:
            left = Actor(IDLE, pursuits=actor.pursuits, life=actor.life + 1)
        return with_actor(state, who, left)

    def _answered(self, state: State, who: int, actor: Actor, node: Node) -> None:
        spot = self._spot(state, who)
        kept = [self._snapshots[number] for at, _, number in state.kept if at == spot]
        promises.check_answer(node.result, kept, actor.acted)
        promises.p7_answers_stay_in_their_scope(node.result, self.cast.runs_elsewhere(who))
        if who == self.cast.late:
            promises.p12_no_permanent_conflict(node.result)


def _spent(state: State) -> State:
    return state._replace(faults=state.faults - 1)


def _later(state: State) -> State:
    return state._replace(now=state.now + state.jumps[0], jumps=state.jumps[1:])


def _unchanged(found: Found, fence: bytes) -> bool:
    """As `process/waiters.py` looks at it."""
    record = found.record
    running = record.state in (RecordState.IN_PROGRESS, RecordState.PENDING)
    return running and record.fence == fence and not record.lapsed(found.now)


def _steps_of_maintenance(world: World) -> list[StoreOperation[Any]]:
    flow, steps = tend(world.policy), []
    op = next(flow)
    try:
        while True:
            assert isinstance(op, StoreOperation)
            steps.append(op)
            op = flow.send(Tended({}, False, 0))
    except StopIteration:
        return steps
