"""Many operations of one kind in one statement, without I/O: shared by all stores and colours.

`semel.stores.sql` explains the rules. Here are the kinds of operations that can share a statement,
the columns they are written into, the batch, its queue, and what batchers of both colours decide.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from semel.core import operations as ops
from semel.core.records import ON_LAPSE_NUMBERS, Identity, State
from semel.core.stored.packed import packed_fingerprint, packed_key
from semel.core.texts import exact, shown
from semel.errors import SemelError, StoreCorrupt
from semel.log import log
from semel.stores.sql.rows import COMPLETED, IN_PROGRESS, Row, Rows, record, written
from semel.stores.sql.statements import Statement, StatementFault, ToStoreError

J = TypeVar("J", bound="BatchJob")

MAX_BATCHED: Final = 64 * 1024
"""An operation with more bytes goes alone; the statements say the same of answers."""

MAX_ROWS: Final = 64
"""In one statement: bounds how long its locks are held, and what an error sends again."""

MAX_BYTES: Final = 1024 * 1024
"""In one statement: within the memory that a server grants to a sort."""

MAX_SINGLES: Final = 2
"""How many may be in flight alone before others queue. With one, two callers that take turns would
wait for each other; with more, batches form late (measured with 2 to 128 in flight)."""

SLOW_AFTER: Final = 0.1
"""Seconds. A statement that takes longer no longer holds up those that queue behind it."""

GRACE: Final = 0.05
"""Seconds that a caller waits beyond its deadline for its batch, which may know more about it."""

# --- kinds: what can share a statement, how it is written, and what a row means


class BatchKind(NamedTuple):
    """How one kind of operation is done for many at once.

    ``columns``: the parameters of the statement for some operations, in their order.
    ``size``: the bytes an operation brings, where that can be many.
    ``reply``: the answer in a row; None when the row answers another caller of the same identity.
    ``shared``: whether one row answers everybody who asked for its identity.
    """

    statement: str
    columns: Callable[[Sequence[Any]], Mapping[str, object]]
    size: Callable[[Any], int]
    reply: Callable[[Any, Row], object | None]
    shared: bool

    def can_write(self, op: Any) -> bool:
        try:
            self.columns([op])
        except Exception:
            return False
        return True


BatchKinds: TypeAlias = Mapping[type[ops.StoreOperation[Any]], BatchKind]


class ColumnWriter(NamedTuple):
    """How a store writes a column of bytes, of texts and of numbers; each value may be None.

    ``leases``: how it writes the leases of claims.
    """

    data: Callable[[Sequence[bytes | None]], object]
    text: Callable[[Sequence[str | None]], object]
    number: Callable[[Sequence[int | None]], object]
    leases: Callable[[Sequence[int | None]], object]


def _columns(
    write: ColumnWriter, fields: Mapping[str, str]
) -> Callable[[Sequence[Any]], Mapping[str, object]]:
    """Columns are made for all rows at once: work for each operation apart is what costs.

    ``fields``: by how they are written, fields of an operation, which name the columns.
    """
    ways: dict[str, Callable[[Any], object]] = {
        **write._asdict(),
        "shown": lambda texts: write.text(_shown(texts)),
        "mark": lambda texts: write.data([packed_fingerprint(exact(each)) for each in texts]),
        "key": lambda texts: write.data([packed_key(shown(each)) for each in texts]),
        "lapse": lambda choices: write.number([ON_LAPSE_NUMBERS[each] for each in choices]),
    }
    columns = [
        (path.rpartition(".")[2], attrgetter(path), ways[way])
        for way, paths in fields.items()
        for path in paths.split()
    ]
    return lambda those: {name: way(list(map(get, those))) for name, get, way in columns}


def _shown(texts: Sequence[str | None]) -> Sequence[str | None]:
    """Each text as `shown` has it; whether any needs an escape is asked once for all."""
    whole = "".join(filter(None, texts))
    if whole.isascii() and "\\" not in whole and "\0" not in whole:
        return texts
    return [None if text is None else shown(text) for text in texts]


def _claim_size(op: ops.Claim) -> int:
    origin = op.origin
    texts = len(origin.path) + len(origin.key) + len(origin.tenant)
    return len(op.fields) + texts + len(op.request or b"")


def _complete_size(op: ops.Complete) -> int:
    return len(op.snapshot) + len(op.resource or "")


def _no_size(op: ops.Renew | ops.Read) -> int:
    return 0


def _claim_reply(op: ops.Claim, row: Row) -> ops.Claimed | ops.Found | None:
    """The reply in a row like that of ``claim``; the state of a new record may be NULL.

    A record with the operation's own fence is the work of this claim, now or by an earlier try. A
    lease that is past is not granted again: others may already know that it lapsed.
    """
    state, now = row[1], row[13]
    if state == IN_PROGRESS or state is None:
        created_at, leased_until = row[6], row[7]
        if type(created_at) is not int or type(leased_until) is not int or type(now) is not int:
            raise StoreCorrupt("a record that is held came without its times")
        if row[2] == op.fence and leased_until > now:
            return ops.Claimed(leased_until, now, created_at)
        if state is None:  # inserted for the first who asked; the others have to look
            return None
    return _read_reply(op, row)


def _read_reply(op: ops.Read | ops.Claim, row: Row) -> ops.Found:
    now = row[13]
    if type(now) is not int:
        raise StoreCorrupt("the store's clock is not a number")
    return ops.Found(record(row), now)


def _written_reply(op: ops.Complete | ops.Renew, row: Row) -> ops.Written:
    """The reply in a row that holds an identity and the columns of ``complete``."""
    _, state, leased_until, expires_at, now = row
    if state == COMPLETED and leased_until is None and type(expires_at) is type(now) is int:
        return ops.Applied(State.COMPLETED, now, None, expires_at)  # as nearly all of them
    return written((row[1:],))


def batch_kinds(write: ColumnWriter) -> BatchKinds:
    """All kinds, as a store writes their columns."""
    claims = {
        "data": "identity fence fields request",
        "mark": "fingerprint",
        "shown": "origin.tenant origin.method origin.path",
        "key": "origin.key",
        "lapse": "on_lapse",
        "leases": "lease",
        "number": "fresh_until terms",
    }
    completions = {
        "data": "identity fence snapshot",
        "number": "retention tombstone",
        "shown": "resource",
    }
    renewals = {"data": "identity fence", "number": "lease"}
    columns = partial(_columns, write)
    claimed, completed = columns(claims), columns(completions)
    renewed, read = columns(renewals), columns({"data": "identity"})
    return {
        ops.Claim: BatchKind("claim_many", claimed, _claim_size, _claim_reply, shared=True),
        ops.Complete: BatchKind(
            "complete_many", completed, _complete_size, _written_reply, shared=False
        ),
        ops.Renew: BatchKind("renew_many", renewed, _no_size, _written_reply, shared=False),
        ops.Read: BatchKind("read_many", read, _no_size, _read_reply, shared=True),
    }


# --- jobs, batches and their queue


class SendAlone(NamedTuple):
    """The batch has no answer: send the operation alone. ``doubt``: it may have been applied."""

    doubt: bool = False


class BatchJob:
    """One queued operation; each colour adds how its caller waits."""

    __slots__ = ("deadline", "identity", "op", "size", "taken")

    def __init__(self, op: Any, deadline: float, size: int = 0) -> None:
        self.op = op
        self.identity: Identity = op.identity
        self.deadline = deadline
        self.size = size
        self.taken = False

    def expire(self, store_error: ToStoreError) -> None:
        """Fail: the caller's time is up. What was taken into a batch may have been sent."""
        fault = StatementFault("no answer within the time limit", doubt=self.taken)
        self.tell(store_error(fault, doubt=self.taken))

    def abandoned(self) -> bool:
        """Whether its caller no longer waits."""
        raise NotImplementedError

    def tell(self, message: object) -> None:
        """Give its caller the reply, an error, or the order to send it alone (`SendAlone`)."""
        raise NotImplementedError


