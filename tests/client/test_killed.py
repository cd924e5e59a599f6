"""A client is killed at its worst moments: who has its journal finishes its calls, once each."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.client import Resumed
from tests.client.conftest import Shop
from tests.client.kinds import KINDS, QUICK, Client
from tests.waiting import PATIENCE, until

PROJECT = Path(__file__).parents[2]


@contextmanager
def paying(shop: Shop, journal: Path, order: str, when: str) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [f"{shop.url}/ietf", str(journal), order, when]
    command = [sys.executable, "-m", "tests.client.payer", *arguments]
    with subprocess.Popen(command, cwd=PROJECT) as process:
        try:
            yield process
        finally:
            process.kill()


def killed(shop: Shop, journal: Path, order: str, when: str) -> None:
    """Run a payer until it has killed itself."""
    with paying(shop, journal, order, when) as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL


def killed_while_waiting(shop: Shop, journal: Path, order: str, when: str) -> None:
    """Run a payer until the server has done its order, and kill it before it hears of that."""
    with paying(shop, journal, order, when) as process:
        await_effect(shop, order, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL


def await_effect(shop: Shop, order: str, process: subprocess.Popen[bytes]) -> None:
    until(lambda: shop.effects.of(order) or process.poll() is not None)
    assert process.poll() is None


@contextmanager
def restarted(journal: Path, kind: str = "httpx") -> Iterator[Client]:
    token = {"Authorization": "Bearer ann's second"}
    options: dict[str, Any] = {"credentials": lambda call: token, "keep_headers": ["X-Order"]}
    options["resume_within"] = timedelta(hours=23)
    with KINDS[kind](journal, PATIENCE, budget=QUICK, **options) as client:
        yield client


def is_paid_once(shop: Shop, order: str, done: list[Resumed[Any]]) -> bool:
    """One effect, under one key, and its own answer was told to the restarted process."""
    effects = shop.effects.of(order)
    answers = [each.response.json() for each in done if each.response and each.call.name == order]
    told = [answer["nonce"] for answer in answers]
    keys = set(shop.keys(order))
    return len(keys) == 1 and told == [effect.nonce for effect in effects] and len(effects) == 1


def test_killed_before_the_journal_is_written_nothing_was_sent(
    shop: Shop, journal: Path, order: str
) -> None:
    killed(shop, journal, order, "before the journal")
    with restarted(journal) as client:
        assert (client.pending(), client.resume()) == ([], [])
    assert (shop.effects.of(order), shop.keys(order)) == ([], [])


@pytest.mark.parametrize(("when", "effects"), [("after the journal", 0), ("after the answer", 1)])
def test_killed_after_the_journal_is_written_the_call_is_finished(
    shop: Shop, journal: Path, order: str, when: str, effects: int
) -> None:
    killed(shop, journal, order, when)
    assert len(shop.effects.of(order)) == effects
    with restarted(journal) as client:
        done = client.resume()
        assert client.pending() == []
    assert is_paid_once(shop, order, done)


def test_killed_between_sending_and_the_answer_the_call_is_finished_with_its_key(
    shop: Shop, journal: Path, order: str
) -> None:
    killed_while_waiting(shop, journal, order, "never")
    with restarted(journal) as client:
        done = client.resume()
        assert client.pending() == []
    assert is_paid_once(shop, order, done)
    assert len(shop.keys(order)) > 1


def test_a_journal_that_is_written_after_sending_loses_the_call(
    shop: Shop, journal: Path, order: str
) -> None:
    """The control: the same death, the same verdict, and it is not passed."""
    killed_while_waiting(shop, journal, order, "journal last")
    with restarted(journal) as client:
        assert not is_paid_once(shop, order, client.resume())
    release = httpx.post(f"{shop.url}/release/{order}", trust_env=False, timeout=PATIENCE)
    release.raise_for_status()
    assert len(shop.effects.of(order)) == 1  # it has happened, and nobody knows


def test_a_call_that_a_living_process_is_at_is_left_to_it(
    shop: Shop, journal: Path, order: str
) -> None:
    with paying(shop, journal, order, "never") as process:
        await_effect(shop, order, process)
        with restarted(journal, "aiohttp") as client:
            (entry,) = client.pending()
            assert entry.held
            assert client.resume() == []
            process.kill()
            process.wait()
            (entry,) = client.pending()
            assert not entry.held
            (done,) = client.resume()
    assert done.error is None
    assert len(shop.effects.of(order)) == 1
    assert json.loads(entry.call.body)["order"] == order
