"""`semel routes`: no state-changing route is overlooked, in any framework."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result

from semel.cli.commands import semel

HEAD = """
import semel
guard = semel.Guard("memory://", tenant=None)
strict = semel.ietf(required=True)
reads = semel.ietf(safe_methods="refuse")
"""

STARLETTE = """
from starlette.applications import Starlette
from starlette.routing import Mount, Route

@guard.route(strict)
async def pay(request): ...

@guard.route(semel.ietf())
async def order(request): ...

async def note(request): ...

app = Starlette(routes=[
    Route("/pay", pay, methods=["POST"]), Route("/orders", order, methods=["POST"]),
    Route("/read", note), Mount("/in", routes=[Route("/notes", note, methods=["POST", "PUT"])]),
])
bare = guard.asgi(app)
app.add_middleware(semel.Middleware, guard=guard)
"""

FASTAPI = """
from fastapi import APIRouter, FastAPI

app, router = FastAPI(), APIRouter(prefix="/in")

@app.post("/pay")
@guard.route(strict)
def pay(): ...

@app.post("/orders")
@guard.route(semel.ietf())
def order(): ...

@app.get("/read")
def read(): ...

@router.post("/notes")
def note(): ...

@router.put("/notes")
def put(): ...

app.include_router(router)
app.add_middleware(semel.Middleware, guard=guard)
"""

FLASK = """
from flask import Blueprint, Flask

app, blue = Flask(__name__), Blueprint("in", __name__, url_prefix="/in")

@app.post("/pay")
@guard.route(strict)
def pay(): ...

@app.post("/orders")
@guard.route(semel.ietf())
def order(): ...

@app.get("/read")
def read(): ...

@blue.route("/notes", methods=["POST", "PUT"])
def note(): ...

app.register_blueprint(blue)
app.wsgi_app = guard.wsgi(app.wsgi_app)
"""

LITESTAR = """
from litestar import Litestar, Router, get, post, put
from litestar.middleware import DefineMiddleware

@post("/pay", sync_to_thread=False)
@guard.route(strict)
def pay() -> None: ...

@post("/orders", sync_to_thread=False)
@guard.route(semel.ietf())
def order() -> None: ...

@get("/read", sync_to_thread=False)
def read() -> None: ...

@post("/notes", sync_to_thread=False)
def note() -> None: ...

@put("/notes", sync_to_thread=False)
def change() -> None: ...

app = Litestar(
    [pay, order, read, Router("/in", route_handlers=[note, change])],
    middleware=[DefineMiddleware(semel.Middleware, guard=guard)],
)
"""

BARE = """
async def inner(scope, receive, send): ...
guard = semel.Guard(
    "memory://", tenant=None,
    routes=[semel.Route("POST", "/pay", strict), semel.Route("GET", "/read", reads)],
)
app = guard.asgi(inner)
closed = semel.Guard("memory://", tenant=None, policy=strict).asgi(inner)
unguarded = inner
def make(): return app
def broken(): raise ValueError("no database")
"""

FRAMEWORKS = {"starlette": STARLETTE, "fastapi": FASTAPI, "flask": FLASK, "litestar": LITESTAR}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path, modules = [*sys.path], {*sys.modules}
    yield tmp_path
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        if name.startswith("audited_"):
            del sys.modules[name]


def write(folder: Path, text: str) -> str:
    name = f"audited_{abs(hash(folder))}_{len(list(folder.iterdir()))}"
    (folder / f"{name}.py").write_text(dedent(HEAD + text))
    return name


def run(*arguments: str) -> Result:
    return CliRunner().invoke(semel, ["routes", *arguments])


def told(*arguments: str) -> dict[tuple[str, str], str]:
    found = json.loads(run("--json", *arguments).stdout)["routes"]
    return {(each["method"], each["path"]): each["keys"] for each in found}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_route_that_changes_something_is_told(name: str, folder: Path) -> None:
    module = write(folder, FRAMEWORKS[name])
    assert told(f"{module}:app") == {
        ("POST", "/pay"): "enforces",
        ("POST", "/orders"): "accepts",
        ("POST", "/in/notes"): "default",
        ("PUT", "/in/notes"): "ignores",
    }


def test_a_method_that_nobody_knows_may_change_something(folder: Path) -> None:
    text = STARLETTE.replace('["POST", "PUT"]', '["POST", "PUT", "PURGE"]')
    assert told(f"{write(folder, text)}:app")["PURGE", "/in/notes"] == "ignores"


def test_an_uncovered_route_is_exit_code_1(folder: Path) -> None:
    app = f"{write(folder, STARLETTE)}:app"
    done = run(app)
    assert done.exit_code == 1
    assert "not covered: POST /in/notes, PUT /in/notes" in done.stdout
    assert "/read" not in done.stdout
    assert run(app, "--allow-default").exit_code == 1
    assert run(app, "--ignore", "PUT:/in/*").exit_code == 1
    assert run(app, "--ignore", "PUT:/in/*", "--allow-default").exit_code == 0
    assert run(app, "--ignore", "PUT:/in/notes", "--ignore", "post:/in/notes").exit_code == 0
    assert run(app, "--ignore", "*:*").exit_code == 0


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_without_a_guard_every_route_ignores_keys(name: str, folder: Path) -> None:
    unguarded = {
        "app.add_middleware(semel.Middleware, guard=guard)": "",
        "app.wsgi_app = guard.wsgi(app.wsgi_app)": "",
        "DefineMiddleware(semel.Middleware, guard=guard)": "",
    }
    text = FRAMEWORKS[name]
    for line, nothing in unguarded.items():
        text = text.replace(line, nothing)
    module = write(folder, text)
    assert set(told(f"{module}:app").values()) == {"ignores"}
    named = told(f"{module}:app", "--guard", f"{module}:guard")
    assert set(named.values()) == {"enforces", "accepts", "default", "ignores"}


COMMITS = """
from typing import Annotated
from fastapi import Depends, FastAPI
app = FastAPI()

