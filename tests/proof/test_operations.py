"""Whichever operation of a store fails, and however: one effect, one answer, and no stuck key.

With all tests every store is gone through in one colour; `make proof` takes both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from semel.core.operations.requests import Complete, Release
from semel.errors import StoreUnavailable
from tests.backends import put_backend
from tests.conftest import note
from tests.proof.operations.plays import IN_TRANSACTIONS, PLAYS, Counted, Play, go_through
from tests.proof.operations.stage import HOUR, Stage, staged
from tests.stores.harness import HARNESSES, open_harness, server_of
from tests.web.faulty import Faults, Mishap

MISHAPS: tuple[Mishap, ...] = get_args(Mishap)
ALL = [name for name in HARNESSES if not name.startswith("partitioned")]
SOME: dict[str, tuple[Mishap, ...]] = {
    "memory-sync": MISHAPS,
    "sqlite-async": MISHAPS,
    "postgresql-sync": ("not answered", "cancelled"),
    "mysql-async": ("cancelled",),
    "redis-sync": ("late",),
    "rediscluster-sync": ("not answered",),
}
"""What decides is the same above every store; below it, drivers differ in how they are let down."""


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.fixture
def stage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    runner: asyncio.Runner,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Stage]:
    store, colour = request.param.split("-")
    server = server_of(request, request.param)
    with (
        caplog.at_level(logging.CRITICAL, logger="semel"),
        open_harness(f"{store}-sync", tmp_path, server) as harness,
        staged(harness, Faults(), colour, runner) as made,
    ):
        yield made


def plays_on(stage: Stage) -> tuple[Play, ...]:
    more = stage.harness.backend.capabilities.transactions
    return (*PLAYS, *IN_TRANSACTIONS) if more else PLAYS


def tell(request: pytest.FixtureRequest, counted: Counted) -> None:
    name = request.node.callspec.params["stage"]
    what = f"{counted.total} failed in turn, of {len(counted.failed)} kinds"
    note(request, f"operations of {name}: {what}; one effect each, none stuck", "proof")


@pytest.mark.parametrize("stage", SOME, indirect=True)
def test_an_operation_fails_and_nothing_is_done_twice(
    stage: Stage, request: pytest.FixtureRequest
) -> None:
    counted = Counted()
    name: str = request.node.callspec.params["stage"]
    for play in plays_on(stage):
        if "redis" in name and play.name == "stopped":
            continue  # to look into a thousand buckets, again and again, takes its time
        for mishap in SOME[name]:
            assert go_through(stage, play, mishap, counted) >= 3
    tell(request, counted)


@pytest.mark.proof
@pytest.mark.parametrize("stage", ALL, indirect=True)
def test_every_operation_fails_once_and_nothing_is_done_twice(
    stage: Stage, request: pytest.FixtureRequest
) -> None:
    counted = Counted()
    for play in plays_on(stage):
        for mishap in MISHAPS:
            assert go_through(stage, play, mishap, counted) >= 3
    tell(request, counted)


# ── that it would notice ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stage", ["memory-sync"], indirect=True)
def test_a_store_that_takes_an_error_for_not_applied_is_noticed(stage: Stage) -> None:
    """It says of a claim that it was surely not made, and nobody takes it back."""
    stage.faults.sure = True
    with pytest.raises(AssertionError, match="wedged"):
        go_through(stage, PLAYS[0], "not answered", Counted())


@pytest.mark.parametrize("stage", ["memory-sync"], indirect=True)
def test_a_completion_in_doubt_that_frees_its_key_is_noticed(stage: Stage) -> None:
    """Freed, the key runs its request a second time."""
    put_backend(stage.guard, Hasty(stage.guard.backend))
    with pytest.raises(AssertionError, match=r"first, not done at \['Complete"):
        go_through(stage, PLAYS[0], "not done", Counted())


class Hasty:
    """Takes a failed completion for one that nothing came of."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def blocking(self) -> Any:
        return Hasty(self._backend.blocking())

    def perform(self, op: Any) -> Any:
        try:
            return self._backend.perform(op)
        except StoreUnavailable:
            if isinstance(op, Complete):
                self._backend.perform(Release(op.identity, op.fence, HOUR))
            raise
