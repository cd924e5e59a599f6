"""What differs in two answers, and what of it differs anyway.

Two requests with different keys are answered first. Where their answers differ (an id, a time, a
number that counts up), a difference says nothing; where a repeated request has the *same* value in
such a place, the answer was kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from semel.check.json_values import is_array, is_object
from semel.check.wire import NO_JSON, WireAnswer

OF_ONE_MOMENT: Final = frozenset(
    {
        *("date", "age", "server", "via", "connection", "keep-alive", "transfer-encoding"),
        *("content-length", "cache-control", "expires", "vary", "set-cookie", "set-cookie2"),
        *("idempotent-replayed", "idempotency-replayed", "idempotency-expires", "alt-svc"),
        *("access-control-expose-headers", "strict-transport-security", "server-timing"),
    }
)
"""Headers that may differ between an answer and its repetition."""
MOST_PATHS: Final = 50
_WHOLE: Final = "(the body)"


@dataclass(frozen=True, slots=True)
class Noise:
    """Where the answers to two different keys differ: JSON Pointers, and names of headers."""

    paths: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()

    def words(self) -> str:
        return ", ".join([*sorted(self.paths), *sorted(self.headers)]) or "nothing"


def noise_of(one: WireAnswer, other: WireAnswer) -> Noise:
    names = {name.lower() for name, _ in (*one.headers, *other.headers)} - OF_ONE_MOMENT
    moved = frozenset(name for name in names if one.values(name) != other.values(name))
    return Noise(frozenset(moved_paths(one, other)), moved)


def moved_paths(one: WireAnswer, other: WireAnswer) -> list[str]:
    """Where two bodies differ: JSON Pointers, or the whole where they are no JSON."""
    if one.body == other.body:
        return []
    first, second = one.document, other.document
    if first is NO_JSON or second is NO_JSON:
        return [_WHOLE]
    found = [path for path, _ in zip(_moved(first, second, ""), range(MOST_PATHS), strict=False)]
    return found or [_WHOLE]  # the same values, written in another way


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


def values_at(answer: WireAnswer, paths: frozenset[str]) -> dict[str, str]:
    """The values, as text, that the answer has in these places: long enough to be recognised."""
    document = answer.document
    if document is NO_JSON:
        return {}
    found: dict[str, str] = {}
    for path in paths:
        value: Any = document
        for step in path.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if is_object(value):
                value = value.get(name)
            elif is_array(value) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = None
        if isinstance(value, str) and len(value) >= 6:
            found[path] = value
    return found
