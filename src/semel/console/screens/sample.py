"""A fair sample of all records, for rates and shares: a table of millions is never counted.

Identities are digests, spread evenly. So the first records in their order are a sample of all, and
the last identity read says how large a part of the whole they are: where 20,000 records end at
1/150 of the range of identities, there are about three million.
"""

from __future__ import annotations

from typing import Final

from semel.console.view import View
from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Glimpse, Identity, Micros, State

SIZE: Final = 2_000
"""Records that are read: the total is right to about a fiftieth, and a page is made at once."""
FRESH: Final = 60.0
"""Seconds for which one sample serves all screens and everybody."""
_STEP: Final = 1_000


@frozen
class Sample:
    glimpses: tuple[Glimpse, ...]
    now: Micros
    total: int
    """How many records there are; where ``exact`` is False, about so many."""
    exact: bool

    @property
    def factor(self) -> float:
        """How many records one of the sample stands for."""
        return self.total / len(self.glimpses) if self.glimpses else 1.0

    def scaled(self, count: int) -> int:
        """An estimate, to two digits: more would promise too much."""
        return count if self.exact else rounded(count * self.factor)


def sample(view: View) -> Sample:
    """The sample of at most a minute ago."""
    return view.cached("sample", FRESH, lambda: _read(view))


def _read(view: View) -> Sample:
    store = view.guard.backend.blocking()
    found: list[Glimpse] = []
    after: Identity | None = None
    while True:
        page = store.perform(ops.Scan(tuple(State), _STEP, after))
        found += page.glimpses
        after = page.until
        if after is None or len(found) >= SIZE:
            break
    total = len(found) if after is None else estimated(len(found), after)
    return Sample(tuple(found), page.now, total, after is None)


def estimated(count: int, last: Identity) -> int:
    """How many there are in all, when the first ``count`` end at this identity."""
    share = int.from_bytes(last, "big") / (1 << 256)
    return max(count, round(count / share)) if share else count


def rounded(number: float) -> int:
    """To two digits."""
    digits = len(str(int(number)))
    return int(round(number, 2 - digits)) if digits > 2 else round(number)
