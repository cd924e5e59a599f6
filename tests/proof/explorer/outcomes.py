"""Where each move leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.core import operations as ops
from semel.core.records import Fence
from semel.core.unknown.evidence import Absent, Evidence
from tests.proof.explorer import promises
from tests.proof.explorer.ground import Ground
from tests.proof.explorer.handlers import (
    WAYS,
    Redone,
    Send,
    happened,
)
from tests.proof.explorer.plays import Node, Token
from tests.proof.explorer.state import (
    DEAD,
    DONE,
    Actor,
    Floating,
    Pursuit,
    State,
    Transaction,
    spent,
    with_actor,
)
from tests.proof.explorer.worlds import LEASE


class Outcomes(Ground):
    """What comes of a step, or of what befalls somebody."""

    def _perform(self, state: State, who: int, node: Node) -> State:
        reply, state = self._apply(state, who, self._number(node))
        state = self._granted(state, who, node.op, reply)
        return self._arrive(state, who, self.tree.after(node, reply))

    def _number(self, node: Node) -> int:
        if node.asks < 0:
            assert isinstance(node.op, ops.StoreOperation)
            node.asks = self.shelf.op_number(node.op)
        return node.asks

    def _granted(self, state: State, who: int, op: Any, reply: Any) -> State:
        taken = isinstance(op, ops.Retake | ops.Resume | ops.Take) and isinstance(
            reply, ops.Applied
        )
        if not taken and not isinstance(reply, ops.Claimed):
            return state
        actor = state.actors[who]._replace(good_until=state.now + LEASE, granted=True)
        return with_actor(state, who, actor)

    def _reply(self, state: State, who: int, value: Any) -> State:
        return self.feed(state, who, ("reply", value))

    def _fault(
        self, state: State, who: int, token: Token, alone: bool = False
    ) -> Callable[[], State]:
        return lambda: self.feed(self._alone(spent(state), who, alone), who, token)

    def _alone(self, state: State, who: int, alone: bool = True) -> State:
        return with_actor(state, who, state.actors[who]._replace(alone=True)) if alone else state

    def _unanswered(self, state: State, who: int, node: Node) -> State:
        _, state = self._apply(spent(state), who, self._number(node))
        return self.feed(state, who, ("unanswered", None))

    def _interrupted(self, state: State, who: int, node: Node) -> State:
        _, state = self._apply(spent(state), who, self._number(node))
        return self.feed(self._alone(state, who), who, ("interrupted", None))

    def _float(self, state: State, who: int, node: Node) -> State:
        floating = Floating(who, self._number(node))
        state = spent(state)._replace(wire=(*state.wire, floating))
        return self.feed(state, who, ("unanswered", None))

    def _carried_through(self, state: State, who: int, node: Node) -> State:
        """Cancelled in a finishing operation: it has been applied, and is performed once more."""
        number = self._number(node)
        _, state = self._apply(spent(state), who, number)
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
        """One try, as `runtime/write_retries.py` makes it."""
        reply, after = self._apply(state, who, number)
        if number != pursuit.op:
            return self._pursuits(after, who, pursuit, pursuit._replace(claimed=True))
        answered = isinstance(reply, ops.Applied) or (
            reply.record is not None and reply.record.fence != pursuit.seen
        )
        if answered or state.now >= pursuit.until:
            return self._pursuits(after, who, pursuit, None)
        return self._pursuits(after, who, pursuit, pursuit._replace(claimed=False))

    def _pursuits(self, state: State, who: int, old: Pursuit, new: Pursuit | None) -> State:
        actor = state.actors[who]
        kept = [each for each in actor.write_retries if each != old]
        kept += [] if new is None else [new]
        return with_actor(state, who, actor._replace(write_retries=tuple(kept)))

    def _die(self, state: State, who: int) -> State:
        """A process is killed, and with it what it pursues and what it has open."""
        state = spent(state)
        if not self.cast.is_request(who):  # there will be another one
            return with_actor(state, who, Actor(life=state.actors[who].life + 1))
        for each in range(self.world.requests) if self.world.together else [who]:
            if state.actors[each].node != DONE or state.actors[each].write_retries:
                state = with_actor(self._rolled_back(state, each), each, Actor(DEAD))
        return state

    def _wake(self, state: State, who: int, found: ops.Found) -> State:
        """All who wait in the process wake at once, and the first is elected."""
        elected = True
        for each, actor in enumerate(state.actors):
            if actor.node < 0 or (each != who and not self.world.together):
                continue
            if isinstance(self.tree.nodes[actor.node].op, ops.Await):
                passed = actor._replace(passed_over=not elected)
                state = with_actor(state, each, passed)
                state = self._reply(state, each, ops.Woken(found.record, found.now, elected))
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
            return self.feed(spent(state), who, ("stopped", None))
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

    def _drain(self, state: State, who: int, node: Node, whole: bool = True) -> State:
        fence = self._holding(who, state)[1]
        entry = self.shelf.entry(state.entries[self._spot(state, who)])
        if self.world.kinds[0] == "stream":
            promises.p11_a_stream_begins_on_record(entry, fence)
        return self._reply(state, who, ops.Drained(3, b"digest", whole=whole))

    # ── transactions ──────────────────────────────────────────────────────────────────────────────

    def _begin(self, state: State, who: int) -> State:
        if state.transaction is not None:
            return self._reply(state, who, ops.Occupied())
        opened = Transaction(who, state.entries[0], False, 0, state.entries[0])
        return self._reply(state._replace(transaction=opened), who, ops.Begun())

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
            state = self._changed(state, who, ops.Commit(), after)
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
            return self.feed(spent(state), who, ("unanswered", None))
        return self._reply(state, who, None)

    def _limbo(self, state: State, who: int) -> State:
        transaction = state.transaction
        assert transaction is not None
        state = spent(state)._replace(transaction=transaction._replace(limbo=True))
        return self.feed(state, who, ("unanswered", None))
