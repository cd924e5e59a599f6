"""What becomes of callers in an event loop whose batch brings no answer: without a server."""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any, cast

import pytest

from semel.core.operations.requests import Claimed, StoreOperation
from semel.errors import StoreUnavailable
from semel.stores.postgres.errors import store_error
from semel.stores.postgres.values import KINDS
from semel.stores.sql.batcher_async import AsyncBatcher
from semel.stores.sql.batches import MAX_SINGLES
from semel.stores.sql.plans import Rows, Statement
from tests.stores.together import SOON, claim, never_overdue
from tests.waiting import PATIENCE, turns

pytestmark = pytest.mark.anyio

REPLY = Claimed(2, 1, 1)


class Silent:
    """A pool whose connections answer only when they are told to."""

    KINDS = KINDS
    store_error = staticmethod(store_error)

    def __init__(self) -> None:
        self.timeout = PATIENCE
        self.batches: list[asyncio.Future[Rows]] = []
        self.alone: list[tuple[StoreOperation[Any], bool]] = []
        self.gate = asyncio.Event()

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        self.batches.append(asyncio.get_running_loop().create_future())
        return self.batches[-1]

    async def perform(self, op: Any, deadline: float, *, doubt: bool = False) -> Any:
        await self.gate.wait()
        self.alone.append((op, doubt))
        return REPLY

    def deadline(self) -> float:
        return monotonic() + self.timeout

    async def aclose(self) -> None: ...

    def abandon(self) -> None: ...


def lanes_of(pool: Silent, timeout: float = PATIENCE) -> AsyncBatcher:
    pool.timeout = timeout
    return AsyncBatcher(cast("Any", pool))


async def crowded(pool: Silent, batcher: AsyncBatcher) -> Sequence[asyncio.Future[Any]]:
    """From here on everybody goes in batches: one is under way, and its two callers are told."""
    first = [asyncio.ensure_future(batcher.perform(claim())) for _ in range(MAX_SINGLES + 2)]
    await turns()
    pool.gate.set()
    await asyncio.wait(first[:MAX_SINGLES])
    await turns()
    assert len(pool.batches) == 1
    pool.gate.clear()
    pool.alone.clear()
    return first[MAX_SINGLES:]


async def test_of_those_who_ask_at_once_few_go_alone() -> None:
    pool = Silent()
    batcher = lanes_of(pool)
    asked = [asyncio.ensure_future(each) for each in [batcher.perform(claim()) for _ in range(30)]]
    await turns()
    pool.gate.set()
    await asyncio.wait(asked[:MAX_SINGLES])
    await turns()
    assert (len(pool.alone), len(pool.batches)) == (MAX_SINGLES, 1)


async def test_who_is_in_a_batch_without_an_answer_is_told_in_time_that_it_may_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never_overdue(monkeypatch)
    pool = Silent()
    batcher = lanes_of(pool, SOON)
    asked = [asyncio.ensure_future(batcher.perform(claim())) for _ in range(MAX_SINGLES + 5)]
    await turns()
    pool.gate.set()
    ended = await asyncio.gather(*asked, return_exceptions=True)
    errors = [each for each in ended if isinstance(each, StoreUnavailable)]
    assert [error.applied for error in errors] == [None] * 5
    assert len(pool.batches) == 1


async def test_who_waits_behind_it_is_told_in_time_that_it_is_not_done_and_is_never_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never_overdue(monkeypatch)
    pool = Silent()
    batcher = lanes_of(pool)
    first = await crowded(pool, batcher)
    pool.timeout = SOON
    ended = await asyncio.gather(
        *[batcher.perform(claim()) for _ in range(5)], return_exceptions=True
    )
    assert [getattr(each, "applied", ...) for each in ended] == [False] * 5
    pool.batches[0].set_result([])
    pool.gate.set()
    assert await asyncio.gather(*first) == [REPLY] * 2
    assert len(pool.batches) == 1


async def test_who_leaves_before_it_is_sent_again_alone_is_not_sent() -> None:
    pool = Silent()
    batcher = lanes_of(pool)
    first = await crowded(pool, batcher)
    asked = [asyncio.ensure_future(batcher.perform(claim())) for _ in range(4)]
    pool.batches[0].set_result([])  # those of the first go alone, and wait at the gate
    await turns()
    assert len(pool.batches) == 2
    pool.batches[1].set_result([])
    await turns()
    for each in asked[::2]:
        each.cancel()
    await turns()
    pool.gate.set()
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert ended[1::2] == await asyncio.gather(*first) == [REPLY] * 2
    assert len(pool.alone) == 2 + 2


async def test_a_batch_whose_answer_is_lost_is_sent_again_in_doubt() -> None:
    pool = Silent()
    batcher = lanes_of(pool)
    first = await crowded(pool, batcher)
    pool.gate.set()
    pool.batches[0].cancel()
    assert await asyncio.gather(*first) == [REPLY] * 2
    assert [doubt for _, doubt in pool.alone] == [True, True]
