"""`semel doctor` as people and programs meet it."""

import json
import re
import secrets
import time
from pathlib import Path

import psycopg
import pytest

from semel.operators.doctor import examine, fit
from semel.stores.memory import MemoryBackend
from semel.stores.sql import migration
from semel.stores.sql.migration import NEEDED
from tests.cli.commandline import run
from tests.servers import MariadbServer, ValkeyServer
from tests.stores.harness import database_of


def findings(out: str) -> list[tuple[str, str]]:
    return [(each["severity"], each["text"]) for each in json.loads(out)["findings"]]


def test_a_store_that_is_fit_is_said_to_be(tmp_path: Path) -> None:
    assert run("doctor", f"sqlite:///{tmp_path}/semel.db").returncode == 2, "it is not made"
    run("migrate", f"sqlite:///{tmp_path}/semel.db")
    done = run("doctor", f"sqlite:///{tmp_path}/semel.db")
    assert done.returncode == 0
    assert done.stdout == f"sqlite:///{tmp_path}/semel.db: fit for use\n"


def test_what_a_store_cannot_promise_is_said(valkey: ValkeyServer) -> None:
    done = run("doctor", "--json", valkey.url)
    told = json.loads(done.stdout)
    limits = " ".join(text for severity, text in findings(done.stdout) if severity == "limit")
    assert "may lose keys" in limits
    assert "no transactions" in limits
    assert "no outbox" in limits
    assert (done.returncode, told["fit"]) == (0, True)


def test_a_redis_that_evicts_is_not_fit() -> None:
    with ValkeyServer({"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"}) as server:
        done = run("doctor", server.url)
    assert done.returncode == 1
    assert "not fit for use" in done.stdout
    assert "allkeys-lru" in done.stdout


def test_a_missing_schema_is_told(postgres_url: str) -> None:
    done = run("doctor", "--json", postgres_url)
    assert done.returncode == 1
    ((severity, text),) = findings(done.stdout)
    assert severity == "refused"
    assert "semel migrate" in text
    assert run("migrate", postgres_url).returncode == 0
    assert run("doctor", postgres_url).returncode == 0


def test_rights_that_are_missing_in_postgresql_are_told_before_they_are_needed(
    postgres_url: str,
) -> None:
    """The reaper is the first to delete, a day later."""
    run("migrate", postgres_url)
    clerk = f"clerk_{secrets.token_hex(4)}"
    tables = "ALL TABLES IN SCHEMA public"
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {clerk} LOGIN".encode())
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {clerk}".encode())
        url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}user={clerk}"
        assert run("doctor", url).returncode == 0
        owner.execute(f"REVOKE DELETE ON semel_record, semel_event FROM {clerk}".encode())
        owner.execute(f"REVOKE UPDATE ON semel_leader FROM {clerk}".encode())
        done = run("doctor", "--json", url)
        owner.execute(f"DROP OWNED BY {clerk}; DROP ROLE {clerk}".encode())
    assert done.returncode == 1
    ((severity, text),) = findings(done.stdout)
    assert severity == "refused"
    assert "DELETE on semel_record, DELETE on semel_event, UPDATE on semel_leader:" in text


def test_rights_that_are_missing_in_mariadb_are_told_before_they_are_needed(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    run("migrate", mariadb_url)
    clerk, database = f"clerk_{secrets.token_hex(4)}", database_of(mariadb_url)
    mariadb.execute(f"CREATE USER {clerk}")
    try:
        mariadb.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {clerk}")
        url = f"mysql://{clerk}@127.0.0.1:{mariadb.port}/{database}"
        assert run("doctor", url).returncode == 0
        mariadb.execute(f"REVOKE UPDATE, DELETE ON {database}.* FROM {clerk}")
        done = run("doctor", "--json", url)
    finally:
        mariadb.execute(f"DROP USER {clerk}")
    assert done.returncode == 1
    refused = [text for severity, text in findings(done.stdout) if severity == "refused"]
    assert "UPDATE on semel_record, DELETE on semel_record" in refused[0]
    assert "INSERT" not in refused[0]


def test_the_rights_that_are_looked_for_are_those_that_the_queries_need() -> None:
    written = re.compile(r"\b(INSERT|UPDATE|DELETE)(?: IGNORE)?(?: INTO| FROM)? (semel_[a-z]+)")
    used = {
        found
        for path in Path(migration.__file__).parent.glob("sent/**/*.sql")
        for found in written.findall(path.read_text())
    }
    looked_for = {(verb, table) for table, (verbs, _) in NEEDED.items() for verb in verbs}
    assert used - {("INSERT", "semel_schema")} <= looked_for


def test_a_redis_that_asks_for_a_password_is_told_in_one_finding() -> None:
    with ValkeyServer() as server:
        server.configure(requirepass="secret")
        done = run("doctor", "--json", server.url)
    told = [text for severity, text in findings(done.stdout) if severity != "limit"]
    assert done.returncode == 1
    assert len(told) == 1, told
    assert "asks for a password" in told[0]


def test_a_server_that_is_gone_is_told(tmp_path: Path) -> None:
    done = run("doctor", f"postgresql://postgres@/gone?host={tmp_path}&timeout=1")
    assert done.returncode == 1
    assert "not fit for use" in done.stdout


def test_without_a_store_it_asks_which() -> None:
    done = run("doctor")
    assert (done.returncode, done.stdout) == (2, "")
    assert "which store?" in done.stderr


@pytest.mark.parametrize(("ahead", "said"), [(0, False), (3600, True), (-3600, True)])
def test_clocks_that_are_far_apart_are_told(ahead: int, said: bool) -> None:
    store = MemoryBackend(clock=lambda: int((time.time() + ahead) * 1_000_000))
    found = examine(store)
    assert fit(found)
    assert any("clock" in each.text for each in found) is said
