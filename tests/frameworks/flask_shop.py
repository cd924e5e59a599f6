"""A small Flask application under the extension, for the tests of it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import semel
from semel.frameworks.flask import install

PEOPLE = {"Bearer ann": "ann", "Bearer ben": "ben"}


class Shop:
    """An application, its guard, and how often its views ran."""

    def __init__(self, store: str = "memory://", **options: Any) -> None:
        self.app = flask.Flask("shop")
        self.guard = semel.Guard(store, tenant=lambda _: flask.g.user, **options)
        install(self.app, self.guard)
        self.ran: list[Any] = []
        self.app.before_request(self._authenticate)

    def _authenticate(self) -> None:
        flask.g.user = PEOPLE.get(flask.request.headers.get("Authorization", ""))
        if flask.g.user is None:
            flask.abort(401)

    @property
    def client(self) -> FlaskClient:
        return self.app.test_client()

    def post(self, path: str, key: str | None = None, who: str = "ann", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {who}", **more.pop("headers", {})}
        if key is not None:
            headers["Idempotency-Key"] = key
        return self.client.post(path, headers=headers, **more)

    def twice(self, path: str, **more: Any) -> tuple[Any, Any]:
        key = new_key()
        return self.post(path, key, **more), self.post(path, key, **more)


def new_key() -> str:
    return str(uuid4())


def replayed(reply: TestResponse) -> str | None:
    return reply.headers.get("Idempotent-Replayed")
