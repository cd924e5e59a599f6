"""What one process of the campaign does: answer some requests, or work for a round or two."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.proof.crash.boundaries import Fate
from tests.proof.crash.client import Client
from tests.proof.crash.rounds import work
from tests.proof.crash.shop import Shop
from tests.proof.crash.ways import AWAITED, DJANGO, load, way


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
    *("semel.web.asgi", "semel.web.exchange_async", "semel.web.wsgi", "semel.web.exchange"),
    *("semel.web.worker_runs", "semel.runtime.recovery_points", "semel.core.recovery.points"),
    "semel.stores.background",
    *("semel.worker.maintenance", "semel.worker.reconciler", "semel.worker.stored_runs"),
    *("semel.worker.worker", "asyncio.runners", "concurrent.futures.thread"),
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
def shop_of(store: str, folder: str, without: str, django: bool) -> Shop:
    """Made before the fork, as a server does that loads its application once."""
    if not django:
        return Shop(store, Path(folder), without)
    from tests.proof.crash.project import DjangoShop, database

    return DjangoShop(database(store), Path(folder), without)


def _shop(task: Task) -> Shop:
    return shop_of(task.store, task.folder, task.without, task.colour in DJANGO)


def prepare(given: dict[str, Any]) -> None:
    """In the zygote, before the fork."""
    task = Task(**given)
    load(task.colour)
    _shop(task)


def run(given: dict[str, Any]) -> None:
    """In a forked child, which ends with it."""
    task = Task(**given)
    folder, shop = Path(task.folder), _shop(task)
    shop.at.begin(Fate(task.at, task.sign), folder / "fates.jsonl", task.role)
    app = way(shop, task.colour)
    if task.role == "work":
        asyncio.run(_work(shop, app))
        return
    client = Client(shop, folder, task.answers)
    if task.colour in AWAITED:
        asyncio.run(client.aask_all(app, task.orders))
    else:
        client.ask_all(app, task.orders)


async def _work(shop: Shop, app: Any) -> None:
    from semel.worker.maintenance import Maintenance
    from semel.worker.reconciler import Reconciler
    from semel.worker.stored_runs import StoredRuns
    from semel.worker.worker import MAINTAIN, RECONCILE, RUN

    guard, rival = shop.guard, shop.rival()
    for theirs in (Reconciler(rival), StoredRuns(rival, rival.asgi(_nobody))):
        assert (await theirs.run_once()).done == 0, "another application's worker took part"
    loops: list[Any] = [(MAINTAIN, Maintenance(guard)), (RECONCILE, Reconciler(guard, app))]
    # Functions are run by their callers: there is no application to run requests through.
    await work(guard, loops if app is None else [*loops, (RUN, StoredRuns(guard, app))])


async def _nobody(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("another application was asked to run a request")
