"""Charts as the shapes of an SVG. Colours are in the style sheet: pages have no inline styles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from semel.core.frozen import frozen

WIDTH: Final = 40
HEIGHT: Final = 98


class Countable(Protocol):
    @property
    def count(self) -> int: ...

    @property
    def bad(self) -> int: ...


@frozen
class Bar:
    """A bar that stands at ``x``; ``bad`` of its ``height`` is drawn in another colour."""

    x: int
    height: int
    bad: int
    of: Countable


def bars(counted: Sequence[Countable]) -> list[Bar]:
    """Bars side by side, the highest as high as the chart. What is there is seen: 2 at least."""
    most = max((each.count for each in counted), default=0) or 1

    def height(count: int) -> int:
        return max(2, round(HEIGHT * count / most)) if count else 0

    return [
        Bar(WIDTH * place + 2, height(each.count), height(each.bad), each)
        for place, each in enumerate(counted)
    ]
