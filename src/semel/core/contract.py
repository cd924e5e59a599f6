"""What the core asks of the world: every operation and every reply.

A store has one verb, ``perform(op) -> reply``. Each operation is one atomic step on one identity
(one SQL statement, one Lua call), is idempotent per fence, and is typed by its reply. The
operations of the second half are answered by the adapter that runs the exchange, not by a store.

Rules every store keeps:

- Times in replies and rows come from the store's own clock; ``now`` tells which instant it used.
- ``Claim`` is insert-or-read in one round trip. It never changes an existing record.
- Every other write names the fence it believes in and changes nothing when the record has another.
- Finding one's own fence already applied is success, so a lost answer is simply asked again.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeAlias, TypeVar

from semel.core.frozen import frozen
from semel.core.model import (
    Fence,
    Headers,
    Identity,
    Micros,
    OnLapse,
    Origin,
    Record,
    Response,
    State,
)

R_co = TypeVar("R_co", covariant=True)


# ── replies ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class Claimed:
    """The caller now holds the lease."""

    leased_until: Micros
    now: Micros


@frozen
class Found:
    """There is a record; it was not changed."""

    record: Record
    now: Micros


@frozen
class Absent:
    """There is no record."""

    now: Micros


@frozen
class Stale:
    """No record, and the key is too old to start one: it may have run and been forgotten."""


@frozen
class Applied:
    """The write is durable (now, or already from an earlier try with the same fence)."""

    state: State | None
    now: Micros
    leased_until: Micros | None = None
    expires_at: Micros | None = None


@frozen
class Lost:
    """The fence is not the record's, or the state forbids it; nothing was changed."""

    record: Record | None
    now: Micros


@frozen
class Registered:
    """The recipe is the recorded one. Keys made under ``previous`` may live until then."""

    previous: str | None
    alive_until: Micros | None
    now: Micros


@frozen
class Conflicting:
    """Another recipe is on record and may not be replaced.

    It was not named as the previous one, or until ``alive_until`` keys of a still older one live.
    """

    recorded: str
    alive_until: Micros | None
    now: Micros


Written: TypeAlias = Applied | Lost


# ── operations answered by a store ────────────────────────────────────────────────────────────────


class Operation(Generic[R_co]):
    """Something to be done by the world; the type argument is the union of its replies."""

    __slots__ = ()

    finishing: ClassVar[bool] = False
    """Must be carried through even when nobody waits for the answer any more."""


class StoreOperation(Operation[R_co]):
    """An operation that a store performs."""

    __slots__ = ()


@frozen
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


@frozen
class Read(StoreOperation[Found | Absent]):
    """Look, change nothing."""

    identity: Identity


@frozen
class Retake(StoreOperation[Written]):
    """failed_retryable → in_progress under a new fence; ``seen`` is burnt."""

    identity: Identity
    seen: Fence
    fence: Fence
    lease: Micros
    on_lapse: OnLapse = OnLapse.UNKNOWN


@frozen
class Renew(StoreOperation[Written]):
    """Push the end of the lease to ``lease`` from now. A lease already past is not revived."""

    identity: Identity
    fence: Fence
    lease: Micros


@frozen
class Open(StoreOperation[Written]):
    """Store an open receipt: the response has started and its body will not be kept."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    snapshot: bytes


@frozen
class Complete(StoreOperation[Written]):
    """in_progress → completed; also unknown → completed for the fence that last held it.

    Kept for ``retention`` from now, remembered without its snapshot for ``tombstone`` more.
    """

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    snapshot: bytes
    retention: Micros
    tombstone: Micros


@frozen
class Release(StoreOperation[Written]):
    """in_progress → failed_retryable: nothing happened, a retry may run. Forgotten by retention."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    retention: Micros
    reason: str | None = None


