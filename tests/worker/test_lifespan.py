"""The lifespan of the application that a worker runs requests through."""

import asyncio
from typing import Any

import pytest

import semel
from semel.worker.stored_runs import Lifespan


class App:
    """Starts when its database is there."""

    def __init__(self) -> None:
        self.database = False
        self.said: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while True:
            asked = (await receive())["type"]
            said = "complete" if self.database else "failed"
            self.said.append(f"{asked}.{said}")
            await send({"type": f"{asked}.{said}"})
            if asked == "lifespan.shutdown":
                return


def test_an_application_whose_start_failed_is_started_again_before_it_is_used() -> None:
    app = App()

    async def work() -> None:
        lifespan = Lifespan(app)
        for _ in range(2):
            with pytest.raises(semel.ConfigurationError, match="start-up failed"):
                await lifespan.begin()
        app.database = True
        await lifespan.begin()
        await lifespan.begin()
        await lifespan.end()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())
    failed, started = "lifespan.startup.failed", "lifespan.startup.complete"
    assert app.said == [failed, failed, started, "lifespan.shutdown.complete"]


def test_an_application_without_a_lifespan_is_simply_used() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("only HTTP")

    async def work() -> None:
        lifespan = Lifespan(app)
        await lifespan.begin()
        await lifespan.end()

    asyncio.run(work())
