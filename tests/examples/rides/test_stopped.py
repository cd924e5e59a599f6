"""A process that is stopped just before its charge, and goes on when others have done its work.

With SIGSTOP nothing of it runs: no lease is renewed. Another node takes the ride over and finishes
it. Whether the first one charges as well when it goes on is counted in the provider's log.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.examples.rides.town import Town, insist, is_stopped, order, town
from tests.web.client import Reply, new_key
from tests.waiting import until

INTENDED = "after Advance 2"
"""The intent is on record; the lease is looked at next."""
SENDING = "before charges 1"
"""The lease has been looked at; the request is on its way into the socket."""


def overtaken(rides: Town, where: str, *, first: str = "", second: str = "") -> Reply:
    """The second node's answer, after the first has gone on and come to its end."""
    with (
        rides.server(where, signal.SIGSTOP, first) as stopped,
        rides.server(without=second) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        key = new_key()
        waiting = thread.submit(order, stopped, key)
        until(lambda: is_stopped(stopped.pid))
        reply = insist(other, key)
        os.kill(stopped.pid, signal.SIGCONT)
        late = waiting.result()
        assert late.status not in (201, 402) or late.body == reply.body
        assert insist(other, key).body == reply.body
        return reply


def test_stopped_before_it_looks_at_its_lease_it_sends_nothing(store: str, folder: Path) -> None:
    """The probe's word is taken for final here, so that nothing but the lease stands in the way."""
    with town(store, folder) as rides:
        assert overtaken(rides, INTENDED, first="void", second="void").status == 201
        assert len(rides.charges()) == 1


def test_stopped_behind_that_its_charge_is_refused_because_it_was_called_off(
    store: str, folder: Path
) -> None:
    with town(store, folder) as rides:
        assert overtaken(rides, SENDING).status == 201
        assert len(rides.charges()) == 1
        assert next(iter(rides.provider.entries))["status"] == "voided"


@pytest.mark.proof
def test_stopped_behind_that_a_provider_that_honours_keys_charges_once(
    store: str, folder: Path
) -> None:
    with town(store, folder, honours_keys=True) as rides:
        assert overtaken(rides, SENDING).status == 201
        assert len(rides.charges()) == 1


@pytest.mark.parametrize(
    ("where", "first"),
    [
        pytest.param(INTENDED, "void, lease", id="no look at the lease"),
        pytest.param(SENDING, "void", id="not found is taken for never"),
    ],
)
def test_without_its_guard_the_charge_is_made_twice(where: str, first: str, folder: Path) -> None:
    """Positive controls: the tests above can fail."""
    with town(f"sqlite:///{folder / 'rides.db'}", folder) as rides:
        overtaken(rides, where, first=first, second="void")
        assert len(rides.charges()) == 2
