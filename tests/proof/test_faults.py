"""Faults of the store under load: nothing twice, nothing acknowledged lost, no key wedged.

One fault of each kind, at a place that is chosen, runs with all tests; the campaigns, which leave
to chance what is met, with `make proof`, which prints their figures. Each has a control: the same
run with a guard taken out, which must be found out.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.stores import open_backend
from semel.stores.sqlite import SqliteBackend
from semel.worker.maintenance import Maintenance
from tests.conftest import note
from tests.proof.faults import full, records, upheavals
from tests.proof.faults.books import Books
from tests.proof.faults.campaign import Scene, run
from tests.proof.faults.careless import Careless, Mistake
from tests.proof.faults.crowd import Crowd
from tests.proof.faults.cuts import (
    EACH_COMMIT,
    EACH_WRITE,
    SAID,
    Cut,
    Cuts,
    claims,
    commits,
    completions,
)
from tests.proof.faults.jumps import Jumping, Lingering
from tests.proof.faults.placed import LAPSED, REFUSED, WAITED, Gated, set_ahead_and_back
from tests.proof.faults.skew import HOURS, Nodes, nodes_on
from tests.proof.faults.upheavals import MET, Upheavals, failing_over, killed_at_a_gate
from tests.proof.faults.verdict import Verdict
from tests.proof.floors import missing, rounds
from tests.servers import ValkeyServer
from tests.servers.postgres_cluster import PostgresCluster
from tests.stores.load import Load
from tests.stores.test_postgres_failover import nothing_is_lost

Tell = Callable[[str, Verdict], None]


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Say it at the end of the run, and stop where something is wrong."""

    def told(what: str, verdict: Verdict) -> None:
        print(what, verdict, dict(verdict.refusals))
        note(request, f"{what}: {verdict}", "proof")
        assert verdict.clean, repr(verdict)

    return told


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield


@pytest.fixture(scope="session")
def own_valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


