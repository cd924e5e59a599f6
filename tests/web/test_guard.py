"""The guard as one object per application; threads and forks: `tests/runtime/test_runtime.py`."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar
from litestar.config.app import AppConfig

import semel
from semel.frameworks import fastapi, flask, litestar
from semel.web.wsgi import WsgiMiddleware
from tests.web.colours import once, wsgi
from tests.web.conftest import MakeGuard
from tests.web.drive import WsgiDriver
from tests.web.effects import Effects


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
        made(print, guard="sqlite:///semel.db")


@pytest.mark.parametrize(
    ("module", "app"), [(fastapi, FastAPI()), (flask, Flask("shop")), (litestar, AppConfig())]
)
@pytest.mark.parametrize("guard", [None, "sqlite:///semel.db"])
def test_install_takes_a_guard_in_every_framework(module: Any, app: Any, guard: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match=r"guard= takes a semel\.Guard, not"):
        module.install(app, guard)


def test_litestar_is_guarded_while_it_is_made(make_guard: MakeGuard) -> None:
    made: Any = Litestar([])
    with pytest.raises(semel.ConfigurationError, match="while it is made"):
        litestar.install(made, make_guard())