class Batch(Generic[J]):
    """Operations that share a statement.

    ``rows``: the jobs whose operation is sent, one for each identity. ``others``: jobs that are
    answered by the row of another. ``jobs``: all of them, which may be more than rows.
    """

    __slots__ = ("_kind", "_rows", "jobs")

    def __init__(self, kind: BatchKind, rows: dict[Identity, J], others: Sequence[J] = ()) -> None:
        self._kind = kind
        self._rows: dict[Identity, J] = rows
        self.jobs: list[J] = [*rows.values(), *others]

    @property
    def deadline(self) -> float:
        """The latest of all; the batcher tells callers with less time."""
        return max([job.deadline for job in self.jobs])

    def statement(self) -> Statement | None:
        """One row for each identity, in their order; None when no operation can be written.

        Operations that cannot be written go alone, and with them the jobs that wait for their row.
        """
        while self._rows:
            try:
                columns = self._kind.columns([self._rows[each].op for each in sorted(self._rows)])
                return Statement(self._kind.statement, columns)
            except Exception:  # of one of them; alone it raises the same for its own caller
                bad = {each for each, job in self._rows.items() if not self._kind.can_write(job.op)}
            if not bad:
                raise RuntimeError("operations that can be written one by one, but not together")
            for job in self.jobs:
                if job.identity in bad:
                    job.tell(SendAlone())
            self._rows = {each: job for each, job in self._rows.items() if each not in bad}
            self.jobs = [job for job in self.jobs if job.identity not in bad]
        return None

    def answer_all(self, rows: Rows) -> list[J]:
        """Answer the jobs; returns those that only another batch can answer.

        An answer that cannot be true is the error of the caller who asked for it.
        """
        found = {row[0]: row for row in rows}
        reply_to, unanswered = self._kind.reply, list[J]()
        for job in self.jobs:
            row = found.get(job.identity)
            if row is None:
                job.tell(SendAlone())
                continue
            try:
                reply = reply_to(job.op, row)
            except Exception as error:
                job.tell(error)
                continue
            if reply is None:
                unanswered.append(job)
            else:
                job.tell(reply)
        return unanswered

    def send_each_alone(self, doubt: bool) -> None:
        """With the same fence."""
        for job in self.jobs:
            job.tell(SendAlone(doubt))

    def fail(self, error: BaseException, store_error: ToStoreError) -> None:
        """The statement failed. Where the cause may be one row, or may be gone, each goes alone.

        Not so when the time is up or there is no connection; nor when a commit is in doubt although
        the connection is not lost: asked again, the server would call it done.
        """
        if not isinstance(error, StatementFault):
            if not isinstance(error, SemelError):
                said = "semel: a batch failed, its operations are sent one by one"
                log.error(said, exc_info=error)
            self.send_each_alone(doubt=True)
        elif error.tries > 1 or error.code is not None:  # the server itself refused it
            self.send_each_alone(doubt=error.doubt)
        else:
            for job in self.jobs:
                job.tell(store_error(error, doubt=error.doubt))


