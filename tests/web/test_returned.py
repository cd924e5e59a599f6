"""An endpoint that returned has acted, also when no answer can be made of what it returned."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import flask
import pytest
import quart
from django.template.response import SimpleTemplateResponse
from django.views.decorators.csrf import csrf_exempt
from fastapi import APIRouter, Depends, FastAPI
from fastapi import routing as fastapi_routing
from litestar import Litestar, post

import semel
from semel.frameworks.flask import install as install_flask
from semel.frameworks.litestar import install as install_litestar
from semel.web.framework_internals import watch_fastapi
from tests.frameworks.django_site import Site
from tests.web.client import Reply, new_key
from tests.web.conftest import Drive, MakeGuard
from tests.web.drive import Ask, Driver, WsgiDriver

Charges = list[int]
Around = Callable[[FastAPI, semel.Guard], Any]


def at_the_gate(app: FastAPI, guard: semel.Guard) -> Any:
    guard.fastapi(app)
    return app


def from_outside(app: FastAPI, guard: semel.Guard) -> Any:
    return guard.asgi(app)


def as_middleware(app: FastAPI, guard: semel.Guard) -> Any:
    app.add_middleware(semel.Middleware, guard=guard)
    return app


AROUND = [at_the_gate, from_outside, as_middleware]


def thrice(send: Driver) -> list[Reply]:
    key = new_key()
    return [send(Ask(key=key)) for _ in range(3)]


def assert_in_doubt(send: Driver, charges: Charges) -> None:
    first, *others = thrice(send)
    assert first.status == 500
    assert [reply.code for reply in others] == ["outcome-unknown"] * 2
    assert charges == [100]


def assert_released(send: Driver, charges: Charges, tries: int = 3) -> None:
    assert [reply.status for reply in thrice(send)] == [500] * 3
    assert charges == [100] * tries


# ── FastAPI, Litestar ─────────────────────────────────────────────────────────────────────────────


def answers_nonsense(charges: Charges, *, is_async: bool = True) -> FastAPI:
    """What it returns is not what it declares."""
    router = APIRouter()

    async def pay() -> Any:
        charges.append(100)
        return {"not": "a number"}

    def pay_in_thread() -> Any:
        charges.append(100)
        return {"not": "a number"}

    router.post("/x", response_model=int)(pay if is_async else pay_in_thread)
    app = FastAPI()
    app.include_router(router)
    return app


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("around", AROUND)
def test_an_answer_that_fastapi_refuses_is_in_doubt(
    around: Around, is_async: bool, guard: semel.Guard, drive: Drive
) -> None:
    charges: Charges = []
    app = around(answers_nonsense(charges, is_async=is_async), guard)
    assert_in_doubt(drive(app), charges)


def raises(charges: Charges) -> FastAPI:
    app = FastAPI()

    @app.post("/x")
    async def pay() -> None:
        charges.append(100)
        raise LookupError

    return app


def depends_on_what_raises(charges: Charges) -> FastAPI:
    app = FastAPI()

    async def database() -> None:
        raise ConnectionRefusedError

    @app.post("/x", dependencies=[Depends(database)])
    async def pay() -> None:
        charges.append(100)

    return app


@pytest.mark.parametrize(("made", "tries"), [(raises, 3), (depends_on_what_raises, 0)])
@pytest.mark.parametrize("around", AROUND)
def test_an_endpoint_of_fastapis_or_a_dependency_that_raises_is_released(
    around: Around,
    made: Callable[[Charges], FastAPI],
    tries: int,
    guard: semel.Guard,
    drive: Drive,
) -> None:
    charges: Charges = []
    assert_released(drive(around(made(charges), guard)), charges, tries)


def test_in_an_unknown_fastapi_every_exception_is_a_doubt(
    guard: semel.Guard,
    drive: Drive,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    charges: Charges = []
    monkeypatch.delattr(fastapi_routing, "run_endpoint_function")
    guarded = guard.asgi(raises(charges))
    monkeypatch.undo()
    assert "this version of FastAPI is not known" in caplog.text
    assert_in_doubt(drive(guarded), charges)


def test_this_fastapi_is_known() -> None:
    assert watch_fastapi()
    assert hasattr(fastapi_routing.run_endpoint_function, "__semel_watched__")


def test_in_one_transaction_nothing_has_happened(
    make_guard: MakeGuard, drive: Drive, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        file.execute("CREATE TABLE orders (n INT)")
        app, charges = FastAPI(), list[int]()

        @app.post("/x", response_model=int)
        async def pay() -> Any:
            charges.append(100)
            semel.async_operation().transaction.execute("INSERT INTO orders VALUES (1)")
            return {"not": "a number"}

        atomic = semel.ietf(mode="atomic")
        make_guard(f"sqlite:///{tmp_path}/shop.db", policy=atomic).fastapi(app)
        assert_released(drive(app), charges)
        assert file.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_an_answer_that_litestar_cannot_write_is_in_doubt(guard: semel.Guard, drive: Drive) -> None:
    charges: Charges = []

    @post("/x")
    async def pay() -> dict[str, Any]:
        charges.append(100)
        return {"when": object()}

    app: Any = Litestar(
        [pay], on_app_init=[partial(install_litestar, guard=guard)], openapi_config=None
    )
    assert_in_doubt(drive(app), charges)


# ── Flask, Django ─────────────────────────────────────────────────────────────────────────────────


def flask_around(how: str, app: flask.Flask, guard: semel.Guard) -> Any:
    if how == "from outside":
        return guard.wsgi(app)
    install_flask(app, guard)
    return app


class Unmade:
    """A view whose answer cannot be made, or that raises before it has one."""

    def __init__(self, made: Callable[[], Any] | None) -> None:
        self.charges: Charges = []
        self._made = made

    def __call__(self) -> Any:
        self.charges.append(100)
        if self._made is None:
            raise LookupError
        return self._made()

    def judge(self, send: Driver) -> None:
        judged = assert_released if self._made is None else assert_in_doubt
        judged(send, self.charges)


def nonsense() -> Any:
    return {"when": object()}, 201


@pytest.mark.parametrize("made", [nonsense, None], ids=["unmade", "raised"])
@pytest.mark.parametrize("how", ["at the view", "from outside"])
def test_an_answer_that_flask_cannot_make_is_in_doubt_and_what_is_raised_released(
    how: str, made: Callable[[], Any] | None, guard: semel.Guard
) -> None:
    app, view = flask.Flask("shop"), Unmade(made)
    app.add_url_rule("/x", "pay", view, methods=["POST"])
    view.judge(WsgiDriver(flask_around(how, app, guard)))


@pytest.mark.parametrize("made", [nonsense, None], ids=["unmade", "raised"])
def test_an_answer_that_quart_cannot_make_is_in_doubt_and_what_is_raised_released(
    made: Callable[[], Any] | None, guard: semel.Guard, drive: Drive
) -> None:
    app, view = quart.Quart("shop"), Unmade(made)

    @app.post("/x")
    async def pay() -> Any:
        return view()

    view.judge(drive(guard.asgi(app)))  # type: ignore[arg-type]


class Unwritable(SimpleTemplateResponse):
    @property
    def rendered_content(self) -> str:
        raise LookupError("no such template")


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
@pytest.mark.parametrize(
    "made", [lambda: None, lambda: Unwritable("pay.html"), None], ids=["none", "unmade", "raised"]
)
def test_an_answer_that_django_cannot_make_is_in_doubt_and_what_is_raised_released(
    colour: str, made: Callable[[], Any] | None, guard: semel.Guard, runner: asyncio.Runner
) -> None:
    view = Unmade(made)

    @csrf_exempt
    def pay(request: Any) -> Any:
        return view()

    with closing(Site(guard, {"x": pay})) as site:
        view.judge(site.driver(colour, runner))


# ── any application ───────────────────────────────────────────────────────────────────────────────


def test_a_head_that_wsgi_cannot_carry_is_in_doubt(guard: semel.Guard) -> None:
    charges: Charges = []

    def pay(environ: Any, start_response: Any) -> Any:
        charges.append(100)
        start_response("201 Created", [("X-Name", "Zo\u0151")])
        return [b"paid"]

    assert_in_doubt(WsgiDriver(guard.wsgi(pay)), charges)


def test_a_head_that_asgi_cannot_carry_is_in_doubt(guard: semel.Guard, drive: Drive) -> None:
    charges: Charges = []

    async def pay(scope: Any, receive: Any, send: Any) -> None:
        charges.append(100)
        await send({"type": "http.response.start", "status": 201, "headers": [("x", "text")]})

    assert_in_doubt(drive(guard.asgi(pay)), charges)
