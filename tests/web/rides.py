"""A small operation with recovery points, in both colours, whose every part can be made to fail."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import semel
from semel.core.operations.maintenance import Browse
from semel.core.operations.requests import Advance, Applied, NoRecord, Read, Recall, Retake
from semel.core.records import Case, Fence, Identity, OnLapse, State
from semel.core.recovery import journal
from semel.core.recovery.journal import Journal
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse, WsgiApp
from tests.databases import aexecuted, connect, executed
from tests.stores.harness import Harness, open_harness
from tests.time_travel import into_the_past
from tests.web.client import Reply
from tests.web.drive import AsgiDriver, Ask, Driver, WsgiDriver

LEASE = timedelta(seconds=60)
STORES = ("sqlite", "postgresql", "mysql")


Wrap = Callable[[Any], Any]
"""What stands between a guard and its backend."""


def nothing() -> None:
    """Between the points, unless a test has something to do there."""


@dataclass
class Script:
    """What the operation does; tests change it between runs, as a deploy or an outage would."""

    phases: tuple[str, ...] = ("made",)
    calls: tuple[str, ...] = ("charged",)
    repeatable: bool = False
    between: Callable[[], None] = nothing
    charge: Callable[[str, int], Any] = lambda key, amount: {"key": key, "amount": amount}
    in_phase: Callable[[], Any] = nothing
    effect: bool = False
    which: bool = False
    charged: list[str] = field(default_factory=list)

    def make_charge(self, key: str, amount: int) -> Any:
        self.charged.append(key)
        return self.charge(key, amount)


class Rides:
    """One store, one guard, one operation behind it."""

    def __init__(
        self,
        colour: str,
        harness: Harness,
        runner: asyncio.Runner,
        wrap: Wrap = lambda backend: backend,
    ) -> None:
        self.harness = harness
        # What is done in the background would be among the operations that tests count.
        self.guard = semel.Guard(
            wrap(harness.backend), tenant=None, policy=self.policy(), maintenance=None
        )
        self.script = Script()
        self.async_ = colour == "asgi"
        self.app: Any
        self.send: Driver
        if self.async_:
            self.app = asgi = self.guard.asgi(self.asgi())
            self.send = AsgiDriver(asgi, runner)
        else:
            self.app = wsgi = self.guard.wsgi(self.wsgi())
            self.send = WsgiDriver(wsgi, strict=False)

    @staticmethod
    def policy() -> semel.Policy:
        return semel.payments(mode="resumable", probe=None, lease=LEASE)

    def asgi(self) -> AsgiApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            op: semel.AsyncOperation = semel.async_operation()
            script = self.script
            said = [await op.phase(name, self._awrite, name) for name in script.phases]
            script.between()
            again = script.repeatable
            for name in script.calls:
                said += [await op.call(name, script.make_charge, 100, repeatable=again)]
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 201, "headers": head})
            await send({"type": "http.response.body", "body": json.dumps(said).encode()})

        return app

    async def _awrite(self, name: str) -> Any:
        op: semel.AsyncOperation = semel.async_operation()
        await aexecuted(op.transaction, _INSERT, (name,))
        if self.script.effect:
            which = name if self.script.which else ""
            await op.enqueue("receipt", {"for": name}, which=which)
        return self.script.in_phase() or {"phase": name}

    def wsgi(self) -> WsgiApp:
        def app(environ: Environ, start_response: StartResponse) -> list[bytes]:
            op: semel.Operation = semel.operation()
            said = [op.phase(name, self._write, name) for name in self.script.phases]
            self.script.between()
            for name in self.script.calls:
                charge, repeatable = self.script.make_charge, self.script.repeatable
                said.append(op.call(name, charge, 100, repeatable=repeatable))
            start_response("201 Created", [("content-type", "application/json")])
            return [json.dumps(said).encode()]

        return app

    def _write(self, name: str) -> Any:
        op: semel.Operation = semel.operation()
        executed(op.transaction, _INSERT, (name,))
        if self.script.effect:
            which = name if self.script.which else ""
            op.enqueue("receipt", {"for": name}, which=which)
        return self.script.in_phase() or {"phase": name}

    def ask(self, key: str) -> Reply:
        return self.send(Ask(key=key))

    # ── what the store holds ──────────────────────────────────────────────────────────────────────

    def cases(self) -> tuple[Case, ...]:
        return self.harness.backend.blocking().perform(Browse(tuple(State), 100)).cases

    def case(self) -> Case:
        (only,) = self.cases()
        return only

    @property
    def state(self) -> str:
        return self.case().record.state.value

    def points(self) -> list[tuple[str, bool]]:
        found = journal.decode(self.case().journal)
        return [(point.name, point.done) for point in found.points]

    def rows(self) -> list[str]:
        return [row[0] for row in self._query("SELECT phase FROM rides ORDER BY phase")]

    def effects(self) -> int:
        return int(self._query("SELECT count(*) FROM semel_effect")[0][0])

    def _query(self, text: str) -> list[Any]:
        with closing(connect(self.database)) as connection:
            return executed(connection, text)

    database: str = ""
    """The URL of its store."""

    def later(self, duration: timedelta) -> None:
        """Time passes, and what has begun keeps its beginning, by which providers know it."""
        url = self.guard.backend.url
        if url.startswith(("postgresql", "mysql")):
            into_the_past(url, duration.total_seconds())
        else:
            self.harness.travel(duration // timedelta(microseconds=1))

    def a_holder_dies_with(self, *names: str, intent: str | None = None) -> None:
        """As if a process had taken the released record, come this far, and been killed."""
        identity = self.case().record.identity
        fence = Fence(b"\xdd" * 16)
        self.take_over(identity, fence)
        reached = Journal()
        for name in names:
            reached = reached.reaching(name, journal.PointKind.PHASE, {"phase": name})
        if intent is not None:
            reached = reached.intending(intent)
        store = self.harness.backend.blocking()
        assert isinstance(store.perform(Advance(identity, fence, journal.encode(reached))), Applied)
        self.later(LEASE)

    def take_over(self, identity: Identity, fence: Fence) -> None:
        store = self.harness.backend.blocking()
        found = store.perform(Read(identity))
        assert not isinstance(found, NoRecord)
        lease = LEASE // timedelta(microseconds=1)
        taken = store.perform(Retake(identity, found.record.fence, fence, lease, OnLapse.RESUME))
        assert isinstance(taken, Applied), taken
        assert not isinstance(store.perform(Recall(identity)), NoRecord)


_TABLE = "CREATE TABLE rides (phase text)"
_INSERT = "INSERT INTO rides VALUES (%s)"


@contextmanager
def rides_on(
    store: str,
    colour: str,
    folder: Path,
    runner: asyncio.Runner,
    server: Callable[[], Any],
    **options: Any,
) -> Iterator[Rides]:
    """``server``: asks for that of the store (`server_of`)."""
    with open_harness(f"{store}-sync", folder, server) as harness:
        harness.backend.migrate()
        rides = Rides(colour, harness, runner, **options)
        own = harness.backend.url
        rides.database = f"sqlite:///{folder}/records.db" if store == "sqlite" else own
        with closing(connect(rides.database)) as connection:
            executed(connection, "DROP TABLE IF EXISTS rides")  # a database may be used again
            executed(connection, _TABLE)
        try:
            yield rides
        finally:
            runner.run(rides.guard.aclose())
            rides.guard.close()
