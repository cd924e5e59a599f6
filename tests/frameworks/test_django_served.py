"""Django under gunicorn and uvicorn: killed, left by its clients, tested and looked after."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.servers import PostgresServer, gunicorn, uvicorn
from tests.servers.apps import AppServer
from tests.servers.child import ROOT
from tests.waiting import until
from tests.web.client import Client, new_key

APP = "tests.frameworks.django_served"


@dataclass
class Project:
    """A folder and a database, for all tests; each has keys of its own."""

    folder: Path
    url: str

    @property
    def env(self) -> dict[str, str]:
        return {"FOLDER": str(self.folder), "DATABASE": self.url}

    def effects(self, key: str) -> int:
        log = self.folder / "effects"
        return log.read_text().count(key) if log.exists() else 0

    def hold(self) -> Path:
        (self.folder / "hold").touch()
        return self.folder / "hold"

    def count(self, table: str) -> int:
        with psycopg.connect(self.url) as connection:
            row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert row is not None
        return int(row[0])

    def clear(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)
        with psycopg.connect(self.url) as connection:
            connection.execute("DELETE FROM served_row; DELETE FROM semel_record")


def ran(command: list[str], **env: str) -> str:
    """What a command says; it must succeed."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Project]:
    with postgres.database() as url:
        project = Project(tmp_path_factory.mktemp("project"), url)
        ran([sys.executable, "-m", APP], **project.env)
        yield project


@pytest.fixture
def project(made: Project) -> Project:
    made.clear()
    return made


@pytest.fixture(scope="module")
def wsgi(made: Project) -> Iterator[AppServer]:
    with gunicorn(f"{APP}:application", workers=2, threads=4, env=made.env) as server:
        yield server


@pytest.fixture(scope="module", params=["", "a sync middleware around it"])
def asgi(made: Project, request: pytest.FixtureRequest) -> Iterator[AppServer]:
    with uvicorn(f"{APP}:asgi", env={**made.env, "OUTER": request.param}) as server:
        yield server


def test_many_duplicates_at_once_write_one_row_in_threads(
    project: Project, wsgi: AppServer
) -> None:
    many_at_once(project, Client(wsgi.url), "/rows")


def test_many_duplicates_at_once_write_one_row_in_an_event_loop(
    project: Project, asgi: AppServer
) -> None:
    many_at_once(project, Client(asgi.url), "/arows")


def many_at_once(project: Project, client: Client, path: str) -> None:
    key = new_key()
    replies = client.at_once(12, path, key)
    assert {reply.status for reply in replies} <= {201, 409}
    assert client.insist(path, key).status == 201
    assert project.effects(key) == 1
    assert project.count("served_row") == 1


def test_kill_in_an_atomic_view_leaves_nothing_behind(project: Project, wsgi: AppServer) -> None:
    key, hold = new_key(), project.hold()
    client = Client(wsgi.url)
    with client.post_and_leave("/rows", key):
        until(lambda: project.effects(key) == 1)
    assert client.post("/rows", key).code == "in-flight"
    wsgi.kill()
    assert (project.count("served_row"), project.count("semel_record")) == (0, 0)
    hold.unlink()
    wsgi.start()
    assert client.insist("/rows", key).status == 201
    assert client.post("/rows", key).replayed
    assert (project.count("served_row"), project.count("semel_record")) == (1, 1)
    assert project.effects(key) == 2


def test_a_client_that_leaves_takes_neither_the_view_nor_its_record_with_it(
    project: Project, asgi: AppServer
) -> None:
    """Django cancels what it does for a client that has left, and ends its threads."""
    client = Client(asgi.url)
    keys = {path: new_key() for path in ("/rows", "/arows", "/slow", "/aslow")}
    hold = project.hold()
    left = [client.post_and_leave(path, key) for path, key in keys.items()]
    until(lambda: all(project.effects(key) == 1 for key in keys.values()))
    for sock in left:
        sock.close()
    assert {client.post(path, key).code for path, key in keys.items()} == {"in-flight"}
    hold.unlink()
    for path, key in keys.items():
        reply = client.insist(path, key)
        assert (path, reply.status, reply.replayed) == (path, 201, True)
    assert [project.effects(key) for key in keys.values()] == [1, 1, 1, 1]
    assert project.count("served_row") == 2


# ── the example's project, from its command line ──────────────────────────────────────────────────

MANAGE = [sys.executable, str(ROOT / "examples" / "django" / "manage.py")]
SEMEL = [sys.executable, "-m", "semel"]


def test_a_test_case_takes_its_keys_with_it(tmp_path: Path) -> None:
    said = ran([*MANAGE, "test", "examples.django.shop.tests"], SHOP_FOLDER=str(tmp_path))
    assert "Ran 5 tests" in said
    assert list(tmp_path.glob("*.db")) == [], "it is all in memory"


def test_the_command_line_opens_the_projects_database(tmp_path: Path) -> None:
    env = {"SHOP_FOLDER": str(tmp_path), "DJANGO_SETTINGS_MODULE": "examples.django.settings"}
    ran([*MANAGE, "migrate", "-v", "0"], **env)
    assert "fit for use" in ran([*SEMEL, "doctor", "django://default"], **env)
    guard = "examples.django.shop.guards:guard"
    assert "django://default" in ran([*SEMEL, "doctor", "--guard", guard], **env)
