"""What one process of the campaign does: answer some requests, or work for a round or two."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import semel
from tests.proof.crash.boundaries import Fate, appending
from tests.proof.crash.shop import Shop
from tests.proof.crash.wire import environ, scope

ROUNDS = 4
"""What one round finds out, the next may act on."""
AT_ONCE = 8
COLOURS = ("asgi", "wsgi")


@dataclass(frozen=True)
class Task:
    """One process: its role and its fate. Travels as JSON."""

    role: str
    store: str
    folder: str
    colour: str = "asgi"
    orders: list[tuple[str, str]] = field(default_factory=list)
    """The route and the key of each request."""
    at: int | str | None = None
    sign: int = 9
    without: str = ""
    answers: str = "answers"


STORES = ("sqlite", "postgres", "mysql", "redis", "sql")
DRIVERS = ("psycopg", "pymysql", "asyncmy", "redis.asyncio", "hiredis")
LATER = (
    *("semel.web.asgi", "semel.web.awaited", "semel.web.wsgi", "semel.web.blocking"),
    *("semel.web.errands", "semel.process.points", "semel.core.steps", "semel.stores.background"),
    *("semel.effects.maintenance", "semel.effects.reconcile", "semel.effects.runs"),
    *("semel.effects.worker", "asyncio.runners", "concurrent.futures.thread"),
)
"""What semel loads when it is first needed."""


def warm_up() -> None:
    """In the zygote: load what children need, and no more, since it is copied for each."""
    for name in (*LATER, *DRIVERS):
        importlib.import_module(name)
    for store in STORES:
        package = importlib.import_module(f"semel.stores.{store}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


@lru_cache(maxsize=8)
def shop_of(store: str, folder: str, without: str) -> Shop:
    """Made before the fork, as a server does that loads its application once."""
    return Shop(store, Path(folder), without)


def prepare(given: dict[str, Any]) -> None:
    """In the zygote, before the fork."""
    task = Task(**given)
    shop_of(task.store, task.folder, task.without)


def run(given: dict[str, Any]) -> None:
    """In a forked child, which ends with it."""
    task = Task(**given)
    folder, shop = Path(task.folder), shop_of(task.store, task.folder, task.without)
    shop.at.begin(Fate(task.at, task.sign), folder / "fates.jsonl", task.role)
    if task.role == "work":
        asyncio.run(_work(shop, task.colour))
        return
    client = Client(shop, folder / f"{task.answers}.jsonl")
    if task.colour == "asgi":
        asyncio.run(client.apost_all(task.orders))
    else:
        client.post_all(task.orders)


class Client:
    """Sends requests to the application in its process; what it receives it writes down."""

    def __init__(self, shop: Shop, log: Path) -> None:
        self._shop = shop
        self._log = appending(log)

    async def apost_all(self, orders: list[tuple[str, str]]) -> None:
        app, turn = self._shop.guard.asgi(self._shop.asgi), asyncio.Semaphore(AT_ONCE)

        async def post(route: str, key: str) -> None:
            async with turn:
                await self._apost(app, route, key)

        await asyncio.gather(*(post(*order) for order in orders))
        await self._shop.guard.aclose()

    def post_all(self, orders: list[tuple[str, str]]) -> None:
        app = self._shop.guard.wsgi(self._shop.wsgi)
        with ThreadPoolExecutor(min(AT_ONCE, len(orders))) as threads:
            for done in [threads.submit(self._post, app, *order) for order in orders]:
                done.result()
        self._shop.guard.close()

    async def _apost(self, app: Any, route: str, key: str) -> None:
        sent = [{"type": "http.request", "body": key.encode(), "more_body": False}]
        head, pieces = dict[str, Any](), list[bytes]()

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
                return
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                nonce = dict(head["headers"]).get(b"x-nonce", b"").decode()
                self._answered(key, head["status"], nonce, b"".join(pieces))

        try:
            await app(scope(f"/{route}", _headers(key)), receive, send)
        except Exception as error:
            self._raised(key, error, bool(pieces))

    def _post(self, app: Any, route: str, key: str) -> None:
        head: list[tuple[int, str]] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            lines = {name.lower(): text for name, text in headers}
            head.append((int(status[:3]), lines.get("x-nonce", "")))

        try:
            body = app(environ(f"/{route}", _headers(key), key.encode()), start)
            self._answered(key, *head[-1], b"".join(body))
            getattr(body, "close", int)()
        except Exception as error:
            self._raised(key, error, bool(head))

    def _answered(self, key: str, status: int, nonce: str, body: bytes) -> None:
        self._shop.at.reach("before", "answer")
        self._note(key, status, nonce, body)
        self._shop.at.reach("after", "answer")
        for op in self._shop.at.postponed:
            self._shop.plain.blocking().perform(op)
        self._shop.at.postponed.clear()

    def _raised(self, key: str, error: Exception, answered: bool) -> None:
        """What the application raises a server would answer with a 500."""
        if not answered:
            self._note(key, 500, "", repr(error).encode())

    def _note(self, key: str, status: int, nonce: str, body: bytes) -> None:
        line = {"pid": os.getpid(), "key": key, "status": status, "nonce": nonce}
        line["body"] = body.decode()
        os.write(self._log, json.dumps(line).encode() + b"\n")


def _headers(key: str) -> dict[str, str]:
    return {"host": "shop", "content-type": "text/plain", "idempotency-key": key}


async def _work(shop: Shop, colour: str) -> None:
    """As `semel worker --once` does, until a round finds nothing to do."""
    from semel.effects.maintenance import Maintenance
    from semel.effects.reconcile import Reconciler
    from semel.effects.runs import Runs
    from semel.effects.worker import MAINTAIN, RECONCILE, RUN, Worker

    guard: semel.Guard = shop.guard
    app = guard.asgi(shop.asgi) if colour == "asgi" else guard.wsgi(shop.wsgi)
    runs = Runs(guard, app)
    worker = Worker(
        [(MAINTAIN, Maintenance(guard)), (RECONCILE, Reconciler(guard, app)), (RUN, runs)]
    )
    for _ in range(ROUNDS):
        rounds = await worker.run_once()
        if not any(round_.done for round_ in rounds.values()):
            break
    await runs.aclose()
    await guard.aclose()
