"""Every schedule of small worlds, through the shipping core: no promise is ever broken.

These are the small ones: two requests with one fault, and seeded samples of larger worlds. `make
proof` goes through all schedules of three requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import get_args

import pytest

from semel.core.policy import Mode, accepted, ietf, payments, stripe
from semel.core.records import OnLapse
from semel.errors import ConfigurationError
from tests.conftest import note
from tests.forms import in_proof
from tests.proof.explorer.mutants import MUTANTS, Mutant
from tests.proof.explorer.search import Broken, Covered, exhaustive, replay, sampled
from tests.proof.explorer.worlds import BY_NAME, WORLDS, World

Told = Callable[[str, list[Covered]], None]


def small(world: World) -> World:
    """Two requests; the second is the odd one, where there is one. With recovery points it is one
    request and those who resume it."""
    strangers, elsewhere = world.strangers and (1,), world.elsewhere and (1,)
    foreign = world.foreign and (1,)
    few = {"lives": 1}
    odd = elsewhere or foreign  # two keys double everything, and share nothing
    faults = 0 if odd else world.faults
    requests = 1 if world.resumable else 2
    return world.with_(
        requests=requests,
        faults=faults,
        strangers=strangers,
        elsewhere=elsewhere,
        foreign=foreign,
        **few,
    )


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Told:
    """Print figures, and say the sum at the end of the run."""

    def told(what: str, covered: list[Covered]) -> None:
        for each in covered:
            print(each)
        schedules = sum(each.schedules for each in covered)
        states = sum(each.states for each in covered)
        line = f"explorer, {what}: {schedules:,} schedules through {states:,} states"
        note(request, f"{line}, {len(covered)} worlds, no promise broken", "proof")

    return told


def test_there_is_a_world_for_every_way_to_decide() -> None:
    """Each mode with each policy and each fate of a lapse, as far as they go together."""
    explored = {
        (world.policy.name, world.policy.mode, world.policy.after_lapse)
        for world in WORLDS
        if (world.requests, world.faults) == (3, 1)
    }
    assert set(ways_to_decide()) == explored


def ways_to_decide() -> Iterator[tuple[str, str, str]]:
    makers = (ietf, stripe, accepted, payments)
    modes: tuple[Mode, ...] = get_args(Mode)
    for make, mode, lapse in product(makers, modes, OnLapse):
        with suppress(ConfigurationError):
            required = mode == "deferred"
            policy = make(
                mode=mode, after_lapse=lapse.value, required=required, effects="none", probe=None
            )
            yield policy.name, mode, lapse.value


def test_no_schedule_of_two_requests_and_a_fault_breaks_a_promise(tell: Told) -> None:
    covered = [exhaustive(small(world)) for world in WORLDS]
    tell("all of two requests", covered)
    assert sum(each.schedules for each in covered) >= 100_000


def test_no_sampled_schedule_of_four_requests_and_two_faults_breaks_a_promise(tell: Told) -> None:
    covered = [sampled(world.with_(requests=4, faults=2), 40, seed=1) for world in WORLDS]
    tell("sampled of four requests", covered)


@pytest.mark.proof
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_schedule_of_three_requests_and_a_fault_breaks_a_promise(
    world: World, tell: Told
) -> None:
    tell(f"all of {world.name}", [exhaustive(world)])


@pytest.mark.proof
def test_no_sampled_schedule_of_many_breaks_a_promise(tell: Told) -> None:
    worlds = [world.with_(requests=4, faults=2, lives=3) for world in WORLDS]
    tell("sampled of four requests", [sampled(world, 5_000, seed=2) for world in worlds])


# ── that the search would notice ──────────────────────────────────────────────────────────────────


def caught(mutant: Mutant) -> Broken | None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        try:
            exhaustive(mutant.world)
        except Broken as broken:
            return broken
    return None


def test_every_mutant_is_caught(request: pytest.FixtureRequest) -> None:
    found = {mutant.name: caught(mutant) for mutant in MUTANTS}
    survivors = [name for name, broken in found.items() if broken is None]
    for name, broken in found.items():
        print(f"{name}: {'SURVIVED' if broken is None else broken.violation}")
    note(
        request, f"explorer: {len(found) - len(survivors)} of {len(found)} mutants caught", "proof"
    )
    assert survivors == []
    wrong = {
        mutant.name: str(broken.violation)
        for mutant in MUTANTS
        if (broken := found[mutant.name]) and broken.violation.number != mutant.promise
    }
    assert wrong == {}


def test_a_handler_that_breaks_its_word_is_noticed() -> None:
    """A 500 that says "nothing happened" when it did: what some policies trust, and say so."""
    broken_word = BY_NAME["leased-ietf"].with_(requests=2, faults=0, kinds=("500!",))
    with pytest.raises(Broken, match="1 one effect"):
        exhaustive(broken_word)


def test_a_bad_schedule_is_short_and_can_be_replayed() -> None:
    broken_word = BY_NAME["leased-ietf"].with_(requests=2, faults=1, kinds=("ok", "500!"))
    with pytest.raises(Broken) as found:
        exhaustive(broken_word)
    schedule = found.value.schedule
    assert schedule == ["A.Claim", "A.runs:500!"]  # the rest comes by itself
    assert "A.Release" in str(found.value)
    with pytest.raises(Broken, match="1 one effect"):
        replay(broken_word, " ".join(schedule))


# ── that leaving schedules out leaves no finding out ──────────────────────────────────────────────

_REDUCED = ("leased-ietf", "atomic-ietf", "deferred-abandoned", "leased-mismatch")


@pytest.mark.parametrize(
    "name", [*_REDUCED, *in_proof(*(name for name in BY_NAME if name not in _REDUCED))]
)
def test_a_reduced_search_goes_through_less_and_comes_to_the_same_ends(name: str) -> None:
    world = small(BY_NAME[name])
    reduced, whole = exhaustive(world), exhaustive(world.with_(symmetric=False, reduced=False))
    assert reduced.states <= whole.states
    assert reduced.schedules < whole.schedules
    assert reduced.ends == whole.ends
    assert len(whole.ends) > 1


@pytest.mark.parametrize("mutant", MUTANTS[::8], ids=lambda mutant: mutant.name)
def test_the_whole_search_finds_the_mutants_that_the_reduced_one_finds(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        with pytest.raises(Broken):
            exhaustive(mutant.world.with_(symmetric=False, reduced=False))
