"""Nodes that start while another hangs in the middle of its migration."""

from __future__ import annotations

import psycopg

from semel.core.operations.requests import NoRecord, Read
from semel.core.records import Identity
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.backend import LOCK
from tests.waiting import PATIENCE


def test_a_node_that_hangs_with_the_migrations_lock_holds_up_nobody_once_the_schema_is_there(
    postgres_url: str,
) -> None:
    PostgresBackend(postgres_url).migrate()
    with psycopg.connect(postgres_url) as stopped:
        stopped.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        node = PostgresBackend(postgres_url, migrate=True, timeout=PATIENCE)
        assert isinstance(node.blocking().perform(Read(Identity(bytes(32)))), NoRecord)
        node.close()
