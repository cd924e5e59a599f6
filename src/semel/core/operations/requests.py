"""What the core asks of a store on the way of a request: the operations and their replies.

A store has one verb, ``perform(op) -> reply``. Each operation is one atomic step (one SQL
statement, one Lua call) and is typed by its reply. On the way of a request it touches one identity
and is idempotent per fence; those of maintenance (`core/operations/maintenance.py`) and of the
outbox (`core/operations/outbox.py`) touch a bounded batch. What no store answers is in
`core/operations/handler.py`.

Rules every store keeps:

- Times in replies and rows come from the store's own clock; ``now`` tells which instant it used.
- ``Claim`` is insert-or-read in one round trip. It never changes an existing record.
- Of a large answer a record brings the head only (`core/stored/snapshot.py`), but for those who
  look after it (`Case`); ``Fetch`` gives the whole.
- Every other write names the fence it believes in and changes nothing when the record has another.
- Finding one's own fence already applied is success, so a lost answer is simply asked again.
- What people and evidence do beside the way of requests comes with an `Act`, which is put on record
  in the same step: there is no such write without its entry.
- Every record tells when somebody must look at it next (``due_at``): the end of a lease, the next
  probe, the end of retention. What is not due costs maintenance nothing.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeAlias, TypeVar

from semel.core.frozen import value
from semel.core.operations.acts import Act
from semel.core.records import (
    Case,
    Fence,
    Identity,
    Micros,
    OnLapse,
    Origin,
    Record,
    State,
)
from semel.core.terms import NO_TERMS, Terms, TermsId

R_co = TypeVar("R_co", covariant=True)


# ── replies ───────────────────────────────────────────────────────────────────────────────────────


@value
class Claimed:
    """The caller now holds the lease."""

    leased_until: Micros
    now: Micros
    created_at: Micros
    """When this life of the key began."""
    again: bool = False
    """Somebody held it before: there may be a journal."""
    seen: Fence | None = None
    """The fence it had before, which is burnt."""


@value
class Found:
    """There is a record; it was not changed."""

    record: Record
    now: Micros


@value
class Fetched:
    """The whole answer of a record."""

    snapshot: bytes


@value
class NoRecord:
    """There is no record."""

    now: Micros


@value
class Accepted:
    """The request is stored; a worker runs it."""

    now: Micros


@value
class Recalled:
    """The record with all that is kept of it."""

    case: Case
    now: Micros


@value
class Stale:
    """No record, and the key is too old to start one: it may have run and been forgotten."""


@value
class Applied:
    """The write is durable (now, or already from an earlier try with the same fence)."""

    state: State | None
    now: Micros
    leased_until: Micros | None = None
    expires_at: Micros | None = None


@value
class Lost:
    """The fence is not the record's, or the state forbids it; nothing was changed.

    ``record`` was found then, or by a look right after: a store may tell of a later state.
    """

    record: Record | None
    now: Micros


@value
class Registered:
    """The recipe is the recorded one. Keys made under ``previous`` may live until then."""

    previous: str | None
    alive_until: Micros | None
    now: Micros


@value
class Conflicting:
    """Another recipe is on record and may not be replaced.

    It was not named as the previous one, or until ``alive_until`` keys of a still older one live.
    """

    recorded: str
    alive_until: Micros | None
    now: Micros


@value
class Recorded:
    """The recipe on record, and the one that it replaced; None: there is none."""

    recipe: str | None
    previous: str | None
    alive_until: Micros | None
    now: Micros


@value
class Agreed:
    """The terms are on record."""

    now: Micros


Written: TypeAlias = Applied | Lost


# ── operations answered by a store ────────────────────────────────────────────────────────────────


class FlowOperation(Generic[R_co]):
    """Something to be done by the world; the type argument is the union of its replies."""

    __slots__ = ()

    finishing: ClassVar[bool] = False
    """Must be carried through even when nobody waits for the answer any more."""


class StoreOperation(FlowOperation[R_co]):
    """An operation that a store performs."""

    __slots__ = ()


@value
class Claim(StoreOperation[Claimed | Found | Stale]):
    """Insert an in_progress record, or read the one that is there.

    ``fresh_until``: when the store's clock is past it, nothing is inserted and an absent record
    answers Stale. An existing record is found all the same.
    """

    identity: Identity
    fence: Fence
    fingerprint: str
    fields: bytes
    origin: Origin
    lease: Micros
    on_lapse: OnLapse = OnLapse.UNKNOWN
    fresh_until: Micros | None = None
    request: bytes | None = None
    terms: TermsId = NO_TERMS


@value
class Accept(StoreOperation[Accepted | Found | Stale]):
    """Insert a pending record with its stored request, or read the one that is there.

    Nobody having run it within ``patience``, it is abandoned.
    """

    identity: Identity
    fence: Fence
    fingerprint: str
    fields: bytes
    origin: Origin
    request: bytes
    patience: Micros
    on_lapse: OnLapse = OnLapse.UNKNOWN
    fresh_until: Micros | None = None
    terms: TermsId = NO_TERMS


@value
class Read(StoreOperation[Found | NoRecord]):
    """Look, change nothing."""

    identity: Identity


@value
class Fetch(StoreOperation[Fetched | NoRecord]):
    """The answer of a completed record, while it has this fence: it never changes then.

    ``head``: what the record brought of it; without one, no cache is believed.
    """

    identity: Identity
    fence: Fence
    head: bytes


@value
class Recall(StoreOperation[Recalled | NoRecord]):
    """Read, with the stored request, the journal and where the key came from."""

    identity: Identity


@value
class Retake(StoreOperation[Written]):
    """failed_retryable → in_progress under a new fence; ``seen`` is burnt."""

    identity: Identity
    seen: Fence
    fence: Fence
    lease: Micros
    on_lapse: OnLapse = OnLapse.UNKNOWN


@value
class Renew(StoreOperation[Written]):
    """Push the end of the lease to ``lease`` from now. A lease already past is not revived."""

    identity: Identity
    fence: Fence
    lease: Micros


@value
class Take(StoreOperation[Written]):
    """pending → in_progress under a new fence, by a worker; ``seen`` is burnt."""

    identity: Identity
    seen: Fence
    fence: Fence
    lease: Micros


@value
class Resume(StoreOperation[Written]):
    """A lapsed operation that was declared resumable → in_progress again, under a new fence."""

    identity: Identity
    seen: Fence
    fence: Fence
    lease: Micros


@value
class Advance(StoreOperation[Written]):
    """Replace the journal: a recovery point was reached, or is about to be."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    journal: bytes


