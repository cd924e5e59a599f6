"""Many operations of one kind in one statement, without I/O: shared by stores and colours.

Operations that arrive while a statement of their kind is under way travel together in the next
one. A row that was not as expected decides nothing: its operation then goes alone, by its own plan,
which is always right because every operation is idempotent per fence. The operations of one batch
are concurrent (none was acknowledged before another was queued), so any order among them is legal.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from semel.core.records import Identity
from semel.errors import SemelError
from semel.log import log
from semel.stores.sql.batch_columns import Kind
from semel.stores.sql.plans import Rows, Statement
from semel.stores.sql.statement_retry import Fault, Verdict

J = TypeVar("J", bound="Job")

ROWS: Final = 64
"""In one statement at most: bounds how long its locks are held, and what an error sends again."""

WEIGHT: Final = 1024 * 1024
"""Bytes that one statement brings at most: within the memory that a server grants to a sort."""

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

    __slots__ = ("deadline", "identity", "op", "taken", "weight")

    def __init__(self, op: Any, deadline: float, weight: int = 0) -> None:
        self.op = op
        self.identity: Identity = op.identity
        self.deadline = deadline
        self.weight = weight
        self.taken = False

    def expire(self, verdict: Verdict) -> None:
        """Its caller's time is up. What was taken into a batch may have been sent."""
        fault = Fault("no answer within the time limit", doubt=self.taken)
        self.fail(verdict(fault, doubt=self.taken))

    def withdrawn(self) -> bool:
        """Nobody waits for it any more."""
        raise NotImplementedError

    def answer(self, reply: object) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError

    def send_alone(self, again: Again) -> None:
        """No batch answers it."""
        raise NotImplementedError


_DEADLINE: Final[Callable[[Job], float]] = attrgetter("deadline")


class Batch(Generic[J]):
    """Operations that travel together.

    ``rows``: whose operation is sent, one for each identity. ``others``: who is answered by the row
    that somebody else sends.
    """

    __slots__ = ("_kind", "_rows", "jobs")

    def __init__(self, kind: Kind, rows: dict[Identity, J], others: Sequence[J] = ()) -> None:
        self._kind = kind
        self._rows = rows
        self.jobs: list[J] = [*rows.values(), *others]

    def __len__(self) -> int:
        """How many operations, which may be more than rows."""
        return len(self.jobs)

    def __iter__(self) -> Iterator[J]:
        return iter(self.jobs)

    @property
    def deadline(self) -> float:
        """The latest: callers with less time are told by the lane."""
        return max(map(_DEADLINE, self.jobs))

    def statement(self) -> Statement | None:
        """One row for each identity, in their order: locks that everybody takes in the same order
        cannot deadlock. None when not one of them can be written."""
        try:
            return self._kind.gather([self._rows[each].op for each in sorted(self._rows)])
        except Exception:  # of one of them; alone it will say so
            self._part_with_the_unwritable()
            return self.statement() if self._rows else None

    def _part_with_the_unwritable(self) -> None:
        """They go alone, and with them who waits for their rows."""
        bad = {each for each, job in self._rows.items() if not self._kind.can_gather(job.op)}
        if not bad:
            raise RuntimeError("operations that can be written one by one, but not together")
        for job in self.jobs:
            if job.identity in bad:
                job.send_alone(Again())
        self._rows = {each: job for each, job in self._rows.items() if each not in bad}
        self.jobs = [job for job in self.jobs if job.identity not in bad]

    def deliver(self, rows: Rows) -> list[J]:
        """Answer everybody; returns those who can only be answered by another batch.

        An answer that cannot be true is the error of the one who asked for it.
        """
        found = {row[0]: row for row in rows}
        reply_to, left = self._kind.reply, list[J]()
        for job in self.jobs:
            row = found.get(job.identity)
            if row is None:
                job.send_alone(Again())
                continue
            try:
                reply = reply_to(job.op, row)
            except Exception as error:
                job.fail(error)
                continue
            if reply is None:
                left.append(job)
            else:
                job.answer(reply)
        return left

    def send_again(self, doubt: bool) -> None:
        """Each alone, with the same fence."""
        for job in self.jobs:
            job.send_alone(Again(doubt))

    def fail(self, error: BaseException, verdict: Verdict) -> None:
        """Nobody was answered. Where the cause may be one of them, or may be gone, each is asked
        again alone.

        Not so when the time is up or no connection is to be had; nor when a commit is in doubt
        that nobody lost: asked again, the server would call it done.
        """
        if isinstance(error, Fault):
            if error.tries > 1 or error.refused:
                self.send_again(doubt=error.doubt)
                return
            for job in self.jobs:
                job.fail(verdict(error, doubt=error.doubt))
            return
        if not isinstance(error, SemelError):
            log.error("semel: a batch failed, its operations are sent one by one", exc_info=error)
        self.send_again(doubt=True)


class Slow:
    """Identities of operations that are taking long: who asks for one of them goes alone."""

    def __init__(self) -> None:
        self._owners: dict[Job | Batch[Any], tuple[Identity, ...]] = {}
        self.identities: Counter[Identity] = Counter()

    def add(self, owner: Job | Batch[Any]) -> None:
        jobs = (owner,) if isinstance(owner, Job) else owner
        self._owners[owner] = tuple({job.identity for job in jobs})
        self.identities.update(self._owners[owner])

    def discard(self, owner: Job | Batch[Any]) -> None:
        for identity in self._owners.pop(owner, ()):
            self.identities[identity] -= 1
            if not self.identities[identity]:
                del self.identities[identity]


class Queue(Generic[J]):
    """The operations of one kind that wait for the next batch."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._jobs: deque[J] = deque()
        self.add = self._jobs.append

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def first(self) -> J | None:
        """Who has waited longest, and still does."""
        while self._jobs and self._jobs[0].withdrawn():
            self._jobs.popleft()
        return self._jobs[0] if self._jobs else None

    def put_back(self, jobs: Sequence[J]) -> None:
        self._jobs.extendleft(reversed(jobs))

    def overdue(self, before: float) -> list[J]:
        """Taken out: those whose deadline was ``before``. Who came first is due first."""
        late: list[J] = []
        while self._jobs and self._jobs[0].deadline <= before:
            late.append(self._jobs.popleft())
        return late

    def take(self) -> Batch[J]:
        """As many as fit, oldest first; those who do not fit keep their place."""
        jobs, shared = self._jobs, self.kind.shared
        rows: dict[Identity, J] = {}
        others, left, weight = list[J](), list[J](), 0
        while jobs and len(rows) < ROWS and len(left) < ROWS:
            job = jobs.popleft()
            if job.withdrawn():
                continue
            known = job.identity in rows
            if not shared if known else rows and weight + job.weight > WEIGHT:
                left.append(job)
                continue
            job.taken = True
            if known:
                others.append(job)
            else:
                rows[job.identity] = job
                weight += job.weight
        self.put_back(left)
        return Batch(self.kind, rows, others)
