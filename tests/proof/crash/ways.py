"""The ways in, called colours: semel's own adapters, those of frameworks, and functions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tests.proof.crash.shop import Shop, answer, pieces

if TYPE_CHECKING:
    import fastapi
    import flask

COLOURS: Final = ("asgi", "wsgi")
DJANGO: Final = ("django", "adjango", "mdjango")
"""In threads, in an event loop, and views in threads below an event loop."""
FRAMEWORKS: Final = ("fastapi", "flask", *DJANGO)
FUNCTIONS: Final = ("once", "aonce")
"""`guard.once`, and awaited. Their keys are others than those of requests."""
AWAITED: Final = ("asgi", "fastapi", "adjango", "mdjango", "aonce")

_MODULES: Final = {
    "fastapi": ("fastapi", "semel.web.fastapi", "semel.web.gated"),
    "flask": ("flask", "semel.web.flask"),
    **dict.fromkeys(DJANGO, ("tests.proof.crash.project", "django.db.models.sql.compiler")),
    "once": ("semel.once",),
    "aonce": ("semel.once",),
}


def load(colour: str) -> None:
    """In the zygote: what children of this colour need, beyond what all do."""
    for name in _MODULES.get(colour, ()):
        importlib.import_module(name)


def peers(colours: tuple[str, ...]) -> tuple[str, ...]:
    """By which ways the keys that came in by ``colours`` may come again, and be worked on."""
    if colours[0] in FUNCTIONS:
        return FUNCTIONS
    return tuple(dict.fromkeys((*COLOURS, *colours)))


def way(shop: Shop, colour: str) -> Any:
    """The guarded application; None where functions are called instead."""
    match colour:
        case "asgi":
            return shop.guard.asgi(shop.asgi)
        case "wsgi":
            return shop.guard.wsgi(shop.wsgi)
        case "fastapi":
            return of_fastapi(shop)
        case "flask":
            return of_flask(shop)
        case "django" | "adjango" | "mdjango":
            from tests.proof.crash.project import application

            return application(shop, colour)
        case _:
            return None


def of_flask(shop: Shop) -> flask.Flask:
    import flask

    from semel.web.flask import Semel

    app = flask.Flask("shop")
    Semel(app, shop.guard)

    def order(route: str) -> flask.Response:
        nonce = shop.done(route, flask.request.get_data(as_text=True))
        status, headers, body = answer(nonce)
        flowing: Iterator[bytes] | bytes = pieces(body) if shop.streams(route) else body
        return flask.Response(flowing, status, [(k.decode(), v.decode()) for k, v in headers])

    app.add_url_rule("/<route>", view_func=order, methods=["POST"])
    return app


def of_fastapi(shop: Shop) -> fastapi.FastAPI:
    import fastapi
    from fastapi.responses import Response, StreamingResponse

    app = fastapi.FastAPI()
    shop.guard.fastapi(app)

    async def order(request: fastapi.Request) -> Response:
        route = request.path_params["route"]
        nonce = await shop.adone(route, (await request.body()).decode())
        status, headers, body = answer(nonce)
        lines = {name.decode(): text.decode() for name, text in headers}
        if shop.streams(route):
            return StreamingResponse(pieces(body), status, lines)
        return Response(body, status, lines)

    order.__annotations__ = {"request": fastapi.Request, "return": Response}
    app.post("/{route}", response_model=None)(order)
    return app
