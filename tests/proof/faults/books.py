"""Where the effects of handlers are entered, for an auditor who asks nobody else."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import psycopg

import semel
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse, WsgiApp
from tests import canary
from tests.web.effects import Effects

Entry = tuple[str, str]
"""A key, and the nonce of the run that entered it."""


class Books(Protocol):
    """An entry is an effect: one for each key, or somebody was charged twice."""

    def enter(self, key: str) -> str:
        """Returns a nonce that no other run has; it is the handler's answer."""
        ...

    async def aenter(self, key: str) -> str: ...
    def entries(self) -> list[Entry]: ...


class Log:
    """A file beside everything: what is entered has happened, whatever becomes of the request."""

    def __init__(self, path: Path) -> None:
        self._effects = Effects(path)

    def enter(self, key: str) -> str:
        return self._effects.happen(key)

    async def aenter(self, key: str) -> str:
        return self.enter(key)

    def entries(self) -> list[Entry]:
        return [(effect.key, effect.nonce) for effect in self._effects.all()]


class Table:
    """Rows in the handler's own transaction. No constraint keeps a key from being there twice."""

    def __init__(self, url: str) -> None:
        self._url = url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE payment (key text, nonce text)")

    def enter(self, key: str) -> str:
        nonce = _nonce()
        semel.operation().transaction.execute(_INSERT, (key, nonce))
        return nonce

    async def aenter(self, key: str) -> str:
        nonce = _nonce()
        await semel.async_operation().transaction.execute(_INSERT, (key, nonce))
        return nonce

    def entries(self) -> list[Entry]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute("SELECT key, nonce FROM payment").fetchall()


_INSERT = "INSERT INTO payment VALUES (%s, %s)"


def _nonce() -> str:
    return f"{uuid4().hex}-{canary.ANSWER}"


# ── the applications ──────────────────────────────────────────────────────────────────────────────

TEXT = ("content-type", "text/plain")


def asgi(books: Books) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        key = dict(scope["headers"])[b"idempotency-key"].decode()
        nonce = await books.aenter(key)
        headers = [(TEXT[0].encode(), TEXT[1].encode())]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": nonce.encode()})

    return app


def wsgi(books: Books) -> WsgiApp:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        nonce = books.enter(environ["HTTP_IDEMPOTENCY_KEY"])
        start_response(f"201 {HTTPStatus(201).phrase}", [TEXT])
        return [nonce.encode()]

    return app
