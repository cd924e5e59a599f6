"""The way of a request has a budget: who makes it longer has to say so here."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import semel
from bench import calls
from semel.core.request import keys
from semel.web import asgi

BUDGET = {
    ("memory", "fresh"): (99, 25, 17),
    ("memory", "replay"): (43, 22, 9),
    ("SQLite", "fresh"): (155, 30, 19),
    ("SQLite", "replay"): (43, 23, 9),
}
"""At most: calls of semel's own functions, files they are in, objects made. SQLite's fresh request
has two calls and a file to spare, for its timer may fall into it."""


def counted() -> Any:
    """In a process of its own, which has loaded nothing else."""
    command = [sys.executable, "-m", "bench.calls", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found() -> Any:
    return counted()


@pytest.mark.parametrize(("store", "way"), BUDGET)
def test_a_request_keeps_within_its_budget(store: str, way: str, found: Any) -> None:
    (one,) = [each for each in found if (each["store"], each["way"]) == (store, way)]
    for name, most in zip(("calls", "modules", "made"), BUDGET[store, way], strict=True):
        assert one[name] <= most, (name, one["most"])


def test_what_is_counted_is_the_same_every_time(found: Any) -> None:
    memory = [[each for each in it if each["store"] == "memory"] for it in (found, counted())]
    assert memory[0] == memory[1]


def test_a_call_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = calls.counted("memory", "memory://")[1].calls
    plain = asgi.asked
    monkeypatch.setattr(asgi, "asked", lambda *given: keys.mask("a key") and plain(*given))
    assert calls.counted("memory", "memory://")[1].calls == before + 1


def test_what_another_route_asks_for_costs_a_route_nothing() -> None:
    """Beside the look at the path of the one route that is listed."""
    usual = {each.way: each for each in calls.counted("memory", "memory://")}
    elsewhere = {"routes": [semel.Route("POST", "/other", semel.ietf())]}
    listed = {each.way: each for each in calls.counted("memory", "memory://", **elsewhere)}
    unused = calls.OPTIONS["all of them, on another route"]
    for each in calls.counted("memory", "memory://", **unused):
        assert (each.calls, each.made) == (listed[each.way].calls, listed[each.way].made)
    for each in calls.counted("memory", "memory://", **calls.OPTIONS["publish, refusal"]):
        assert (each.calls, each.steps) == (usual[each.way].calls, usual[each.way].steps)


def test_the_command_compares_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert calls.main(["--options"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["option", "way", "calls", "steps", "ratio"]
    assert len(rows) == 2 * len(calls.OPTIONS)


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert calls.main(["--most"]) == 0
    assert capsys.readouterr().out.startswith(
        "store    way     calls  modules  made  steps\nmemory   "
    )
