"""The example does what its README says, under a real server and the real worker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, page
from tests.examples.rides.campaign import database
from tests.examples.rides.town import Town, insist, order, town
from tests.forms import in_proof
from tests.proof.crash.grounds import thrown_away
from tests.servers import AppServer
from tests.servers.ports import free_port
from tests.waiting import PATIENCE, until
from tests.web.client import Client, Reply, new_key


@pytest.fixture(scope="module", params=["sqlite", "mariadb", *in_proof("postgresql")])
def open_town(request: pytest.FixtureRequest) -> Iterator[tuple[Town, AppServer]]:
    with (
        thrown_away() as folder,
        database(request.param, folder, request.getfixturevalue) as store,
        town(store, folder) as rides,
        rides.server() as server,
        rides.worker(),
    ):
        yield rides, server


def entries(rides: Town, reply: Reply) -> list[str]:
    """What the provider did for a ride."""
    ride = json.loads(reply.body)["id"]
    return [entry["status"] for entry in rides.provider.entries if entry.get("ride") == ride]


def test_a_ride_is_charged_once_mailed_once_and_its_answer_replayed(
    open_town: tuple[Town, AppServer],
) -> None:
    rides, server = open_town
    key = new_key()
    first, again = order(server, key), order(server, key)
    assert (first.status, first.replayed, again.replayed) == (201, False, True)
    assert again.body == first.body
    rides.until_quiet()
    assert entries(rides, first) == ["charged", "mailed"]


def test_a_declined_card_is_an_answer_that_is_kept(open_town: tuple[Town, AppServer]) -> None:
    rides, server = open_town
    key = new_key()
    rides.provider.switch(decline=True)
    first = order(server, key)
    rides.provider.switch()
    again = order(server, key)
    assert (first.status, again.status, again.replayed) == (402, 402, True)
    assert again.body == first.body
    assert entries(rides, first) == ["declined"]


def test_a_lost_answer_is_looked_up_by_the_worker_and_the_ride_goes_on(
    open_town: tuple[Town, AppServer],
) -> None:
    rides, server = open_town
    key = new_key()
    rides.provider.switch(drop=True)
    assert order(server, key).status == 503
    rides.provider.switch()
    assert order(server, key).code == "outcome-unknown"
    rides.time.passes()
    rides.until_quiet()
    again = order(server, key)
    assert (again.status, again.replayed) == (201, True)
    assert entries(rides, again) == ["charged", "mailed"]


@pytest.mark.parametrize("open_town", ["sqlite"], indirect=True)
def test_a_charge_that_arrives_after_it_was_called_off_is_refused(
    open_town: tuple[Town, AppServer],
) -> None:
    """On its way for longer than the application waits, and than whoever asks about it."""
    rides, server = open_town
    key, before = new_key(), len(rides.provider.entries)
    rides.provider.switch(hold=True)
    assert order(server, key).status == 503
    rides.time.passes()
    rides.until_quiet()
    rides.provider.switch()
    until(lambda: rides.provider.late() == 1)
    assert entries(rides, order(server, key)) == ["charged", "mailed"]
    assert rides.provider.entries[before]["status"] == "voided"


def test_a_provider_that_honours_keys_is_simply_asked_again(folder: Path) -> None:
    store = f"sqlite:///{folder / 'rides.db'}"
    with town(store, folder, honours_keys=True) as rides, rides.server() as server:
        key = new_key()
        rides.provider.switch(drop=True)
        assert order(server, key).status == 503
        rides.provider.switch()
        assert entries(rides, insist(rides, server, key)) == ["charged"]


@pytest.mark.parametrize("open_town", ["sqlite"], indirect=True)
def test_a_stranger_is_turned_away(open_town: tuple[Town, AppServer]) -> None:
    _, server = open_town
    assert Client(server.url).post("/rides", new_key()).status == 401


def test_its_own_tests_pass(folder: Path) -> None:
    """As a reader runs them, but for where files are left."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--basetemp", str(folder)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, "examples/rides"], cwd=ROOT, env=env, capture_output=True, timeout=PATIENCE
    )
    assert ended.returncode == 0, ended.stdout.decode()


# ── what is said about it ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("block", page("docs/tutorial/rides.md").blocks, ids=str)
def test_the_tutorial_shows_the_examples_own_code(block: Block) -> None:
    sources = [path.read_text() for path in (ROOT / "examples/rides").glob("*.py")]
    assert block.language != "python" or any(block.text in source for source in sources)


def test_the_readme_starts_the_whole_town(folder: Path) -> None:
    """Provider, API and worker, by one line; the end of it is theirs."""
    ports = {"UVICORN_PORT": str(free_port()), "RIDES_PROVIDER": f"http://127.0.0.1:{free_port()}"}
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **ports}
    command = [sys.executable, "-m", "examples.rides"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log) as process,
    ):
        try:
            until(lambda: _pids(folder / "log"))
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
    assert [pid for pid in _pids(folder / "log") if Path(f"/proc/{pid}").exists()] == []


def _pids(log: Path) -> list[int]:
    return [int(pid) for pid in re.findall(r"^\w+: process (\d+)$", log.read_text(), re.MULTILINE)]
