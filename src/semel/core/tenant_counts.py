"""Counts the keys of each tenant. One process counts, page by page, and writes a note for all.

The note is a row beside the recipes of routes, under a name that no route has. It lists only the
largest tenants, by a digest, so it stays small however many tenants there are.
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from typing import Any, Final, cast

from semel.core.flow import Flow, ask
from semel.core.frozen import value
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.maintenance import Count
from semel.core.operations.requests import Conflicting, Register
from semel.core.records import Identity, Micros

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


def look_up(cap: int) -> Flow[CountedTenants]:
    """The last note."""
    reply = yield from ask(Register(_name(cap), _EMPTY))
    return _read(reply.recorded if isinstance(reply, Conflicting) else _EMPTY, reply.now)


def count(cap: int) -> Flow[CountedTenants]:
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
    yield from _write(cap, note)
    return note


def _write(cap: int, note: CountedTenants) -> Flow[None]:
    text = json.dumps({"at": note.counted_at, "active": note.active}, separators=(",", ":"))
    previous = _EMPTY
    for _ in range(_TRIES):
        reply = yield from ask(Register(_name(cap), text, previous))
        if not isinstance(reply, Conflicting):
            return
        previous = reply.recorded  # somebody else has counted meanwhile: the later one counts


def _name(cap: int) -> str:
    """A note for each cap: who has half of one may be far from another."""
    return f"~active keys {cap}"


def _read(text: str, now: Micros) -> CountedTenants:
    """A note that cannot be read is none: it is counted anew."""
    try:
        noted = json.loads(text)
        active = cast("dict[str, Any]", noted["active"])
        return CountedTenants(
            int(noted["at"]), {name: int(many) for name, many in active.items()}, now
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return CountedTenants(None, {}, now)
