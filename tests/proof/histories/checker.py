"""Whether a history of one key is linearizable: the search of Wing and Gong, with Lowe's memory.

Each call takes effect at one instant between its begin and its end. The search looks for an order
of the calls that respects this and in which the specification gives every reply that was recorded.
What was done so far and the state it led to decide how it can go on, so no such pair is gone
through twice; nor one where more was used up of what need not have happened at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from semel.core.frozen import replace
from semel.core.operations.maintenance import Reap
from semel.core.operations.requests import Fetched, Found, Lost, NoRecord, Read, Recalled, Stale
from semel.core.records import Identity
from tests.proof.histories.calls import ROUNDS, Call, History, Outcome
from tests.proof.histories.spec import Deed, Part, Row, Spec, StateNumber
from tests.stores.timeless import timeless

NODES: Final = 3_000_000
"""Enough for every history so far, by far; where it is not, the history is not decided."""

FOREVER: Final = 1 << 62
UNCHANGING: Final = (Found, Lost, NoRecord, Recalled, Fetched, Stale)
"""Replies of operations that changed nothing, at whatever instant they took place."""


class Broken(Exception):
    """No order explains the history."""


class Undecided(Exception):
    """The search was given up."""


@dataclass(frozen=True)
class Habits:
    """What a store does that is not one instant, and may."""

    looks_again: bool = False
    """A refused write is followed by a read, for the record that the refusal tells of. The SQL
    stores do so; what a fence may do never comes back once it is refused, so nobody who saw what
    he asks for is told a record that allows it."""
    asks_again: bool = False
    """An answer that got lost is asked for again, with the same fence: the call takes effect up to
    twice. Only where lines are cut."""


ONE_STEP: Final = Habits()


@dataclass
class Verdict:
    """An order was found; ``rows``: of the table, as they were taken in it."""

    calls: int
    nodes: int
    rows: list[Row] = field(default_factory=list[Row])


@dataclass(frozen=True)
class _Node:
    done: int
    state: StateNumber
    choices: list[tuple[int, StateNumber]]


def check(identity: Identity, history: History, habits: Habits = ONE_STEP) -> Verdict:
    """Raises `Broken` when the history cannot have been made by the table."""
    return _Search(identity, history, habits).run()


class _Search:
    def __init__(self, identity: Identity, history: History, habits: Habits) -> None:
        self._spec = Spec(identity)
        self._look = self._spec.number(Read(identity))
        self._habits = habits
        self._history = history
        deeds = [deed for call in history for deed in self._parts(call)]
        self._deeds = sorted(deeds, key=lambda deed: deed.began)
        places = {id(deed): 1 << place for place, deed in enumerate(self._deeds)}
        self._needs = [places.get(id(deed.needs), 0) for deed in self._deeds]
        self._take_turns()
        self._ends = [0] * len(self._deeds)
        """What is over when this one is done, itself included."""
        for place, deed in enumerate(self._deeds):
            last = place if deed.until is None else self._deeds.index(deed.until)
            self._ends[place] |= 1 << place
            self._ends[last] |= 1 << place
        self._all = sum(places[id(deed)] for deed in self._deeds if deed.required)
        self._seen: dict[tuple[int, StateNumber], list[int]] = {}
        """For each pair: what had been used up of the rest."""
        self._nodes = 0
        self._furthest: tuple[int, StateNumber] = (0, 0)

    def _parts(self, call: Call) -> list[Deed]:
        call = replace(call, reply=timeless(call.reply))
        match call.outcome:
            case Outcome.NOTHING:
                return []
            case _ if isinstance(call.op, ROUNDS):
                return self._round(call)
            case Outcome.DOUBT:
                unseen = partial(self._deed, call, ended=FOREVER, part=Part.UNSEEN, required=False)
                return [unseen() for _ in range(2 if self._habits.asks_again else 1)]
            case Outcome.TOLD:
                return self._told(call)

    def _told(self, call: Call) -> list[Deed]:
        parts = [self._deed(call, still=isinstance(call.reply, UNCHANGING))]
        if self._habits.looks_again and isinstance(call.reply, Lost):
            refusal = self._deed(call, part=Part.REFUSAL, still=True)
            parts = [refusal, self._deed(call, part=Part.LOOK, still=True, needs=refusal)]
        if self._habits.asks_again:
            parts.append(self._deed(call, part=Part.UNSEEN, required=False, until=parts[0]))
        return parts

    def _round(self, call: Call) -> list[Deed]:
        """It may pass over a record that is locked. Expiring and forgetting are two steps.

        Where it was asked again, the counts are those of the last try alone, and the first try may
        go on after the answer: the last one passes over what the first has locked.
        """
        again = self._habits.asks_again
        told = call.outcome is Outcome.TOLD
        if told and not again and not any(call.reply.counts.values()):
            return []
        steps = (2 if isinstance(call.op, Reap) else 1) * (2 if again else 1)
        end = call.ended if told and not again else FOREVER
        step = partial(self._deed, call, ended=end, part=Part.ROUND, required=False)
        return [step() for _ in range(steps)]

    def _deed(self, call: Call, ended: int | None = None, **how: Any) -> Deed:
        end = call.ended if ended is None else ended
        return Deed(call, self._spec.number(call.op), self._look, call.began, end, **how)

    def _take_turns(self) -> None:
        """Of rounds alike that have no end, the one that began first comes first: who takes a later
        one could as well have taken this."""
        first: dict[int, int] = {}
        for place, deed in enumerate(self._deeds):
            if deed.part is Part.ROUND and deed.ended == FOREVER:
                self._needs[place] |= first.get(deed.op, 0)
                first[deed.op] = 1 << place

    def run(self) -> Verdict:
        path: list[_Node] = []
        taken: list[tuple[int, StateNumber]] = []
        done, state = 0, 0
        while True:
            fresh = self._enter(done, state)
            if fresh and done & self._all == self._all:
                return self._verdict(taken)
            path.append(_Node(done, state, self._choices(done, state) if fresh else []))
            while path and not path[-1].choices:
                path.pop()
                if taken:
                    taken.pop()
            if not path:
                raise Broken(self._explain())
            node = path[-1]
            number, state = node.choices.pop()
            taken.append((number, state))
            done = node.done | self._ends[number]

    def _enter(self, done: int, state: StateNumber) -> bool:
        """False: from here nothing is found that would not have been found before."""
        must, may = done & self._all, done & ~self._all
        seen = self._seen.setdefault((must, state), [])
        if any(used & ~may == 0 for used in seen):
            return False
        seen.append(may)
        self._nodes += 1
        if self._nodes > NODES:
            raise Undecided(f"{len(self._history)} calls, more than {NODES} ways")
        if must.bit_count() >= (self._furthest[0] & self._all).bit_count():
            self._furthest = done, state
        return True

    def _candidates(self, done: int) -> list[int]:
        """What no other that is still to be done has ended before."""
        found: list[int] = []
        end = FOREVER
        latest = self._deeds[done.bit_length() - 1].began if done else 0
        place = (~done & (done + 1)).bit_length() - 1  # the first that is not done
        for number in range(place, len(self._deeds)):
            deed = self._deeds[number]
            if deed.began > end:
                break
            if not done >> number & 1 and deed.ended >= latest:
                end = min(end, deed.ended) if deed.required else end
                found.append(number)
        return [
            number
            for number in found
            if self._deeds[number].began <= end and self._needs[number] & ~done == 0
        ]

    def _choices(self, done: int, state: StateNumber) -> list[tuple[int, StateNumber]]:
        """The most promising last: it is taken first."""
        choices: list[tuple[int, StateNumber]] = []
        candidates = self._candidates(done)
        optional = [self._deeds[n].ended for n in candidates if not self._deeds[n].required]
        soonest = min(optional, default=FOREVER)
        for number in candidates:
            deed = self._deeds[number]
            for after in self._spec.outcomes(state, deed):
                if deed.still and deed.began <= soonest:  # nothing becomes too late by it
                    return [(number, after)]
                choices.append((number, after))
        choices.sort(key=lambda choice: -self._deeds[choice[0]].ended)
        return choices

    def _verdict(self, taken: list[tuple[int, StateNumber]]) -> Verdict:
        verdict = Verdict(len(self._history), self._nodes)
        before = 0
        for number, after in taken:
            if after != before:
                verdict.rows.append(self._spec.row(before, self._deeds[number].call.op, after))
            before = after
        return verdict

    def _unlike(self, state: StateNumber, call: Call) -> str:
        """What of the told record is not as it should be, where all else is alike."""
        reply, _ = self._spec.step(state, self._spec.number(call.op))
        if type(reply) is not type(call.reply):
            return ""
        told, due = (_flat(each) for each in (call.reply, reply))
        wrong = [
            f"{name} {told[name]} not {due.get(name)}"
            for name in told
            if told[name] != due.get(name)
        ]
        return f" ({', '.join(wrong)})" if len(wrong) < 4 else ""

    def _explain(self) -> str:
        done, state = self._furthest
        stuck = [self._deeds[n].call for n in self._candidates(done)]
        names = _Names(self._history)
        explained = done.bit_count()
        lines = [f"no order explains the history; the best explains {explained} calls and leaves"]
        lines.append(
            f"the record {self._spec.state_of(state) or 'absent'}, and then none of these:"
        )
        lines += [f"  {names.line(call)}{self._unlike(state, call)}" for call in stuck]
        lines.append("the whole history:")
        lines += [f"  {names.line(call)}" for call in self._history]
        return "\n".join(lines)


class _Names:
    """Short names for fences, in the order in which they came up."""

    def __init__(self, history: History) -> None:
        self._names: dict[bytes, str] = {}
        self._start = min((call.began for call in history), default=0)

    def line(self, call: Call) -> str:
        began, ended = ((each - self._start) // 1_000 for each in (call.began, call.ended))
        asked = " ".join(
            f"{name}={self._name(getattr(call.op, name))}"
            for name in ("seen", "fence")
            if hasattr(call.op, name)
        )
        span = f"{began:>8}–{ended:<8} µs"
        return f"{span} {call.lane:<10} {type(call.op).__name__} {asked}: {self._told(call)}"

    def _told(self, call: Call) -> str:
        reply: Any = call.reply
        if call.outcome is not Outcome.TOLD or isinstance(call.op, ROUNDS):
            return f"{call.outcome if reply is None else getattr(reply, 'counts', '')}"
        record: Any = getattr(reply, "record", None) or getattr(
            getattr(reply, "case", None), "record", None
        )
        state = getattr(reply, "state", None) if record is None else record.state
        fence = "" if record is None else f" {self._name(record.fence)}"
        return f"{type(reply).__name__} {state or ''}{fence}"

    def _name(self, fence: bytes) -> str:
        return self._names.setdefault(fence, f"f{len(self._names) + 1}")


def _flat(thing: Any) -> dict[str, str]:
    """Every field of a reply and of what is in it, as text."""
    found: dict[str, str] = {}
    for name in getattr(thing, "__match_args__", ()):
        held = getattr(thing, name)
        found.update(_flat(held) or {name: held.hex()[:12] if type(held) is bytes else repr(held)})
    return found
