"""The test servers are real, recover as real ones do, and leave nothing behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.forms import in_proof
from tests.servers import AppServer, PostgresServer, ServerError, gunicorn, uvicorn, warden
from tests.servers.privileges import DROPPED, way_to_run
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
SERVED = "tests.servers.served"


def execute(url: str, statement: bytes) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=PATIENCE)


def family(*servers: PostgresServer | AppServer, of: int) -> list[int]:
    """Their processes, as soon as there are so many: who serves may still be starting others."""

    def found() -> list[int] | None:
        pids = [pid for each in servers for pid in (each.pid, *each.child.descendants())]
        return pids if len(pids) >= of else None

    return until(found)


def gone(pid: int) -> bool:
    return warden.parent_of(Path("/proc", str(pid))) is None


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


# --- PostgreSQL


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_gets_an_empty_database(postgres_url: str, turn: int) -> None:
    execute(postgres_url, b"CREATE TABLE mine (n int)")


def test_a_restart_keeps_the_data_and_the_url(own_postgres: PostgresServer) -> None:
    execute(own_postgres.url, b"CREATE TABLE kept AS SELECT 1 AS n")
    before = own_postgres.pid
    own_postgres.restart()
    assert own_postgres.pid != before
    assert execute(own_postgres.url, b"SELECT n FROM kept") == [(1,)]


def test_a_killed_server_takes_its_backends_along_and_recovers() -> None:
    with PostgresServer(fsync=True) as server:
        assert execute(server.url, b"SHOW fsync") == [("on",)]
        execute(server.url, b"CREATE TABLE kept AS SELECT 1 AS n")
        with psycopg.connect(server.url) as connection:
            pids = family(server, of=3)
            server.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert all(map(gone, pids))
        server.start()
        assert execute(server.url, b"SELECT n FROM kept") == [(1,)]


def test_closing_removes_processes_folder_and_shared_memory() -> None:
    server = PostgresServer().start()
    folder, segment = server.folder, segment_of(server)
    server.kill()  # the untidy end: PostgreSQL itself cleans up nothing
    server.close()
    assert not folder.exists()
    assert segment not in segments()


def segment_of(server: PostgresServer) -> str:
    return (server.data / "postmaster.pid").read_text().splitlines()[6].split()[-1]


def segments() -> list[str]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [line.split()[1] for line in lines]


def test_commits_are_not_synced_unless_asked_for(postgres: PostgresServer) -> None:
    assert execute(postgres.url, b"SHOW fsync") == [("off",)]


def test_tcp_is_there_when_asked_for(postgres: PostgresServer) -> None:
    with PostgresServer(tcp=True, settings={"max_connections": "20"}) as server:
        assert execute(server.tcp_url(), b"SHOW max_connections") == [("20",)]
    with pytest.raises(ServerError, match="tcp=True"):
        postgres.tcp_url()


def test_a_missing_server_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEMEL_TEST_POSTGRES", str(tmp_path))
    with pytest.raises(ServerError, match="SEMEL_TEST_POSTGRES"):
        PostgresServer()


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(ServerError, match="no_such_setting"),
        PostgresServer(settings={"no_such_setting": "1"}),
    ):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_root_without_user_namespaces_becomes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.privileges.NAMESPACE", DROPPED)
    binaries = PostgresServer().binaries
    assert way_to_run(binaries.folder / "postgres") == DROPPED
    with PostgresServer() as server:
        assert server.data.stat().st_uid == DROPPED.owner


# --- PgBouncer


def test_the_pooler_changes_backends_between_transactions(pgbouncer_url: str) -> None:
    with psycopg.connect(pgbouncer_url) as one, psycopg.connect(pgbouncer_url) as other:
        used = backend(one)
        one.commit()
        assert backend(other) == used


def backend(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    return int(row[0])


# --- applications


def asgi(workers: int = 1) -> AppServer:
    return uvicorn(f"{SERVED}:asgi_app", workers=workers, env={"GREETING": "hello"})


def wsgi(workers: int = 1) -> AppServer:
    return gunicorn(f"{SERVED}:wsgi_app", workers=workers, env={"GREETING": "hello"})


@pytest.mark.parametrize("workers", [2, *in_proof(1)])
@pytest.mark.parametrize("serve", [asgi, wsgi])
def test_an_application_is_served(serve: Callable[[int], AppServer], workers: int) -> None:
    with serve(workers) as server:
        pid, greeting, client = get(server.url).text.split(maxsplit=2)
        assert int(pid) in family(server, of=1)
        assert greeting == "hello"
        assert "127.0.0.1" in client


@pytest.mark.parametrize("serve", [asgi, wsgi])
def test_a_stopped_server_ends_well_and_comes_back_on_its_port(
    serve: Callable[[], AppServer],
) -> None:
    with serve() as server:
        url = server.url
        # uvicorn raises the signal again once it has shut down in good order.
        assert server.stop() in (0, 128 + signal.SIGTERM)
        with pytest.raises(httpx.ConnectError):
            get(url)
        server.start()
        assert get(url).status_code == 200


@pytest.mark.parametrize("serve", [asgi, wsgi])
def test_a_killed_server_takes_its_workers_along(serve: Callable[[int], AppServer]) -> None:
    with serve(2) as server:
        pids = family(server, of=3)
        server.kill()
        assert all(map(gone, pids))
        with pytest.raises(httpx.ConnectError):
            get(server.url)


@pytest.mark.parametrize("serve", [uvicorn, gunicorn])
def test_an_application_that_cannot_be_loaded_says_why(serve: Callable[[str], AppServer]) -> None:
    with pytest.raises(ServerError, match="no_such_module"), serve("no_such_module:app"):
        pass


# --- nothing outlives the tests

SESSION = """
import sys
from tests.servers import PostgresServer
from tests.servers.test_servers import asgi, family
with PostgresServer() as database, asgi(2) as app:
    pids = family(database, app, of=6)
    print(database.folder, app._folder, app.port, *pids, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("group", [False, True])
def test_servers_die_with_a_test_session_that_is_killed(group: bool) -> None:
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        process_group=0,
    )
    with session:
        assert session.stdout is not None
        database, app, port, *pids = session.stdout.readline().decode().split()
        assert len(pids) >= 6
        (os.killpg if group else os.kill)(session.pid, signal.SIGKILL)
    until(lambda: all(gone(int(pid)) for pid in pids))
    until(lambda: not Path(database).exists() and not Path(app).exists())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))
