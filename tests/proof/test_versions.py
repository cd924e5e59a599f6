"""An upgrade: nodes of two versions work on one store, and no request runs twice.

`make test` has SQLite, PostgreSQL and Valkey; `make proof` MariaDB and the cluster as well.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.conftest import note
from tests.proof.versions.copies import (
    PACKAGE,
    Running,
    careless_version,
    distant_version,
    next_version,
)
from tests.waiting import until

STORES = ["sqlite", "postgres", "redis"]
MORE = [pytest.param(name, marks=pytest.mark.proof) for name in ("mariadb", "rediscluster")]
TOGETHER = 20
"""Keys that both versions are asked for at the same moment."""


@pytest.fixture(scope="module")
def older() -> Iterator[Running]:
    yield from running(PACKAGE.parent)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from running(next_version(tmp_path_factory.mktemp("next")))


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from running(distant_version(tmp_path_factory.mktemp("distant")))


def running(path: Path) -> Iterator[Running]:
    node = Running(path)
    yield node
    node.close()


@pytest.fixture(params=[*STORES, *MORE])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/semel.db"
        case "postgres" | "mariadb":
            return str(request.getfixturevalue(f"{request.param}_url"))
        case "redis":
            server = request.getfixturevalue("valkey")
            return f"{server.url}?prefix=versions{os.urandom(4).hex()}"
        case _:
            cluster = request.getfixturevalue("valkey_cluster")
            return f"{cluster.url}?prefix=versions{os.urandom(4).hex()}"


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


def key(name: str) -> str:
    return f"{name.replace(' ', '-'):_<32}"


def opened(node: Running, store: str, effects: Path) -> Running:
    assert node("open", url=store, effects=str(effects)) == {}
    return node


def answer(reply: dict[str, Any]) -> tuple[int, str]:
    assert reply["status"] == 201, reply
    return reply["status"], reply["body"]


def counted(effects: Path) -> Counter[str]:
    return Counter(effects.read_text().split())


def test_nodes_of_the_next_version_work_beside_older_ones(
    store: str, effects: Path, older: Running, newer: Running, request: pytest.FixtureRequest
) -> None:
    opened(older, store, effects)
    assert older("migrate").get("version", 0) in (0, 1)
    first = answer(older("ask", key=key("older's")))

    # The newer schema comes while the older node works, with its connections open.
    opened(newer, store, effects)
    newer("migrate")
    assert answer(newer("ask", key=key("older's"))) == first
    second = answer(newer("ask", key=key("newer's")))
    assert answer(older("ask", key=key("newer's"))) == second
    assert answer(older("ask", key=key("older's"))) == first

    # An older one that is restarted meanwhile finds a schema of which it knows a part.
    older("reopen")
    assert "error" not in older("migrate")
    assert answer(older("ask", key=key("newer's"))) == second
    answer(older("ask", key=key("after the restart")))

    ran = both_at_once(older, newer, effects)
    assert set(counted(effects).values()) == {1}
    assert min(ran["older"], ran["newer"]) > 0
    keys = f"{len(counted(effects))} keys, two versions, one effect each"
    met = f"{ran.total()} of them asked of both at once, {ran['older']} run by the older"
    note(request, f"versions: {keys}; {met}", "proof")


def both_at_once(older: Running, newer: Running, effects: Path) -> Counter[str]:
    """Who runs a request does so until the other was refused: they meet for every key. Who ran."""
    ran: Counter[str] = Counter()
    nodes = {"older": older, "newer": newer}
    with ThreadPoolExecutor(2) as pool:
        for at in range(TOGETHER):
            name, gate = key(f"together {at}"), effects.with_name(f"gate-{at}")
            ready = dict(zip(nodes, starts(at, name, effects), strict=True))
            asked = {
                which: pool.submit(ask, node, ready[which], key=name, gate=str(gate))
                for which, node in nodes.items()
            }
            wait(asked.values(), return_when=FIRST_COMPLETED)
            gate.touch()
            statuses = {one.result()["status"]: which for which, one in asked.items()}
            assert statuses.keys() == {201, 409}
            ran[statuses[201]] += 1
            assert answer(older("ask", key=name)) == answer(newer("ask", key=name))
    return ran


def starts(at: int, name: str, effects: Path) -> list[Callable[[], object]]:
    """When each is asked: the first two keys of one while the other runs it; then in a race."""
    if at > 1:
        return [Barrier(2).wait] * 2
    second = partial(until, lambda: effects.exists() and name in counted(effects))
    return [int, second] if at else [second, int]


def ask(node: Running, ready: Callable[[], object], **told: str) -> dict[str, Any]:
    ready()
    return node("ask", **told)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_an_answer_in_a_newer_form_is_refused_and_not_guessed_at(
    store: str, effects: Path, older: Running, newer: Running
) -> None:
    opened(older, store, effects)
    opened(newer, store, effects)
    newer("form", magic="S2")
    try:
        first = answer(newer("ask", key=key("in a newer form")))
        refused = older("ask", key=key("in a newer form"))
        assert (refused["status"], "retry-after" in refused) == (503, True)
        assert answer(newer("ask", key=key("in a newer form"))) == first
    finally:
        newer("form", magic="S1")
    assert set(counted(effects).values()) == {1}


@pytest.mark.parametrize("store", ["sqlite", "postgres", *MORE[:1]], indirect=True)
def test_a_schema_that_older_nodes_cannot_work_with_stops_them_at_once(
    store: str, effects: Path, older: Running, distant: Running
) -> None:
    opened(older, store, effects)
    older("migrate")
    first = answer(older("ask", key=key("older's")))
    opened(distant, store, effects)
    assert distant("migrate") == {"version": 2}
    assert answer(distant("ask", key=key("older's"))) == first

    # Both with the connections it has, and with new ones.
    for _ in range(2):
        assert older("ask", key=key("older's"))["status"] == 503
        assert older("ask", key=key("a new one"))["status"] == 503
        older("reopen")
    assert "upgrade semel" in older("migrate")["error"]
    answer(distant("ask", key=key("a new one")))
    assert set(counted(effects).values()) == {1}


@pytest.mark.parametrize("store", ["redis", *MORE[1:]], indirect=True)
def test_records_under_other_names_are_not_overlooked(
    store: str, effects: Path, older: Running, distant: Running
) -> None:
    """A version that names keys otherwise would find none of the older's, and run them again."""
    opened(older, store, effects)
    answer(older("ask", key=key("older's")))
    opened(distant, store, effects)
    assert distant("ask", key=key("older's"))["status"] == 503
    answer(older("ask", key=key("older's")))
    assert set(counted(effects).values()) == {1}


# ── that it would notice ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_version_that_does_not_look_for_other_names_runs_requests_again(
    store: str, effects: Path, older: Running, tmp_path: Path
) -> None:
    opened(older, store, effects)
    answer(older("ask", key=key("older's")))
    for careless in running(careless_version(tmp_path / "careless")):
        answer(opened(careless, store, effects)("ask", key=key("older's")))
    assert set(counted(effects).values()) == {2}
