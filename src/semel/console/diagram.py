"""The states of a record as a drawing, made from the one table (`core/states.py`).

A template prints the numbers of this as SVG. Where two states lead to each other the arrows bend
apart; what leaves a state without changing it is told in the title of its box.
"""

from __future__ import annotations

from math import hypot
from typing import Final

from semel.core.frozen import frozen
from semel.core.records import State
from semel.core.states import TABLE, Rule

WIDTH: Final = 900
HEIGHT: Final = 310
_BOX: Final = (124, 32)
_START: Final = "no record"
_END: Final = "forgotten"
_PLACES: Final = {
    _START: (72, 160),
    State.PENDING.value: (250, 60),
    State.IN_PROGRESS.value: (250, 160),
    State.FAILED_RETRYABLE.value: (250, 262),
    State.COMPLETED.value: (480, 160),
    State.UNKNOWN.value: (480, 262),
    State.EXPIRED.value: (660, 160),
    _END: (828, 160),
}
_BENDS: Final = {
    (_START, State.COMPLETED.value): -280,
    (State.COMPLETED.value, _END): -80,
    (State.FAILED_RETRYABLE.value, _END): 130,
    (State.FAILED_RETRYABLE.value, State.EXPIRED.value): 92,
    (State.UNKNOWN.value, _END): 40,
    (State.COMPLETED.value, State.EXPIRED.value): 0,
}
"""How far an arrow is bent aside, where a straight one would run through a box."""
_APART: Final = 16


@frozen
class StateBox:
    """One state; ``here``: the record is in it."""

    name: str
    x: int
    y: int
    width: int
    height: int
    here: bool
    title: str


@frozen
class StateArrow:
    """One way from a state to another; ``open``: the record may take it next."""

    path: str
    open: bool
    title: str


@frozen
class StateDiagram:
    """All states and ways."""

    boxes: tuple[StateBox, ...]
    arrows: tuple[StateArrow, ...]
    width: int = WIDTH
    height: int = HEIGHT


def diagram(state: State | None) -> StateDiagram:
    """The table, with the place of a record marked."""
    ways: dict[tuple[str, str], list[Rule]] = {}
    for rule in TABLE:
        ways.setdefault(_ends(rule), []).append(rule)
    here = _START if state is None else state.value
    arrows = [
        StateArrow(_curve(source, target, ways), source == here, _title(rules))
        for (source, target), rules in ways.items()
        if source != target
    ]
    boxes = [_box(name, here, ways.get((name, name), [])) for name in _PLACES]
    return StateDiagram(tuple(boxes), tuple(arrows))


def _ends(rule: Rule) -> tuple[str, str]:
    source = _START if rule.source is None else rule.source.value
    return source, _END if rule.target is None else rule.target.value


def _title(rules: list[Rule]) -> str:
    return "; ".join(f"{rule.event.value} (by {rule.by})" for rule in rules)


def _box(name: str, here: str, loops: list[Rule]) -> StateBox:
    (x, y), (width, height) = _PLACES[name], _BOX
    title = f"stays so: {_title(loops)}" if loops else name
    return StateBox(name, x - width // 2, y - height // 2, width, height, name == here, title)


def _curve(source: str, target: str, ways: dict[tuple[str, str], list[Rule]]) -> str:
    (x1, y1), (x2, y2) = _PLACES[source], _PLACES[target]
    bend = _BENDS.get((source, target), _APART if (target, source) in ways else 0)
    length = hypot(x2 - x1, y2 - y1)
    cx = (x1 + x2) / 2 - (y2 - y1) / length * bend
    cy = (y1 + y2) / 2 + (x2 - x1) / length * bend
    ax, ay = _border(x1, y1, cx, cy, 0)
    bx, by = _border(x2, y2, cx, cy, 5)
    return f"M{ax:.1f},{ay:.1f} Q{cx:.1f},{cy:.1f} {bx:.1f},{by:.1f}"


def _border(x: float, y: float, to_x: float, to_y: float, gap: float) -> tuple[float, float]:
    """Where a line from the middle of a box leaves it, and a bit further."""
    half_width, half_height = _BOX[0] / 2 + gap, _BOX[1] / 2 + gap
    dx, dy = to_x - x, to_y - y
    scale = min(
        half_width / abs(dx) if dx else float("inf"), half_height / abs(dy) if dy else float("inf")
    )
    return x + dx * scale, y + dy * scale
