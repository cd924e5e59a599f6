"""What differs in two answers, and what of it differs anyway.

Requests with different keys are answered first. Where their answers differ (an id, a time, a number
that counts up), a difference says nothing. Where each of them has a value that no other has, that
value *tells* one answer from another: if a repeated request has it again, its answer was kept. A
time in whole seconds differs now and then, and tells nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from semel.check.json_values import NO_JSON, is_array, is_object
from semel.check.wire import WireAnswer

OF_ONE_MOMENT: Final = frozenset(
    {
        *("date", "age", "server", "via", "connection", "keep-alive", "transfer-encoding"),
        *("content-length", "cache-control", "expires", "vary", "set-cookie", "set-cookie2"),
        *("idempotent-replayed", "idempotency-replayed", "idempotency-expires", "alt-svc"),
        *("access-control-expose-headers", "strict-transport-security", "server-timing"),
    }
)
"""Headers that may differ between an answer and its repetition."""
OF_THE_RESOURCE: Final = ("location", "content-location")
"""Headers that name what was made: a new one is a new thing."""
MOST_PATHS: Final = 50
LAYOUT: Final = "(the layout)"
"""The same values, written in another way: other spaces, another order."""
_WHOLE: Final = "(the body)"
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Noise:
    """Where the answers to different keys differ: JSON Pointers, and names of headers."""

    paths: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()
    telling: frozenset[str] = frozenset()
    """The paths where each answer had a value of its own."""
    telling_headers: frozenset[str] = frozenset()
    cookies: frozenset[str] = frozenset()
    """What every answer sets alike."""

    def words(self) -> str:
        return ", ".join([*sorted(self.paths), *sorted(self.headers)]) or "nothing"


def noise_of(answers: Sequence[WireAnswer]) -> Noise:
    """What differs in answers that were asked for under different keys."""
    pairs = list(combinations(answers, 2))
    paths = frozenset(path for pair in pairs for path in moved_paths(*pair))
    names = {name.lower() for each in answers for name, _ in each.headers} - OF_ONE_MOMENT
    moved = frozenset(n for n in names if any(a.values(n) != b.values(n) for a, b in pairs))
    return Noise(
        paths,
        moved,
        frozenset(path for path in paths if _all_differ([text_at(a, path) for a in answers])),
        frozenset(n for n in moved if _all_differ(["\n".join(a.values(n)) for a in answers])),
        frozenset(
            cookie
            for cookie in answers[0].values("Set-Cookie")
            if all(cookie in each.values("Set-Cookie") for each in answers)
        ),
    )


def _all_differ(texts: list[str | None]) -> bool:
    return None not in texts and len(set(texts)) == len(texts)


def moved_paths(one: WireAnswer, other: WireAnswer) -> list[str]:
    """Where two bodies differ: JSON Pointers, or the whole where they are no JSON."""
    if one.body == other.body:
        return []
    first, second = one.document, other.document
    if first is NO_JSON or second is NO_JSON:
        return [_WHOLE]
    try:
        moved = zip(_moved(first, second, ""), range(MOST_PATHS), strict=False)
        return [path for path, _ in moved] or [LAYOUT]
    except RecursionError:
        return [_WHOLE]


def _moved(one: Any, other: Any, at: str) -> Iterator[str]:
    if is_object(one) and is_object(other):
        for name in {**one, **other}:
            step = f"{at}/{str(name).replace('~', '~0').replace('/', '~1')}"
            if name in one and name in other:
                yield from _moved(one[name], other[name], step)
            else:
                yield step
    elif is_array(one) and is_array(other) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from _moved(*pair, f"{at}/{place}")
    elif one != other or type(one) is not type(other):
        yield at or _WHOLE


def text_at(answer: WireAnswer, path: str) -> str | None:
    """What the answer has in that place, as text; None where it has nothing."""
    if path == _WHOLE:
        return answer.body.decode("latin-1")
    value = answer.document
    for step in path.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if is_object(value):
            value = value.get(name, _ABSENT)
        elif is_array(value) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    if value is _ABSENT or value is NO_JSON or value is None:
        return None
    return value if isinstance(value, str) else json.dumps(value)
