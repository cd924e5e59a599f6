"""Store operations for workers, maintenance and operators.

Like those of `core/operations/requests.py`, each is one atomic step; it touches a bounded batch.
"""

from __future__ import annotations

from enum import StrEnum

from semel.core.frozen import value
from semel.core.operations.requests import StoreOperation
from semel.core.records import Case, Fence, Glimpse, Identity, Micros, State
from semel.core.terms import Terms


@value
class DueRecords:
    """What is to be done now, longest due first; ``next_due``: when there is more of its kind."""

    cases: tuple[Case, ...]
    now: Micros
    next_due: Micros | None = None


@value
class Scanned:
    """The records of a page; ``until``: how far was looked. None: to the end, there are no more."""

    glimpses: tuple[Glimpse, ...]
    until: Identity | None
    now: Micros


@value
class Counted:
    """How many keys that are not expired each tenant has on a page; ``until`` as in `Scanned`."""

    tenants: dict[str, int]
    until: Identity | None
    now: Micros


@value
class Tended:
    """How many records a round of maintenance changed, by event; ``more`` are due already.

    What the reaper forgot of outbox and events is counted as ``effects`` and ``events``.
    """

    counts: dict[str, int]
    more: bool
    now: Micros


@value
class Led:
    """Who leads: the asker (``leading``), or somebody else until then."""

    leading: bool
    until: Micros
    now: Micros


@value
class Leading:
    """Until when somebody leads, or led; None: nobody ever did."""

    until: Micros | None
    now: Micros


@value
class Retired:
    """How many records answered for the resource."""

    count: int
    now: Micros


@value
class RouteScope:
    """What an asker knows: some routes of one application. Other records are left alone."""

    application: str
    routes: tuple[str, ...]

    def covers(self, terms: Terms | None) -> bool:
        """Whether a record made under these terms is known; one of no known terms never is."""
        if terms is None or terms.application != self.application:
            return False
        return terms.route in self.routes


class Work(StrEnum):
    """What a worker can look for."""

    PENDING = "pending"
    """Deferred requests to run."""
    LAPSED = "lapsed"
    """Resumable operations whose holder is gone, to complete."""
    UNKNOWN = "unknown"
    """Records to ask the provider about."""


@value
class Due(StoreOperation[DueRecords]):
    """List what is due of one kind of work; nothing is changed, nobody is kept from it.

    Whoever cannot do what it finds must put it off (Take and Release, Resume, Inquire), or finds it
    first in every list. What is pending past its deadline is not listed: it is to be abandoned.
    ``known``: only what is made under such terms; None lists whatever there is.
    """

    work: Work
    limit: int
    known: RouteScope | None = None


@value
class Waiting:
    """How many records are due of each route, as (application, route); None: of no known terms."""

    routes: dict[tuple[str, str] | None, int]
    now: Micros


@value
class CountDue(StoreOperation[Waiting]):
    """Count what workers should be doing now by its routes; at most ``limit`` of each kind."""

    limit: int


@value
class Browse(StoreOperation[DueRecords]):
    """List records in these states for an operator, in the order of identities past ``after``.

    ``dead``: only those nobody will look at again.
    """

    states: tuple[State, ...]
    limit: int
    after: Identity | None = None
    dead: bool = False


@value
class Scan(StoreOperation[Scanned]):
    """A page of a list, in the order of identities past ``after``, which is no order of time.

    It costs what ``limit`` says, however many records there are: where a store cannot find some
    states by themselves it looks at ``limit`` records, and tells of those that have one of them.
    """

    states: tuple[State, ...]
    limit: int
    after: Identity | None = None


@value
class Count(StoreOperation[Counted]):
    """Count ``limit`` records by their tenants, in the order of identities past ``after``."""

    limit: int
    after: Identity | None = None


@value
class Sweep(StoreOperation[Tended]):
    """Lapse leases that are past, as `Lapse` does, at most ``limit``; resumable ones are left.

    Retention is that of each record's own terms. One that would be released, and whose terms are
    not on record, is left for its next request.
    """

    limit: int


@value
class Abandon(StoreOperation[Tended]):
    """Complete pending records that nobody ran in time, with the answer in ``snapshot``.

    It is kept as long as each record's own terms say; one whose terms are not on record is left.
    """

    limit: int
    snapshot: bytes


@value
class Reap(StoreOperation[Tended]):
    """Expire what is past retention, forget what is past its tombstone; outbox and events too."""

    limit: int


@value
class Lead(StoreOperation[Led]):
    """Be, or stay, the one who does ``name``; whoever holds it must come again before the end."""

    name: str
    fence: Fence
    lease: Micros


@value
class WhoLeads(StoreOperation[Leading]):
    """Look whether anybody does ``name``; nothing is changed."""

    name: str


@value
class Retire(StoreOperation[Retired]):
    """Completed records of this tenant and application that made ``resource`` are answered no more.

    Asked again it counts the same records; the time of the first stays.
    """

    resource: str
    tenant: str
    application: str = ""
