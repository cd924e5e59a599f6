"""Terms: the promises a record was made under, and the application and route it belongs to.

A process stores its terms once, when it first serves the route. Each record has their number, for
its whole life. So a program with newer settings still treats an old record by the record's own
terms, and leaves alone records of applications and routes that it does not know.
"""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NewType

from semel.core.frozen import derived, frozen
from semel.errors import StoreCorrupt

TermsId = NewType("TermsId", int)
"""The number of terms: 64 bits of a digest of all that they say."""

NO_TERMS: Final = TermsId(0)
"""Of a record that nobody knows."""

EVERY_ROUTE: Final = "*"
"""The route of every request without a policy of its own: the guard's policy holds there."""


@frozen
class Terms:
    """Of one route of one application, under one policy. Times are microseconds."""

    application: str
    route: str
    mode: str
    retention: int
    tombstone: int
    reconcile_after: int
    give_up_after: int
    probe: bool
    """There was somebody to ask what became of a run whose outcome is unknown."""
    max_response_body: int
    schema_version: str | None

    id: TermsId = derived()
    text: str = derived()
    """All of it, for a store to keep."""

    def __post_init__(self) -> None:
        said = {name: getattr(self, name) for name in _fields()}
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        digest = sha256(b"semel t1\n" + text.encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        object.__setattr__(self, "id", TermsId(number))
        object.__setattr__(self, "text", text)


def application_of(terms: Terms | None) -> str | None:
    """Whose a record is; None where its terms are not on record, and it is nobody's."""
    return None if terms is None else terms.application


def route_of(terms: Terms | None) -> tuple[str, str] | None:
    """The application and the route of a record; None where its terms are not on record."""
    return None if terms is None else (terms.application, terms.route)


def _fields() -> tuple[str, ...]:
    kind: Any = Terms
    names: tuple[str, ...] = kind.__match_args__
    return names


@lru_cache(1024)
def read(text: str) -> Terms:
    """Terms from what a store has kept; what a later version has added is passed over."""
    try:
        said = json.loads(text)
        return Terms(**{name: said[name] for name in _fields()})
    except (ValueError, TypeError, KeyError) as error:
        raise StoreCorrupt(f"the terms of a record cannot be read: {error!r}") from error
