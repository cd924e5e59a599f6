"""Bells: prompt, quiet when nothing happens, and back after an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from semel.core.operations.outbox import Enqueue, TakeEffects
from semel.errors import ConfigurationError
from semel.runtime.leases import new_fence
from semel.stores import open_backend
from semel.stores.base import Backend
from semel.worker.wake_up import AGAIN_AFTER, EFFECT, LOOK_EVERY, WORK, Listener, listener_for
from tests.servers import PostgresServer
from tests.waiting import PATIENCE, Ahead, turns


class Heard:
    """The channels that rang."""

    def __init__(self) -> None:
        self.channels: list[str] = []
        self._rang = asyncio.Event()

    def __call__(self, channel: str) -> None:
        self.channels.append(channel)
        self._rang.set()

    async def something(self) -> None:
        await self._rang.wait()
        self._rang.clear()

    async def connected(self) -> None:
        """A listener rings everything once when it begins to listen."""
        while not {EFFECT, WORK} <= set(self.channels):
            await self.something()
        self.channels.clear()
        self._rang.clear()


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a notification to ourselves: one that is late is no sign of a pooler here."""
    monkeypatch.setattr("semel.worker.wake_up._PATIENCE", PATIENCE)


@asynccontextmanager
async def listening(listener: Listener | None) -> AsyncIterator[Heard]:
    assert listener is not None
    heard = Heard()
    task = asyncio.create_task(listener.listen(heard))
    try:
        async with asyncio.timeout(PATIENCE):
            yield heard
    finally:
        task.cancel()
        await asyncio.wait({task})


def write(backend: Backend, key: str) -> None:
    backend.blocking().perform(Enqueue(key, None, "paid", b"1"))


def look(backend: Backend) -> None:
    backend.blocking().perform(TakeEffects(new_fence(), ("shipped",), 10, 1_000_000))


async def test_sqlite_rings_for_every_commit_and_for_nothing_else(tmp_path: Path) -> None:
    """A look that takes nothing must not ring: the worker would wake itself for ever."""
    backend = open_backend(f"sqlite:///{tmp_path / 'semel.db'}", timeout=PATIENCE)
    backend.migrate()
    async with listening(listener_for(backend)) as heard:
        clock = Ahead()
        await heard.connected()
        write(backend, "k1")
        await heard.something()
        await clock.forward(LOOK_EVERY)
        heard.channels.clear()
        for _ in range(5):
            look(backend)
            await clock.forward(LOOK_EVERY)
        assert heard.channels == []
        write(backend, "k2")
        await heard.something()
    backend.close()


async def test_sqlite_is_listened_to_once_its_file_is_there(tmp_path: Path) -> None:
    backend = open_backend(f"sqlite:///{tmp_path / 'semel.db'}", timeout=PATIENCE)
    async with listening(listener_for(backend)) as heard:
        await turns()
        assert not (tmp_path / "semel.db").exists()
        backend.migrate()
        await Ahead().forward(1)
        await heard.connected()
    backend.close()


async def test_postgresql_rings_for_effects(postgres_url: str) -> None:
    backend = open_backend(postgres_url, timeout=PATIENCE)
    backend.migrate()
    async with listening(listener_for(backend)) as heard:
        await heard.connected()
        write(backend, "k1")
        await heard.something()
        assert EFFECT in heard.channels
    backend.close()


async def test_postgresql_rings_a_second_time_for_what_did_not_notify(postgres_url: str) -> None:
    """Written just behind another, an effect is committed without a notification of its own."""
    backend = open_backend(postgres_url, timeout=PATIENCE)
    backend.migrate()
    async with listening(listener_for(backend)) as heard:
        clock = Ahead()
        await heard.connected()
        await clock.forward(AGAIN_AFTER)
        heard.channels.clear()
        with psycopg.connect(postgres_url, autocommit=True) as session:
            session.execute("SELECT pg_notify('semel_effect', '')")
        while len(heard.channels) < 2:
            await heard.something()
        await clock.forward(AGAIN_AFTER * 2)
        assert heard.channels == [EFFECT, EFFECT]
    backend.close()


async def test_postgresql_is_listened_to_again_after_its_sessions_were_ended(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = open_backend(postgres_url, timeout=PATIENCE)
    backend.migrate()
    async with listening(listener_for(backend)) as heard:
        await heard.connected()
        with psycopg.connect(postgres_url, autocommit=True) as operator:
            ours = "datname = current_database() AND pid <> pg_backend_pid()"
            operator.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}".encode()
            )
        await heard.connected()
        write(backend, "k1")
        await heard.something()
    assert "polling meanwhile" in caplog.text
    backend.close()


async def test_postgresql_is_listened_to_again_after_a_restart(tmp_path: Path) -> None:
    with PostgresServer() as server, server.database() as url:
        backend = open_backend(url, timeout=PATIENCE)
        backend.migrate()
        async with listening(listener_for(backend)) as heard:
            await heard.connected()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await heard.connected()
        backend.close()


async def test_behind_a_transaction_pooler_it_says_that_it_polls_and_how_to_listen(
    pgbouncer_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The short patience is for the notification that never comes. A session that is not open by
    then is opened again."""
    monkeypatch.setattr("semel.worker.wake_up._PATIENCE", 0.5)
    backend = open_backend(pgbouncer_url, timeout=PATIENCE)
    backend.migrate()
    listener = listener_for(backend)
    assert listener is not None
    heard = Heard()
    async with asyncio.timeout(PATIENCE):
        await listener.listen(heard)
    assert heard.channels == []
    assert "as behind a transaction pooler: polling" in caplog.text
    backend.close()


async def test_a_url_to_listen_at_leads_around_the_pooler(
    pgbouncer_url: str, postgres: PostgresServer
) -> None:
    backend = open_backend(pgbouncer_url, timeout=PATIENCE)
    backend.migrate()
    database = pgbouncer_url.partition("@/")[2].partition("?")[0]
    async with listening(listener_for(backend, postgres.url_of(database))) as heard:
        await heard.connected()
        write(backend, "k1")
        await heard.something()
        assert EFFECT in heard.channels
    backend.close()


def test_a_store_in_memory_has_no_bell() -> None:
    assert listener_for(open_backend("memory://")) is None


def test_a_url_to_listen_at_is_for_postgresql(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        listener_for(open_backend(f"sqlite:///{tmp_path / 'x.db'}"), "postgresql://elsewhere")
