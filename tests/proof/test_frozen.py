"""What the first version left in its stores is read by this one, byte for byte, and finished."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.errors import SemelError
from semel.stores import open_backend
from tests.proof.versions import first
from tests.proof.versions.frozen import FOLDER, executing, thaw_keys, thaw_rows
from tests.servers import ValkeyServer
from tests.stores.harness import CLEAR

SERVERS = {"postgresql": "postgres", "mysql": "mariadb"}


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql"])
def test_what_the_first_schema_holds_is_read_and_finished(
    dialect: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(SERVERS[dialect]) if dialect in SERVERS else None
    with executing(dialect, server) as (url, execute):
        thaw_rows(dialect, execute)
        backend = open_backend(url)
        backend.migrate()
        first.finish(backend.blocking(), outbox=True)
        backend.close()


def test_what_the_first_layout_holds_is_read_and_finished(valkey: ValkeyServer) -> None:
    prefix = f"own{os.urandom(6).hex()}"
    thaw_keys(valkey.ask, prefix)
    backend = open_backend(valkey.socket_url, prefix=prefix)
    first.finish(backend.blocking(), outbox=False)
    backend.close()
    valkey.ask("EVAL", CLEAR, 0, f"{prefix}:*")


IN_PROGRESS = re.compile(r"(, \d,) 2,(?= [12], NULL, \{)")
"""Between what becomes of a lapsed lease and the duty."""


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("5331", "5332", 1),  # the mark of a stored response: S1, S2
        lambda text: re.sub(
            r" CHECK \(state BETWEEN 1 AND 6\)", "", IN_PROGRESS.sub(r"\1 9,", text)
        ),
        lambda text: text.replace("semel_record", "semel_records"),
    ],
    ids=["a form that is not known", "a state that is not known", "another table"],
)
def test_a_change_of_what_is_stored_is_noticed(
    damage: Callable[[str], str], tmp_path: Path
) -> None:
    for name in ("sqlite.schema.sql", "sqlite.rows.sql"):
        (tmp_path / name).write_text(damage((FOLDER / name).read_text()))
    with executing("sqlite", None) as (url, execute):
        thaw_rows("sqlite", execute, tmp_path)
        backend = open_backend(url)
        with pytest.raises((AssertionError, SemelError)):
            first.finish(backend.blocking(), outbox=True)
        backend.close()