def late():
    yield db
    db.commit()

def in_time():
    yield db
    db.commit()

@app.post("/late")
@guard.route(semel.ietf())
async def one(db: Annotated[str, Depends(late)]): ...

@app.post("/in-time")
@guard.route(semel.ietf())
async def two(db: Annotated[str, Depends(in_time, scope="function")]): ...

guard.fastapi(app)
"""


def test_a_dependency_that_commits_too_late_is_told(folder: Path) -> None:
    app = f"{write(folder, COMMITS)}:app"
    done = run(app)
    assert done.exit_code == 0
    assert "POST /late: the dependency late commits after its yield" in done.stdout
    assert "in_time" not in done.stdout
    found = json.loads(run("--json", app).stdout)["routes"]
    late = {each["path"]: each["late_commits"] for each in found}
    assert late == {"/late": ["late"], "/in-time": []}


def test_an_exception_that_fits_nothing_is_told(folder: Path) -> None:
    done = run(f"{write(folder, STARLETTE)}:app", "--ignore", "PUT:/gone")
    assert "semel: --ignore PUT:/gone fits no route\n" in done.stderr
    assert "gone" not in done.stdout


class TestBare:
    def test_what_is_listed_and_the_rest(self, folder: Path) -> None:
        module = write(folder, BARE)
        expected = {("POST", "/pay"): "enforces", ("*", "/{path:path}"): "default"}
        assert told(f"{module}:app") == expected
        assert run(f"{module}:app").exit_code == 1
        assert run(f"{module}:app", "--allow-default").exit_code == 0
        assert told(f"{module}:unguarded", "--guard", f"{module}:guard") == expected
        assert told(f"{module}:make", "--factory") == expected

    def test_a_strict_default_closes_everything(self, folder: Path) -> None:
        assert run(f"{write(folder, BARE)}:closed").exit_code == 0

    def test_the_application_of_the_environment(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its guard is not read from there: it would hide that the application has none."""
        module = write(folder, BARE)
        assert run().exit_code == 2
        monkeypatch.setenv("SEMEL_APP", f"{module}:app")
        assert told()["POST", "/pay"] == "enforces"
        monkeypatch.setenv("SEMEL_GUARD", f"{module}:guard")
        assert run(f"{module}:unguarded").exit_code == 2

    @pytest.mark.parametrize(
        ("target", "said"),
        [
            (":unguarded", "neither routes nor a guard"),
            (":nothing", "has no 'nothing'"),
            (":broken --factory", "no database"),
            (":app --ignore /path", "METHOD:/path"),
        ],
    )
    def test_what_cannot_be_audited_is_one_sentence(
        self, folder: Path, target: str, said: str
    ) -> None:
        done = run(*(write(folder, BARE) + target).split())
        assert done.exit_code == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_an_application_that_changes_nothing(folder: Path) -> None:
    module = write(folder, STARLETTE + "app = Starlette(routes=[Route('/read', note)])")
    done = run(f"{module}:app")
    assert (done.exit_code, done.stdout) == (0, "no route changes anything\n")


def test_where_keys_come_from_is_told_if_it_is_not_the_usual_header(folder: Path) -> None:
    code = """
guard = semel.Guard(
    "memory://", tenant=None, key_from="X-Key",
    routes=[
        semel.Route("POST", "/a", semel.ietf(key_from=("Idempotency-Key", semel.body("/m/k")))),
        semel.Route("POST", "/b", semel.exempt()),
    ],
)
async def inner(scope, receive, send): ...
app = guard.asgi(inner)
"""
    module = write(folder, code)
    shown = run(f"{module}:app", "--allow-default").stdout
    assert "KEY FROM" in shown
    found = json.loads(run(f"{module}:app", "--json").stdout)["routes"]
    assert {each["path"]: each["key_from"] for each in found} == {
        "/a": ["header idempotency-key", "body /m/k"],
        "/b": [],
        "/{path:path}": ["header x-key"],
    }
    assert all(", ".join(each["key_from"]) in shown for each in found)
    assert "KEY FROM" not in run(f"{write(folder, BARE)}:app").stdout
