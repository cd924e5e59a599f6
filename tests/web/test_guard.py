"""The guard as one object per application: threads, forks, settings."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from flask import Flask

import semel
from semel.process.attendant import Attendant
from semel.web.flask import Semel
from semel.web.litestar import SemelPlugin
from semel.web.wsgi import WsgiMiddleware
from tests.waiting import PATIENCE
from tests.web.colours import once, wsgi
from tests.web.conftest import MakeGuard
from tests.web.drive import WsgiDriver
from tests.web.effects import Effects

THREADS = 8


class Meeting(dict[int, Attendant]):
    """Nobody is told that there is none before all have asked."""

    def __init__(self) -> None:
        super().__init__()
        self._all = Barrier(THREADS)

    def get(self, generation: int, default: Any = None) -> Any:
        found = super().get(generation, default)
        self._all.wait(PATIENCE)
        return found


def test_threads_that_come_first_together_share_one_attendant(make_guard: MakeGuard) -> None:
    """Of two, one would renew leases that the other lets go."""
    guard = make_guard()
    guard._attendants = Meeting()
    with ThreadPoolExecutor(THREADS) as pool:
        assert len(set(pool.map(lambda _: guard.attendant, range(THREADS)))) == 1


def test_a_forked_child_gets_an_attendant_of_its_own(make_guard: MakeGuard) -> None:
    guard = make_guard()
    parents = guard.attendant
    child = os.fork()
    if child == 0:
        os._exit(0 if guard.attendant is not parents else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert guard.attendant is parents


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_closed_guard_opens_again(
    store: str, tmp_path: Path, make_guard: MakeGuard, effects: Effects
) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'keys.db'}"
    guard = make_guard(url)
    send = WsgiDriver(guard.wsgi(wsgi(once(effects))))
    first = send()
    guard.close()
    assert (send().body, len(effects.all())) == (first.body, 1)


@pytest.mark.parametrize("store", ["memory://", "sqlite:///unused.db"])
def test_migrate_may_be_said_of_any_store(store: str, make_guard: MakeGuard) -> None:
    assert make_guard(store, migrate=True).backend.url == store


def test_making_a_guard_does_no_io(tmp_path: Path) -> None:
    semel.Guard(f"sqlite:///{tmp_path / 'keys.db'}", tenant=None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("made", [semel.Middleware, WsgiMiddleware])
def test_a_guard_is_a_guard(made: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match=r"guard= takes a semel\.Guard, not str"):
        made(None, guard="sqlite:///semel.db")


@pytest.mark.parametrize("made", [SemelPlugin, partial(Semel, Flask("shop"))])
@pytest.mark.parametrize("guard", [None, "sqlite:///semel.db"])
def test_so_it_is_for_extensions(made: Any, guard: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match=r"needs a semel\.Guard"):
        made(guard)
