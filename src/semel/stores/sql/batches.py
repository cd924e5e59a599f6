"""Many operations of one kind in one statement, without I/O: shared by stores and colours.

Operations that arrive while a statement of their kind is under way travel together in the next
one. A row that was not as expected decides nothing: its operation then goes alone, by its own plan,
which is always right because every operation is idempotent per fence. The operations of one batch
are concurrent (none was acknowledged before another was queued), so any order among them is legal.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from semel.core.model import Identity
from semel.errors import SemelError
from semel.log import log
from semel.stores.sql.errand import Fault, Verdict
from semel.stores.sql.kinds import Cells, Kind
from semel.stores.sql.plans import Row, Rows, Statement

J = TypeVar("J", bound="Job")

ROWS: Final = 64
"""In one statement at most: bounds how long its locks are held, and what an error sends again."""

WEIGHT: Final = 1024 * 1024
"""Bytes in one statement at most: it stays within the memory a server grants to a sort."""

LEADERS: Final = 2
"""How many may be under way alone before others queue up. With one, two callers that take turns
would wait for each other; more, and batches form late (measured with 2 to 128 in flight)."""

PATIENCE: Final = 0.1
"""Seconds. A statement that takes longer no longer holds up those who queued behind it."""

GRACE: Final = 0.05
"""Seconds that a caller waits beyond its deadline for its batch, which may know more about it."""


class Again(NamedTuple):
    """Not answered: the operation has to go alone. ``doubt``: it may have been applied already."""

    doubt: bool = False


class Job:
    """One queued operation; each colour adds how its caller waits."""

    __slots__ = ("cells", "deadline", "identity", "op", "taken")

    def __init__(self, op: Any, deadline: float) -> None:
        self.op = op
        self.identity: Identity = op.identity
        self.cells: Cells = ()
        self.deadline = deadline
        self.taken = False

    def expire(self, verdict: Verdict) -> None:
        """Its caller's time is up. What was taken into a batch may have been sent."""
        fault = Fault("no answer within the time limit", doubt=self.taken)
        self.fail(verdict(fault, doubt=self.taken))

    def withdrawn(self) -> bool:
        """Nobody waits for it any more."""
        raise NotImplementedError

    def answer(self, reply: object) -> None:
        """A reply of the operation, or `Again`."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError


class Batch(Generic[J]):
    """Operations that travel together: one row for each identity."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._groups: dict[Identity, list[J]] = {}
        self._weight = 0

    def __len__(self) -> int:
        """How many operations, which may be more than rows."""
        return sum(map(len, self._groups.values()))

    def __iter__(self) -> Iterator[J]:
        for group in self._groups.values():
            yield from group

    def accept(self, job: J) -> bool:
        """Take ``job`` along, if it fits."""
        if group := self._groups.get(job.identity):
            if self._kind.shared:
                group.append(job)
            return self._kind.shared
        weight = sum(map(len, job.cells))
        if self._groups and self._weight + weight > WEIGHT:
            return False
        self._groups[job.identity] = [job]
        self._weight += weight
        return True

    @property
    def full(self) -> bool:
        return len(self._groups) >= ROWS

    @property
    def deadline(self) -> float:
        """The latest: callers with less time watch the clock themselves."""
        return max(job.deadline for job in self)

    def statement(self) -> Statement:
        """One row for each identity: that of the first who asked."""
        return self._kind.gather([group[0].cells for group in self._groups.values()])

    def deliver(self, rows: Rows) -> list[J]:
        """Answer everybody; returns those who can only be answered by another batch."""
        found = {row[0]: row for row in rows}
        left: list[J] = []
        for identity, group in self._groups.items():
            row = found.get(identity)
            for job in group:
                if row is None:
                    job.answer(Again())
                elif not self._reply(job, row):
                    left.append(job)
        return left

    def _reply(self, job: J, row: Row) -> bool:
        """An answer that cannot be true is the error of the one who asked for it."""
        try:
            reply = self._kind.reply(job.op, row)
        except Exception as error:
            job.fail(error)
            return True
        if reply is not None:
            job.answer(reply)
        return reply is not None

    def send_again(self, doubt: bool) -> None:
        """Each alone, with the same fence."""
        for job in self:
            job.answer(Again(doubt))

    def fail(self, error: Exception, verdict: Verdict) -> None:
        """Nobody was answered. Where the cause may be one of them, or may be gone, each is asked
        again alone.

        Not so when the time is up or no connection is to be had; nor when a commit is in doubt
        that nobody lost: asked again, the server would call it done.
        """
        if isinstance(error, Fault):
            if error.tries > 1 or error.refused:
                self.send_again(doubt=error.doubt)
                return
            for job in self:
                job.fail(verdict(error, doubt=error.doubt))
            return
        if not isinstance(error, SemelError):
            log.error("semel: a batch failed, its operations are sent one by one", exc_info=error)
        self.send_again(doubt=True)


class Slow:
    """Identities of operations that are taking long: who asks for one of them goes alone."""

    def __init__(self) -> None:
        self._owners: dict[Job | Batch[Any], tuple[Identity, ...]] = {}
        self._identities: Counter[Identity] = Counter()

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._identities

    def add(self, owner: Job | Batch[Any]) -> None:
        jobs = (owner,) if isinstance(owner, Job) else owner
        self._owners[owner] = tuple({job.identity for job in jobs})
        self._identities.update(self._owners[owner])

    def discard(self, owner: Job | Batch[Any]) -> None:
        for identity in self._owners.pop(owner, ()):
            self._identities[identity] -= 1
            if not self._identities[identity]:
                del self._identities[identity]


class Queue(Generic[J]):
    """The operations of one kind that wait for the next batch."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._jobs: deque[J] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, job: J) -> None:
        self._jobs.append(job)

    def first(self) -> J | None:
        """Who has waited longest, and still does."""
        while self._jobs and self._jobs[0].withdrawn():
            self._jobs.popleft()
        return self._jobs[0] if self._jobs else None

    def put_back(self, jobs: Sequence[J]) -> None:
        self._jobs.extendleft(reversed(jobs))

    def take(self) -> Batch[J]:
        """As many as fit, oldest first; those who do not fit keep their place."""
        batch = Batch[J](self.kind)
        left: list[J] = []
        while self._jobs and not batch.full and len(left) < ROWS:
            job = self._jobs.popleft()
            if job.withdrawn():
                continue
            if batch.accept(job):
                job.taken = True
            else:
                left.append(job)
        self.put_back(left)
        return batch
