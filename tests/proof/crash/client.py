"""Clients, one for each kind of way in; what they receive they write down, piece by piece."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import semel
from semel.once import Once
from tests.proof.crash.boundaries import appending
from tests.proof.crash.shop import STREAMED, Shop, result
from tests.proof.crash.wire import environ, scope

AT_ONCE = 8
OF_THE_DELIVERY = ("date", "idempotent-replayed", "content-length")
"""Headers that may differ each time an answer is given; some frameworks count, others do not."""

Order = tuple[str, str]
"""The route and the key of a request."""


class Client:
    """Asks what is in its own process."""

    def __init__(self, shop: Shop, folder: Path, answers: str) -> None:
        self._shop = shop
        self._log = appending(folder / f"{answers}.jsonl")
        self._begun = appending(folder / "begun.jsonl")

    async def aask_all(self, way: Any, orders: list[Order]) -> None:
        turn = asyncio.Semaphore(AT_ONCE)
        ask: Any = self._apost if way else self._acall

        async def each(route: str, key: str) -> None:
            async with turn:
                await ask(way, route, key)

        await asyncio.gather(*(each(*order) for order in orders))
        await self._shop.guard.aclose()

    def ask_all(self, way: Any, orders: list[Order]) -> None:
        ask: Callable[..., None] = self._post if way else self._call
        with ThreadPoolExecutor(min(AT_ONCE, len(orders))) as threads:
            for done in [threads.submit(ask, way, *order) for order in orders]:
                done.result()
        self._shop.guard.close()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    async def _apost(self, app: Any, route: str, key: str) -> None:
        sent = [{"type": "http.request", "body": key.encode(), "more_body": False}]
        answer = _Answer()

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.decode(), text.decode()) for name, text in message["headers"]]
                answer.begin(message["status"], headers)
                return
            self._piece(route, key, answer, message.get("body", b""))
            if not message.get("more_body"):
                self._answered(key, answer)

        try:
            await app(scope(f"/{route}", _headers(key)), receive, send)
        except Exception as error:
            self._raised(key, error, answer)

    def _post(self, app: Any, route: str, key: str) -> None:
        answer = _Answer()

        def write(piece: bytes) -> None:
            self._piece(route, key, answer, piece)

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            answer.begin(int(status[:3]), headers)
            return write

        try:
            body = app(environ(f"/{route}", _headers(key), key.encode()), start)
            for piece in body:
                write(piece)
            self._answered(key, answer)
            getattr(body, "close", int)()
        except Exception as error:
            self._raised(key, error, answer)

    # ── functions ─────────────────────────────────────────────────────────────────────────────────

    def _call(self, _: None, route: str, key: str) -> None:
        shop = self._shop
        given: Any = {"name": route, "payload": key, "policy": shop.policies[route]}
        try:
            done = shop.guard.once(key, lambda: result(shop.done(route, key)), **given)
            self._returned(key, done)
        except Exception as error:
            self._refused(key, error)

    async def _acall(self, _: None, route: str, key: str) -> None:
        shop = self._shop
        given: Any = {"name": route, "payload": key, "policy": shop.policies[route]}

        async def work() -> Any:
            return result(await shop.adone(route, key))

        try:
            self._returned(key, await shop.guard.aonce(key, work, **given))
        except Exception as error:
            self._refused(key, error)

    def _returned(self, key: str, done: Once[Any]) -> None:
        value = done.value
        body = json.dumps(value, sort_keys=True).encode()
        self._answered(key, _Answer(value["status"], value["nonce"], body))

    def _refused(self, key: str, error: Exception) -> None:
        """As a client of the same route would be told."""
        if not isinstance(error, semel.Refused):
            self._raised(key, error, _Answer())
            return
        problem = {"code": error.code, "retryable": error.retryable}
        self._answered(key, _Answer(409, "", json.dumps(problem).encode()))

    # ── what came ─────────────────────────────────────────────────────────────────────────────────

    def _piece(self, route: str, key: str, answer: _Answer, piece: bytes) -> None:
        """Of a streamed answer every one counts: its client may get no other."""
        if route in STREAMED and answer.nonce and piece:
            self._shop.at.reach("before", "piece")
            answer.body += piece
            self._note(self._begun, key, answer)
            self._shop.at.reach("after", "piece")
        else:
            answer.body += piece

    def _answered(self, key: str, answer: _Answer) -> None:
        self._shop.at.reach("before", "answer")
        self._note(self._log, key, answer)
        self._shop.at.reach("after", "answer")
        for op in self._shop.at.postponed:
            self._shop.plain.blocking().perform(op)
        self._shop.at.postponed.clear()

    def _raised(self, key: str, error: Exception, answer: _Answer) -> None:
        """What the application raises a server would answer with a 500."""
        if not answer.body:
            self._note(self._log, key, _Answer(500, "", repr(error).encode()))

    def _note(self, log: int, key: str, answer: _Answer) -> None:
        line = {"pid": os.getpid(), "key": key, "status": answer.status, "nonce": answer.nonce}
        line |= {"headers": answer.headers, "body": answer.body.decode()}
        os.write(log, json.dumps(line).encode() + b"\n")


class _Answer:
    """As far as it has come."""

    def __init__(self, status: int = 0, nonce: str = "", body: bytes = b"") -> None:
        self.status = status
        self.nonce = nonce
        self.headers: list[tuple[str, str]] = []
        self.body = body

    def begin(self, status: int, headers: list[tuple[str, str]]) -> None:
        lines = sorted((name.lower(), text) for name, text in headers)
        self.status, self.nonce = status, dict(lines).get("x-nonce", "")
        self.headers = [line for line in lines if line[0] not in OF_THE_DELIVERY]


def _headers(key: str) -> dict[str, str]:
    return {"host": "shop", "content-type": "text/plain", "idempotency-key": key}
