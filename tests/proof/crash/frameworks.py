"""The shop in FastAPI and in Flask, guarded by their own adapters."""

from __future__ import annotations

import fastapi
import flask
from fastapi.responses import Response, StreamingResponse

from semel.frameworks.flask import install
from tests.proof.crash.shop import STREAMED, Shop, answer, pieces


def of_fastapi(shop: Shop) -> fastapi.FastAPI:
    app = fastapi.FastAPI()
    shop.guard.fastapi(app)

    async def order(request: fastapi.Request) -> Response:
        route = request.path_params["route"]
        nonce = await shop.adone(route, (await request.body()).decode())
        status, headers, body = answer(nonce)
        lines = {name.decode(): text.decode() for name, text in headers}
        if route in STREAMED:
            return StreamingResponse(pieces(body), status, lines)
        return Response(body, status, lines)

    app.post("/{route}", response_model=None)(order)
    return app


def of_flask(shop: Shop) -> flask.Flask:
    app = flask.Flask("shop")
    install(app, shop.guard)

    def order(route: str) -> flask.Response:
        nonce = shop.done(route, flask.request.get_data(as_text=True))
        status, headers, body = answer(nonce)
        lines = [(name.decode(), text.decode()) for name, text in headers]
        return flask.Response(pieces(body) if route in STREAMED else body, status, lines)

    app.add_url_rule("/<route>", view_func=order, methods=["POST"])
    return app
