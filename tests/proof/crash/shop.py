"""The application whose processes are killed: a route for each way to run a handler, guarded.

Handlers do one thing outside, in the provider's files, and answer with its nonce. Here they are
bare ASGI and bare WSGI; `ways` has those of frameworks, and functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import semel
from semel.stores import open_backend
from semel.web.asgi_exchange import Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse
from tests.databases import aexecuted, executed
from tests.proof.crash.boundaries import Boundaries, WatchedBackend
from tests.proof.crash.provider import Provider
from tests.waiting import PATIENCE

LEASE: Final = timedelta(seconds=1)
"""Short, since the dead are waited for; long enough for a busy machine to come to its places."""
SOON: Final = timedelta(milliseconds=50)

PLAIN: Final = ("manual", "probed", "honoured", "released", "deferred", "requeued")
"""Leased: a lapse leaves it to people, to a provider that can be called off, to one that honours
keys, or to the next request. Deferred: as the second of these, or to the next worker."""
TRANSACTIONAL: Final = ("atomic", "resumed")
"""In one transaction with its record; an operation with a call. Where a store has transactions."""
ROUTES: Final = (*PLAIN, *TRANSACTIONAL)
STREAMED: Final = ("manual-stream", "probed-stream")
"""As those without, and the answer flows: of it a receipt is kept."""
LEFT_TO_PEOPLE: Final = ("manual", "manual-stream")
EFFECTLESS: Final = ("released", "requeued")
DEFERRED: Final = ("deferred", "requeued")
BOOKED: Final = "CREATE TABLE booked (item VARCHAR(80), nonce VARCHAR(80))"
BOOK: Final = "INSERT INTO booked VALUES (%s, %s)"

Answer = tuple[int, tuple[tuple[bytes, bytes], ...], bytes]


def answer(nonce: str | None) -> Answer:
    if nonce is None:
        return 402, ((b"content-type", b"text/plain"),), b"called off"
    headers = ((b"content-type", b"text/plain"), (b"x-nonce", nonce.encode()))
    return 201, headers, f"charged as {nonce}".encode()


def result(nonce: str | None) -> dict[str, Any]:
    """The same, of a function that is done once."""
    return {"status": 402, "nonce": ""} if nonce is None else {"status": 201, "nonce": nonce}


def pieces(body: bytes) -> Iterator[bytes]:
    """Of an answer that flows."""
    yield body[:4]
    yield body[4:]


def _never_heard_of_it(inquiry: semel.Inquiry) -> semel.Absent:
    return semel.Absent(final=True)


_RIVALS = semel.payments(probe=_never_heard_of_it, reconcile_after=SOON)


class Shop:
    """One process's application; ``without`` takes a guard out of its store."""

    def __init__(self, store: str, folder: Path, without: str = "") -> None:
        self.at = Boundaries()
        self.provider = Provider(folder / "provider", self.at)
        self.plain: Any = open_backend(store, timeout=PATIENCE)
        """The store as it is, watched by nobody."""
        can = self.plain.capabilities.transactions
        names = (*(ROUTES if can else PLAIN), *STREAMED)
        self.policies = {name: self._policy(name) for name in names}
        routes = [semel.Route("POST", f"/{name}", policy) for name, policy in self.policies.items()]
        watched: Any = WatchedBackend(self.plain, self.at, without)
        self.guard = semel.Guard(
            watched,
            tenant=None,
            maintenance=None,
            routes=routes,
            policy=semel.ietf(reconcile_after=SOON),  # what a worker goes by for functions
            name="shop",
        )
        self.guard.probe("probed")(self._called_off)
        self.guard.probe("honoured")(self._known)

    def _policy(self, name: str) -> semel.Policy:
        short: Any = {"lease": LEASE, "reconcile_after": SOON}
        if name in STREAMED:
            short["response"] = "stream"
        match name.removesuffix("-stream"):
            case "manual":
                return semel.payments(probe=None, in_flight="refuse", **short)
            case "probed":
                return semel.payments(probe=self._called_off, in_flight="refuse", **short)
            case "honoured":
                return semel.payments(probe=self._known, in_flight="refuse", **short)
            case "released":
                return semel.ietf(after_lapse="release", effects="none", **short)
            case "deferred":
                short["probe"] = self._called_off
                return semel.accepted(mode="deferred", required=True, **short)
            case "requeued":
                short.update(after_lapse="release", effects="none")
                return semel.accepted(mode="deferred", required=True, **short)
            case "atomic":
                return semel.ietf(mode="atomic", **short)
            case _:
                return semel.ietf(mode="resumable", probe=self._known, **short)

    def rival(self) -> semel.Guard:
        """Another application on the same store, with routes of the same names. It knows nothing
        of what happens here, and says so of everything that it is asked about."""
        routes = [semel.Route("POST", f"/{name}", _RIVALS) for name in self.policies]
        given: Any = {"tenant": None, "maintenance": None, "name": "rival"}
        return semel.Guard(self.plain, routes=routes, policy=_RIVALS, **given)

    # ── probes ────────────────────────────────────────────────────────────────────────────────────

    def _called_off(self, inquiry: semel.Inquiry) -> semel.Happened:
        return _happened(inquiry, self.provider.call_off(inquiry.downstream_key("effect")))

    def _known(self, inquiry: semel.Inquiry) -> semel.Happened | semel.Absent:
        nonce = self.provider.asked(inquiry.downstream_key("effect"))
        return semel.Absent(final=True) if nonce is None else _happened(inquiry, nonce)

    # ── handlers ──────────────────────────────────────────────────────────────────────────────────

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan here")
        order, route = (await receive())["body"].decode(), scope["path"][1:]
        status, headers, body = answer(await self.adone(route, order))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if route in STREAMED:
            first, body = pieces(body)
            await send({"type": "http.response.body", "body": first, "more_body": True})
        await send({"type": "http.response.body", "body": body})

    def wsgi(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        order, route = environ["wsgi.input"].read().decode(), environ["PATH_INFO"][1:]
        status, headers, body = answer(self.done(route, order))
        start_response(f"{status} -", [(name.decode(), text.decode()) for name, text in headers])
        return pieces(body) if route in STREAMED else [body]

    def done(self, route: str, order: str) -> str | None:
        """What every way in does in the end; None: it was called off."""
        if route == "atomic":
            return self._booked(order)
        if route == "resumed":
            nonce: str | None = semel.operation().call("effect", self._charged, order, True)
            return nonce
        return self._done(route, order)

    async def adone(self, route: str, order: str) -> str | None:
        if route == "atomic":
            return await self._abooked(order)
        if route == "resumed":
            nonce: str | None = await semel.async_operation().call(
                "effect", self._charged, order, True
            )
            return nonce
        return self._done(route, order)

    def _done(self, route: str, order: str) -> str | None:
        key = semel.operation().downstream_key("effect")
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
        connection, nonce = semel.operation().transaction, uuid4().hex
        self.at.reach("before", "effect")
        self._book(connection, order, nonce)
        self.at.reach("after", "effect")
        return nonce

    async def _abooked(self, order: str) -> str:
        connection, nonce = semel.async_operation().transaction, uuid4().hex
        self.at.reach("before", "effect")
        await self._abook(connection, order, nonce)
        self.at.reach("after", "effect")
        return nonce

    def _book(self, connection: Any, order: str, nonce: str) -> None:
        executed(connection, BOOK, (order, nonce))

    async def _abook(self, connection: Any, order: str, nonce: str) -> None:
        await aexecuted(connection, BOOK, (order, nonce))


def _happened(inquiry: semel.Inquiry, nonce: str | None) -> semel.Happened:
    """As the call, the function or the handler would have told it itself."""
    if inquiry.name is None:
        return semel.Happened(semel.Response(*answer(nonce)))
    return semel.Happened(nonce if inquiry.name == "effect" else result(nonce))
