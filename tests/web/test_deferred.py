"""Deferred routes: accepted at once, run by a worker as its caller, told by the status resource."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.flow import run
from semel.core.maintenance import Pace, tend
from semel.core.operations.requests import Recall, Recalled, Take
from semel.core.records import Fence, Identity
from semel.stores.base import performer
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse
from semel.worker.stored_runs import StoredRuns
from tests.ears import listen
from tests.stores.harness import Harness, open_harness, server_of
from tests.web.client import Reply
from tests.web.drive import AsgiDriver, Ask, Driver, Wire, WsgiDriver, scope_of

STORES = ("memory", "sqlite", "postgresql", "mysql", "redis")
HOUR = timedelta(hours=1) // timedelta(microseconds=1)


class Office:
    """An application behind authentication, whose work is done later."""

    def __init__(
        self, colour: str, harness: Harness, runner: asyncio.Runner, **options: Any
    ) -> None:
        self.harness = harness
        self.runner = runner
        self.ran: list[dict[str, Any]] = []
        self.answer: tuple[int, bytes] = (201, b'{"done":true}')
        self.error: Exception | None = None
        self.trusts_workers = True
        self.passes_workers = True
        policy = semel.accepted(
            mode="deferred",
            required=True,
            carry=["X-Trace"],
            principal=lambda r: {"user": r.raw["user"]},
            **options,
        )
        self.guard = semel.Guard(
            harness.backend, tenant=lambda request: request.raw.get("user"), policy=policy
        )
        self.app: Any
        self.send: Driver
        if colour == "asgi":
            self.app = asgi = self._asgi()
            self.send = AsgiDriver(asgi, runner)
        else:
            self.app = wsgi = self._wsgi()
            self.send = WsgiDriver(wsgi, strict=False)

    def handle(self, raw: Any, trace: str) -> tuple[int, bytes]:
        self.ran.append({"user": raw["user"], "trace": trace, "principal": semel.principal(raw)})
        if self.error is not None:
            raise self.error
        return self.answer

    def user(self, raw: Any, token: str) -> str | None:
        """Authentication: a token of the caller's, or semel's word for who it was."""
        known: Any = semel.principal(raw)
        if known is not None:
            return known["user"] if self.trusts_workers else None
        return token or None

    def _asgi(self) -> AsgiApp:
        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            headers = dict(scope["headers"])
            status, body = self.handle(scope, headers.get(b"x-trace", b"").decode())
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": body})

        guarded = self.guard.asgi(inner)

        async def outer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                raise RuntimeError("this application has no lifespan")
            if semel.principal(scope) is not None and not self.passes_workers:
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            token = dict(scope["headers"]).get(b"authorization", b"").decode()
            scope["user"] = self.user(scope, token)
            await guarded(scope, receive, send)

        return outer

    def _wsgi(self) -> Any:
        def inner(environ: Environ, start_response: StartResponse) -> list[bytes]:
            status, body = self.handle(environ, environ.get("HTTP_X_TRACE", ""))
            start_response(f"{status} Said", [])
            return [body]

        guarded = self.guard.wsgi(inner)

        def outer(environ: Environ, start_response: StartResponse) -> Any:
            if semel.principal(environ) is not None and not self.passes_workers:
                start_response("403 No", [])
                return [b""]
            environ["user"] = self.user(environ, environ.get("HTTP_AUTHORIZATION", ""))
            return guarded(environ, start_response)

        return outer

    def ask(self, user: str = "ann", body: bytes = b"{}") -> Reply:
        return self.send(replace(ASK, headers=(*ASK.headers, ("authorization", user)), body=body))

    def look(self, location: str, user: str = "ann") -> Reply:
        headers = (("authorization", user),) if user else ()
        return self.send(Ask("GET", location.encode(), None, b"", headers=headers))

    def work(self) -> int:
        return self.runner.run(self._work())

    async def _work(self) -> int:
        runs = StoredRuns(self.guard, self.app)
        done = (await runs.run_once()).done
        await runs.aclose()
        return done

    def case(self, location: str) -> Any:
        identity = Identity(bytes.fromhex(location.rpartition("/")[2]))
        found = self.harness.backend.blocking().perform(Recall(identity))
        assert isinstance(found, Recalled)
        return found.case

    def state(self, location: str) -> str:
        return str(self.case(location).record.state.value)


ASK = Ask(
    path=b"/jobs/caf\xc3\xa9 1",
    query=b"x=1",
    headers=(("content-type", "application/json"), ("x-trace", "t-1"), ("cookie", "secret")),
)


PAIRS = ("memory-asgi", "memory-wsgi", "sqlite-wsgi", "postgresql-asgi", "mysql-wsgi", "redis-asgi")
"""Every store, and both colours."""


@pytest.fixture(params=PAIRS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Harness]]:
    store, colour = request.param.split("-")
    with open_harness(f"{store}-sync", tmp_path, server_of(request, store)) as harness:
        yield colour, harness


@pytest.fixture
def office(opened: tuple[str, Harness], runner: asyncio.Runner) -> Iterator[Office]:
    made = Office(*opened, runner)
    yield made
    runner.run(made.guard.aclose())
    made.guard.close()


def test_a_request_is_accepted_then_run_once_then_answered(office: Office) -> None:
    first = office.ask()
    assert first.status == 202
    assert first.one("retry-after") == "1"
    where = first.one("location")
    assert where is not None
    assert json.loads(first.body) == {"status": "pending", "location": where}
    assert office.ask().one("location") == where
    assert office.look(where).status == 202
    assert office.ran == []

    assert office.work() == 1
    assert office.ran == [{"user": "ann", "trace": "t-1", "principal": {"user": "ann"}}]
    final = office.look(where)
    assert (final.status, final.body) == (201, b'{"done":true}')
    assert final.one("idempotent-replayed") == "true"
    again = office.ask()
    assert (again.status, again.body) == (final.status, final.body)
    assert office.work() == 0
    assert office.case(where).request is None
    assert len(office.ran) == 1


def location(office: Office, user: str = "ann") -> str:
    where = office.ask(user).one("location")
    assert where is not None
    return where


def test_only_its_caller_learns_of_it(office: Office) -> None:
    where = location(office)
    assert office.look(where, "bob").status == 404
    assert office.look(where, "").status == 401
    assert office.look(where[:-64] + "0" * 64).status == 404
    assert office.look(where[:-1]).status == 404
    assert office.look(where.replace(where[-64:], where[-64:].upper())).status == 404
    office.work()
    assert office.look(where, "bob").status == 404


def test_a_key_on_the_status_address_changes_nothing(office: Office) -> None:
    where = location(office)
    headers = (("authorization", "ann"),)
    assert office.send(Ask("GET", where.encode(), headers=headers)).status == 202
    assert office.ran == []


def test_a_request_without_a_key_is_not_run_at_once(office: Office) -> None:
    headers = (*ASK.headers, ("authorization", "ann"))
    assert office.send(replace(ASK, key=None, headers=headers)).code == "missing-key"
    with pytest.raises(semel.ConfigurationError, match="required=True"):
        semel.accepted(mode="deferred")


def test_another_payload_is_a_mismatch_before_and_after(office: Office) -> None:
    location(office)
    assert office.ask(body=b'{"other":1}').status == 422
    office.work()
    assert office.ask(body=b'{"other":1}').status == 422
    assert len(office.ran) == 1


def test_a_stored_request_keeps_no_header_that_was_not_named(office: Office) -> None:
    where = location(office)
    assert b"secret" not in office.case(where).request
    assert b"t-1" in office.case(where).request


def test_a_run_that_did_nothing_goes_back_to_the_queue(office: Office) -> None:
    where = location(office)
    office.harness.travel(HOUR // 6)  # the older, the longer its pause: minutes, by now
    office.error = semel.NotExecuted("not now")
    assert office.work() == 1
    assert office.state(where) == "pending"
    assert office.look(where).status == 202
    assert office.work() == 0  # not before its pause is over
    office.harness.travel(HOUR // 6)
    office.error = None
    assert office.work() == 1
    assert office.look(where).status == 201


def test_a_run_that_may_have_had_an_effect_is_not_tried_again(office: Office) -> None:
    where = location(office)
    office.error = semel.OutcomeUnknown("no answer")
    office.work()
    assert office.state(where) == "unknown"
    assert office.look(where).status == 409
    assert office.ask().status == 409
    office.harness.travel(HOUR // 6)
    assert office.work() == 0
    assert len(office.ran) == 1


@pytest.mark.parametrize("where_refused", ["by the guard", "before the guard"])
def test_a_worker_that_is_turned_away_on_its_way_tries_again(
    office: Office, where_refused: str
) -> None:
    """It may be an older version, or a setting that is mended; else it is a dead letter."""
    where = location(office)
    office.trusts_workers = where_refused != "by the guard"
    office.passes_workers = where_refused != "before the guard"
    office.work()
    assert (office.state(where), office.look(where).status) == ("pending", 202)
    office.harness.travel(HOUR - HOUR // 60)  # its next try would come after its deadline
    office.work()
    assert (office.state(where), office.case(where).due_at) == ("unknown", None)
    assert "turned away" in (office.case(where).record.reason or "")
    assert office.look(where).status == 409  # never the 401 or 403 of the worker's run


def test_a_worker_that_its_handler_refuses_leaves_a_dead_letter(office: Office) -> None:
    where = location(office)
    office.answer = (403, b"")
    office.work()
    assert (office.state(where), office.case(where).due_at) == ("unknown", None)
    assert office.look(where).status == 409


def test_nobody_ran_it_in_time(office: Office) -> None:
    where = location(office)
    office.harness.travel(HOUR + 1)
    run(tend(Pace(100, 1, 0)), performer(office.harness.backend.blocking()))
    for reply in (office.look(where), office.ask()):
        assert reply.status == 408
        assert json.loads(reply.body)["code"] == "abandoned"
    assert office.work() == 0
    assert office.ran == []


def test_a_worker_that_died_leaves_its_request_unknown(office: Office) -> None:
    where = location(office)
    record = office.case(where).record
    lease = office.guard.policy.lease_micros
    take = Take(record.identity, record.fence, Fence(b"\xdd" * 16), lease)
    office.harness.backend.blocking().perform(take)
    assert office.look(where).status == 202
    office.harness.travel(lease + 1)
    assert office.ask().status == 409
    assert office.work() == 0
    assert office.ran == []


def test_where_declared_the_request_of_a_dead_worker_is_run_again(
    opened: tuple[str, Harness], runner: asyncio.Runner
) -> None:
    office = Office(*opened, runner, after_lapse="release", effects="none")
    where = location(office)
    record = office.case(where).record
    lease = office.guard.policy.lease_micros
    take = Take(record.identity, record.fence, Fence(b"\xdd" * 16), lease)
    office.harness.backend.blocking().perform(take)
    office.harness.travel(lease + 1)
    assert office.ask().status == 202
    assert office.work() == 1
    assert office.look(where).status == 201
    runner.run(office.guard.aclose())


def test_past_retention_it_is_gone_but_not_forgotten(office: Office) -> None:
    where = location(office)
    office.work()
    office.harness.travel(24 * HOUR + 1)
    assert office.look(where).status == 410
    assert office.ask().status == 410
    office.harness.travel(24 * HOUR)
    assert office.look(where).status == 404


def test_a_client_cannot_pass_for_a_worker(office: Office) -> None:
    """Not even by a header of the same name."""
    headers = (
        *ASK.headers,
        ("authorization", "ann"),
        ("semel.worker_run", "x"),
        ("semel-worker-run", "x"),
    )
    office.send(replace(ASK, headers=headers))
    assert office.ran == []


def test_two_workers_share_the_requests(office: Office) -> None:
    for number in range(12):
        body, key = b"{}", f"key-number-{number:020}"
        headers = (*ASK.headers, ("authorization", "ann"))
        office.send(replace(ASK, headers=headers, key=key, body=body))

    async def both() -> int:
        workers = [StoredRuns(office.guard, office.app) for _ in range(2)]
        rounds = await asyncio.gather(*(worker.run_once() for worker in workers))
        return sum(each.done for each in rounds)

    assert office.runner.run(both()) == 12
    assert len(office.ran) == 12


def test_a_run_that_is_cut_off_around_its_guard_is_not_run_beside_itself(
    opened: tuple[str, Harness], runner: asyncio.Runner
) -> None:
    """A time limit in front of the guard ends the waiting for the handler, not the handler."""
    _, harness = opened
    office = Office("asgi", harness, runner)
    where = location(office)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        office.ran.append({})
        began.set()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    guarded = office.guard.asgi(slow)

    async def hurried(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            raise RuntimeError("this application has no lifespan")
        scope["user"] = "ann"
        waiting = asyncio.ensure_future(guarded(scope, receive, send))
        await began.wait()
        waiting.cancel()
        raise TimeoutError("it takes too long")

    ear = listen(office.guard)

    async def work() -> None:
        runs = StoredRuns(office.guard, hurried)
        await runs.run_once()
        assert office.state(where) == "in_progress"
        go_on.set()
        await asyncio.wait(office.guard.runtime.running)
        assert ear.tally("run", "came") == {"left_running": 1}

    runner.run(work())
    assert len(office.ran) == 1
    assert office.look(where).status == 201
    runner.run(office.guard.aclose())


def test_a_request_that_could_not_be_put_down_is_put_down_later(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its lease would lapse, and a request that nobody ran would be unknown."""
    where = location(office)

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            monkeypatch.setattr(runs._runner, "aperform", outage)
        raise RuntimeError("the session store is down")

    async def outage(op: Any) -> Any:
        raise semel.StoreUnavailable("no answer")

    runs = StoredRuns(office.guard, broken)
    office.runner.run(runs.run_once())
    while office.guard.runtime.keeper.write_retries:
        office.guard.runtime.keeper.run_once()
    assert office.state(where) == "pending"


@pytest.mark.parametrize("root", ["", "/api"])
async def test_a_worker_sends_an_escaped_slash_as_it_came(root: str) -> None:
    """Some routers look at the path as it was sent."""
    policy = semel.accepted(mode="deferred", required=True)
    guard = semel.Guard("memory://", tenant=None, policy=policy)
    ran = list[tuple[str, bytes]]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            raise RuntimeError("this application has no lifespan")
        ran.append((scope["path"], scope["raw_path"]))
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guarded, wire = guard.asgi(app), Wire(Ask())
    path, sent = f"{root}/accounts/a/b", f"{root}/accounts/a%2Fb".encode()
    scope = {**scope_of(Ask(root=root)), "path": path, "raw_path": sent}
    await guarded(scope, wire.receive, wire.send)
    assert (wire.reply().status, ran) == (202, [])
    runs = StoredRuns(guard, guarded)
    await runs.run_once()
    await runs.aclose()
    assert ran == [(path, sent)]
    await guard.aclose()
