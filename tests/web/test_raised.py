"""In one transaction, to raise is to undo, whatever a framework answers to it; to return is not."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from litestar import Litestar, post
from litestar import Response as LitestarResponse
from litestar.exceptions import HTTPException as LitestarError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

import semel
from semel.frameworks.flask import install as install_flask
from semel.frameworks.litestar import install as install_litestar
from tests.web.client import Reply, new_key
from tests.web.conftest import Drive, MakeGuard
from tests.web.drive import Ask, WsgiDriver

ATOMIC = semel.ietf(mode="atomic", required=True)


def write() -> None:
    semel.operation().transaction.execute("INSERT INTO orders VALUES (1)")


def starlette(guard: semel.Guard, how: str) -> Any:
    async def order(request: Request) -> PlainTextResponse:
        write()
        if how == "raise":
            raise HTTPException(409, "out of stock")
        try:
            raise LookupError("caught by the endpoint itself, which goes on")
        except LookupError:
            return PlainTextResponse("out of stock", 409)

    return guard.asgi(Starlette(routes=[Route("/x", order, methods=["POST"])]))


def fastapi(guard: semel.Guard, how: str) -> Any:
    app = FastAPI()

    @app.post("/x")
    async def order() -> PlainTextResponse:
        write()
        if how == "raise":
            raise HTTPException(409, "out of stock")
        return PlainTextResponse("out of stock", 409)

    guard.fastapi(app)
    return app


def litestar(guard: semel.Guard, how: str) -> Any:
    @post("/x")
    async def order() -> LitestarResponse[str]:
        write()
        if how == "raise":
            raise LitestarError("out of stock", status_code=409)
        return LitestarResponse("out of stock", status_code=409)

    return Litestar([order], on_app_init=[partial(install_litestar, guard=guard)])


def flask_(guard: semel.Guard, how: str) -> Any:
    app = flask.Flask("shop")

    @app.post("/x")
    def order() -> Any:
        write()
        if how == "raise":
            flask.abort(409, "out of stock")
        return "out of stock", 409

    install_flask(app, guard)
    return app


@pytest.mark.parametrize("how", ["raise", "return"])
@pytest.mark.parametrize("make", [starlette, fastapi, litestar, flask_])
def test_the_answer_is_kept_and_the_writes_only_if_it_was_returned(
    make: Callable[..., Any], how: str, make_guard: MakeGuard, tmp_path: Path, drive: Drive
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        file.execute("CREATE TABLE orders (n INT)")
        app = make(make_guard(f"sqlite:///{tmp_path}/shop.db", policy=ATOMIC), how)
        send: Any = WsgiDriver(app) if make is flask_ else drive(app)
        key = new_key()
        replies: list[Reply] = [send(Ask(key=key)) for _ in range(2)]
        assert [(reply.status, reply.replayed) for reply in replies] == [(409, False), (409, True)]
        rows = file.execute("SELECT count(*) FROM orders").fetchone()
    assert rows == ((0,) if how == "raise" else (1,))
