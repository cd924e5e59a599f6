"""`refusal=`: every refusal on the way of a request is in the API's own shape, in both colours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.operations.requests import Claim, Complete
from tests.ears import Ear
from tests.web.client import Reply, new_key
from tests.web.colours import COLOURS, Handle, Said, driver, once
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, Driver, WsgiDriver
from tests.web.effects import Effects
from tests.web.faults import FaultyBackend


def plain(problem: semel.Problem, request: semel.Request) -> semel.Response:
    said = {"oops": problem.code, "at": request.path, "retry": problem.retryable}
    headers = ((b"content-type", b"application/json"), (b"x-shape", b"plain"))
    return semel.Response(299, headers, json.dumps(said).encode())


def oops(reply: Reply) -> str:
    """The code of a refusal in that shape."""
    assert reply.one("content-type") == "application/json", reply
    assert reply.one("x-shape") == "plain"
    assert reply.one("cache-control") == "no-store"
    said = json.loads(reply.body)
    assert said["at"] == "/x"
    return str(said["oops"])


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Make = Callable[..., Driver]


@pytest.fixture
def make(colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner) -> Make:
    def build(
        handle: Handle | None = None, store: Any = "memory://", on_event: Any = None, **options: Any
    ) -> Driver:
        options.setdefault("refusal", plain)
        policy = semel.ietf(**options)
        guard = make_guard(store, policy=policy, on_event=on_event, breaker=None)
        return driver(colour, guard, handle or once(effects), runner)

    return build


def broken() -> Said:
    raise ValueError("a bug")


def test_refusals_at_the_door_are_in_shape(make: Make, effects: Effects) -> None:
    send = make(required=True, max_request_body=4)
    reply = send(Ask(key=None))
    assert (reply.status, oops(reply)) == (400, "missing-key")
    reply = send(Ask(key="a b"))
    assert (reply.status, oops(reply)) == (400, "malformed-key")
    reply = send(Ask(body=b'{"too": "large"}'))
    assert (reply.status, oops(reply)) == (413, "body-too-large")
    assert not effects.all()


def test_refusals_of_a_record_are_in_shape(make: Make, effects: Effects) -> None:
    send = make(retention=timedelta(hours=2))
    assert send().status == 200
    reply = send(Ask(body=b'{"other": 1}'))
    assert (reply.status, oops(reply)) == (422, "key-reused")
    assert send().replayed
    assert len(effects.all()) == 1


def test_an_answer_of_the_handler_is_left_as_it_is(make: Make) -> None:
    problem = (("content-type", "application/problem+json"),)
    send = make(lambda: Said(b'{"code": "mine"}', 409, problem))
    first, second = send(), send()
    assert (first.status, first.code) == (second.status, second.code) == (409, "mine")


def test_a_failed_handler_is_told_in_shape_and_kept_in_shape(make: Make) -> None:
    send = make(broken, after_error="keep")
    first, second = send(), send()
    assert (first.status, oops(first)) == (500, "handler-failed")
    assert second.replayed
    assert (second.status, second.body) == (500, first.body)


def test_a_store_that_is_down_is_told_in_shape(make: Make, effects: Effects) -> None:
    store = FaultyBackend()
    store.fail(Claim, mishap="refused")
    reply = make(store=store)()
    assert (reply.status, oops(reply)) == (503, "store-unavailable")
    assert reply.one("retry-after") == "1"
    assert not effects.all()


def test_an_outcome_that_cannot_be_kept_is_told_in_shape(make: Make) -> None:
    store = FaultyBackend()
    store.fail(Complete, mishap="refused")
    send = make(store=store, lease=timedelta(seconds=1), max_run=timedelta(seconds=1))
    reply = send()
    assert (reply.status, oops(reply)) == (503, "completion-not-durable")


@pytest.mark.parametrize("made", [None, b"no", ValueError("a bug in it")], ids=repr)
def test_a_shape_that_fails_leaves_the_problem_document_and_is_told(
    make: Make, effects: Effects, made: Any
) -> None:
    def shape(problem: semel.Problem, request: semel.Request) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    told = Ear()
    reply = make(refusal=shape, required=True, on_event=told)(Ask(key=None))
    assert (reply.status, reply.code) == (400, "missing-key")
    assert not effects.all()
    assert [(event["route"], event["code"]) for event in told.all("shape.failed")] == [
        ("*", "missing-key")
    ]


def test_refusals_are_counted_by_their_codes_whatever_their_shape(make: Make) -> None:
    told = Ear()
    make(required=True, on_event=told)(Ask(key=None))
    assert [event["code"] for event in told.all("refusal")] == ["missing-key"]


def test_the_guards_shape_is_for_policies_without_one(
    colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    own = semel.Route("POST", "/x", semel.stripe(required=True))
    documents = semel.ietf(required=True, refusal=semel.refusals.problem_document)
    routes = (own, semel.Route("POST", "/y", documents), semel.Route("POST", "/z", semel.acp()))
    guard = make_guard(policy=semel.ietf(required=True), routes=routes, refusal=plain)
    send = driver(colour, guard, once(effects), runner)
    assert json.loads(send(Ask(key=None)).body)["error"]["code"] == "missing_key"
    assert send(Ask(key=None, path=b"/y")).code == "missing-key"
    acp = json.loads(send(Ask(key=None, path=b"/z")).body)
    assert acp["code"] == "idempotency_key_required"
    assert json.loads(send(Ask(key=None, path=b"/a")).body)["oops"] == "missing-key"


def test_the_status_of_a_request_is_refused_in_the_guards_shape(
    colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    guard = make_guard(refusal=plain)
    send = driver(colour, guard, once(effects), runner)
    reply = send(Ask(method="GET", path=b"/semel/status/" + b"0" * 64, key=None))
    assert (reply.status, json.loads(reply.body)["oops"]) == (404, "no-such-operation")


def test_a_json_rpc_call_gets_its_number_back(make: Make) -> None:
    send = make(refusal=semel.refusals.json_rpc)
    send(Ask(body=b'{"jsonrpc": "2.0", "id": 7, "method": "pay", "params": [1]}'))
    reply = send(Ask(body=b'{"jsonrpc": "2.0", "id": 8, "method": "pay", "params": [2]}'))
    assert json.loads(reply.body)["id"] == 8


def test_a_function_that_runs_once_is_refused_by_codes(make_guard: MakeGuard) -> None:
    guard = make_guard(policy=semel.stripe(), refusal=plain)
    key = new_key()
    guard.once(key, lambda: 1, name="count", payload=1)
    with pytest.raises(semel.Refused) as refused:
        guard.once(key, lambda: 1, name="count", payload=2)
    assert refused.value.code == "key-reused"


async def never(problem: semel.Problem, request: semel.Request) -> semel.Response:
    raise AssertionError


@pytest.mark.parametrize("wrong", ["json", never], ids=["text", "coroutine"])
def test_what_is_no_plain_function_is_refused_at_the_start(wrong: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match="refusal="):
        semel.ietf(refusal=wrong)


# ── a shape that misbehaves loses nothing ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["leased", "atomic"])
@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), KeyError("x")])
def test_whatever_a_shape_raises_the_doubt_is_on_record(
    mode: Any, raised: BaseException, make: Make, effects: Effects, tmp_path: Path
) -> None:
    def shape(problem: semel.Problem, request: semel.Request) -> semel.Response:
        raise raised

    def charge() -> Said:
        effects.happen("-")
        raise semel.OutcomeUnknown("the provider timed out")

    send = make(charge, f"sqlite:///{tmp_path / 'semel.db'}", refusal=shape, mode=mode)
    replies = [send() for _ in range(3)]
    assert [reply.status for reply in replies] == [500, 409, 409]
    assert {reply.code for reply in replies} == {"outcome-unknown"}
    assert len(effects.all()) == 1, "it ran again"


def test_a_large_body_that_the_application_closes_leaves_the_doubt_on_record(
    make_guard: MakeGuard, effects: Effects, tmp_path: Path
) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        with environ["wsgi.input"] as body:
            body.read()
        effects.happen("-")
        raise semel.OutcomeUnknown("the provider timed out")

    policy = semel.acp(mode="atomic")
    guard = make_guard(f"sqlite:///{tmp_path / 'semel.db'}", policy=policy)
    send = WsgiDriver(guard.wsgi(app), strict=False)
    replies = [send(Ask(body=b"x" * 1_100_000)) for _ in range(3)]
    assert [reply.status for reply in replies] == [500, 409, 409]
    assert len(effects.all()) == 1, "it ran again"


@pytest.mark.parametrize(
    "header",
    [(b"x-status", 422), ("x-a", b"b"), (b"x-a", b"b\r\nset-cookie: a=b"), (b"x a", b"b")],
    ids=repr,
)
def test_a_head_that_no_server_could_send_leaves_the_problem_document(
    make: Make, header: Any
) -> None:
    def shape(problem: semel.Problem, request: semel.Request) -> semel.Response:
        return semel.Response(problem.status, (header,), b"{}")

    send = make(broken, refusal=shape, after_error="keep")
    first, second = send(), send()
    assert (first.status, first.code) == (second.status, second.code) == (500, "handler-failed")


def test_a_shape_cannot_say_what_only_semel_says(make: Make) -> None:
    def shape(problem: semel.Problem, request: semel.Request) -> semel.Response:
        names = (b"Idempotent-Replayed", b"Was-Repeated", b"Idempotency-Expires", b"Connection")
        headers = [(name, b"true") for name in (*names, b"Transfer-Encoding", b"Content-Type")]
        return semel.Response(problem.status, tuple(headers), b"{}")

    reply = make(required=True, refusal=shape, replay_header="Was-Repeated")(Ask(key=None))
    assert {name.lower() for name, _ in reply.headers} == {
        *("content-type", "idempotency-problem", "cache-control", "content-length")
    }
    assert reply.one("idempotency-problem") == "missing-key;retryable=?0"


def test_a_large_body_is_not_given_to_a_shape(make: Make) -> None:
    seen: list[int] = []

    def shape(problem: semel.Problem, request: semel.Request) -> semel.Response:
        seen.append(len(problem.sent))
        return plain(problem, request)

    send = make(refusal=shape)
    for body in (b"a", b"b", b"c" * 100_000, b"d" * 1_500_000):
        send(Ask(body=body))
    assert seen == [1, 0, 0]


@pytest.mark.parametrize("wrong", ["json", never], ids=["text", "coroutine"])
def test_a_guard_refuses_what_is_no_plain_function(wrong: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match="refusal="):
        semel.Guard("memory://", tenant=None, policy=semel.stripe(), refusal=wrong)
