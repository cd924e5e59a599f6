"""What one process of the campaign does: answer a request, or work for a round or two.

The example is loaded as it is and then watched; the controls take one guard out of semel.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.backends import put_backend
from tests.examples.rides.passing import LEASE, keep_time
from tests.proof.crash.boundaries import Boundaries, Fate, WatchedBackend, appending
from tests.proof.crash.wire import scope


@dataclass(frozen=True)
class Task:
    """One process: its role and its fate. Travels as JSON."""

    role: str
    folder: str
    keys: list[str] = field(default_factory=list)
    at: int | str | None = None
    sign: int = 9
    without: str = ""
    awaited: bool = False


def warm_up() -> None:
    """In the zygote: what a framework does at its first request need not be done by each child."""
    import examples.rides.app
    import tests.examples.rides.awaited  # noqa: F401 - loaded once, for all

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody wants to know."""

    app: Any = examples.rides.app.api
    asyncio.run(app(scope("/rides", headers("", 0), "GET"), receive, send))


def prepare(given: dict[str, Any]) -> None:
    """Everything is loaded."""


def run(given: dict[str, Any]) -> None:
    """In a forked child, which ends with it."""
    task = Task(**given)
    log = Path(task.folder, "fates.jsonl")
    boundaries = Boundaries().begin(Fate(task.at, task.sign), log, task.role)
    rides = load(boundaries, task.without)
    if task.awaited:
        from tests.examples.rides.awaited import awaited

        rides.app = awaited(rides)
    if task.role == "request":
        asyncio.run(_requests(rides, task, boundaries))
    else:
        asyncio.run(_work(rides))


def load(boundaries: Boundaries, without: str) -> Any:
    """The example's module, watched, and perhaps without one of semel's guards."""
    from examples.rides import app as rides
    from examples.rides.gateway import Gateway

    keep_time()
    take_out(without, rides)
    guard: Any = rides.guard
    put_backend(guard, WatchedBackend(guard.backend, boundaries, without))
    post = Gateway._post

    def watched(self: Gateway, path: str, key: str, document: dict[str, Any]) -> dict[str, Any]:
        what = "void" if path.endswith("/void") else path.rpartition("/")[2]
        boundaries.reach("before", what)
        entry = post(self, path, key, document)
        boundaries.reach("after", what)
        return entry

    Gateway._post = watched  # type: ignore[method-assign]
    return rides


def take_out(what: str, rides: Any) -> None:
    """One guard less: the campaign must notice."""
    import semel
    from semel.core.recovery import points
    from semel.runtime import operation

    def no_intent(*_: object) -> Any:
        yield from ()

    def believes(inquiry: semel.Inquiry) -> semel.Happened | semel.Absent:
        """A probe that takes "not found" for "will never be"."""
        answer = rides.gateway._http.get(f"/charges/{inquiry.downstream_key()}")
        return semel.Happened(answer.json()) if answer.is_success else semel.Absent(final=True)

    if what == "intent":
        setattr(points, "_intend", no_intent)  # noqa: B010 - whatever its type is
    if "lease" in what:
        setattr(operation.Run, "held", lambda _: True)  # noqa: B010
    if "void" in what:
        rides.guard.probe("charged-1")(believes)


async def _requests(rides: Any, task: Task, boundaries: Boundaries) -> None:
    client = Client(rides.app, Path(task.folder, "answers.jsonl"), boundaries)
    await asyncio.gather(*map(client.post, task.keys))
    await rides.guard.aclose()


class Client:
    """Sends a request to the application, in its process; what it receives it writes down."""

    def __init__(self, app: Any, log: Path, boundaries: Boundaries) -> None:
        self._app = app
        self._log = appending(log)
        self._boundaries = boundaries

    async def post(self, key: str) -> None:
        body = json.dumps({"pickup": key, "destination": "home", "card": "visa"}).encode()
        sent = [{"type": "http.request", "body": body, "more_body": False}]
        status, pieces = 0, list[bytes]()

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            pieces.append(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._boundaries.reach("before", "answer")
                self._note(key, status, b"".join(pieces))
                self._boundaries.reach("after", "answer")

        try:
            await self._app(scope("/rides", headers(key, len(body))), receive, send)
        except Exception as error:
            if not status:
                self._note(key, 500, repr(error).encode())

    def _note(self, key: str, status: int, body: bytes) -> None:
        line = {"key": key, "status": status, "body": body.decode()}
        os.write(self._log, json.dumps(line).encode() + b"\n")


def headers(key: str, length: int) -> dict[str, str]:
    return {
        "host": "rides",
        "authorization": "Bearer token-of-ada",
        "content-type": "application/json",
        "content-length": str(length),
        "idempotency-key": key,
    }


async def _work(rides: Any) -> None:
    from datetime import timedelta

    from semel.worker.deliveries import Deliveries
    from semel.worker.maintenance import Maintenance
    from semel.worker.reconciler import Reconciler
    from semel.worker.stored_runs import StoredRuns
    from semel.worker.worker import DELIVER, MAINTAIN, RECONCILE, RUN
    from tests.proof.crash.rounds import work

    guard, lease = rides.guard, timedelta(seconds=LEASE)
    await work(
        guard,
        [
            (RECONCILE, Reconciler(guard, rides.app)),
            (RUN, StoredRuns(guard, rides.app)),
            # One at a time: each that is taken when a worker dies has one try less.
            (DELIVER, Deliveries(guard, lease=lease, concurrency=1)),
            (MAINTAIN, Maintenance(guard)),
        ],
    )
