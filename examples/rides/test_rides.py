"""The example's own tests: ``pytest examples/rides``.

One process, no worker and no waiting. The provider is the real one, in a thread.
"""

# ruff: noqa: S101

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import semel
from examples.rides import app as rides
from examples.rides.gateway import Gateway
from examples.rides.provider import Books, Counter, Server, read
from semel.testing import PrivateStore, StoreClock

KEY = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
LATER = timedelta(minutes=5)
"""Past the lease of a process that died."""
PLACES = [
    *("after claim", "within point ride_created", "after point ride_created"),
    *("within point charged-1", "after point charged-1"),
    *("within point ride_settled", "after point ride_settled", "before completion"),
]


@pytest.fixture
def semel_guard() -> semel.Guard:
    return rides.guard


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the provider really did."""
    path = tmp_path / "provider.jsonl"
    Counter.books, Counter.switches = Books(path), {}
    with Server(("127.0.0.1", 0), Counter) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        gateway = Gateway(f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(rides, "gateway", gateway)
        yield path
        gateway.close()
        server.shutdown()
        thread.join()
    Counter.books.close()


@pytest.fixture
def client(
    semel_store: PrivateStore, log: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    monkeypatch.setattr(rides, "STORE", semel_store.url)  # where the table is made
    with TestClient(rides.app) as made:
        yield made


def order(client: TestClient) -> Any:
    headers = {"Idempotency-Key": KEY, "Authorization": "Bearer token-of-ada"}
    asked = {"pickup": "Station", "destination": "Home", "card": "visa"}
    return client.post("/rides", json=asked, headers=headers)


def done(log: Path) -> list[str]:
    return [entry["status"] for entry in read(log)]


def test_a_ride_is_charged_once_and_its_receipt_mailed_once(
    semel_store: PrivateStore, client: TestClient, log: Path
) -> None:
    assert semel_store.assert_once(lambda: order(client)).status_code == 201
    assert semel_store.run_once(rides.app) == {"deliver": 1}
    assert done(log) == ["charged", "mailed"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("by", ["the rider", "the worker"])
def test_killed_anywhere_a_ride_is_charged_once(
    semel_store: PrivateStore,
    semel_clock: StoreClock,
    client: TestClient,
    log: Path,
    place: str,
    by: str,
) -> None:
    with semel_store.crash(place):
        order(client)
    semel_clock.move(LATER)
    if by == "the worker":
        assert semel_store.run_once(rides.app)["run"] == 1
    assert order(client).status_code == 201
    semel_store.run_once(rides.app)
    assert done(log) == ["charged", "mailed"]
    assert semel_store.points(KEY) == ("ride_created", "charged-1", "ride_settled")


def test_killed_after_its_answer_was_kept_a_ride_is_only_replayed(
    semel_store: PrivateStore, client: TestClient, log: Path
) -> None:
    with semel_store.crash("after completion"):
        order(client)
    assert order(client).headers["idempotent-replayed"] == "true"
    assert (done(log), semel_store.runs(KEY)) == (["charged"], 1)


def test_a_day_later_the_key_is_used_up(
    semel_store: PrivateStore, semel_clock: StoreClock, client: TestClient, log: Path
) -> None:
    order(client)
    semel_clock.move(timedelta(days=1))
    assert order(client).status_code == 410
    assert done(log) == ["charged"]
