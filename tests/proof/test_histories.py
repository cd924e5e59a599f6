"""What many clients were told at once, on every store, is what the state table tells one by one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from semel.core.frozen import replace
from semel.core.operations.maintenance import Reap, Tended
from semel.core.operations.requests import Agree, Claimed, Complete, Found, NoRecord, Read
from semel.core.records import Identity, State
from semel.stores import open_backend
from semel.stores.memory import MemoryBackend
from semel.testing.contract.records import claim, new_fence, new_identity
from tests.conftest import note
from tests.proof.histories.calls import ROUNDS, Call, Outcome
from tests.proof.histories.checker import Broken, Habits, check
from tests.proof.histories.orders import Place
from tests.proof.histories.player import Player
from tests.proof.histories.spec import NOW, Spec
from tests.proof.histories.spoilt import SPOILT
from tests.proof.histories.stage import Crew, Figures, Here, Size, campaign
from tests.servers import MariadbServer, PostgresServer, ValkeyCluster, ValkeyServer
from tests.servers.galera import GaleraCluster
from tests.stores.harness import CLEAR, FakeClock, database_of, divide
from tests.stores.moves import ROWS, TERMS, Board, Dice
from tests.stores.timeless import UNIT, timeless

SMALL = Size(rounds=3)
FULL = Size(rounds=60, keys=6, lanes=4, moves=20)
SIZES = [pytest.param(SMALL, id="small"), pytest.param(FULL, id="full", marks=pytest.mark.proof)]
CUT = ["postgresql", "mysql", "redis"]
WHOLE = ["sqlite", "partitioned", "rediscluster"]
EACH = [
    *(pytest.param(store, SMALL, id=f"{store}-small") for store in WHOLE),
    *(
        pytest.param(store, FULL, id=f"{store}-full", marks=pytest.mark.proof)
        for store in (*WHOLE, *CUT)
    ),
]
"""In the small form each server is played on once: with its lines cut where they can be."""
SQL = ("sqlite", "postgresql", "partitioned", "mysql")
PLAYERS = 2
FLOORS = {"memory": 12}
FLOOR = 15
"""Rows of the table that the small form takes at least, however threads and processes take turns:
about 23 in most runs. Memory has one player."""
CUTS = 5
"""Calls that are cut off at least, of about 40."""


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(PLAYERS) as opened:
        yield opened


def tell(request: pytest.FixtureRequest, store: str, size: Size, figures: Figures) -> None:
    if size is FULL:
        assert set(figures.rows) == set(ROWS)
    assert len(figures.rows) >= FLOORS.get(store, FLOOR)
    print(f"\n{store}: {figures}; {figures.nodes:,} steps of the search")
    note(request, f"histories, {store}: {figures}", "proof")


# ── where the stores are ──────────────────────────────────────────────────────────────────────────


class Places:
    """A store of one's own, empty; with ``cut``, to be reached over lines that get cut."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> None:
        self._request = request
        self._folder = folder
        self._stack = stack

    def of(self, store: str, *, cut: bool = False) -> Place:
        found: Place = getattr(self, store)(cut)
        return found

    def sqlite(self, cut: bool) -> Place:
        url = f"sqlite:///{self._folder}/records.db"
        open_backend(url).migrate()
        return Place(url)

    def postgresql(self, cut: bool) -> Place:
        server: PostgresServer = self._request.getfixturevalue("postgres")
        url = self._stack.enter_context(server.database())
        open_backend(url).migrate()
        if not cut:
            return Place(url)
        name = url.partition("@/")[2].partition("?")[0]
        socket = server.folder / f".s.PGSQL.{server.port}"
        return Place(f"postgresql://postgres@127.0.0.1:{{port}}/{name}", through=socket)

    def partitioned(self, cut: bool) -> Place:
        server: PostgresServer = self._request.getfixturevalue("postgres")
        url = self._stack.enter_context(server.database())
        open_backend(url).migrate()
        divide(url)
        return Place(url)

    def mysql(self, cut: bool) -> Place:
        server: MariadbServer = self._request.getfixturevalue("mariadb")
        url = self._stack.enter_context(server.database())
        open_backend(url).migrate()
        if not cut:
            return Place(url)
        return Place(f"mysql://root@127.0.0.1:{{port}}/{database_of(url)}", through=server.socket)

    def redis(self, cut: bool) -> Place:
        server: ValkeyServer = self._request.getfixturevalue("valkey")
        options = {"prefix": self._prefix([server])}
        if not cut:
            return Place(server.socket_url, options)
        return Place("redis://127.0.0.1:{port}/0", options, server.port)

    def rediscluster(self, cut: bool) -> Place:
        cluster: ValkeyCluster = self._request.getfixturevalue("valkey_cluster")
        return Place(cluster.url, {"prefix": self._prefix(cluster.primaries)})

    def _prefix(self, nodes: list[ValkeyServer]) -> str:
        prefix = f"test{os.urandom(6).hex()}"
        for node in nodes:
            self._stack.callback(node.ask, "EVAL", CLEAR, 0, f"{prefix}:*")
        return prefix


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(request, tmp_path, stack)