class BatchQueue(Generic[J]):
    """The operations of one kind that wait for the next batch, oldest first."""

    def __init__(self, kind: BatchKind) -> None:
        self.kind = kind
        self._jobs: deque[J] = deque()
        self.add = self._jobs.append

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def first(self) -> J | None:
        """The oldest whose caller still waits."""
        while self._jobs and self._jobs[0].abandoned():
            self._jobs.popleft()
        return self._jobs[0] if self._jobs else None

    def put_back(self, jobs: Sequence[J]) -> None:
        self._jobs.extendleft(reversed(jobs))

    def take_overdue(self, before: float) -> list[J]:
        """Jobs whose deadline was ``before``; the oldest is due first."""
        late: list[J] = []
        while self._jobs and self._jobs[0].deadline <= before:
            late.append(self._jobs.popleft())
        return late

    def take(self) -> Batch[J]:
        """As many as fit; those that do not fit keep their place."""
        jobs, shared = self._jobs, self.kind.shared
        rows: dict[Identity, J] = {}
        others, kept, size = list[J](), list[J](), 0
        while jobs and len(rows) < MAX_ROWS and len(kept) < MAX_ROWS:
            job = jobs.popleft()
            if job.abandoned():
                continue
            known = job.identity in rows
            if not shared if known else rows and size + job.size > MAX_BYTES:
                kept.append(job)
                continue
            job.taken = True
            if known:
                others.append(job)
            else:
                rows[job.identity] = job
                size += job.size
        self.put_back(kept)
        return Batch(self.kind, rows, others)


# --- what the batchers of both colours decide


class SlowIdentities:
    """Identities of operations that take long: whoever asks for one of them goes alone."""

    def __init__(self) -> None:
        self._owners: dict[BatchJob | Batch[Any], tuple[Identity, ...]] = {}
        self.identities: Counter[Identity] = Counter()

    def add(self, owner: BatchJob | Batch[Any]) -> None:
        jobs = (owner,) if isinstance(owner, BatchJob) else owner.jobs
        self._owners[owner] = tuple({job.identity for job in jobs})
        self.identities.update(self._owners[owner])

    def discard(self, owner: BatchJob | Batch[Any]) -> None:
        for identity in self._owners.pop(owner, ()):
            self.identities[identity] -= 1
            if not self.identities[identity]:
                del self.identities[identity]


class KindState(Generic[J]):
    """What is queued and in flight of one kind. Among threads, it is used under their lock."""

    def __init__(self, kind: BatchKind, slow: SlowIdentities) -> None:
        self._kind = kind
        self._queue = BatchQueue[J](kind)
        self._slow = slow
        self._in_flight: dict[BatchJob | Batch[J], float] = {}
        """What was sent, and until when others wait for it."""
        self._batching = False
        """The last batch had several operations: nobody goes alone."""

    def _nearly_idle(self) -> bool:
        return not self._batching and len(self._in_flight) < MAX_SINGLES and not self._queue

    def _set_aside_slow(self, now: float) -> None:
        """Let the next batch leave; whoever asks for an identity of a slow one goes alone."""
        for each in [each for each, until in self._in_flight.items() if until <= now]:
            self._slow.add(each)
            del self._in_flight[each]
