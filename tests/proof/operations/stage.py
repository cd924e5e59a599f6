"""An application on one store, in one colour; its provider, its workers, its clients."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import semel
from semel.core.operations.requests import Applied, Retake
from semel.core.records import Fence, Identity, Response
from semel.core.unknown.evidence import Absent, Evidence, Happened, Inquiry
from semel.errors import SemelError
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse, WsgiApp
from semel.worker.maintenance import Maintenance
from semel.worker.reconciler import Reconciler
from semel.worker.stored_runs import StoredRuns
from tests.databases import aexecuted, executed
from tests.stores.harness import Harness
from tests.web.bank import Ledger
from tests.web.client import BODY, Reply
from tests.web.drive import Ask, Wire, WsgiDriver, scope_of
from tests.web.faulty import Faults, FaultyBackend

HOUR = timedelta(hours=1) // timedelta(microseconds=1)
ROUNDS = 12
"""Hours; retention is a day."""
JSON = ("content-type", "application/json")

Told = tuple[int, str | None, bytes]
"""The status, the media type and the body of an answer."""


class Provider:
    """Who is charged, for which key, and each time with another nonce; it can be asked."""

    def __init__(self) -> None:
        self.charged: dict[bytes, list[str]] = defaultdict(list)

    def charge(self, identity: bytes) -> str:
        self.charged[identity].append(uuid4().hex)
        return self.charged[identity][-1]

    def asked(self, inquiry: Inquiry) -> Evidence:
        nonces = self.charged[inquiry.identity]
        if not nonces:
            return Absent(final=True)
        if inquiry.name is not None:
            return Happened(nonces[0])
        return Happened(Response(201, ((JSON[0].encode(), JSON[1].encode()),), _told(nonces[0])))


def _told(nonce: str) -> bytes:
    return b'{"charged": "%s"}' % nonce.encode()


class Stage:
    """runs: how often a handler ran for a key."""

    def __init__(
        self, harness: Harness, faults: Faults, colour: str, runner: asyncio.Runner
    ) -> None:
        self.harness = harness
        self.faults = faults
        self.provider = Provider()
        self.runs: Counter[bytes] = Counter()
        self.identities: dict[str, Identity] = {}
        self.told: dict[str, set[Told]] = defaultdict(set)
        """Every answer 2xx that a client of a key got, at whatever time."""
        self._runner = runner
        probe = self.provider.asked
        routes = [
            semel.Route("POST", "/pay", semel.ietf()),
            semel.Route("POST", "/refused", semel.ietf(probe=probe)),
            semel.Route("POST", "/doubtful", semel.ietf(probe=probe)),
        ]
        self.ledger = Ledger(harness.backend.url)
        if harness.backend.capabilities.transactions:
            self.ledger.ask("DROP TABLE IF EXISTS ride")  # databases are used again
            self.ledger.ask("CREATE TABLE ride (who TEXT, nonce TEXT)")
            resumed = semel.ietf(mode="resumable", after_error="unknown", probe=probe)
            routes.append(semel.Route("POST", "/stepwise", resumed))
            routes.append(semel.Route("POST", "/atomic", semel.ietf(mode="atomic")))
        self.guard = semel.Guard(
            FaultyBackend(harness.backend, faults),
            tenant=None,
            routes=routes,
            maintenance=None,
            breaker=None,
        )
        self.async_ = colour == "async"
        self.app: Any
        self._wsgi_driver: WsgiDriver | None = None
        if self.async_:
            self.app = self.guard.asgi(self._asgi())
        else:
            self.app = wsgi = self.guard.wsgi(self._wsgi())
            self._wsgi_driver = WsgiDriver(wsgi, strict=False)

    # ── the application ───────────────────────────────────────────────────────────────────────────

    def _meet(self, key: str) -> None:
        self.identities[key] = semel.operation().identity

    def _answer(self, path: str) -> tuple[int, bytes]:
        """What a handler without steps does."""
        identity = semel.operation().identity
        self.runs[identity] += 1
        first = self.runs[identity] == 1
        if path == "/refused" and first:
            return 503, b"later"
        nonce = self.provider.charge(identity)
        if path == "/doubtful" and first:
            raise semel.OutcomeUnknown("the provider's answer was lost")
        return 201, _told(nonce)

    def _stumbled(self, nonce: str) -> bytes:
        """Between the call and the answer, a first run breaks off. Each would answer otherwise."""
        identity = semel.operation().identity
        self.runs[identity] += 1
        if self.runs[identity] == 1:
            raise semel.OutcomeUnknown("the line went dead")
        return b'{"charged": "%s", "run": "%s"}' % (nonce.encode(), uuid4().hex.encode())

    def _charge(self, key: str) -> str:
        return self.provider.charge(semel.operation().identity)

    def _asgi(self) -> AsgiApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            path: str = scope["path"]
            self._meet(dict(scope["headers"])[b"idempotency-key"].decode())
            status = 201
            if path == "/stepwise":
                op: semel.AsyncOperation = semel.async_operation()
                body = self._stumbled(await op.call("charged", self._charge))
            elif path == "/atomic":
                nonce = uuid4().hex
                await aexecuted(semel.async_operation().transaction, self._insert(nonce))
                body = _told(nonce)
            else:
                status, body = self._answer(path)
            headers = [(JSON[0].encode(), JSON[1].encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        return app

    def _wsgi(self) -> WsgiApp:
        def app(environ: Environ, start_response: StartResponse) -> list[bytes]:
            path: str = environ["PATH_INFO"]
            self._meet(environ["HTTP_IDEMPOTENCY_KEY"])
            status = 201
            if path == "/stepwise":
                op: semel.Operation = semel.operation()
                body = self._stumbled(op.call("charged", self._charge))
            elif path == "/atomic":
                nonce = uuid4().hex
                executed(semel.operation().transaction, self._insert(nonce))
                body = _told(nonce)
            else:
                status, body = self._answer(path)
            start_response(f"{status} It is", [JSON])
            return [body]

        return app

    def _insert(self, nonce: str) -> str:
        return f"INSERT INTO ride VALUES ('{semel.operation().identity.hex()}', '{nonce}')"

    def forget(self) -> None:
        """As a process that has just started: its routes are not known to be on record."""
        self.guard.runtime._enrolled.clear()
        self.guard.runtime._plans.clear()

    # ── what happens to it ────────────────────────────────────────────────────────────────────────

    def ask(self, path: str, key: str, body: bytes = BODY) -> Reply:
        reply = self._sent(Ask(path=path.encode(), key=key, body=body))
        if 200 <= reply.status < 300:
            self.told[key].add((reply.status, reply.one("content-type"), reply.body))
        return reply

    def _sent(self, ask: Ask) -> Reply:
        if self._wsgi_driver is not None:
            return self._wsgi_driver(ask)
        wire = Wire(ask)
        self._go(self.app(scope_of(ask), wire.receive, wire.send))
        return wire.reply()

    def _go(self, work: Coroutine[Any, Any, Any]) -> None:
        """As a server's or a worker's task, which can be cancelled; what it raises is logged."""
        self._runner.run(self._alone(work))

    async def _alone(self, work: Coroutine[Any, Any, Any]) -> None:
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        task = loop.create_task(work)

        def cancel() -> None:
            if threading.get_ident() == thread:
                task.cancel()
            else:
                loop.call_soon_threadsafe(task.cancel)

        self.faults.cancel = cancel
        try:
            await asyncio.wait({task})
            with suppress(SemelError, asyncio.CancelledError):
                task.result()
        finally:
            self.faults.cancel = None
        while self.guard.runtime.running:
            await asyncio.wait(set(self.guard.runtime.running))

    def tend(self) -> None:
        """The sweeper, and the others of maintenance."""
        self._go(Maintenance(self.guard).run_once())

    def reconcile(self) -> None:
        self._go(Reconciler(self.guard, self.app).run_once())

    def resume(self) -> None:
        """The completer."""
        self._go(self._resumed())

    async def _resumed(self) -> None:
        runs = StoredRuns(self.guard, self.app)
        try:
            await runs.run_once()
        finally:
            await runs.aclose()

    def work(self) -> None:
        """All workers, an hour later."""
        self.travel()
        self.tend()
        self.reconcile()
        if self.harness.backend.capabilities.transactions:
            self.resume()

    def pursue(self) -> None:
        while self.guard.runtime.keeper.write_retries:
            self.guard.runtime.keeper.run_once()

    def travel(self) -> None:
        self.harness.travel(HOUR)

    def stop_holder(self, key: str) -> None:
        """As if a process had taken the released key, and been stopped for good."""
        record = self.harness.record(self.identities[key])
        assert record is not None
        op = Retake(record.identity, record.fence, Fence(b"\xdd" * 16), HOUR // 60)
        assert isinstance(self.harness.perform(op), Applied)

    # ── how it ends ───────────────────────────────────────────────────────────────────────────────

    def until_final(self, path: str, key: str) -> Reply:
        """As a client does: again and again, while time and the workers go on."""
        reply = self.ask(path, key)
        for round_ in range(ROUNDS):
            if reply.status == 201:
                return reply
            self.pursue()
            if round_:
                self.work()
            reply = self.ask(path, key)
        raise AssertionError(f"wedged: {reply.status} {reply.body!r}")

    def effects(self, path: str, key: str) -> list[str]:
        """By their nonces."""
        identity = self.identities[key]
        if path != "/atomic":
            return self.provider.charged[identity]
        rows = self.ledger.ask(f"SELECT nonce FROM ride WHERE who = '{identity.hex()}'")
        return [row[0] for row in rows]


@contextmanager
def staged(
    harness: Harness, faults: Faults, colour: str, runner: asyncio.Runner
) -> Iterator[Stage]:
    stage = Stage(harness, faults, colour, runner)
    try:
        yield stage
    finally:
        runner.run(stage.guard.aclose())  # of both colours: workers are awaited
        stage.guard.close()
