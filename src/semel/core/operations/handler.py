"""The outcomes of a handler, and the operations that the driver of a flow performs, not a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from semel.core.frozen import value
from semel.core.operations.requests import (
    Claim,
    FlowOperation,
    Found,
    NoRecord,
    StoreOperation,
    Written,
)
from semel.core.records import Fence, Headers, Identity, Micros, Record, Response


@value
class Returned:
    """The handler answered in full. ``error``: the exception being handled as it answered.

    ``raised``: it did not return this answer, its framework made it of what it raised.
    ``by_router``: no handler was found, the application's router has answered.
    """

    response: Response
    error: BaseException | None = None
    raised: bool = False
    by_router: bool = False


@value
class Streaming:
    """The answer has started, and its body will not be kept; nothing was sent to the client yet."""

    status: int
    headers: Headers
    error: BaseException | None = None


@value
class Raised:
    """The handler raised before it answered."""

    error: BaseException


@value
class Abandoned:
    """The handler was stopped from outside (cancelled, interrupted) before it answered."""

    error: BaseException


HandlerOutcome: TypeAlias = Returned | Streaming | Raised | Abandoned


@value
class Drained:
    """A streamed answer ended. ``whole`` is False when it broke off."""

    size: int
    digest: bytes
    whole: bool
    error: BaseException | None = None


@value
class Woken:
    """The record changed. One waiter per process and change is ``elected`` to act on it."""

    record: Record
    now: Micros
    elected: bool


@value
class Unwoken:
    """Time is up, or there was no room to wait."""


@value
class Await(FlowOperation[Woken | Unwoken]):
    """Wait, holding no connection, until the record leaves the hands of ``fence``.

    None: until there is a record, or the transaction that keeps the identity busy has ended.
    """

    identity: Identity
    fence: Fence | None
    patience: Micros


@value
class Pause(FlowOperation[bool]):
    """Pause before another try at a write; the reply says whether the lease is still held."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    attempt: int


@value
class PauseBetweenLooks(FlowOperation[None]):
    """Wait before the store is asked again."""

    finishing: ClassVar[bool] = True

    pause: Micros


@value
class Pursue(FlowOperation[None]):
    """Perform a write in the background, again and again until a store acknowledges it.

    ``claim`` is made before it each time, where the write needs one that may not be there.
    ``seen``: the fence of the record that was to be taken over. While it has that one still, what
    the write takes back may be on its way.
    """

    finishing: ClassVar[bool] = True

    op: StoreOperation[Written]
    claim: Claim | None = None
    seen: Fence | None = None


@value
class Begun:
    """A transaction is open; store operations join it until it is committed or rolled back."""


@value
class Occupied:
    """Another request runs with this identity, in a transaction of its own; nothing is held."""


@value
class Begin(FlowOperation[Begun | Occupied]):
    """Open a transaction on the store's database.

    The identity's lock is tried, never waited for.
    """

    identity: Identity


@value
class Save(FlowOperation[None]):
    """Set the savepoint: what follows can be undone without what came before."""


@value
class Flush(FlowOperation[None]):
    """Let a session write what it still holds; raises what the database says to that."""

    finishing: ClassVar[bool] = True


@value
class Undo(FlowOperation[None]):
    """Roll back to the savepoint: the handler's writes are gone, the record stays."""

    finishing: ClassVar[bool] = True


@value
class Commit(FlowOperation[None]):
    """Commit. StoreUnavailable with ``applied`` None: nobody can say yet whether it did."""

    finishing: ClassVar[bool] = True


@value
class RollBack(FlowOperation[None]):
    """End the open transaction, if there is one, and leave nothing. Never fails."""

    finishing: ClassVar[bool] = True


@value
class Ascertain(FlowOperation[Found | NoRecord]):
    """What became of a commit in doubt: read under the identity's lock, waiting for it."""

    finishing: ClassVar[bool] = True

    identity: Identity


@value
class Did:
    """A function returned."""

    value: Any


@value
class Do(FlowOperation[Did | Raised | Abandoned]):
    """Call a function of the application's, in the colour of the run."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@value
class Held(FlowOperation[bool]):
    """Whether the lease is still this run's, by the process's own clock, right now."""


@value
class Ask(FlowOperation[Any]):
    """Ask a probe; the reply is one of `core/unknown/evidence.py`."""

    probe: Callable[..., Any]
    inquiry: Any


@value
class Apart(FlowOperation[Any]):
    """Do work that takes long outside the thread of an event loop, so that nobody waits for it."""

    work: Callable[[], Any]


@value
class Render(FlowOperation[Response]):
    """Let the route's ``on_replay`` turn the kept answer into one with the current state."""

    response: Response
