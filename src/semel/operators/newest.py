"""Records in the order in which they came to their state, newest first, without an index of times.

Stores list the records of one duty, latest due first (`core/operations/lists.py`). When a settled
record is due follows from when it was settled and from the retention it was promised:

    completed           completion + retention
    failed_retryable    release + retention
    expired             completion + retention + tombstone

So records with the same sum, the *offset*, stand in order of time. A list reads one *lane* for each
offset that the terms on record lead to, each from the same moment backwards, and merges them. What
belongs to another lane is passed over. Some records are kept for another time than their terms say,
because a handler asked for longer or an operator gave them up, and the terms of some are not on
record. These stand in the lane with the largest offset of their duty: every record is listed, but
such a one may stand too far up or down.

Unsettled records are due when a lease ends or a probe may be asked, which says little about when
they came. There are mostly few of them: up to `SORTED` of each duty are read whole and sorted by
when they were made. If there are more, they are listed by when they are due, and the page says so.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from semel.core.frozen import frozen, replace
from semel.core.operations.lists import DuePlace, ListNewest, ListTerms, Newest
from semel.core.records import DUTY_NUMBERS, Duty, Glimpse, Identity, Micros, State
from semel.core.terms import Terms
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.stores.base import Store

SORTED: Final = 300
"""Unsettled records of one duty that are read whole and sorted."""
MOST_TERMS: Final = 1000
MOST_LANES: Final = 8
"""Lanes of one duty; the records of other offsets stand in the lane with the largest."""
STEP: Final = 1000
"""Records that are read at once, at most."""
SLACK: Final = 60_000_000
"""How far ahead of the others the clock of one of several servers may be."""

_STATES: Final = {
    Duty.LEASE: (State.IN_PROGRESS,),
    Duty.RESUME: (State.IN_PROGRESS,),
    Duty.RUN: (State.PENDING,),
    Duty.ASK: (State.UNKNOWN,),
    Duty.EXPIRE: (State.COMPLETED,),
    Duty.FORGET: (State.FAILED_RETRYABLE, State.EXPIRED),
}
_SETTLED: Final = (Duty.EXPIRE, Duty.FORGET)
_TIME: Final = re.compile("[0-9]{1,19}", re.ASCII)
_LATEST: Final = 2**62
"""A moment after every other."""
_DEAD: Final = -1
"""The moment of a dead letter, where it is listed by what is due: the last."""

_TURNED: Final = bytes(range(255, -1, -1))


@frozen
class ListPlace:
    """Where a page of a list ended. ``start``: when the first page was read, by the store's clock.

    ``by_due``: of these duties there are too many to be sorted.
    """

    moment: Micros
    identity: Identity
    start: Micros
    by_due: tuple[Duty, ...] = ()

    @property
    def text(self) -> str:
        """For a command line or an address; `read_place` reads it."""
        duties = "".join(str(DUTY_NUMBERS[each]) for each in self.by_due)
        return f"{self.moment + 1}-{self.identity.hex()}-{self.start}-{duties}"


def read_place(text: str) -> ListPlace:
    """A place from its text."""
    parts = text.split("-")
    try:
        moment, digits, start, duties = parts
        numbers = {str(number): Duty(duty) for duty, number in DUTY_NUMBERS.items()}
        times = [int(each) for each in (moment, start) if _TIME.fullmatch(each)]
        identity = Identity(bytes.fromhex(digits))
        if len(times) != 2 or len(identity) != 32 or max(times) > _LATEST + 1:
            raise ValueError
        by_due = tuple(numbers[each] for each in duties)
        return ListPlace(times[0] - 1, identity, times[1], by_due)
    except (ValueError, KeyError):
        raise ConfigurationError("this is no place that a list has ended with") from None


@frozen
class Merged:
    """What a step of a list gave: records that come next, and how many were read for it.

    ``place``: the list is complete up to there. None: to the end.
    """

    glimpses: tuple[tuple[ListPlace, Glimpse], ...]
    looked: int
    place: ListPlace | None
    now: Micros


class _Lane:
    """The records of one duty and one offset, read a piece at a time."""

    def __init__(
        self, duty: Duty, offset: Micros, others: Iterable[Micros], place: ListPlace, *, top: bool
    ) -> None:
        self.duty = duty
        self.offset = offset
        self.others = frozenset(others)
        """The offsets of the duty's other lanes."""
        self.place = place
        """All before it is still unread."""
        self.top = top
        """It also has the records that no other lane has."""
        self.ended = False
        self.reads = 0

    @property
    def order(self) -> tuple[Micros, Identity]:
        return self.place.moment, self.place.identity

    def read(self, store: Store, size: int) -> Newest:
        """The next records of the duty."""
        moment, identity = self.order
        due_at = None if moment == _DEAD else moment + self.offset
        page = store.perform(ListNewest(self.duty, size, DuePlace(due_at, identity)))
        self.reads += 1
        self.ended = page.until is None
        if (until := page.until) is not None:
            self.place = replace(
                self.place, moment=self.moment(until.due_at), identity=until.identity
            )
        return page

    def moment(self, due_at: Micros | None) -> Micros:
        return _DEAD if due_at is None else due_at - self.offset

    def owns(self, seen: Glimpse, due_at: Micros | None) -> bool:
        """Whether the record is this lane's to list."""
        if self.duty not in _SETTLED or due_at is None:
            return True
        own = None if seen.terms is None else _offset(seen.state, seen.terms)
        if own is not None and due_at - own <= self.place.start:
            if own == self.offset:
                return True
            if own in self.others:
                return False
        return self.top


