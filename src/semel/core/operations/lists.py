"""Store operations for lists that people look at: what came last comes first, at a bounded cost.

No index says when a record was made: every request would have to write it. The index of duties is
there anyway: whose turn it is, and from when on. Read backwards it is nearly a list by time:

    completed                  by completion plus retention
    failed_retryable, expired  by when they are forgotten
    in_progress                by the end of the lease
    pending, unknown           by when a worker or a probe may try (again)
    dead letters               they have no time, and stand last, by identity

`semel.operators.lists` makes lists in order of time from these: it knows the retention that each
record was promised, and sorts what is unsettled, of which there is little.

A page costs what its limit says, however many records there are. Records that change while somebody
pages may be missed or seen twice; those that do not are seen once, also where many have the same
time.
"""

from __future__ import annotations

from semel.core.frozen import value
from semel.core.operations.outbox import Shelf
from semel.core.operations.requests import StoreOperation
from semel.core.records import Duty, Effect, Glimpse, Identity, Micros, State
from semel.core.terms import Terms

# ── records ───────────────────────────────────────────────────────────────────────────────────────


@value
class DuePlace:
    """A place among the records of one duty: they stand by time, at the same time by identity.

    ``due_at`` is as the store's index has it, which may be coarser or older than what the record
    says. None: among the dead letters.
    """

    due_at: Micros | None
    identity: Identity

    @property
    def rank(self) -> tuple[Micros, bytes]:
        """What places are ordered by; those without a time are the last of a list."""
        return -1 if self.due_at is None else self.due_at, self.identity


@value
class Placed:
    """A record of a list, and where it stands."""

    place: DuePlace
    glimpse: Glimpse


@value
class Newest:
    """A page; ``until``: before that place it goes on. None: there are no more."""

    found: tuple[Placed, ...]
    until: DuePlace | None
    now: Micros


@value
class ListNewest(StoreOperation[Newest]):
    """The records of one duty, latest due first, before a place that need not be taken."""

    duty: Duty
    limit: int
    before: DuePlace | None = None


@value
class KnownTerms:
    """Terms, in no order."""

    terms: tuple[Terms, ...]
    now: Micros


@value
class ListTerms(StoreOperation[KnownTerms]):
    """The terms on record: how long what is listed was to be kept. There are few."""

    limit: int


# ── counts ────────────────────────────────────────────────────────────────────────────────────────


@value
class KindCount:
    """How many there are of a kind, and when the oldest was made; None: there is none."""

    count: int
    oldest: Micros | None


@value
class UnsettledCounts:
    """What somebody must look after. A count that has reached the limit means so many or more."""

    pending: KindCount
    in_progress: KindCount
    lapsed: KindCount
    """Of those in progress: their lease is past."""
    unknown: KindCount
    """Without dead letters."""
    dead: KindCount
    now: Micros


@value
class CountUnsettled(StoreOperation[UnsettledCounts]):
    """Count unsettled records by the index of what is due, at most ``limit`` of each duty."""

    limit: int


@value
class RecordGroup:
    """Records of one route in one state. Without terms on record they have no route."""

    application: str | None
    route: str | None
    state: State
    count: int
    recent: int
    """Made since the time that was asked for."""
    oldest: Micros
    newest: Micros


@value
class SampledRecords:
    """A run of records, counted; ``until``: how far it went. None: to the end."""

    groups: tuple[RecordGroup, ...]
    until: Identity | None
    now: Micros

    @property
    def looked(self) -> int:
        return sum(each.count for each in self.groups)


@value
class SampleRecords(StoreOperation[SampledRecords]):
    """Count the next ``limit`` records past ``after``, in the order of identities, by their groups.

    Identities are digests: any run of them is a fair sample, and how far it went tells how many
    there are in all. There may be several groups of one route: one for each of its terms.
    """

    limit: int
    since: Micros
    after: Identity | None = None


# ── effects ───────────────────────────────────────────────────────────────────────────────────────


@value
class EffectPlace:
    """A place on one shelf: by time, at the same time in the order in which effects were written.

    ``due_at`` None: on the shelf of the dead, where that order is all there is.
    """

    due_at: Micros | None
    number: int


@value
class NewestEffects:
    """Those of the page, and their places; ``until``: how far was looked. None: to the end."""

    effects: tuple[Effect, ...]
    places: tuple[EffectPlace, ...]
    looked: int
    """How many there were, of whatever name."""
    until: EffectPlace | None
    now: Micros


@value
class ListNewestEffects(StoreOperation[NewestEffects]):
    """Of the next ``limit`` effects on a shelf, latest due first, before ``before``: those of one
    name, or all.

    Dead ones come newest first, delivered ones by when they are forgotten, and waiting ones by when
    they may be tried (again).
    """

    shelf: Shelf
    limit: int
    name: str | None = None
    before: EffectPlace | None = None


@value
class EffectCounts:
    """What is still to be delivered, and what could not be. A count that has reached the limit
    means so many or more."""

    waiting: KindCount
    dead: KindCount
    now: Micros


@value
class CountEffects(StoreOperation[EffectCounts]):
    """Count the effects that wait and those that are dead by their index, ``limit`` of each."""

    limit: int