SERVERS = {"postgresql": "postgres", "mariadb": "mariadb", "valkey": "own_valkey"}
Server = Callable[[str], Any]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The server of a store, which outlives the test."""
    return lambda store: request.getfixturevalue(SERVERS[store])


# ── a commit whose answer never comes ─────────────────────────────────────────────────────────────

MANY = 1_000

SMALL = [
    (Cuts("postgresql", "atomic"), EACH_COMMIT),
    (Cuts("postgresql", "leased", colour="wsgi"), EACH_WRITE),
    (Cuts("mariadb", "leased"), EACH_WRITE),
    (Cuts("valkey", "leased", colour="wsgi"), EACH_WRITE),
]
COLOURS = ("asgi", "wsgi")
LARGE = [
    ("postgresql", "atomic"),
    ("postgresql", "leased"),
    ("mariadb", "leased"),
    ("valkey", "leased"),
]


@pytest.mark.parametrize(
    ("cuts", "places"), [pytest.param(*each, id=str(each[0])) for each in SMALL]
)
def test_a_commit_in_doubt_is_found_out_and_never_guessed(
    cuts: Cuts, places: tuple[Cut, ...], server: Server, tmp_path: Path
) -> None:
    """The next claim is cut in each of three ways, then the next completion; or the COMMIT."""
    verdict = cuts.placed(server(cuts.store), tmp_path, *places)
    assert verdict.clean, verdict
    assert verdict.faults == dict.fromkeys(SAID.values(), len(places) // len(SAID))


@pytest.mark.proof
@pytest.mark.parametrize(("store", "mode"), LARGE)
def test_a_thousand_commits_in_doubt(
    store: str, mode: str, server: Server, tmp_path: Path, tell: Tell
) -> None:
    whole = Verdict()
    for colour in COLOURS:
        (tmp_path / colour).mkdir()
        cuts = Cuts(store, mode, MANY // len(COLOURS), colour)
        whole.add(cuts.verdict(server(store), tmp_path / colour))
    tell(f"{whole.faults.total():,} ambiguous commits, {mode} on {store}", whole)
    in_each_way(whole, MANY)


def in_each_way(verdict: Verdict, count: int) -> None:
    """A third of so many, but for what does not go by three."""
    assert verdict.faults.total() >= count
    assert verdict.faults.keys() == set(SAID.values())
    assert min(verdict.faults.values()) >= count // len(SAID) - 1, verdict.faults


def careless(mistake: Mistake) -> Callable[[Any], Any]:
    return lambda backend: Careless(backend, mistake)


def wrong(mistake: Mistake, cut: Cut, **options: Any) -> Callable[[Any, Path], Verdict]:
    """Cut when it is asked for again, too; then somebody makes something of it."""
    cuts = Cuts("valkey", "leased", around=careless(mistake), **options)
    return lambda server, folder: cuts.placed(server, folder, cut, cut, twins=1)


def test_an_error_taken_for_a_claim_runs_handlers_twice(server: Server, tmp_path: Path) -> None:
    cut = wrong("runs anyway", Cut(claims, "refuse"))
    assert len(cut(server("valkey"), tmp_path).duplicates) == 1


def test_an_error_taken_for_not_done_runs_handlers_twice(server: Server, tmp_path: Path) -> None:
    cut = wrong("frees the key", Cut(completions, "refuse"))
    assert len(cut(server("valkey"), tmp_path).duplicates) == 1


def test_a_claim_in_doubt_that_is_not_taken_back_wedges_its_key(
    server: Server, tmp_path: Path
) -> None:
    """Nobody waits long for what would come with the end of its lease."""
    cut = wrong("thinks nothing of it", Cut(claims, "drop"), patience=0.5)
    (wedged,) = cut(server("valkey"), tmp_path).wedged
    assert wedged.endswith("in_progress")


def test_a_commit_in_doubt_that_is_called_a_success_is_lost(server: Server, tmp_path: Path) -> None:
    cuts = Cuts("postgresql", "atomic", around=careless("presumes success"))
    cut = Cut(commits, "refuse")
    assert len(cuts.placed(server(cuts.store), tmp_path, cut, twins=1).lost) == 1


# ── servers that die and come back ────────────────────────────────────────────────────────────────

RESTARTS = 25


@pytest.fixture(params=list(upheavals.STORES))
def shaken(request: pytest.FixtureRequest) -> str:
    if request.param == "mariadb":
        request.getfixturevalue("mariadb")  # which says so where there is none
    return str(request.param)


def test_a_server_that_is_killed_while_a_request_runs_costs_nothing(
    shaken: str, tmp_path: Path
) -> None:
    with upheavals.STORES[shaken]() as place:
        verdict = killed_at_a_gate(place, tmp_path)
    assert verdict.clean, verdict
    refused_and_waited(verdict)


def refused_and_waited(verdict: Verdict) -> None:
    """Who came was refused, and who had run was not answered before it was on record."""
    assert verdict.keys == 3
    assert verdict.refusals[REFUSED] > 0
    assert verdict.faults[WAITED] == 1


@pytest.mark.proof
@pytest.mark.parametrize("colour", COLOURS)
def test_servers_killed_again_and_again_cost_nothing(
    shaken: str, colour: str, tmp_path: Path, tell: Tell
) -> None:
    with upheavals.STORES[shaken]() as place:
        verdict = Upheavals(RESTARTS, 100, colour).verdict(place, tmp_path)
    tell(f"{shaken} killed under load ({colour})", verdict)
    met(verdict, "restarts", RESTARTS)


def met(verdict: Verdict, what: str, count: int) -> None:
    """They happened, and requests were refused for half of them at the least."""
    assert verdict.faults[what] == count
    assert verdict.faults[MET] >= (count + 1) // 2, verdict.faults
    assert verdict.refusals[REFUSED] >= verdict.faults[MET]


def test_a_valkey_that_keeps_nothing_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """The control. (Without fsync a killed process loses nothing: the kernel has it.)"""
    with upheavals.valkey("?durability=best-effort", appendonly="no") as place:
        verdict = killed_at_a_gate(place, tmp_path)
    assert len(verdict.duplicates) == 2  # what was acknowledged, and what was under way
    assert verdict.differing


# ── primaries that are replaced ───────────────────────────────────────────────────────────────────

FAILOVERS = 25


@pytest.mark.proof
def test_failover_after_failover_costs_nothing(tmp_path: Path, tell: Tell) -> None:
    """Beside the crowd, processes of both colours use the store itself. The small form, and the
    controls, are in tests/stores/test_postgres_failover.py."""
    with PostgresCluster() as cluster:
        place = failing_over(cluster)
        open_backend(place.url).migrate()
        with Load([place.url]) as load:
            verdict = Upheavals(FAILOVERS, 100).verdict(place, tmp_path)
            load.stop()
        nothing_is_lost(load, cluster.primary)
        print({kind: len(keys) for kind, keys in sorted(load.told.items())})
    tell("PostgreSQL with a synchronous standby", verdict)
    met(verdict, "failovers", FAILOVERS)


# ── no room left ──────────────────────────────────────────────────────────────────────────────────


def without_room(store: str, folder: Path, rounds: int, **options: Any) -> tuple[str, Verdict]:
    way = "mounted" if full.mounting_is_allowed(folder) else "limited"
    if (store, way) == ("postgresql", "limited"):
        pytest.skip("mount namespaces are forbidden, and a limit would hold for us alone")
    return way, full.filled(store, folder, rounds, way, **options)


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """All room is taken while a handler stands at its gate, and given back when it was missed."""
    _, verdict = without_room("sqlite", tmp_path, ONCE)
    assert verdict.clean, verdict
    refused_and_waited(verdict)


def test_a_full_disk_that_fails_open_runs_a_handler_twice(tmp_path: Path) -> None:
    """The control: the rival is not refused, and runs without a claim."""
    _, verdict = without_room("sqlite", tmp_path, ONCE, mistake="runs anyway")
    assert len(verdict.duplicates) == 1


ONCE = 0
"""No rounds: placed."""


def as_planned(verdict: Verdict, rounds: int) -> None:
    """Many were refused, or nobody was left to be, and handlers that had run waited."""
    assert verdict.faults[full.FULL] >= rounds
    assert verdict.faults[full.WAITED] >= rounds, verdict.faults
    refused = sum(verdict.refusals[code] for code in full.REFUSED)
    assert refused >= full.REFUSALS * (rounds - verdict.faults[full.ALL_WAITED]), verdict
    assert verdict.refusals[REFUSED] >= rounds


@pytest.mark.proof
def test_a_full_disk_that_is_taken_lightly_runs_handlers_twice(tmp_path: Path) -> None:
    _, verdict = without_room("sqlite", tmp_path, 3, mistake="runs anyway")
    assert verdict.duplicates


@pytest.mark.proof
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_disks_that_fill_up_again_and_again(store: str, tmp_path: Path, tell: Tell) -> None:
    way, verdict = without_room(store, tmp_path, 20)
    tell(f"{store} on a full file system ({way})", verdict)
    as_planned(verdict, 20)


# ── clocks that are wrong ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nodes]:
    """Two processes, each with every store that there is."""
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        urls = {"valkey": request.getfixturevalue("own_valkey").url + "?prefix=nodes"}
        for store in ("postgresql", "mariadb"):
            with suppress(pytest.skip.Exception):  # its own test says so
                server = request.getfixturevalue(SERVERS[store])
                urls[store] = stack.enter_context(server.database())
        urls["sqlite"] = f"sqlite:///{folder / 'keys.db'}"
        for url in urls.values():
            open_backend(url).migrate()
        yield stack.enter_context(nodes_on(urls, folder))


@pytest.mark.parametrize("store", list(SERVERS))
def test_nodes_hours_apart_agree_on_leases_and_ends(
    nodes: Nodes, store: str, server: Server
) -> None:
    server(store)
    assert nodes.hours_off() == {"ahead": HOURS, "behind": -HOURS}
    assert list(nodes.disagreements(store)) == []


def test_by_the_clocks_of_nodes_they_would_not_agree(nodes: Nodes) -> None:
    """The control: SQLite's clock is the machine's, and these are two machines to it."""
    wrong = list(nodes.disagreements("sqlite"))
    assert any("maintenance" in each and "lapse" in each for each in wrong)
    assert any("held by" in each and "says 409 outcome-unknown" in each for each in wrong)


def test_a_machine_whose_clock_jumps_runs_nothing_twice(tmp_path: Path) -> None:
    """SQLite: hours ahead and back, each under a running handler, with maintenance after it."""
    verdict = set_by_hand(tmp_path)
    assert not verdict.unsound, verdict
    assert verdict.faults == {"jumps ahead": 1, "jumps back": 1, LAPSED: 1}
    assert len(verdict.doubted) == 1


def test_a_clock_that_jumps_where_a_lapse_frees_the_key_runs_handlers_twice(
    tmp_path: Path,
) -> None:
    """The control: it was said that handlers have no effects, and they have."""
    verdict = set_by_hand(tmp_path, semel.ietf(after_lapse="release", effects="none"))
    assert len(verdict.duplicates) == 1


@pytest.mark.proof
def test_a_clock_that_jumps_again_and_again(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    verdict = jumped(tmp_path, 300)
    note(request, f"SQLite, the machine's clock set: {verdict}", "proof")
    assert not verdict.unsound, verdict


@dataclass(frozen=True)
class Wound:
    """A guard on SQLite, whose clock somebody sets."""

    guard: semel.Guard
    clock: Jumping
    path: Path

    def tend(self) -> str:
        return Maintenance(self.guard).run_once_blocking(threading.Event()).note

    def scene(self, books: Books) -> Scene:
        return Scene(self.guard, books, lambda: records.of_sqlite(self.path))


def wound(folder: Path, policy: semel.Policy | None = None) -> Wound:
    path, clock = folder / "keys.db", Jumping(random.Random(7), hours=HOURS)
    backend = SqliteBackend(f"sqlite:///{path}", clock=clock)
    return Wound(semel.Guard(backend, tenant=None, policy=policy, maintenance=None), clock, path)


def set_by_hand(folder: Path, policy: semel.Policy | None = None) -> Verdict:
    made, books = wound(folder, policy), Gated(folder / "effects")
    return set_ahead_and_back(made.scene(books), books, made.clock, made.tend)


def jumped(folder: Path, count: int) -> Verdict:
    """So often, and until as many leases have lapsed and it was set both ways as often."""
    made, books = wound(folder), Lingering(folder / "effects")
    jumps, quarter = made.clock.jumps, count // 4
    enough = {"jumps ahead": quarter, "jumps back": quarter, LAPSED: quarter // 2}

    def plan(crowd: Crowd) -> None:
        for _ in rounds(count, lambda: missing(jumps, enough)):
            books.await_someone()
            made.clock.jump()
            jumps[LAPSED] += "lapse" in made.tend()

    return run(made.scene(books), plan, jumps)
