"""The table in docs/explanation/scale.md is what the script makes of the measured figures."""

from __future__ import annotations

from dataclasses import fields

import pytest

from bench import scale
from bench.figures import SITES, Figures
from tests.docs.pages import page

PAGE = page("docs/explanation/scale.md")
POSTGRESQL, GALERA, REDIS = scale.ENGINES
EVEN = {field.name: 100.0 for field in fields(Figures)}


def test_the_page_has_the_table_that_is_computed() -> None:
    assert scale.table(scale.figures()) in PAGE.text


def test_the_page_has_the_figures_that_were_measured() -> None:
    measured = scale.figures()
    told = {row[0]: row[1:] for row in PAGE.table("What was measured")}
    for title, name in scale.MEASURED.items():
        assert told[title] == scale.figures_row(measured[name])


def test_every_site_was_measured_and_every_figure_is_there() -> None:
    measured = scale.figures()
    assert {name for name, value in measured.items() if isinstance(value, dict)} == set(SITES)
    for name in SITES:
        assert set(measured[name]) == {field.name for field in fields(Figures)}


@pytest.mark.parametrize("engine", scale.ENGINES)
def test_ten_times_the_requests_need_ten_times_the_room(engine: scale.Engine) -> None:
    small, large = (scale.need(engine, EVEN, rate) for rate in (100_000, 1_000_000))
    assert large.bytes_per_node * large.groups == pytest.approx(
        10 * small.bytes_per_node * small.groups
    )
    assert large.log_per_day == pytest.approx(10 * small.log_per_day)
    assert large.nodes == large.groups * engine.copies


@pytest.mark.parametrize(
    ("figure", "limit"), [("pair_cpu", "CPU"), ("log_bytes", "log"), ("key_bytes", "disk")]
)
def test_what_is_scarce_decides(figure: str, limit: str) -> None:
    found = scale.need(POSTGRESQL, {**EVEN, figure: 1_000_000.0}, 1_000)
    assert found.limit == limit
    assert found.groups > scale.need(POSTGRESQL, EVEN, 1_000).groups


def test_a_day_of_keys_is_kept_and_then_a_day_of_tombstones() -> None:
    figures = {**EVEN, "key_bytes": 700.0, "tombstone_bytes": 300.0}
    found = scale.need(POSTGRESQL, figures, 1_000)
    assert found.bytes_per_node == pytest.approx(900 * 86_400 * (700 + 300) * scale.SLACK)


def test_redis_has_three_primaries_at_least() -> None:
    assert scale.need(REDIS, EVEN, 1).groups == 3
    assert scale.need(GALERA, EVEN, 1).groups == 1
