"""What the contract declares is what a running application does, statement by statement."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest

import semel
from semel.stores.memory.backend import MemoryBackend
from semel.web.asgi_exchange import Receive, Scope, Send
from tests.web.client import Reply
from tests.web.conftest import MakeGuard
from tests.web.drive import AsgiDriver, Ask, WsgiDriver, call

HOUR = timedelta(hours=1)
SECOND = 1_000_000
POLICIES: dict[str, semel.Policy] = {
    "ietf": semel.ietf(),
    "stripe": semel.stripe(required=True),
    "acp": semel.acp(key_from=semel.body("/meta/key")),
    "accepted": semel.accepted(key="strong", retention=2 * HOUR, tombstone=HOUR),
    "payments": semel.payments(probe=None, key="uuid", wait=timedelta(milliseconds=1)),
    "strict": semel.ietf(strict=True, scope="tenant", replay_header="X-Again"),
    "own statuses": semel.ietf(keep={201, 503}, after_error="unknown", mismatch_status=409),
    "several places": semel.ietf(key_from=("X-Key", "Idempotency-Key", semel.body("key"))),
}


@dataclass
class Api:
    """An application that answers as its query says, and counts."""

    policy: semel.Policy
    runner: asyncio.Runner
    now: int = 1_700_000_000 * SECOND
    calls: int = 0
    made: int = 0
    gate: asyncio.Event | None = None
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    guard: Any = None

    def start(self, make_guard: MakeGuard) -> dict[str, Any]:
        store = MemoryBackend(clock=lambda: self.now)
        self.guard = make_guard(store, policy=self.policy, maintenance=None)
        self.app = self.guard.asgi(self._app)
        declared: dict[str, Any] = json.loads(json.dumps(self.guard.contract()))["default"]
        return declared

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        status = int(parse_qs(scope["query_string"].decode()).get("status", ["200"])[0])
        if self.gate is not None:
            self.entered.set()
            await self.gate.wait()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % self.calls})

    def key(self) -> str:
        self.made += 1
        return f"8e03978e-40d5-43e8-bc93-{self.made:012}"

    def ask(
        self,
        declared: dict[str, Any],
        key: str | None,
        *,
        place: int = 0,
        status: int | None = None,
        path: bytes = b"/x",
        quoted: bool | None = None,
        **body: Any,
    ) -> Ask:
        """A request with its key where the contract says; its answer is kept, unless told."""
        status = statuses(declared["answers"]["kept"])[0] if status is None else status
        where, headers = declared["key"]["places"][place], [("content-type", "application/json")]
        if key is not None and where["in"] == "header":
            quotes = declared["key"]["quoted_only"] if quoted is None else quoted
            headers.append((where["name"], f'"{key}"' if quotes else key))
        elif key is not None:
            inner: dict[str, Any] = body
            *steps, last = where["pointer"].split("/")[1:]
            for step in steps:
                inner = inner.setdefault(step, {})
            inner[last] = key
        return Ask(
            path=path,
            key=None,
            body=json.dumps(body).encode(),
            query=b"status=%d" % status,
            headers=tuple(headers),
        )

    def send(self, ask: Ask) -> Reply:
        return AsgiDriver(self.app, self.runner)(ask)

    def ran(self, ask: Ask) -> bool:
        before = self.calls
        self.send(ask)
        return self.calls == before + 1


def is_replay(declared: dict[str, Any], reply: Reply) -> bool:
    marker = declared["replay"]
    return bool(reply.one(marker["header"].lower()) == marker["value"])


@pytest.fixture(params=POLICIES)
def api(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Api:
    return Api(POLICIES[request.param], runner)


def test_where_the_key_is_and_whether_it_must_be(api: Api, make_guard: MakeGuard) -> None:
    declared = api.start(make_guard)
    for place in range(len(declared["key"]["places"])):
        ask = api.ask(declared, api.key(), place=place)
        assert api.ran(ask)
        assert is_replay(declared, api.send(ask))
    without = api.ask(declared, None, a=1)
    if declared["key"]["required"]:
        assert api.send(without).status == 400
        assert not api.ran(without)
    else:
        assert api.ran(without)
        assert api.ran(without)


def test_which_keys_are_taken(api: Api, make_guard: MakeGuard) -> None:
    declared = api.start(make_guard)
    form, header = declared["key"], declared["key"]["places"][0]["in"] == "header"
    if "uuid_versions" in form:
        good, bad = [api.key()], ["no-uuid-at-all-0123456789", api.key().replace("-43e8", "-13e8")]
    else:
        good = ["a" * form["min_length"], "b" * form["max_length"]]
        bad = ["c" * (form["max_length"] + 1), "d" * (form["min_length"] - 1)]
    assert [api.ran(api.ask(declared, key)) for key in good] == [True] * len(good)
    for key in bad:
        assert api.send(api.ask(declared, key)).status == 400
        assert not api.ran(api.ask(declared, key))
    if header:
        bare = api.ask(declared, api.key(), quoted=False)
        assert api.ran(bare) is not form["quoted_only"]


def test_what_another_request_under_the_key_gets(api: Api, make_guard: MakeGuard) -> None:
    declared = api.start(make_guard)
    key = api.key()
    assert api.ran(api.ask(declared, key, a=1))
    reply = api.send(api.ask(declared, key, a=2))
    assert (reply.status, api.calls) == (declared["mismatch"]["status"], 1)
    elsewhere = api.ask(declared, key, a=1, path=b"/y")
    if declared["scope"] == "endpoint":
        assert api.ran(elsewhere)
    else:
        assert api.send(elsewhere).status == declared["mismatch"]["status"]
        assert api.calls == 1


def test_for_how_long_an_answer_is_kept(api: Api, make_guard: MakeGuard) -> None:
    declared = api.start(make_guard)
    ask = api.ask(declared, api.key())
    assert api.ran(ask)
    begun = api.now
    api.now = begun + (declared["lifetime"] - 1) * SECOND
    assert is_replay(declared, api.send(ask))
    api.now = begun + (declared["lifetime"] + 1) * SECOND
    if declared["after_lifetime"] is None:
        assert declared["remembered"] == declared["lifetime"]
    else:
        assert api.send(ask).status == declared["after_lifetime"]["status"]
        api.now = begun + (declared["remembered"] - 1) * SECOND
        assert api.send(ask).status == declared["after_lifetime"]["status"]
        assert api.calls == 1
    api.now = begun + (declared["remembered"] + 1) * SECOND
    assert api.ran(ask)


def test_what_a_second_request_gets_meanwhile(api: Api, make_guard: MakeGuard) -> None:
    declared = api.start(make_guard)
    ask = api.ask(declared, api.key())

    async def meanwhile() -> Reply:
        api.gate = asyncio.Event()
        first = asyncio.ensure_future(call(api.app, ask))
        await api.entered.wait()
        second, _ = await call(api.app, ask)
        api.gate.set()
        await first
        return second

    reply = api.runner.run(meanwhile())
    assert (reply.status, api.calls) == (declared["in_flight"]["status"], 1)
    assert (declared["in_flight"]["waits"] > 0) is (api.policy.name == "payments")


def statuses(ranges: list[str]) -> list[int]:
    """Both ends of each range."""
    return sorted({int(end) for each in ranges for end in each.split("-")})


def test_which_answers_are_kept(api: Api, make_guard: MakeGuard) -> None:
    declared = api.start(make_guard)
    answers = declared["answers"]
    for status in statuses(answers["kept"]):
        ask = api.ask(declared, api.key(), status=status)
        assert (api.send(ask).status, is_replay(declared, api.send(ask))) == (status, True), status
    for status in statuses(answers["free"]):
        ask = api.ask(declared, api.key(), status=status)
        assert [api.ran(ask), api.ran(ask)] == [True, True], status
    for status in statuses(answers["unsettled"]):
        ask = api.ask(declared, api.key(), status=status)
        assert [api.ran(ask), api.ran(ask)] == [True, False], status
        assert not is_replay(declared, api.send(ask))
    covered = [each for ranges in answers.values() for each in ranges]
    assert len({s for r in covered for s in _every(r)}) == 400


def _every(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


# ── where it is told ──────────────────────────────────────────────────────────────────────────────


async def no_app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def plain_app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("404 No", [("content-type", "text/plain")])
    return [b""]


WHERE = Ask("GET", b"/.well-known/idempotency", None, b"", headers=())


@pytest.mark.parametrize("colour", ["asgi", "wsgi"])
def test_it_is_published_only_where_that_was_asked_for(
    make_guard: MakeGuard, runner: asyncio.Runner, colour: str
) -> None:
    own = semel.Route("POST", "/pay", semel.stripe())
    for publish in (True, False):
        guard = make_guard(publish=publish, routes=[own], tenant=lambda request: None)
        served: Any = AsgiDriver(guard.asgi(no_app), runner)
        if colour == "wsgi":
            served = WsgiDriver(guard.wsgi(plain_app))
        reply = served(WHERE)
        if not publish:
            assert reply.status == 404
            continue
        assert (reply.status, reply.one("content-type")) == (200, "application/json")
        assert json.loads(reply.body) == guard.contract()
        (route,) = json.loads(reply.body)["routes"]
        assert (route["method"], route["path"], route["scope"]) == ("POST", "/pay", "caller")


def test_nothing_secret_is_in_it_and_it_is_the_same_for_everybody(make_guard: MakeGuard) -> None:
    guard = make_guard(
        "memory://",
        tenant=lambda request: "a tenant",
        name="inner name",
        secrets={"one": b"a secret of enough bytes"},
        policy=semel.ietf(key_from=lambda request: None, key=lambda key: True),
    )
    told = json.dumps(guard.contract())
    for word in ("tenant", "secret", "inner name", "lambda", "memory", "test_contract"):
        assert word not in told
    assert guard.contract()["default"]["key"]["places"] == [{"in": "request"}]
    assert guard.contract()["default"]["key"]["further_rules"]


def test_what_is_not_enforced_is_not_declared(make_guard: MakeGuard) -> None:
    shadow = semel.Route("POST", "/later", semel.ietf(enforce="shadow"))
    free = semel.Route("POST", "/free", semel.exempt())
    every = semel.Route("*", "/every", semel.exempt())
    found = make_guard(routes=[shadow, free, every], policy=semel.ietf(enforce="shadow"))
    told = found.contract()
    assert told["default"] is None
    # They are listed, as the default's promises would be theirs otherwise.
    assert told["routes"] == [
        {"method": "POST", "path": "/later", "methods": []},
        {"method": "POST", "path": "/free", "methods": []},
        {"method": "*", "path": "/every", "methods": []},
    ]
    assert make_guard(policy=semel.exempt()).contract()["default"] is None


@pytest.mark.parametrize("colour", ["asgi", "wsgi"])
def test_it_is_told_at_the_root_of_the_host_and_nowhere_else(
    make_guard: MakeGuard, runner: asyncio.Runner, colour: str
) -> None:
    """Its paths are those of the host: below a prefix it would be about other routes."""
    guard = make_guard(publish=True)
    served: Any = AsgiDriver(guard.asgi(no_app), runner)
    if colour == "wsgi":
        served = WsgiDriver(guard.wsgi(plain_app))
    told, head = served(WHERE), served(Ask("HEAD", WHERE.path, None, b"", headers=()))
    assert (head.status, head.body) == (200, b"")
    assert head.one("content-length") == str(len(told.body))
    for path in (b"/.well-known/idempotency/", b"/api/.well-known/idempotency"):
        assert served(Ask("GET", path, None, b"", headers=())).status == 404
    assert served(Ask("OPTIONS", WHERE.path, None, b"", headers=())).status == 405


@pytest.mark.parametrize("place", [{"PATH_INFO": ""}, {}])
def test_an_application_at_an_empty_path_is_called_where_nothing_is_published(
    place: dict[str, str],
) -> None:
    called: list[str] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        called.append(environ["REQUEST_METHOD"])
        start_response("200 OK", [])
        return [b"mine"]

    environ = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "/shop",
        "wsgi.input": io.BytesIO(),
        **place,
    }
    guarded = semel.Guard("memory://", tenant=None).wsgi(app)
    start: Any = lambda *_: None  # noqa: E731
    assert b"".join(guarded(environ, start)) == b"mine"
    assert called == ["POST"]