@frozen
class Suspend(StoreOperation[Written]):
    """in_progress → unknown: it may have happened."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    reason: str | None = None


@frozen
class Lapse(StoreOperation[Written]):
    """in_progress with a lease that is past → unknown, or failed_retryable where so declared."""

    identity: Identity
    seen: Fence
    retention: Micros


@frozen
class Forget(StoreOperation[Written]):
    """A settled record past its time → no record. Already gone is Applied."""

    identity: Identity
    seen: Fence


@frozen
class SettleHappened(StoreOperation[Written]):
    """unknown → completed, by evidence; ``fence`` replaces ``seen``, which is burnt."""

    identity: Identity
    seen: Fence
    fence: Fence
    snapshot: bytes
    retention: Micros
    tombstone: Micros
    evidence: str


@frozen
class SettleAbsent(StoreOperation[Written]):
    """unknown → failed_retryable: it did not happen and no longer can. ``seen`` is burnt."""

    identity: Identity
    seen: Fence
    fence: Fence
    retention: Micros
    evidence: str


@frozen
class Evict(StoreOperation[Written]):
    """An operator removes a settled record. Already gone is Applied."""

    identity: Identity
    seen: Fence


@frozen
class EvictUnknown(StoreOperation[Written]):
    """An operator gives up on an unknown record: a tombstone stays, or with ``free`` nothing."""

    identity: Identity
    seen: Fence
    fence: Fence
    tombstone: Micros
    reason: str
    free: bool = False


@frozen
class Register(StoreOperation[Registered | Conflicting]):
    """Record how identities and fingerprints of a route are made, or compare with the record.

    When ``previous`` equals what is recorded, and what that replaced has run out, ``recipe`` takes
    its place; keys made under it may live for ``alive`` from now.
    """

    route: str
    recipe: str
    previous: str | None = None
    alive: Micros = 0


# ── operations answered by the adapter ────────────────────────────────────────────────────────────


@frozen
class Returned:
    """The handler answered in full. ``error``: the exception being handled as it answered."""

    response: Response
    error: BaseException | None = None


@frozen
class Streaming:
    """The answer has started, and its body will not be kept; nothing was sent to the client yet."""

    status: int
    headers: Headers
    error: BaseException | None = None


@frozen
class Raised:
    """The handler raised before it answered."""

    error: BaseException


@frozen
class Abandoned:
    """The handler was stopped from outside (cancelled, interrupted) before it answered."""

    error: BaseException


HandlerOutcome: TypeAlias = Returned | Streaming | Raised | Abandoned


@frozen
class Invoke(Operation[HandlerOutcome]):
    """Run the handler under the lease; asked again, it is the same run."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence


@frozen
class Drained:
    """A streamed answer ended. ``whole`` is False when it broke off."""

    size: int
    digest: bytes
    whole: bool
    error: BaseException | None = None


@frozen
class Drain(Operation[Drained]):
    """Send the started answer with these headers and let the rest flow."""

    finishing: ClassVar[bool] = True

    headers: Headers


@frozen
class Discard(Operation[None]):
    """Stop the started answer: the record could not be secured, so nothing of it may be sent."""

    finishing: ClassVar[bool] = True


@frozen
class Woken:
    """The record changed. One waiter per process and change is ``elected`` to act on it."""

    record: Record
    now: Micros
    elected: bool


@frozen
class Unwoken:
    """Time is up, or there was no room to wait."""


@frozen
class Await(Operation[Woken | Unwoken]):
    """Wait, holding no connection, until the record leaves the hands of ``fence``."""

    identity: Identity
    fence: Fence
    patience: Micros


@frozen
class Pause(Operation[bool]):
    """Rest before another try at a write; the reply says whether the lease is still held."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    attempt: int


@frozen
class Pursue(Operation[None]):
    """Perform a write in the background, again and again until a store acknowledges it."""

    finishing: ClassVar[bool] = True

    op: StoreOperation[Written]


@frozen
class Render(Operation[Response]):
    """Let the route's ``on_replay`` turn the kept answer into one with the current state."""

    response: Response
