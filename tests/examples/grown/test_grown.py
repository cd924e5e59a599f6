"""A project that has been there for years gets semel, as the page says, on real databases."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from semel.frameworks.alembic import PREFIX, include_name
from semel.stores import open_backend
from tests.docs.pages import ROOT, page
from tests.docs.story import play

PAGE = page("docs/howto/frameworks/existing-project.md")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone of the project, as it was before."""
    there = tmp_path / "grown"
    shutil.copytree(
        ROOT / "examples/grown", there, ignore=shutil.ignore_patterns("__pycache__", "*.db*")
    )
    return there


def test_the_page_leads_from_the_clone_to_the_first_kept_answer(project: Path) -> None:
    assert play(PAGE, project) == 6
    with closing(sqlite3.connect(project / "hotel.db")) as file:
        booked = file.execute("SELECT agency, room FROM booking ORDER BY id").fetchall()
    assert booked == [*[("tern travel", 7)] * 2, ("tern travel", 9), ("wren tours", 11)]


def alembic(
    project: Path, url: str, *arguments: str, warnings: str = "error"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", warnings, "-m", "alembic", *arguments]
    env = {**os.environ, "DATABASE_URL": url}
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)


def of_sqlalchemy(url: str) -> str:
    """How SQLAlchemy writes what semel calls ``url``."""
    url = url.replace("postgresql://", "postgresql+psycopg://").replace("?socket", "?unix_socket")
    return url.replace("mysql://", "mysql+pymysql://")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, project: Path) -> str:
    """The database of the project, with its own tables and semel's."""
    match request.param:
        case "postgresql":
            found = request.getfixturevalue("postgres_url")
        case "mariadb":
            found = request.getfixturevalue("mariadb_url")
        case _:
            found = f"sqlite:///{project}/hotel.db"
    made = alembic(project, of_sqlalchemy(found), "upgrade", "head")
    assert made.returncode == 0, made.stderr
    backend = open_backend(found, migrate=True)
    backend.migrate()
    backend.close()
    return of_sqlalchemy(found)


def with_the_filter(project: Path) -> None:
    (env,) = [block for block in PAGE.blocks if block.title == "migrations/env.py"]
    (project / "migrations/env.py").write_text(env.text)


def generated(project: Path, url: str, warnings: str = "error") -> str:
    """The migration that Alembic writes by itself."""
    given = ("revision", "--autogenerate", "-m", "found")
    done = alembic(project, url, *given, warnings=warnings)
    assert done.returncode == 0, done.stderr
    (written,) = (project / "migrations/versions").glob("*_found.py")
    return written.read_text()


def test_autogenerate_leaves_semels_tables_alone(project: Path, url: str) -> None:
    with_the_filter(project)
    assert PREFIX not in generated(project, url)
    checked = alembic(project, url, "upgrade", "head")
    assert checked.returncode == 0, checked.stderr
    assert alembic(project, url, "check").stdout == "No new upgrade operations detected.\n"
    engine = sqlalchemy.create_engine(url)
    with closing(engine.connect()) as connection:
        tables = sqlalchemy.inspect(connection).get_table_names()
    engine.dispose()
    assert {"booking", "semel_record"} <= set(tables)


def test_a_new_column_of_the_projects_own_is_still_found(project: Path, url: str) -> None:
    with_the_filter(project)
    models = project / "hotel/models.py"
    models.write_text(models.read_text() + "    guests: Mapped[int | None]\n")
    assert "op.add_column('booking', sa.Column('guests'" in generated(project, url)


def test_without_the_filter_it_would_drop_them(project: Path, url: str) -> None:
    """The control: this is what the filter is there for."""
    assert "op.drop_table('semel_record')" in generated(project, url, warnings="ignore")


def test_every_table_of_semels_has_the_prefix(postgres_url: str) -> None:
    backend = open_backend(postgres_url, migrate=True)
    backend.migrate()
    backend.close()
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        names = [str(name) for (name,) in found]
    assert names
    assert [name for name in names if include_name(name, "table", {})] == []
    assert include_name("booking", "table", {})
    assert include_name("semel_like", "index", {})
    assert include_name(None, "schema", {})
