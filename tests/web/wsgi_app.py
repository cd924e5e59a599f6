"""The shop as WSGI applications: Flask, and one without any framework.

Configured by the environment, to be run by gunicorn as ``tests.web.wsgi_app:application``.
"""

import os
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flask import Flask, Response, request

import semel
from semel.web.wsgi import Environ, StartResponse, WsgiApp
from tests.waiting import until
from tests.web import shop
from tests.web.effects import Effects


def execute(
    guard: semel.Guard, effects: Effects, path: str, key: str | None, gate: str | None
) -> shop.Sale:
    nonce = effects.happen(key or "-")
    if path == "/outlive" and gate is not None:
        shop.outlive(guard.runtime.keeper, Path(gate))
    until(lambda: shop.opened(gate))
    return shop.sell(path, nonce)


def flask(guard: semel.Guard, effects: Effects) -> WsgiApp:
    app = Flask("shop")

    @app.post("/<path:path>")
    def sell(path: str) -> Response:
        key, gate = request.headers.get("Idempotency-Key"), request.headers.get("X-Gate")
        sale = execute(guard, effects, "/" + path, key, gate)
        body: Any = sale.pieces[0] if len(sale.pieces) == 1 else iter(sale.pieces)
        return Response(body, sale.status, list(sale.headers))

    return guard.wsgi(app.wsgi_app)


def bare(guard: semel.Guard, effects: Effects) -> WsgiApp:
    def sell(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        key, gate = environ.get("HTTP_IDEMPOTENCY_KEY"), environ.get("HTTP_X_GATE")
        sale = execute(guard, effects, environ["PATH_INFO"], key, gate)
        headers = [*sale.headers]
        if len(sale.pieces) == 1:
            headers.append(("Content-Length", str(len(sale.pieces[0]))))
        start_response(f"{sale.status} {HTTPStatus(sale.status).phrase}", headers)
        return one_by_one(sale.pieces)

    return guard.wsgi(sell)


def one_by_one(pieces: tuple[bytes, ...]) -> Iterator[bytes]:
    yield from pieces


def from_environment() -> WsgiApp:
    build = {"flask": flask, "bare": bare}[os.environ["SEMEL_TEST_FRAMEWORK"]]
    return build(shop.guard(), shop.effects())


if "SEMEL_TEST_STORE" in os.environ:
    application = from_environment()