@value
class Open(StoreOperation[Written]):
    """Store an open receipt: the response has started and its body will not be kept."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    snapshot: bytes


@value
class Complete(StoreOperation[Written]):
    """in_progress → completed; also unknown → completed for the fence that last held it.

    Kept for ``retention`` from now, remembered without its snapshot for ``tombstone`` more. The
    stored request is dropped. ``resource`` names what was made, for `Retire`.
    """

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    snapshot: bytes
    retention: Micros
    tombstone: Micros
    resource: str | None = None


@value
class Release(StoreOperation[Written]):
    """in_progress → failed_retryable: nothing happened, a retry may run. Forgotten by retention.

    Its request and journal stay for the retry. ``requeue``: a deferred request becomes pending
    again, due after that time but no later than its deadline, and a worker retries it; what was
    never deferred is released as without it.
    """

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    retention: Micros
    reason: str | None = None
    requeue: Micros | None = None


@value
class Suspend(StoreOperation[Written]):
    """in_progress → unknown: it may have happened. To be asked about after ``probe_after``.

    None: nobody can be asked, it is a dead letter from the start.
    """

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    reason: str | None = None
    probe_after: Micros | None = None


@value
class Lapse(StoreOperation[Written]):
    """in_progress with a lease that is past → unknown, or failed_retryable where so declared.

    A deferred one that may be released becomes pending again. A resumable one is not lapsed but
    resumed. Unknown, it is due at once for whoever asks the provider.
    """

    identity: Identity
    seen: Fence
    retention: Micros


@value
class Forget(StoreOperation[Written]):
    """A settled record past its time → no record. Already gone is Applied."""

    identity: Identity
    seen: Fence


@value
class SettleHappened(StoreOperation[Written]):
    """unknown → completed, by evidence; ``fence`` replaces ``seen``, which is burnt."""

    identity: Identity
    seen: Fence
    fence: Fence
    snapshot: bytes
    retention: Micros
    tombstone: Micros
    act: Act


@value
class SettleAbsent(StoreOperation[Written]):
    """unknown → failed_retryable: it did not happen and no longer can. ``seen`` is burnt.

    ``journal``: that of an operation, without the intent that came to nothing.
    """

    identity: Identity
    seen: Fence
    fence: Fence
    retention: Micros
    act: Act
    journal: bytes | None = None


@value
class SettleCall(StoreOperation[Written]):
    """unknown → in_progress, by evidence that an operation's call happened: it can be resumed.

    ``journal`` has the call's result. The lease is past from the start, so that the next request or
    the completer resumes it at once. Only for records that were declared resumable.
    """

    identity: Identity
    seen: Fence
    fence: Fence
    journal: bytes
    act: Act


@value
class Inquire(StoreOperation[Written]):
    """An unknown record is about to be asked about for the ``tries``-th time (0 is the first).

    Due again after ``again_in``; None gives up, and it is a dead letter. Lost when another worker
    was first, which the number of tries shows.
    """

    identity: Identity
    seen: Fence
    tries: int
    again_in: Micros | None


@value
class Evict(StoreOperation[Written]):
    """An operator removes a settled record. Already gone is Applied."""

    identity: Identity
    seen: Fence
    act: Act


@value
class EvictUnknown(StoreOperation[Written]):
    """An operator gives up on an unknown record: a tombstone stays, or with ``free`` nothing."""

    identity: Identity
    seen: Fence
    fence: Fence
    tombstone: Micros
    act: Act
    free: bool = False


@value
class Register(StoreOperation[Registered | Conflicting]):
    """Record how identities and fingerprints of a route are made, or compare with the record.

    When ``previous`` equals what is recorded, and what that replaced has run out or is ``recipe``
    itself, which comes back, ``recipe`` takes its place; keys made under it may live for ``alive``
    from now.
    """

    route: str
    recipe: str
    previous: str | None = None
    alive: Micros = 0


@value
class ReadRecipe(StoreOperation[Recorded]):
    """Look at what is on record for a route."""

    route: str


@value
class Agree(StoreOperation[Agreed]):
    """Put terms on record, before the first record that names them."""

    terms: Terms
