"""Faults of the store under load: nothing twice, nothing acknowledged lost, no key wedged.

Small forms run with all tests, the campaigns with `make proof`, which prints their figures. Each
has a control: the same run with a guard taken out, which must be found out.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.effects.maintenance import Maintenance
from semel.stores import open_backend
from semel.stores.sqlite import SqliteBackend
from tests.conftest import note
from tests.proof.faults import full, records, upheavals
from tests.proof.faults.campaign import Scene, run
from tests.proof.faults.careless import Careless, Mistake
from tests.proof.faults.crowd import Crowd
from tests.proof.faults.cuts import SAID, Cuts, claims, completions
from tests.proof.faults.jumps import Jumping, Lingering
from tests.proof.faults.skew import HOURS, Nodes, nodes_on
from tests.proof.faults.upheavals import MET, REFUSED, Upheavals, failing_over
from tests.proof.faults.verdict import Verdict
from tests.servers import ValkeyServer
from tests.servers.postgres_cluster import PostgresCluster
from tests.stores.load import Load
from tests.stores.relay import Fate
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

FEW, MANY = 15, 1_000

SMALL = [
    Cuts("postgresql", "atomic", FEW),
    Cuts("postgresql", "leased", FEW, "wsgi"),
    Cuts("mariadb", "leased", FEW),
    Cuts("valkey", "leased", FEW, "wsgi"),
]
COLOURS = ("asgi", "wsgi")
LARGE = [
    ("postgresql", "atomic"),
    ("postgresql", "leased"),
    ("mariadb", "leased"),
    ("valkey", "leased"),
]


@pytest.mark.parametrize("cuts", SMALL, ids=str)
def test_a_commit_in_doubt_is_found_out_and_never_guessed(
    cuts: Cuts, server: Server, tmp_path: Path
) -> None:
    verdict = cuts.verdict(server(cuts.store), tmp_path)
    assert verdict.clean, verdict
    in_each_way(verdict, FEW)


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


def wrong(mistake: Mistake, meets: Callable[[bytes], bool], fate: Fate) -> Cuts:
    """Cut so often, what is made of it matters; and nobody waits long for what never comes."""
    return Cuts(
        *("valkey", "leased", 12),
        rate=0.9,
        fates=(fate,),
        meets=meets,
        around=careless(mistake),
        patience=0.5,
    )


def test_an_error_taken_for_a_claim_runs_handlers_twice(server: Server, tmp_path: Path) -> None:
    cuts = wrong("runs anyway", claims, "refuse")
    assert cuts.verdict(server(cuts.store), tmp_path).duplicates


def test_an_error_taken_for_not_done_runs_handlers_twice(server: Server, tmp_path: Path) -> None:
    cuts = wrong("frees the key", completions, "refuse")
    assert cuts.verdict(server(cuts.store), tmp_path).duplicates


def test_a_claim_in_doubt_that_is_not_taken_back_wedges_its_key(
    server: Server, tmp_path: Path
) -> None:
    cuts = wrong("thinks nothing of it", claims, "drop")
    assert cuts.verdict(server(cuts.store), tmp_path).wedged


def test_a_commit_in_doubt_that_is_called_a_success_is_lost(server: Server, tmp_path: Path) -> None:
    cuts = Cuts("postgresql", "atomic", 10, around=careless("presumes success"))
    assert cuts.verdict(server(cuts.store), tmp_path).lost


# ── servers that die and come back ────────────────────────────────────────────────────────────────

RESTARTS = 25


@pytest.fixture(params=list(upheavals.STORES))
def shaken(request: pytest.FixtureRequest) -> str:
    if request.param == "mariadb":
        request.getfixturevalue("mariadb")  # which says so where there is none
    return str(request.param)


def test_a_server_that_is_killed_under_load_costs_nothing(shaken: str, tmp_path: Path) -> None:
    with upheavals.STORES[shaken]() as place:
        verdict = Upheavals(1, 10).verdict(place, tmp_path)
    assert verdict.clean, verdict
    met(verdict, "restarts", 1)


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
        verdict = Upheavals(1).verdict(place, tmp_path)
    assert verdict.lost or verdict.duplicates


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
    _, verdict = without_room("sqlite", tmp_path, 1)
    assert verdict.clean, verdict
    as_planned(verdict, 1)


def as_planned(verdict: Verdict, rounds: int) -> None:
    """Each time many were refused, or nobody was left to be, and handlers that had run waited."""
    assert verdict.faults[full.FULL] == verdict.faults[full.WAITED] == rounds, verdict.faults
    refused = sum(verdict.refusals[code] for code in full.REFUSED)
    assert refused >= full.REFUSALS * (rounds - verdict.faults[full.ALL_WAITED]), verdict
    assert verdict.refusals["store-unavailable"] >= rounds


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
    """SQLite: hours ahead and back, under running handlers, with maintenance after each jump."""
    verdict = jumped(tmp_path, 12)
    assert not verdict.unsound, verdict
    lapsed_under_handlers(verdict, 12)


def test_a_clock_that_jumps_where_a_lapse_frees_the_key_runs_handlers_twice(
    tmp_path: Path,
) -> None:
    """The control: it was said that handlers have no effects, and they have."""
    verdict = jumped(tmp_path, 12, semel.ietf(on_lapse="release", effects="none"))
    assert verdict.duplicates


@pytest.mark.proof
def test_a_clock_that_jumps_again_and_again(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    verdict = jumped(tmp_path, 300)
    note(request, f"SQLite, the machine's clock set: {verdict}", "proof")
    assert not verdict.unsound, verdict
    lapsed_under_handlers(verdict, 300)


def lapsed_under_handlers(verdict: Verdict, jumps: int) -> None:
    """The clock was set both ways, leases that were held lapsed by it, and clients were told."""
    ahead, back = verdict.faults["jumps ahead"], verdict.faults["jumps back"]
    assert ahead + back == jumps
    assert min(ahead, back) >= jumps // 4, verdict.faults
    assert verdict.faults[LAPSED] >= ahead // 4, verdict.faults
    assert verdict.doubted


LAPSED = "jumps after which a held lease had lapsed"


def jumped(folder: Path, count: int, policy: semel.Policy | None = None) -> Verdict:
    path = folder / "keys.db"
    clock = Jumping(random.Random(7), hours=HOURS)
    backend = SqliteBackend(f"sqlite:///{path}", clock=clock)
    guard = semel.Guard(backend, tenant=None, policy=policy, maintenance=None)
    books = Lingering(folder / "effects")

    def plan(crowd: Crowd) -> None:
        for _ in range(count):
            books.await_someone()
            clock.jump()
            round_ = Maintenance(guard).run_once_blocking(threading.Event())
            clock.jumps[LAPSED] += "lapse" in round_.note

    scene = Scene(guard, books, lambda: records.of_sqlite(path))
    return run(scene, plan, clock.jumps)
