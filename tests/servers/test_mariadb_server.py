"""MariaDB for the tests is real, recovers as a real one does, and leaves nothing behind."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.servers import MariadbServer, ServerError
from tests.servers.debian import locked
from tests.servers.mysql import chosen
from tests.waiting import until


@pytest.fixture
def server(mariadb: MariadbServer) -> Iterator[MariadbServer]:
    """Of one's own, where there is one at all."""
    with MariadbServer() as own:
        yield own


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_gets_an_empty_database(
    mariadb: MariadbServer, mariadb_url: str, turn: int
) -> None:
    name = mariadb_url.rpartition("/")[0].partition("localhost/")[2].partition("?")[0]
    with mariadb.connect(name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE mine (n int)")


def test_a_killed_server_recovers_at_its_url_and_its_port(server: MariadbServer) -> None:
    server.execute("CREATE TABLE mysql.kept ENGINE=InnoDB AS SELECT 1 AS n")
    before = server.pid
    server.kill()
    with pytest.raises(OSError):
        server.connect()
    server.start()
    assert server.pid != before
    assert server.execute("SELECT n FROM mysql.kept") == [(1,)]
    with pymysql.connect(user="root", host="127.0.0.1", port=server.port) as connection:
        assert connection.open


def test_its_temporary_tables_are_not_where_other_servers_clean_up(mariadb: MariadbServer) -> None:
    assert mariadb.execute("SELECT @@tmpdir") == [(str(mariadb.folder),)]


def test_closing_removes_the_folder(mariadb: MariadbServer) -> None:
    own = MariadbServer().start()
    folder = own.folder
    own.kill()
    own.close()
    assert not folder.exists()


def test_a_named_folder_without_a_server_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEMEL_TEST_MARIADB", str(tmp_path))
    with pytest.raises(ServerError, match="SEMEL_TEST_MARIADB"):
        MariadbServer()


def test_so_is_one_without_a_mysql(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEMEL_TEST_MYSQL", str(tmp_path))
    with pytest.raises(ServerError, match="SEMEL_TEST_MYSQL"):
        chosen()()


def test_one_process_fetches_while_the_others_wait(tmp_path: Path) -> None:
    entered = threading.Event()

    def other() -> None:
        with locked(tmp_path / "lock"):
            entered.set()

    thread = threading.Thread(target=other)
    with locked(tmp_path / "lock"):
        thread.start()
        until(lambda: waited_for(tmp_path / "lock"))
        assert not entered.is_set()
    thread.join()
    assert entered.is_set()


def waited_for(path: Path) -> bool:
    """Whether somebody wants the lock of a file that another has."""
    waiting = [line for line in Path("/proc/locks").read_text().splitlines() if " -> " in line]
    return any(f":{path.stat().st_ino} " in line for line in waiting)
