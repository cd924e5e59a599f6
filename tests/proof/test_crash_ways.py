"""Processes are killed that came in by other ways: functions, streams, and three frameworks.

As `test_crash`, which has semel's own adapters: the small form takes one store for each way.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proof.crash.campaign import Plan
from tests.proof.crash.grounds import STORES
from tests.proof.crash.runs import (
    HELD,
    REACH,
    campaign,
    gone_through,
    overtaken,
    table,
)
from tests.proof.crash.shop import STREAMED
from tests.proof.crash.verdict import Verdict
from tests.proof.crash.ways import COLOURS, FRAMEWORKS, FUNCTIONS
from tests.proof.crash.zygote import Zygote

DONE_ONCE = ("manual", "probed", "honoured", "released", "atomic")
"""What a function can be: it is run by its caller, from its start."""
HTTP = (*COLOURS, *FRAMEWORKS)
FRAMED = ("probed", "deferred", "probed-stream", "atomic", "resumed")
"""One for each way to run a handler."""

SMALL = [
    pytest.param("sqlite", Plan(("probed",), FUNCTIONS), 20, id="functions"),
    pytest.param("valkey", Plan(("manual-stream",), ("asgi",)), 14, id="streams-asgi"),
    pytest.param("sqlite", Plan(("probed-stream",), ("wsgi",)), 14, id="streams-wsgi"),
    pytest.param("sqlite", Plan(("atomic",), ("django", "adjango")), 20, id="django"),
    pytest.param("sqlite", Plan(("atomic",), ("flask", "fastapi")), 20, id="flask-fastapi"),
]


@pytest.mark.parametrize(("store", "plan", "deaths"), SMALL)
def test_killed_anywhere_each_key_has_one_effect_by_every_way_in(
    store: str,
    plan: Plan,
    deaths: int,
    zygote: Zygote,
    tally: Verdict,
    request: pytest.FixtureRequest,
) -> None:
    with campaign(plan, store, zygote, request) as given:
        verdict = given.run()
    assert verdict.clean, verdict
    assert verdict.kills.total() >= deaths
    # Those that died behind their last write, and the one that lived.
    assert (verdict.receipts >= 2) == (plan.routes[0] in STREAMED)
    tally.add(verdict)


# ── positive controls ─────────────────────────────────────────────────────────────────────────────


def test_a_function_that_runs_again_after_a_lapse_is_noticed(
    zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    plan = Plan(("probed",), FUNCTIONS, where=("after effect 1",), without="lapse")
    with campaign(plan, "sqlite", zygote, request) as given:
        verdict = given.run()
    assert len(verdict.duplicates) == verdict.kills.total() == len(FUNCTIONS), verdict


def test_a_stream_that_begins_again_after_a_lapse_is_noticed_by_every_way_in(
    zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    plan = Plan(("probed-stream",), HTTP, where=("after piece 1",), without="lapse")
    with campaign(plan, "sqlite", zygote, request) as given:
        verdict = given.run()
    assert len(verdict.duplicates) == len(verdict.differing) == len(HTTP), verdict
    assert verdict.kills.total() == len(HTTP)


def test_a_stream_without_its_receipt_is_noticed(
    zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    plan = Plan(("manual-stream",), where=("after piece 1",), without="receipt")
    with campaign(plan, "sqlite", zygote, request) as given:
        verdict = given.run()
    assert len(verdict.lost) == verdict.kills.total() == 2, verdict


# ── the whole campaign ────────────────────────────────────────────────────────────────────────────

RETRIES = 10
"""Of each first death; over all of them they go through every place of a retry."""
FLOWING = ("before Open 1", "after Open 1", "after piece 1")
WAYS = {
    "functions": [(route, colour) for route in DONE_ONCE for colour in FUNCTIONS],
    "streams": [(route, colour) for route in STREAMED for colour in COLOURS],
    **{name: [(route, name) for route in FRAMED] for name in FRAMEWORKS},
}
EACH = [(ways, store) for ways in WAYS for store in (STORES[:2] if ways in FRAMEWORKS else STORES)]
"""Frameworks where there are transactions: to what lies below them the rest is one adapter."""


@pytest.mark.proof
@pytest.mark.parametrize(("ways", "store"), EACH)
def test_retries_that_die_as_well_by_every_way_in(
    ways: str,
    store: str,
    zygote: Zygote,
    tally: Verdict,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = Verdict()
    for plan, verdict in gone_through(plans(ways), store, zygote, request):
        whole.add(verdict)
        assert (verdict.receipts > 0) == any(route in STREAMED for route in plan.routes)
    with capsys.disabled():
        print(f"\n{ways}, {table(store, whole)}")
    assert whole.kills.total() >= 200
    tally.add(whole)


def plans(ways: str) -> Iterator[Plan]:
    """Every boundary of a first try, and of a retry; then at any moment."""
    for route, colour in WAYS[ways]:
        yield Plan((route,), (colour,), retries=RETRIES, reach=REACH[route], workers=24)
    routes, colours = ({each[number]: None for each in WAYS[ways]} for number in (0, 1))
    yield Plan((*routes,), (*colours,), where=("after effect 1",), workers=24, stray=50)


STOPPED = {
    "functions": [(route, place) for route in DONE_ONCE[:4] for place in HELD],
    "streams": [(route, place) for route in STREAMED for place in (*HELD, *FLOWING)],
    **{name: [(route, place) for route in DONE_ONCE[:2] for place in HELD] for name in FRAMEWORKS},
}


@pytest.mark.proof
@pytest.mark.parametrize(("ways", "store"), EACH)
def test_zombies_are_refused_by_every_way_in(
    ways: str, store: str, zygote: Zygote, tally: Verdict, request: pytest.FixtureRequest
) -> None:
    colours = tuple({colour: None for _, colour in WAYS[ways]})
    routes = tuple({route: None for route, _ in STOPPED[ways]})
    tally.add(overtaken(Plan(routes, colours), store, STOPPED[ways], zygote, request))