def _offset(state: State, terms: Terms) -> Micros:
    """How long after it was settled a record is due."""
    return terms.retention + (terms.tombstone if state is State.EXPIRED else 0)


class NewestRecords:
    """A list of records in some states, newest first, that is read step by step."""

    def __init__(
        self,
        store: Store,
        states: Sequence[State],
        after: ListPlace | None = None,
        since: Micros | None = None,
    ) -> None:
        known = store.perform(ListTerms(MOST_TERMS))
        self._store = store
        self._states = frozenset(states)
        self._since = since
        self._after = after
        self._place = after or ListPlace(_LATEST, Identity(b"\xff" * 32), known.now + SLACK)
        self._heap: list[tuple[Micros, bytes, int, Glimpse]] = []
        self._kept = 0
        self.now = known.now
        self.sorted = 0
        """Unsettled records that were read to be sorted."""
        self._lanes = [*self._settled_lanes(known.terms), *self._unsettled_lanes()]

    @property
    def begins(self) -> ListPlace:
        """The place that the list goes on from."""
        return self._place

    @property
    def by_due(self) -> tuple[Duty, ...]:
        """Duties with so many records that they are listed by when they are due."""
        return self._place.by_due

    def _settled_lanes(self, known: Sequence[Terms]) -> Iterator[_Lane]:
        bounded = ListPlace(self._place.start + 1, Identity(bytes(32)), self._place.start)
        for duty in _SETTLED:
            states = self._states.intersection(_STATES[duty])
            offsets = Counter(_offset(state, each) for state in states for each in known)
            top = max(offsets, default=0)
            chosen = {top, *(offset for offset, _ in offsets.most_common(MOST_LANES - 1))}
            for offset in chosen if states else ():
                place = self._place
                if offset != top and place.moment > bounded.moment:
                    place = bounded
                yield _Lane(duty, offset, chosen - {offset}, place, top=offset == top)

    def _unsettled_lanes(self) -> Iterator[_Lane]:
        """What is sorted is put on the heap at once; the others are lanes to be read."""
        for duty in Duty:
            if duty in _SETTLED or not self._states.intersection(_STATES[duty]):
                continue
            lane = _Lane(duty, 0, (), self._place, top=True)
            if duty in self.by_due:
                yield lane
                continue
            page = self._store.perform(ListNewest(duty, SORTED))
            self.sorted += len(page.found)
            if page.until is None:
                self._keep((each.glimpse.created_at, each.glimpse) for each in page.found)
            else:
                self._place = replace(self._place, by_due=(*self.by_due, duty))
                yield lane

    def _keep(self, found: Iterable[tuple[Micros, Glimpse]]) -> None:
        """Records to list when their turn comes."""
        for moment, seen in found:
            behind = self._after is None or (moment, seen.identity) < (
                self._after.moment,
                self._after.identity,
            )
            if behind and seen.state in self._states:
                # The heap gives the smallest first: all is turned round.
                self._kept += 1
                turned = seen.identity.translate(_TURNED)
                heapq.heappush(self._heap, (-moment, turned, self._kept, seen))

    def step(self, size: int, most: int) -> Merged:
        """Read where the list goes on, and give the records whose turn it is.

        ``size`` records are read of each lane at first, then ever more; never more than ``most``.
        """
        lane = self._next_lane()
        looked = 0
        if lane is not None:
            page = lane.read(self._store, min(size * 2**lane.reads, most, STEP))
            looked = len(page.found)
            self._keep(
                (lane.moment(each.place.due_at), each.glimpse)
                for each in page.found
                if lane.owns(each.glimpse, each.place.due_at)
            )
        front = self._next_lane()
        ready: list[tuple[ListPlace, Glimpse]] = []
        while self._heap and (front is None or self._first() >= front.order):
            turned, *_, seen = heapq.heappop(self._heap)
            ready.append((self._at(-turned, seen.identity), seen))
        place = None if front is None else self._at(*front.order)
        return Merged(tuple(ready), looked, place, self.now)

    def _first(self) -> tuple[Micros, Identity]:
        return -self._heap[0][0], self._heap[0][3].identity

    def _at(self, moment: Micros, identity: Identity) -> ListPlace:
        return replace(self._place, moment=moment, identity=identity)

    def _next_lane(self) -> _Lane | None:
        """The lane whose unread part is the newest; None when all are read."""
        unread = [lane for lane in self._lanes if not lane.ended and not self._too_old(lane)]
        return max(unread, key=lambda lane: lane.order, default=None)

    def _too_old(self, lane: _Lane) -> bool:
        """Whether all that a lane still has was made before ``since``.

        What was given up stands in the list as if it had been kept for as long as others.
        """
        if self._since is None or lane.duty not in _SETTLED:
            return False
        late = lane.offset if lane.duty is Duty.FORGET else 0
        return lane.place.moment + late < self._since
