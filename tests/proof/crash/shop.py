"""The application whose processes are killed: a route for each way to run a handler, guarded.

Bare ASGI and bare WSGI, through semel's own adapters. Handlers do one thing outside, in the
provider's files, and answer with its nonce.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import semel
from semel.stores import open_backend
from semel.web.handler import Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse
from tests.proof.crash.boundaries import Boundaries, WatchedBackend
from tests.proof.crash.provider import Provider

LEASE: Final = timedelta(seconds=1)
"""Short, since the dead are waited for; long enough for a busy machine to come to its places."""

PLAIN: Final = ("manual", "probed", "honoured", "released", "deferred", "requeued")
"""Leased: a lapse leaves it to people, to a provider that can be called off, to one that honours
keys, or to the next request. Deferred: as the second of these, or to the next worker."""
TRANSACTIONAL: Final = ("atomic", "resumed")
"""In one transaction with its record; an operation with a call. Where a store has transactions."""
ROUTES: Final = (*PLAIN, *TRANSACTIONAL)
EFFECTLESS: Final = ("released", "requeued")
DEFERRED: Final = ("deferred", "requeued")
BOOKED: Final = "CREATE TABLE booked (item VARCHAR(80), nonce VARCHAR(80))"

Answer = tuple[int, tuple[tuple[bytes, bytes], ...], bytes]


def answer(nonce: str | None) -> Answer:
    if nonce is None:
        return 402, ((b"content-type", b"text/plain"),), b"called off"
    headers = ((b"content-type", b"text/plain"), (b"x-nonce", nonce.encode()))
    return 201, headers, f"charged as {nonce}".encode()


class Shop:
    """One process's application; ``without`` takes a guard out of its store."""

    def __init__(self, store: str, folder: Path, without: str = "") -> None:
        self.at = Boundaries()
        self.provider = Provider(folder / "provider", self.at)
        self.plain: Any = open_backend(store)
        """The store as it is, watched by nobody."""
        can = self.plain.capabilities.transactions
        policies = {name: self._policy(name) for name in (ROUTES if can else PLAIN)}
        routes = [semel.Route("POST", f"/{name}", policy) for name, policy in policies.items()]
        watched: Any = WatchedBackend(self.plain, self.at, without)
        self.guard = semel.Guard(watched, tenant=None, maintenance=None, routes=routes)

    def _policy(self, name: str) -> semel.Policy:
        short: Any = {"lease": LEASE, "reconcile_after": timedelta(milliseconds=50)}
        match name:
            case "manual":
                return semel.payments(probe=None, in_flight="refuse", **short)
            case "probed":
                return semel.payments(probe=self._called_off, in_flight="refuse", **short)
            case "honoured":
                return semel.payments(probe=self._known, in_flight="refuse", **short)
            case "released":
                return semel.ietf(on_lapse="release", effects="none", **short)
            case "deferred":
                short["probe"] = self._called_off
                return semel.accepted(mode="deferred", required=True, **short)
            case "requeued":
                short.update(on_lapse="release", effects="none")
                return semel.accepted(mode="deferred", required=True, **short)
            case "atomic":
                return semel.ietf(mode="atomic", **short)
            case _:
                return semel.ietf(on_lapse="resume", probe=self._known, **short)

    # ── probes ────────────────────────────────────────────────────────────────────────────────────

    def _called_off(self, inquiry: semel.Inquiry) -> semel.Happened:
        nonce = self.provider.call_off(inquiry.downstream_key("effect"))
        return semel.Happened(semel.Response(*answer(nonce)))

    def _known(self, inquiry: semel.Inquiry) -> semel.Happened | semel.Absent:
        nonce = self.provider.asked(inquiry.downstream_key("effect"))
        if nonce is None:
            return semel.Absent(final=True)
        return semel.Happened(nonce if inquiry.name else semel.Response(*answer(nonce)))

    # ── handlers ──────────────────────────────────────────────────────────────────────────────────

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan here")
        order, route = (await receive())["body"].decode(), scope["path"][1:]
        nonce: str | None
        if route == "atomic":
            nonce = await self._abooked(order)
        elif route == "resumed":
            nonce = await semel.current().call("effect", self._charged, order, True)
        else:
            nonce = self._done(route, order)
        status, headers, body = answer(nonce)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def wsgi(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        order, route = environ["wsgi.input"].read().decode(), environ["PATH_INFO"][1:]
        nonce: str | None
        if route == "atomic":
            nonce = self._booked(order)
        elif route == "resumed":
            nonce = semel.current().call("effect", self._charged, order, True)
        else:
            nonce = self._done(route, order)
        status, headers, body = answer(nonce)
        start_response(f"{status} -", [(name.decode(), text.decode()) for name, text in headers])
        return [body]

    def _done(self, route: str, order: str) -> str | None:
        key = semel.current().downstream_key("effect")
        if route in EFFECTLESS:
            self.at.reach("before", "effect")
            nonce = self.provider.run(key, order)
            self.at.reach("after", "effect")
            return nonce
        return self._charged(key, order, route == "honoured")

    def _charged(self, key: str, order: str, honours: bool) -> str | None:
        self.at.reach("before", "effect")
        nonce = self.provider.charge(key, order, honours=honours)
        self.at.reach("after", "effect")
        return nonce

    def _booked(self, order: str) -> str:
        connection, nonce = semel.current().transaction, uuid4().hex
        self.at.reach("before", "effect")
        connection.execute(_insert(connection), (order, nonce))
        self.at.reach("after", "effect")
        return nonce

    async def _abooked(self, order: str) -> str:
        connection, nonce = semel.current().transaction, uuid4().hex
        if isinstance(connection, sqlite3.Connection):
            return self._booked(order)
        self.at.reach("before", "effect")
        await connection.execute(_insert(connection), (order, nonce))
        self.at.reach("after", "effect")
        return nonce


def _insert(connection: Any) -> str:
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    return f"INSERT INTO booked VALUES ({mark}, {mark})"
