"""Processes are killed, and stopped past their leases: one effect for each key, and its answer.

The small form runs with all tests, the large one with ``make proof``. Both print their figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.forms import in_proof
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
from tests.proof.crash.shop import ROUTES
from tests.proof.crash.verdict import Verdict
from tests.proof.crash.ways import COLOURS
from tests.proof.crash.zygote import Zygote

# ── kills ─────────────────────────────────────────────────────────────────────────────────────────

SMALL = [
    pytest.param("sqlite", Plan(colours=("asgi",), workers=12), 80, id="sqlite-asgi"),
    pytest.param("sqlite", Plan(("probed", "atomic"), ("wsgi",)), 20, id="sqlite-wsgi"),
    pytest.param("postgresql", Plan(("atomic", "resumed")), 50, id="postgresql"),
    pytest.param("mariadb", Plan(("probed",), ("asgi",)), 10, id="mariadb"),
    pytest.param("valkey", Plan(("probed", "deferred"), ("wsgi",), workers=4), 14, id="valkey"),
]
"""Every route on one store, where each way to run a handler is decided. Of the others what differs
below it: transactions that a server rolls back, drivers of both colours. All of it, and kills at
any moment, with ``make proof``."""


@pytest.mark.parametrize(("store", "plan", "deaths"), SMALL)
def test_killed_anywhere_each_key_has_one_effect_and_its_answer(
    store: str,
    plan: Plan,
    deaths: int,
    zygote: Zygote,
    tally: Verdict,
    request: pytest.FixtureRequest,
) -> None:
    """At every place that there is, in turn; there are as many as there were, at the least."""
    with campaign(plan, store, zygote, request) as given:
        verdict = given.run()
    assert verdict.clean, verdict
    assert verdict.kills.total() >= deaths
    tally.add(verdict)


EVERYWHERE = Plan(workers=12, stray=4)


@pytest.mark.proof
@pytest.mark.parametrize("store", STORES)
def test_killed_anywhere_by_every_route_on_every_store(
    store: str, zygote: Zygote, tally: Verdict, request: pytest.FixtureRequest
) -> None:
    with campaign(EVERYWHERE, store, zygote, request) as given:
        verdict = given.run()
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
    store: str, zygote: Zygote, tally: Verdict, request: pytest.FixtureRequest
) -> None:
    tally.add(overtaken(Plan(), store, SOME_PLACES, zygote, request))


# ── positive controls ─────────────────────────────────────────────────────────────────────────────


def test_without_the_fence_a_zombie_gives_another_answer(
    zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    with campaign(Plan(without="fence"), "sqlite", zygote, request) as given:
        verdict = given.overtake(
            [("released", "after effect 1"), ("released", "before Complete 1")]
        )
    assert verdict.refused == 0
    assert verdict.differing, verdict


def test_without_the_doubt_of_a_lapse_effects_are_made_twice(
    zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    plan = Plan(("manual", "probed"), where=("after effect 1",), without="lapse")
    with campaign(plan, "sqlite", zygote, request) as given:
        verdict = given.run()
    assert len(verdict.duplicates) == verdict.kills.total() == 4, verdict


def test_answered_before_they_are_durable_results_are_lost(
    zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    plan = Plan(("manual", "released"), where=("after answer 1",), without="durable")
    with campaign(plan, "sqlite", zygote, request) as given:
        verdict = given.run()
    assert verdict.lost, verdict
    assert verdict.differing, verdict


# ── the whole campaign ────────────────────────────────────────────────────────────────────────────

KILLS, ZOMBIES = 2_500, 130
"""On each of four stores."""


@pytest.mark.proof
@pytest.mark.parametrize("store", STORES)
def test_ten_thousand_kills_no_duplicate_none_lost(
    store: str,
    zygote: Zygote,
    tally: Verdict,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = Verdict()
    for plan, verdict in gone_through(plans(whole), store, zygote, request):
        with capsys.disabled():
            print(f"  {store}, {told(plan)}: {verdict.kills.total()} kills, {verdict.figures()}")
        whole.add(verdict)
    with capsys.disabled():
        print(table(store, whole))
    assert whole.kills.total() >= KILLS
    tally.add(whole)


def plans(so_far: Verdict) -> Iterator[Plan]:
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
def test_five_hundred_zombies_are_refused(
    store: str, zygote: Zygote, tally: Verdict, request: pytest.FixtureRequest
) -> None:
    whole = Verdict()
    while whole.refused < ZOMBIES:
        whole.add(overtaken(Plan(), store, ALL_PLACES, zygote, request))
    tally.add(whole)
