"""A customer of an example, and the witness: what it answers, and what it really did."""

import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

from tests.examples.frameworks.example import ExampleServer
from tests.waiting import PATIENCE, until
from tests.web.client import Reply

DECLINED, UNAVAILABLE, BROKEN, HELD = 402, 503, 500, 700
"""Amounts that the shops do something special for."""


def new_key() -> str:
    return str(uuid4())


class Shop:
    """One example over HTTP. ``tenant`` is who asks; None sends no token."""

    def __init__(self, server: ExampleServer) -> None:
        self.server = server

    @property
    def folder(self) -> Path:
        return self.server.folder

    # ── asking ────────────────────────────────────────────────────────────────────────────────────

    def post(
        self,
        route: str,
        amount: Any,
        key: str | None = None,
        *,
        tenant: str | None = "alice",
        body: str | None = None,
        **headers: str,
    ) -> Reply:
        text = json.dumps({"amount": amount, "currency": "EUR"}) if body is None else body
        more = {"content-type": "application/json", **headers}
        return self._send("POST", f"/{route}", text, key, tenant, more)

    def count(self, route: str, key: str | None = None, *, tenant: str = "alice") -> int:
        reply = self._send("GET", f"/{route}", None, key, tenant, {})
        assert reply.status == 200, reply
        return int(json.loads(reply.body)["count"])

    def _send(
        self,
        method: str,
        path: str,
        body: str | None,
        key: str | None,
        tenant: str | None,
        more: dict[str, str],
    ) -> Reply:
        headers = {} if tenant is None else {"authorization": f"Bearer {tenant}"}
        if key is not None:
            headers["idempotency-key"] = key
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {**headers, **more})
            answer = connection.getresponse()
            return Reply(answer.status, tuple(answer.getheaders()), answer.read())
        finally:
            connection.close()

    # ── asking at once ────────────────────────────────────────────────────────────────────────────

    def at_once(self, route: str, amount: int, keys: list[str]) -> list[Reply]:
        """One request with each key, on connections of their own at the same moment."""
        barrier = Barrier(len(keys))

        def one(key: str) -> Reply:
            barrier.wait(PATIENCE)
            return self.post(route, amount, key)

        with ThreadPoolExecutor(len(keys)) as pool:
            return list(pool.map(one, keys))

    def send_and_leave(self, route: str, amount: int, key: str) -> None:
        """A client that hangs up as soon as its request has had an effect."""
        before = self.effects(route)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        body = json.dumps({"amount": amount, "currency": "EUR"})
        headers = {"authorization": "Bearer alice", "content-type": "application/json"}
        connection.request("POST", f"/{route}", body, {**headers, "idempotency-key": key})
        until(lambda: self.effects(route) > before)
        connection.close()

    @contextmanager
    def held(self, route: str, key: str) -> Iterator[Future[Reply]]:
        """A request whose handler has had its effect and waits. It ends with the block."""
        before = self.effects(route)
        pool = ThreadPoolExecutor(1)
        first = pool.submit(self.post, route, HELD, key)
        try:
            until(lambda: self.effects(route) > before or first.done())
            assert not first.done(), first.result()
            yield first
        finally:
            self.release()
            pool.shutdown()
            (self.folder / "release").unlink()

    def release(self) -> None:
        (self.folder / "release").touch()

    def unless_it_runs(self, ask: Callable[[], Reply], route: str) -> Reply:
        """What ``ask`` is answered, unless it has an effect and waits there: then it failed."""
        before = self.effects(route)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask)
            try:
                until(lambda: asked.done() or self.effects(route) > before)
                assert self.effects(route) == before, "a duplicate was run"
                return asked.result()
            finally:
                if not asked.done():
                    self.release()

    # ── the witness ───────────────────────────────────────────────────────────────────────────────

    def effects(self, route: str, tenant: str = "alice") -> int:
        """How often a handler of ``route`` has really been run for ``tenant``."""
        log = self.folder / "effects.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(line.lstrip("/").split(" ")[:2] == [route, tenant] for line in lines)

    @contextmanager
    def runs(self, route: str, times: int, tenant: str = "alice") -> Iterator[None]:
        """Within this block the handler is run so often, no more and no less."""
        before = self.effects(route, tenant)
        yield
        ran = self.effects(route, tenant) - before
        assert ran == times, f"{route} was run {ran} times, not {times}"