# ── the campaigns ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("store", "size"), EACH)
def test_a_history_of_several_processes_is_linearizable(
    request: pytest.FixtureRequest, places: Places, crew: Crew, store: str, size: Size
) -> None:
    place = places.of(store)
    with crew.at([place] * PLAYERS) as players:
        tell(request, store, size, campaign(players, size, Habits(looks_again=store in SQL)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("store", CUT)
def test_a_history_over_lines_that_are_cut_is_linearizable(
    request: pytest.FixtureRequest, places: Places, crew: Crew, store: str, size: Size
) -> None:
    place = places.of(store, cut=True)
    with crew.at([place] * PLAYERS) as players:
        habits = Habits(looks_again=store in SQL, asks_again=True)
        figures = campaign(players, size, habits)
    assert figures.outcomes[Outcome.DOUBT] + figures.outcomes[Outcome.NOTHING] >= CUTS
    tell(request, f"{store}, lines cut", size, figures)


@pytest.mark.parametrize("size", SIZES)
def test_a_history_of_the_memory_store_is_linearizable(
    request: pytest.FixtureRequest, size: Size
) -> None:
    player = Player("here", MemoryBackend())
    tell(request, "memory", size, campaign([Here(player)], size))
    player.close()


@pytest.mark.proof
def test_a_history_of_three_galera_nodes_is_linearizable(
    request: pytest.FixtureRequest, mariadb: MariadbServer, crew: Crew
) -> None:
    """Where there is no MariaDB, `mariadb` says so and skips."""
    with GaleraCluster() as cluster:
        cluster.nodes[0].execute("CREATE DATABASE shop")
        urls = [node.url_of("shop") for node in cluster.nodes]
        open_backend(urls[0]).migrate()
        with crew.at([Place(url) for url in urls]) as players:
            tell(request, "galera", FULL, campaign(players, FULL, Habits(looks_again=True)))


# ── that the checker would notice ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("guard", SPOILT)
def test_a_store_without_a_guard_is_found_out(guard: str) -> None:
    player = Player("here", SPOILT[guard]())
    try:
        with pytest.raises(Broken, match="no order explains the history"):
            campaign([Here(player)], Size(rounds=60))
    finally:
        player.close()


def call(op: Any, began: int, ended: int, reply: Any, outcome: Outcome = Outcome.TOLD) -> Call:
    return Call("a", op, began, ended, outcome, reply)


def test_two_winners_of_one_claim_cannot_be_explained() -> None:
    identity = new_identity()
    first, second = (claim(identity, new_fence()) for _ in range(2))
    told = Claimed(NOW + first.lease, NOW, NOW)
    with pytest.raises(Broken):
        check(identity, [call(first, 0, 9, told), call(second, 1, 8, told)])


def test_a_write_that_was_acknowledged_must_be_seen_by_who_looks_later() -> None:
    identity = new_identity()
    made = call(claim(identity, new_fence()), 0, 5, Claimed(NOW + claim_lease(), NOW, NOW))
    check(identity, [made, call(Read(identity), 4, 8, NoRecord(NOW))])
    with pytest.raises(Broken):
        check(identity, [made, call(Read(identity), 6, 8, NoRecord(NOW))])


def claim_lease() -> int:
    return claim(new_identity(), new_fence()).lease


def test_a_call_in_doubt_may_take_effect_later_or_never_and_one_refused_never() -> None:
    identity, fence = new_identity(), new_fence()
    op = claim(identity, fence)
    backend = MemoryBackend(clock=FakeClock(NOW))
    backend.perform(op)
    found = backend.perform(Read(identity))
    absent = call(Read(identity), 10, 12, NoRecord(NOW))
    there = call(Read(identity), 20, 22, found)
    check(identity, [call(op, 0, 5, None, Outcome.DOUBT), absent, there])
    check(identity, [call(op, 0, 5, None, Outcome.DOUBT), absent])
    check(identity, [call(op, 0, 5, None, Outcome.NOTHING), absent])
    with pytest.raises(Broken):
        check(identity, [call(op, 0, 5, None, Outcome.NOTHING), absent, there])


def test_a_reaper_in_doubt_may_have_expired_what_it_did_not_forget() -> None:
    identity, history = expired_by(call(Reap(1), 10, 15, None, Outcome.DOUBT))
    check(identity, history)
    check(identity, [*history, call(Read(identity), 50, 52, NoRecord(NOW))])
    identity, history = expired_by(call(Reap(1), 10, 15, None, Outcome.NOTHING))
    with pytest.raises(Broken):
        check(identity, history)


def test_a_round_that_was_asked_for_again_may_go_on_after_its_answer() -> None:
    identity, history = expired_by(call(Reap(1), 10, 15, Tended({}, False, NOW)))
    check(identity, history, Habits(asks_again=True))
    with pytest.raises(Broken):
        check(identity, history)


def expired_by(reaper: Call) -> tuple[Identity, list[Call]]:
    """After the reaper an answer is there that may be expired and forgotten; then it is expired."""
    identity, fence = new_identity(), new_fence()
    backend = MemoryBackend(clock=FakeClock(NOW))
    ops = [
        claim(identity, fence),
        Complete(identity, fence, b"the answer", -UNIT, -UNIT),
        Read(identity),
    ]
    claimed, completed, found = (backend.perform(op) for op in ops)
    assert isinstance(found, Found)
    expired = replace(found.record, state=State.EXPIRED, snapshot=None, fields=b"", expires_at=None)
    replies = [claimed, completed, found, Found(expired, NOW)]
    times = [0, 5, 20, 30]
    told = [
        call(op, at, at, reply)
        for op, at, reply in zip([*ops, ops[-1]], times, replies, strict=True)
    ]
    return identity, sorted([*told, reaper], key=lambda each: each.began)


def test_the_search_decides_as_trying_every_order_does() -> None:
    decided = {True: 0, False: 0}
    for seed in range(200):
        identity, history = random_history(Dice(seed))
        expected = any_order_explains(identity, history)
        decided[expected] += 1
        try:
            check(identity, history)
        except Broken:
            assert not expected, seed
        else:
            assert expected, seed
    assert min(decided.values()) >= 20, decided


def random_history(dice: Dice) -> tuple[Identity, list[Call]]:
    """Replies of a run one by one, and times that may belong to another run."""
    dice.past = 0.4
    identity = Identity(dice.randbytes(32))
    backend, board = MemoryBackend(clock=FakeClock(NOW)), Board(identity)
    for each in TERMS:
        backend.perform(Agree(each))
    told: list[tuple[Any, Any]] = []
    while len(told) < 5:
        op = board.choose(dice)
        if not isinstance(op, Reap):  # whose two steps are one in memory
            reply = backend.perform(op)
            board.learn(op, reply)
            told.append((op, reply))
    if dice.random() < 0.3:
        dice.shuffle(told)
    history: list[Call] = []
    for place, (op, reply) in enumerate(told):
        doubt = dice.random() < 0.15
        outcome, said = (Outcome.DOUBT, None) if doubt else (Outcome.TOLD, reply)
        history.append(call(op, 10 * place - dice.randint(0, 15), 10 * place + 3, said, outcome))
    return identity, sorted(history, key=lambda each: each.began)


def any_order_explains(identity: Identity, history: list[Call]) -> bool:
    history = [each for each in history if getattr(each.reply, "counts", True)]
    told = [each for each in history if not may_be_nothing(each)]
    doubts = [each for each in history if may_be_nothing(each)]
    chosen = [
        subset
        for count in range(len(doubts) + 1)
        for subset in itertools.combinations(doubts, count)
    ]
    orders = (order for some in chosen for order in itertools.permutations([*told, *some]))
    return any(in_time(order) and gives(identity, order) for order in orders)


def may_be_nothing(each: Call) -> bool:
    return each.outcome is Outcome.DOUBT or isinstance(each.op, ROUNDS)


def in_time(order: tuple[Call, ...]) -> bool:
    pairs = itertools.combinations(order, 2)
    return not any(
        later.outcome is Outcome.TOLD and later.ended < earlier.began for earlier, later in pairs
    )


def gives(identity: Identity, order: tuple[Call, ...]) -> bool:
    spec, state = Spec(identity), 0
    for each in order:
        reply, state = spec.step(state, spec.number(each.op))
        if not may_be_nothing(each) and reply != timeless(each.reply):
            return False
    return True
