"""Maintenance: leases that are past lapse, requests nobody ran are answered, old records go.

Every step touches a bounded batch and waits for no lock, so that no request waits for it; a round
is a bounded number of batches of each kind. Where there is one writer at a time a step is as short
as a request's own write, so that nobody waits longer for it than for another request.
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from typing import Any, Final, cast

from semel.core.exchange import replay
from semel.core.exchange.problems import refuse
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import frozen, value
from semel.core.operations.acts import Act, Verb, act
from semel.core.operations.audit import Remark
from semel.core.operations.erasure import Belonging, Erase
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.maintenance import Abandon, Count, Reap, Sweep, Tended
from semel.core.operations.notables import Prune
from semel.core.operations.requests import Applied, Conflicting, Register, StoreOperation
from semel.core.records import Identity, Micros, State
from semel.core.stored import snapshot
from semel.core.stored.snapshot import Snapshot


@frozen
class Pace:
    """How fast it goes."""

    batch: int
    """Records a step may touch."""
    batches: int
    """Steps of one kind in a round; what is left is the next round's, which follows soon."""
    rest: Micros
    """Between two steps: most of the time is the requests'."""


PACE: Final = Pace(100, 100, 5_000)

ONE_WRITER: Final = Pace(10, 1_000, 5_000)
"""Ten records take about a millisecond. The lock is not fair: who waits for it looks again after a
short while, and without a rest would find it taken again and again."""


@frozen
class MaintenanceReport:
    """What a round did, by event; ``more``: it was cut short."""

    counts: dict[str, int]
    more: bool


def tend(pace: Pace = PACE) -> Flow[MaintenanceReport]:
    """One round: lapse, abandon, expire and forget, each record by its own terms; then notables."""
    steps: tuple[StoreOperation[Tended], ...] = (
        Sweep(pace.batch),
        Abandon(pace.batch, _abandoned()),
        Reap(pace.batch),
        Prune(pace.batch),
    )
    counts: Counter[str] = Counter()
    more = False
    try:
        for step in steps:
            more |= yield from _repeat(step, pace, counts)
    except Interrupted:
        more = True  # what was done is told all the same
    return MaintenanceReport(dict(counts), more)


def _repeat(step: StoreOperation[Tended], pace: Pace, counts: Counter[str]) -> Flow[bool]:
    """Perform ``step`` until it has no more to do. True: it was cut short."""
    for number in range(pace.batches):
        if number:
            yield from ask(PauseBetweenLooks(pace.rest))
        tended = yield from ask(step)
        counts.update(tended.counts)
        if not tended.more:
            return False
    return True


def _abandoned() -> bytes:
    """The answer of a request that nobody ran: nothing was executed."""
    answer = refuse("abandoned")
    kept = Snapshot(
        answer.status,
        replay.kept_headers(answer.headers),
        answer.body,
        len(answer.body),
    )
    return snapshot.encode(kept)


# --- erasing what is kept of a tenant: page by page, settled records only
#
# What is unsettled is left, and told: nobody knows what became of it, and to free it would be to
# let it happen twice.

_SETTLED: Final = (State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED)


@frozen
class Erasure:
    """How far an erasure has come. ``left``: unsettled records of the tenant, which were not."""

    erased: int = 0
    left: tuple[Identity, ...] = ()
    after: Identity | None = None
    """Where to go on; None at the end."""


def begin(tenant: str, said: Act) -> Flow[None]:
    """Put it on record before the first record is erased."""
    yield from ask(Remark(Verb.ERASE, act(said.by, f"begun: {said.reason}"), tenant))


def end(tenant: str, said: Act, done: Erasure) -> Flow[None]:
    words = f"{done.erased} records erased, {len(done.left)} unsettled ones left: {said.reason}"
    yield from ask(Remark(Verb.ERASE, act(said.by, words), tenant))


def broke_off(tenant: str, said: Act, error: Exception) -> Flow[None]:
    """It is not done; asked again, it goes on."""
    words = f"broke off ({type(error).__name__}), and is not done: {said.reason}"
    yield from ask(Remark(Verb.ERASE, act(said.by, words), tenant))


def erase(each: Belonging, said: Act) -> Flow[bool]:
    """One record; False: it is not settled, or was changed by somebody just now."""
    if each.state not in _SETTLED:
        return False
    return isinstance((yield from ask(Erase(each.identity, each.fence, said))), Applied)


# --- how many keys each tenant has

PAGE: Final = 1_000
"""Records that one step counts."""
REST: Final[Micros] = 5_000
"""Between two steps: most of the time is the requests'."""
ROOM: Final = 100_000
"""Tenants that are counted at once; beyond that the smaller half is let go."""
NOTED: Final = 10_000
"""Tenants that a note names: half a megabyte at most."""
_TRIES: Final = 8
_EMPTY: Final = "{}"


@value
class CountedTenants:
    """What was counted, and when, by the store's clock; None: nobody has counted yet."""

    counted_at: Micros | None
    active: dict[str, int]
    now: Micros


def digest(tenant: str) -> str:
    """What a tenant is called in a note."""
    return sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def last_count(cap: int) -> Flow[CountedTenants]:
    """The last note."""
    reply = yield from ask(Register(_count_name(cap), _EMPTY))
    return _read_count(reply.recorded if isinstance(reply, Conflicting) else _EMPTY, reply.now)


def count_tenants(cap: int) -> Flow[CountedTenants]:
    """Count every record once, note who has half of ``cap`` or more, and say so."""
    counts: Counter[str] = Counter()
    after: Identity | None = None
    while True:
        page = yield from ask(Count(PAGE, after))
        counts.update({digest(tenant): number for tenant, number in page.tenants.items()})
        if len(counts) > ROOM:
            counts = Counter(dict(counts.most_common(ROOM // 2)))
        if page.until is None:
            break
        after = page.until
        yield from ask(PauseBetweenLooks(REST))
    large = {name: number for name, number in counts.most_common(NOTED) if number * 2 >= cap}
    note = CountedTenants(page.now, large, page.now)
    yield from _write_count(cap, note)
    return note


def _write_count(cap: int, note: CountedTenants) -> Flow[None]:
    text = json.dumps({"at": note.counted_at, "active": note.active}, separators=(",", ":"))
    previous = _EMPTY
    for _ in range(_TRIES):
        reply = yield from ask(Register(_count_name(cap), text, previous))
        if not isinstance(reply, Conflicting):
            return
        previous = reply.recorded  # somebody else has counted meanwhile: the later one counts


def _count_name(cap: int) -> str:
    """A note for each cap: who has half of one may be far from another."""
    return f"~active keys {cap}"


def _read_count(text: str, now: Micros) -> CountedTenants:
    """A note that cannot be read is none: it is counted anew."""
    try:
        noted = json.loads(text)
        active = cast("dict[str, Any]", noted["active"])
        return CountedTenants(
            int(noted["at"]), {name: int(many) for name, many in active.items()}, now
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return CountedTenants(None, {}, now)
