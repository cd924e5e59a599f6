"""Processes are killed, and stopped past their leases: one effect for each key, and its answer.

They come in by semel's own adapters, and by other ways: functions, streams, and three frameworks.
The small form runs with all tests, the large one with ``make proof``. Both print their figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.forms import in_proof
from tests.proof.crash.campaign import Plan
from tests.proof.crash.grounds import STORES
from tests.proof.crash.runs import HELD, REACH, Runs, table
from tests.proof.crash.shop import ROUTES, STREAMED
from tests.proof.crash.verdict import Verdict
from tests.proof.crash.ways import COLOURS, FRAMEWORKS, FUNCTIONS

DONE_ONCE = ("manual", "probed", "honoured", "released", "atomic")
"""What a function can be: it is run by its caller, from its start."""
HTTP = (*COLOURS, *FRAMEWORKS)
FRAMED = ("probed", "deferred", "probed-stream", "atomic", "resumed")
"""One for each way to run a handler."""

# ── kills ─────────────────────────────────────────────────────────────────────────────────────────

SMALL = [
    pytest.param("sqlite", Plan(colours=("asgi",), workers=12), 80, id="sqlite-asgi"),
    pytest.param("sqlite", Plan(("probed", "atomic"), ("wsgi",)), 20, id="sqlite-wsgi"),
    pytest.param("postgresql", Plan(("atomic", "resumed")), 50, id="postgresql"),
    pytest.param("mariadb", Plan(("atomic", "resumed"), ("asgi",)), 20, id="mariadb"),
    pytest.param("valkey", Plan(("probed", "deferred"), ("wsgi",), workers=4), 14, id="valkey"),
    pytest.param("sqlite", Plan(("probed",), FUNCTIONS), 20, id="functions"),
    pytest.param("valkey", Plan(("manual-stream",), ("asgi",)), 14, id="streams-asgi"),
    pytest.param("sqlite", Plan(("probed-stream",), ("wsgi",)), 14, id="streams-wsgi"),
    pytest.param("sqlite", Plan(("atomic",), ("django", "adjango")), 20, id="django"),
    pytest.param("sqlite", Plan(("atomic",), ("flask", "fastapi")), 20, id="flask-fastapi"),
]
"""Every route on one store, where each way to run a handler is decided. Of the others what differs
below it: transactions that a server rolls back, drivers of both colours; and one store for each
other way in. All of it, and kills at any moment, with ``make proof``."""


@pytest.mark.parametrize(("store", "plan", "deaths"), SMALL)
def test_killed_anywhere_each_key_has_one_effect_and_its_answer(
    store: str, plan: Plan, deaths: int, runs: Runs, tally: Verdict
) -> None:
    """At every place that there is, in turn; there are as many as there were, at the least."""
    verdict = runs.killed(plan, store)
    assert verdict.clean, verdict
    assert verdict.kills.total() >= deaths
    # Those that died behind their last write, and the one that lived.
    assert (verdict.receipts >= 2) == (plan.routes[0] in STREAMED)
    tally.add(verdict)


EVERYWHERE = Plan(workers=12, stray=4)


@pytest.mark.proof
@pytest.mark.parametrize("store", STORES)
def test_killed_anywhere_by_every_route_on_every_store(
    store: str, runs: Runs, tally: Verdict
) -> None:
    verdict = runs.killed(EVERYWHERE, store)
    assert verdict.clean, verdict
    assert verdict.kills.total() >= 60
    tally.add(verdict)


# ── zombies ───────────────────────────────────────────────────────────────────────────────────────

TAKEN = ("after Take 1", *HELD[1:])
PLACES = {
    "deferred": TAKEN,
    "requeued": TAKEN,
    "manual": HELD,
    "probed": HELD,
    "honoured": HELD,
    "released": HELD,
    "resumed": (*HELD, "before Advance 1", "after Advance 1", "before Advance 2"),
}
"""Where processes are stopped: in their handlers, and on the way into them and out of them."""
ALL_PLACES = [(route, place) for route, places in PLACES.items() for place in places]
SOME_PLACES = [
    *((route, places[number % 4]) for number, (route, places) in enumerate(PLACES.items(), 1)),
    *((route, "after effect 1") for route in ("probed", "released")),
]


@pytest.mark.parametrize("store", ["sqlite", *in_proof("postgresql", "mariadb"), "valkey"])
def test_stopped_past_its_lease_a_process_is_refused_and_answers_from_the_record(
    store: str, runs: Runs, tally: Verdict
) -> None:
    tally.add(runs.overtaken(Plan(), store, SOME_PLACES))


# ── positive controls ─────────────────────────────────────────────────────────────────────────────


def test_without_the_fence_a_zombie_gives_another_answer(runs: Runs) -> None:
    places = [("released", "after effect 1"), ("released", "before Complete 1")]
    with runs.campaign(Plan(without="fence"), "sqlite") as given:
        verdict = given.overtake(places)
    assert verdict.refused == 0
    assert verdict.differing, verdict


def test_without_the_doubt_of_a_lapse_effects_are_made_twice(runs: Runs) -> None:
    plan = Plan(("manual", "probed"), where=("after effect 1",), without="lapse")
    verdict = runs.killed(plan)
    assert len(verdict.duplicates) == verdict.kills.total() == 4, verdict


def test_a_function_that_runs_again_after_a_lapse_is_noticed(runs: Runs) -> None:
    plan = Plan(("probed",), FUNCTIONS, where=("after effect 1",), without="lapse")
    verdict = runs.killed(plan)
    assert len(verdict.duplicates) == verdict.kills.total() == len(FUNCTIONS), verdict


def test_a_stream_that_begins_again_after_a_lapse_is_noticed_by_every_way_in(runs: Runs) -> None:
    plan = Plan(("probed-stream",), HTTP, where=("after piece 1",), without="lapse")
    verdict = runs.killed(plan)
    assert len(verdict.duplicates) == len(verdict.differing) == len(HTTP), verdict
    assert verdict.kills.total() == len(HTTP)


def test_a_stream_without_its_receipt_is_noticed(runs: Runs) -> None:
    verdict = runs.killed(Plan(("manual-stream",), where=("after piece 1",), without="receipt"))
    assert len(verdict.lost) == verdict.kills.total() == 2, verdict


def test_answered_before_they_are_durable_results_are_lost(runs: Runs) -> None:
    plan = Plan(("manual", "released"), where=("after answer 1",), without="durable")
    verdict = runs.killed(plan)
    assert verdict.lost, verdict
    assert verdict.differing, verdict


# ── the whole campaign ────────────────────────────────────────────────────────────────────────────

KILLS, ZOMBIES = 2_500, 130
"""On each of four stores."""


@pytest.mark.proof
@pytest.mark.parametrize("store", STORES)
def test_ten_thousand_kills_no_duplicate_none_lost(
    store: str, runs: Runs, tally: Verdict, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Verdict()
    for plan, verdict in runs.gone_through(every_route(whole), store):
        with capsys.disabled():
            print(f"  {store}, {told(plan)}: {verdict.kills.total()} kills, {verdict.figures()}")
        whole.add(verdict)
    with capsys.disabled():
        print(table(store, whole))
    assert whole.kills.total() >= KILLS
    tally.add(whole)


def every_route(so_far: Verdict) -> Iterator[Plan]:
    """Every pair of boundaries of a first try and its retry; then at random, and until enough."""
    for route in ROUTES:
        for colour in COLOURS:
            yield Plan((route,), (colour,), retries=REACH[route], workers=24)
    for seed in count(1):
        if seed > 1 and so_far.kills.total() >= KILLS:
            return
        yield Plan(where=("after effect 1",), workers=24, stray=200, seed=seed)


def told(plan: Plan) -> str:
    return "at random" if plan.stray else f"{plan.routes[0]} through {plan.colours[0]}"


@pytest.mark.proof
@pytest.mark.parametrize("store", STORES)
def test_five_hundred_zombies_are_refused(store: str, runs: Runs, tally: Verdict) -> None:
    whole = Verdict()
    while whole.refused < ZOMBIES:
        whole.add(runs.overtaken(Plan(), store, ALL_PLACES))
    tally.add(whole)


# ── by every other way in ─────────────────────────────────────────────────────────────────────────

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
    ways: str, store: str, runs: Runs, tally: Verdict, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Verdict()
    for plan, verdict in runs.gone_through(every_way(ways), store):
        whole.add(verdict)
        assert (verdict.receipts > 0) == any(route in STREAMED for route in plan.routes)
    with capsys.disabled():
        print(f"\n{ways}, {table(store, whole)}")
    assert whole.kills.total() >= 200
    tally.add(whole)


def every_way(ways: str) -> Iterator[Plan]:
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
    ways: str, store: str, runs: Runs, tally: Verdict
) -> None:
    colours = tuple({colour: None for _, colour in WAYS[ways]})
    routes = tuple({route: None for route, _ in STOPPED[ways]})
    tally.add(runs.overtaken(Plan(routes, colours), store, STOPPED[ways]))
