"""The campaign's deaths once more, without its short cuts: uvicorn, HTTP and ``semel worker``."""

from __future__ import annotations

import http.client
import signal
from pathlib import Path

import pytest

from tests.examples.rides.town import Town, insist, order, town
from tests.servers import AppServer
from tests.web.client import new_key

STEPS = (
    *("Claim 1", "begin 1", "Advance 1", "commit 1"),
    *("Advance 2", "charges 1", "Advance 3"),
    *("begin 2", "Enqueue 1", "Advance 4", "commit 2", "Complete 1"),
)
PLACES = tuple(f"{when} {step}" for step in STEPS for when in ("before", "after"))
WORST = "after charges 1"


def die_at(rides: Town, place: str) -> str:
    """The key of a ride whose server died at ``place``."""
    key = new_key()
    with rides.server(place) as doomed:
        with pytest.raises((http.client.HTTPException, OSError)):
            order(doomed, key)
        assert doomed.child.wait() == 128 + signal.SIGKILL
    return key


def work_and_die(rides: Town, most: int) -> None:
    """Workers that die at a later boundary each time, until one finds nothing to die of."""
    for number in range(0, 4 * most, 4):
        rides.time.passes()
        if rides.work(str(number)) == 0:
            break


def check(rides: Town, server: AppServer, keys: list[str]) -> None:
    answers = [insist(rides, server, key) for key in keys]
    with rides.worker():
        rides.until_quiet()
    assert {answer.status for answer in answers} == {201}
    assert [order(server, key).body for key in keys] == [answer.body for answer in answers]
    charged = [entry["ride"] for entry in rides.charges()]
    mailed = [entry["ride"] for entry in rides.receipts()]
    assert len(charged) == len(set(charged)) == len(mailed) == len(set(mailed)) == len(keys)


def test_killed_servers_and_workers_leave_one_charge_and_one_receipt(folder: Path) -> None:
    with town(f"sqlite:///{folder / 'rides.db'}", folder) as rides:
        key = die_at(rides, WORST)
        rides.time.passes()
        assert rides.work("after void 1") == -signal.SIGKILL
        with rides.server() as server:
            check(rides, server, [key])
        assert rides.fates == [f"server: {WORST[:-2]}", "semel worker: after void"]


@pytest.mark.proof
def test_servers_killed_at_every_place(
    store: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with town(store, folder) as rides:
        keys = [die_at(rides, place) for place in PLACES]
        work_and_die(rides, most=30)
        with rides.server() as server:
            check(rides, server, keys)
        with capsys.disabled():
            print(f"\n{store[:10]}: {len(rides.fates)} real servers and workers were killed")
        assert len(rides.fates) >= len(PLACES)
