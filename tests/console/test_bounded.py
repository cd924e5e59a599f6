"""However much a store holds, a page reads as much as before, and keeps nobody from writing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from bench.console import Visitor, pages
from bench.filling import Amounts, filled_sqlite
from semel.console.routes import SCREENS
from semel.stores.sqlite import connection as files

SMALL = Amounts(12_000, 100, 40, 9_000, waiting=300, dead=200, audit=6_000, notables=2_000)
LARGE = replace(SMALL, records=36_000, effects=27_000, audit=18_000)
"""All that people look at first is the same; what has piled up is three times as much."""
BAD_DAY = Amounts(
    48_000, 12_000, 12_000, 24_000, waiting=6_000, dead=6_000, audit=900, notables=900
)
WORSE_DAY = Amounts(144_000, 36_000, 36_000, 72_000, 18_000, 18_000, audit=900, notables=900)
"""More is unknown, in flight and dead than any page looks at."""
MOST_ROWS = 7_000


class Meter:
    """Counts what SQLite does for reads: rows it gives, and hundreds of steps of its machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = self.rows = 0
        opened = files.open_for_reading
        monkeypatch.setattr(files, "open_for_reading", lambda *given: self._watched(opened(*given)))

    def _watched(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        connection.set_progress_handler(self._step, 100)
        connection.row_factory = self._row
        return connection

    def _step(self) -> int:
        self.steps += 1
        return 0

    def _row(self, _: sqlite3.Cursor, row: Any) -> Any:
        self.rows += 1
        return row


def looked(meter: Meter, amounts: Amounts) -> dict[str, tuple[int, int]]:
    """What each page costs in such a store: steps and rows."""
    with filled_sqlite(amounts) as place:
        visitor, found = Visitor(place), dict[str, tuple[int, int]]()
        visitor.look("routes")
        for each in pages(amounts):
            meter.steps = meter.rows = 0
            visitor.look(each.path)
            found[each.title] = meter.steps, meter.rows
        visitor.close()
        return found


def test_every_screen_is_looked_at() -> None:
    asked = {each.path.partition("?")[0].partition("/")[0] for each in pages(SMALL)}
    assert {each.path.partition("/")[0] for each in SCREENS} <= asked


@pytest.mark.parametrize(
    ("less", "more"), [(SMALL, LARGE), (BAD_DAY, WORSE_DAY)], ids=["settled", "unsettled"]
)
def test_a_page_reads_no_more_where_there_is_more(
    monkeypatch: pytest.MonkeyPatch, less: Amounts, more: Amounts
) -> None:
    meter = Meter(monkeypatch)
    small, large = looked(meter, less), looked(meter, more)
    assert sum(steps for steps, _ in small.values()) > 1000  # it is measured
    assert sum(rows for _, rows in small.values()) > 1000
    assert {title: rows for title, (_, rows) in large.items() if rows > MOST_ROWS} == {}
    both = {title: (small[title][0], large[title][0]) for title in small}
    assert {title: each for title, each in both.items() if each[1] > each[0] * 1.5 + 100} == {}


def test_every_page_is_shown_while_somebody_else_writes() -> None:
    with filled_sqlite(Amounts(400, 20, 20, 60, 9, 9, 60, 60)) as place:
        visitor = Visitor(place)
        visitor.look("routes")
        file = place.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for each in pages(SMALL):
                visitor.look(each.path)
        visitor.close()
