"""Tags of Flask endpoints are found through Flask's own router, or it is said that they are not."""

from __future__ import annotations

import logging
from typing import Any

import flask
import flask.views
import pytest
from werkzeug.test import Client

import semel
from semel.web import routes
from semel.web.routes import find_flask_tag

REQUIRED = semel.ietf(required=True)


def made() -> tuple[flask.Flask, semel.Guard]:
    guard = semel.Guard("memory://", tenant=None)
    app = flask.Flask("shop")

    @app.post("/free")
    def free() -> str:
        return "free"

    @app.post("/orders/<int:number>")
    @guard.route(REQUIRED)
    def orders(number: int) -> str:
        return f"order {number}"

    @guard.route(REQUIRED)
    class Refunds(flask.views.MethodView):
        def post(self) -> str:
            return "refund"

    app.add_url_rule("/refunds", view_func=Refunds.as_view("refunds"))
    app.wsgi_app = guard.wsgi(app.wsgi_app)  # type: ignore[method-assign]
    return app, guard


@pytest.mark.parametrize(
    ("path", "status"), [("/free", 200), ("/orders/7", 400), ("/refunds", 400), ("/none", 404)]
)
def test_a_tagged_endpoint_demands_its_key_and_the_others_do_not(path: str, status: int) -> None:
    app, guard = made()
    assert Client(app).post(path).status_code == status
    guard.close()


def test_a_tagged_endpoint_replays() -> None:
    app, guard = made()
    headers = {"Idempotency-Key": "a-key-of-enough-length"}
    client = Client(app)
    first = client.post("/orders/7", headers=headers)
    again = client.post("/orders/7", headers=headers)
    assert (first.text, again.text) == ("order 7", "order 7")
    assert again.headers["Idempotent-Replayed"] == "true"
    guard.close()


def test_a_tag_that_no_router_can_tell_of_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_warned", [])
    semel.Guard("memory://", tenant=None).route(REQUIRED)(lambda: None)
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST"}
    with caplog.at_level(logging.WARNING, "semel"):
        assert find_flask_tag(lambda environ, start: [], environ) is None
        assert find_flask_tag(lambda environ, start: [], environ) is None
    assert len([line for line in caplog.messages if "routes=" in line]) == 1
