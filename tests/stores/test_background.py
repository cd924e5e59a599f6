"""Work in threads of its own: whatever it ends with, its caller hears of it."""

import asyncio

import pytest

from semel.stores.background import in_thread
from tests.waiting import PATIENCE


@pytest.mark.parametrize("error", [StopIteration, ValueError, KeyboardInterrupt])
async def test_what_a_thread_raises_is_heard(error: type[BaseException]) -> None:
    """A future refuses a StopIteration: nothing would ever be heard."""

    def work() -> None:
        raise error("gone")

    expected = RuntimeError if error is StopIteration else error
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(expected, match="gone"):
            await in_thread(work)
