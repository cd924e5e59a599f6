"""Changed settings are refused while keys made under the old ones are alive."""

from __future__ import annotations

from datetime import timedelta

import pytest

from semel.core.exchange.settings_changed import enrol, foretold
from semel.core.flow import run
from semel.core.operations.requests import ReadRecipe
from semel.core.policy import Policy, ietf
from semel.errors import SettingsChanged
from semel.testing.contract.terms import terms
from tests.core.world import SECOND, World

OLD = ietf(scope="tenant")
NEW = ietf()
CHANGED = ietf(previous=OLD)


def start(world: World, *policies: Policy) -> None:
    for policy in policies:
        run(enrol("*", policy, terms()), world.perform)


def test_the_same_settings_may_start_as_often_as_they_like() -> None:
    start(World(), NEW, NEW, NEW)


def test_changed_settings_are_refused_with_advice() -> None:
    with pytest.raises(SettingsChanged, match="previous="):
        start(World(), OLD, NEW)


def test_changed_settings_are_taken_when_they_name_the_old_ones() -> None:
    start(World(), OLD, CHANGED, CHANGED)


def test_the_old_settings_must_stay_named_until_their_keys_have_run_out() -> None:
    world = World()
    start(world, OLD, CHANGED)
    with pytest.raises(SettingsChanged, match=r"another 4[89] hours"):
        start(world, NEW)
    world.now += 49 * 3600 * SECOND
    start(world, NEW)


def test_a_wrong_previous_is_refused_while_the_right_one_has_live_keys() -> None:
    world = World()
    start(world, OLD, CHANGED)
    with pytest.raises(SettingsChanged, match="keep previous="):
        start(world, ietf(previous=ietf(key="uuid")))


def test_a_change_is_rolled_back_by_naming_the_new_settings() -> None:
    """Not by the old ones alone: keys that were made under the new ones would run again."""
    world = World()
    start(world, OLD, CHANGED)
    with pytest.raises(SettingsChanged, match=r"to roll back.*previous="):
        start(world, OLD)
    start(world, ietf(scope="tenant", previous=NEW))


def test_a_second_change_waits_for_the_first() -> None:
    world = World()
    third = ietf(key="uuid", previous=CHANGED)
    start(world, OLD, CHANGED)
    with pytest.raises(SettingsChanged, match="one change at a time"):
        start(world, third)
    world.now += 49 * 3600 * SECOND
    start(world, third)


def test_the_longer_life_of_the_old_settings_counts() -> None:
    world = World()
    long = ietf(scope="tenant", retention=timedelta(days=30))
    start(world, long, ietf(previous=long))
    world.now += 40 * 24 * 3600 * SECOND
    with pytest.raises(SettingsChanged):
        start(world, NEW)


def test_routes_are_enrolled_one_by_one() -> None:
    world = World()
    run(enrol("POST /a", OLD, terms()), world.perform)
    run(enrol("POST /b", NEW, terms()), world.perform)


ROUTES = {"the first": (), "changed": (OLD, CHANGED), "changed long ago": (OLD, CHANGED, None)}


@pytest.mark.parametrize("before", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize(
    "policy",
    [OLD, NEW, CHANGED, ietf(scope="tenant", previous=NEW), ietf(key="uuid", previous=CHANGED)],
)
def test_what_will_be_refused_is_foretold_word_for_word(
    before: tuple[Policy | None, ...], policy: Policy
) -> None:
    world = World()
    for each in before:
        if each is None:
            world.now += 49 * 3600 * SECOND
        else:
            start(world, each)
    said = foretold("*", policy, world.perform(ReadRecipe("*")))
    refused: list[str] = []
    try:
        start(world, policy)
    except SettingsChanged as error:
        refused.append(str(error))
    assert refused == ([] if said is None else [said])
