"""Campaigns as tests run them: on a store that the run's own servers have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.proof.crash.campaign import Campaign, Plan
from tests.proof.crash.grounds import ground, thrown_away
from tests.proof.crash.shop import DEFERRED, PLAIN, STREAMED
from tests.proof.crash.verdict import Verdict
from tests.proof.crash.zygote import Zygote

SERVERS = {"postgresql": "postgres", "mariadb": "mariadb", "valkey": "valkey"}

HELD = ("after Claim 1", "before effect 1", "after effect 1", "before Complete 1")
"""Where a process is stopped: in its handler, and on the way into it and out of it."""

REACH = {
    **dict.fromkeys(PLAIN, 18),
    **dict.fromkeys(DEFERRED, 14),
    **dict.fromkeys(STREAMED, 28),
    "released": 24,
    "resumed": 26,
    "atomic": 30,
}
"""More places than a retry has, so that the last one lives."""


class Runs:
    """Campaigns of one test."""

    def __init__(self, zygote: Zygote, request: pytest.FixtureRequest) -> None:
        self._zygote = zygote
        self._request = request

    @contextmanager
    def campaign(self, plan: Plan, store: str) -> Iterator[Campaign]:
        def server() -> Any:
            return self._request.getfixturevalue(SERVERS[store])

        with thrown_away() as folder, ground(store, folder, server) as made:
            given = Campaign(plan, made, folder, self._zygote)
            try:
                yield given
            finally:
                given.close()

    def killed(self, plan: Plan, store: str = "sqlite") -> Verdict:
        with self.campaign(plan, store) as given:
            return given.run()

    def overtaken(self, plan: Plan, store: str, places: list[tuple[str, str]]) -> Verdict:
        with self.campaign(plan, store) as given:
            verdict = given.overtake([place for place in places if place[0] in given.routes])
        assert verdict.clean, verdict
        # A late result is refused, or it is all that anybody knows, and taken.
        assert verdict.refused + verdict.late == verdict.stops.total()
        assert verdict.refused > verdict.late > 0
        return verdict

    def gone_through(self, plans: Iterable[Plan], store: str) -> Iterator[tuple[Plan, Verdict]]:
        """One plan after the other, each found clean; without those that need what a store has
        not."""
        for plan in plans:
            with self.campaign(plan, store) as given:
                if not given.routes:
                    continue  # without transactions
                verdict = given.run()
            assert verdict.clean, (plan, verdict)
            if plan.retries:
                every_second_place(plan, verdict)
            yield plan, verdict


def every_second_place(plan: Plan, verdict: Verdict) -> None:
    """Retries have died everywhere, up to where they have no more places."""
    (route,) = plan.routes
    places = {int(name.split()[-1]) for name in verdict.second_places}
    assert places == set(range(len(places))), f"{route}: {sorted(places)}"
    assert 0 < len(places) < REACH[route], f"{route}: {sorted(places)}"


def table(store: str, verdict: Verdict) -> str:
    """Where processes died."""
    lines = [f"{number:6} {place}" for place, number in sorted(verdict.kills.items())]
    whole = f"\n{store}: {verdict.keys} keys, {verdict.pairs} pairs of places"
    return "\n".join([whole, *lines])
