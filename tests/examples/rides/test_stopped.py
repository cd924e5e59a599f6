"""A process that is stopped just before its charge, and goes on when others have done its work.

With SIGSTOP nothing of it runs: no lease is renewed. Another node takes the ride over and finishes
it. Whether the first one charges as well when it goes on is counted in the provider's log.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.examples.rides.audit import rides_of
from tests.examples.rides.campaign import FINAL, Ground
from tests.examples.rides.process import Task
from tests.examples.rides.town import Town, insist, is_stopped, order, town
from tests.proof.crash.boundaries import read
from tests.proof.crash.zygote import Child
from tests.waiting import until
from tests.web.client import new_key

INTENDED = "after Advance 2"
"""The intent is on record; the lease is looked at next."""
SENDING = "before charges 1"
"""The lease has been looked at; the request is on its way into the socket."""


def overtaken(here: Ground, folder: Path, where: str, *, first: str = "", second: str = "") -> str:
    """The key of a ride that another process finished, before the first went on to its end."""
    key = new_key()

    def asked(at: str | None, without: str) -> Child:
        task = Task("request", str(folder), [key], at, signal.SIGSTOP, without)
        return here.zygote.start(asdict(task))

    def answered() -> str | None:
        here.time.passes()
        asked(None, second).settle()
        return final(folder)[-1] if final(folder) else None

    stopped = asked(where, first).settle(stopped_too=True)
    try:
        assert stopped.stopped
        answer = until(answered)
    finally:
        stopped.resume()
    stopped.settle()
    asked(None, second).settle()
    assert set(final(folder)) == {answer}
    return key


def final(folder: Path) -> list[str]:
    """The answers that clients need not ask for again."""
    answers = read(folder / "answers.jsonl")
    return [answer["body"] for answer in answers if answer["status"] in FINAL]


def charges(here: Ground, key: str) -> int:
    """How often the provider charged for the ride."""
    rides = rides_of(here.store)[key]
    done = [(entry["status"], entry.get("ride")) for entry in here.provider.entries]
    return sum(done.count(("charged", ride)) for ride in rides)


def test_stopped_before_it_looks_at_its_lease_it_sends_nothing(
    standing: Ground, folder: Path
) -> None:
    """The probe's word is taken for final here, so that nothing but the lease stands in the way."""
    assert (
        charges(standing, overtaken(standing, folder, INTENDED, first="void", second="void")) == 1
    )


def test_stopped_behind_that_its_charge_is_refused_because_it_was_called_off(
    standing: Ground, folder: Path
) -> None:
    before = len(standing.provider.entries)
    assert charges(standing, overtaken(standing, folder, SENDING)) == 1
    assert standing.provider.entries[before]["status"] == "voided"


GUARDS = pytest.mark.parametrize(
    ("where", "first"),
    [
        pytest.param(INTENDED, "void, lease", id="no look at the lease"),
        pytest.param(SENDING, "void", id="not found is taken for never"),
    ],
)


@GUARDS
def test_without_its_guard_the_charge_is_made_twice(
    where: str, first: str, standing: Ground, folder: Path
) -> None:
    """Positive controls: the tests above can fail."""
    assert charges(standing, overtaken(standing, folder, where, first=first, second="void")) == 2


# ── the same under real servers ───────────────────────────────────────────────────────────────────


def served(rides: Town, where: str, *, first: str = "", second: str = "") -> int:
    """How many charges there are when the first server has gone on and come to its end."""
    with (
        rides.server(where, signal.SIGSTOP, first) as stopped,
        rides.server(without=second) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        key = new_key()
        waiting = thread.submit(order, stopped, key)
        try:
            until(lambda: is_stopped(stopped.pid))
            reply = insist(rides, other, key)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        late = waiting.result()
        assert late.status not in FINAL or late.body == reply.body
        assert insist(rides, other, key).body == reply.body
        assert reply.status == 201
        return len(rides.charges())


@pytest.mark.proof
def test_of_servers_the_one_that_was_stopped_charges_nothing(store: str, folder: Path) -> None:
    with town(store, folder) as rides:
        assert served(rides, INTENDED, first="void", second="void") == 1


@pytest.mark.proof
@pytest.mark.parametrize("honours_keys", [False, True])
def test_of_servers_the_one_that_was_stopped_behind_that_charges_nothing(
    store: str, folder: Path, honours_keys: bool
) -> None:
    with town(store, folder, honours_keys=honours_keys) as rides:
        assert served(rides, SENDING) == 1
        assert honours_keys or rides.provider.entries[0]["status"] == "voided"


@pytest.mark.proof
@GUARDS
def test_of_servers_without_a_guard_both_charge(where: str, first: str, folder: Path) -> None:
    with town(f"sqlite:///{folder / 'rides.db'}", folder) as rides:
        assert served(rides, where, first=first, second="void") == 2
