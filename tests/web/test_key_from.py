"""`key_from=` beside the rest: workers, changed settings, a guard's default, functions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.once import Once
from semel.web.asgi_exchange import Receive, Scope, Send
from semel.worker.stored_runs import StoredRuns
from tests.web.client import Reply
from tests.web.colours import Said, driver, once
from tests.web.conftest import MakeGuard
from tests.web.drive import AsgiDriver, Ask, Driver
from tests.web.effects import Effects

KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
FIELD = semel.body("/meta/key")

Serve = Callable[..., Driver]


def asked(key: object = KEY, **more: Any) -> bytes:
    return json.dumps({"meta": {"key": key}, **more}).encode()


def in_body(body: bytes, *headers: tuple[str, str], path: bytes = b"/x") -> Ask:
    said = (("content-type", "application/json"), *headers)
    return Ask(key=None, path=path, body=body, headers=said)


def by_header(key: str = KEY, body: bytes = b"{}") -> Ask:
    return Ask(key=key, body=body)


# ── deferred and resumable requests ───────────────────────────────────────────────────────────────


def from_cookie(request: semel.Request) -> str | None:
    """Looks at a header that is not stored."""
    return request.headers.get("cookie")


@pytest.mark.parametrize(
    ("options", "ask"),
    [
        ({"key_from": FIELD}, in_body(asked())),
        ({"key_from": "X-Key"}, in_body(b"{}", ("x-key", KEY))),
        ({"key_from": ("X-Key", FIELD)}, in_body(asked(), ("x-key", KEY))),
        ({"key_from": from_cookie}, in_body(b"{}", ("cookie", KEY))),
        ({"strict": True}, by_header(f'"{KEY}"')),
        ({}, by_header('"a key, with spaces"')),
    ],
    ids=["body", "header", "both", "function", "quoted", "spaces"],
)
def test_a_worker_runs_a_request_under_the_key_that_it_was_accepted_with(
    make_guard: MakeGuard, runner: asyncio.Runner, options: Any, ask: Ask
) -> None:
    ran: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        ran.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    policy = semel.accepted(mode="deferred", required=True, **options)
    guard = make_guard(policy=policy)
    guarded = guard.asgi(app)
    send = AsgiDriver(guarded, runner)

    async def work() -> int:
        runs = StoredRuns(guard, guarded)
        done = (await runs.run_once()).done
        await runs.aclose()
        return done

    assert send(ask).status == 202
    assert runner.run(work()) == 1
    again = send(ask)
    assert (again.status, again.body, again.replayed) == (201, b"done", True)
    assert ran == [ask.body]


# ── changed settings ──────────────────────────────────────────────────────────────────────────────


def test_a_place_that_has_changed_is_refused_without_previous(
    make_guard: MakeGuard, tmp_path: Path, effects: Effects, runner: asyncio.Runner
) -> None:
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    make_guard(store).start()
    with pytest.raises(semel.SettingsChanged, match="from="):
        make_guard(store, policy=semel.ietf(key_from=FIELD)).start()


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (semel.ietf(), {"key_from": FIELD}),
        (semel.ietf(), {"key_from": ("Idempotency-Key", FIELD)}),
        (semel.ietf(), {"key_from": "X-Key"}),
        (semel.ietf(key_from=FIELD), {}),
    ],
)
def test_a_key_that_was_sent_to_the_place_of_before_is_still_found(
    make_guard: MakeGuard,
    tmp_path: Path,
    effects: Effects,
    runner: asyncio.Runner,
    colour: str,
    before: semel.Policy,
    now: Any,
) -> None:
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    ask = by_header() if before.key_header else in_body(asked())
    first = driver(colour, make_guard(store, policy=before), once(effects), runner)(ask)
    guard = make_guard(store, policy=semel.ietf(previous=before, **now))
    again = driver(colour, guard, once(effects), runner)(ask)
    assert (again.status, again.body, again.replayed) == (200, first.body, True)
    assert len(effects.all()) == 1


def test_without_previous_the_settings_are_those_from_the_start() -> None:
    old = semel.ietf(key_from="X-Key")
    assert semel.ietf(previous=old).recipe() == semel.ietf().recipe()


# ── the guard's default, and routes of their own ──────────────────────────────────────────────────


def test_a_guard_says_where_keys_are_on_routes_that_do_not(
    make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner, colour: str
) -> None:
    guard = make_guard(
        key_from=FIELD,
        routes=[
            semel.Route("POST", "/own", semel.ietf(key_from="X-Key")),
            semel.Route("POST", "/free", semel.exempt()),
            semel.Route("POST", "/too", semel.stripe()),
        ],
    )
    send = driver(colour, guard, once(effects), runner)

    def replayed(*asks: Ask) -> list[bool]:
        return [send(ask).replayed for ask in asks]

    body, header = in_body(asked()), ("x-key", KEY)
    assert replayed(body, body) == [False, True]
    too = in_body(asked(), path=b"/too")
    assert replayed(too, too) == [False, True]
    own = in_body(asked("other"), header, path=b"/own")
    assert replayed(own, own) == [False, True]
    free = in_body(b"not JSON, and nobody reads it", path=b"/free")
    assert replayed(free, free) == [False, False]
    assert replayed(by_header(), by_header()) == [False, False]


def test_a_function_that_raises_fails_the_request_and_nothing_runs(
    make_guard: MakeGuard,
    effects: Effects,
    runner: asyncio.Runner,
    colour: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A key that could not be looked for is not a key that is not there."""

    def broken(request: semel.Request) -> str | None:
        raise LookupError("the session of the caller is gone")

    guard = make_guard(policy=semel.ietf(key_from=broken))
    reply = driver(colour, guard, once(effects), runner)(by_header())
    assert (reply.status, reply.code) == (500, "misconfigured")
    assert "key_from= failed: the session of the caller is gone" in caplog.text
    assert effects.all() == []


def test_what_the_payload_does_not_name_is_not_compared(
    make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner, colour: str
) -> None:
    policy = semel.ietf(key_from=FIELD, payload_from=semel.body("/order"))
    send = driver(colour, make_guard(policy=policy), once(effects), runner)
    sent = [
        in_body(asked(order=order, amount=amount)) for order, amount in [(1, 5), (1, 9), (2, 5)]
    ]
    replies = [send(ask) for ask in (*sent, in_body(asked(amount=5)))]
    assert [reply.status for reply in replies] == [200, 200, 422, 400]
    assert [reply.replayed for reply in replies] == [False, True, False, False]
    assert [reply.code for reply in replies[2:]] == ["key-reused", "unreadable-body"]
    assert len(effects.all()) == 1


def test_a_payload_by_a_function_is_told_when_the_policy_is_made() -> None:
    wrong: Any = lambda request: request.body  # noqa: E731
    with pytest.raises(semel.ConfigurationError, match="payload_from= takes"):
        semel.ietf(payload_from=wrong)


def test_a_mistaken_default_is_told_when_the_guard_is_made(make_guard: MakeGuard) -> None:
    with pytest.raises(semel.ConfigurationError, match="not the name of a header"):
        make_guard(key_from="/meta/key")


def test_the_format_of_a_route_counts_for_keys_in_bodies(
    make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner, colour: str
) -> None:
    policy = semel.ietf(key_from=FIELD, key="uuid", personal_data="refuse")
    send = driver(colour, make_guard(policy=policy), once(effects), runner)
    assert send(in_body(asked("no uuid"))).code == "malformed-key"
    assert send(in_body(asked(KEY.upper()))).status == 200
    assert send(in_body(asked(KEY))).replayed
    assert len(effects.all()) == 1


def test_a_shape_of_refusals_sees_the_body_that_was_read(
    make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner, colour: str
) -> None:
    """So a JSON-RPC error has the id of its call."""
    policy = semel.ietf(key_from=FIELD, required=True, refusal=semel.refusals.json_rpc)
    send = driver(colour, make_guard(policy=policy), once(effects), runner)
    reply = send(in_body(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "pay"}).encode()))
    assert (reply.status, json.loads(reply.body)["id"]) == (400, 7)


def test_a_body_in_pieces_is_passed_on_as_it_came(
    make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    """What the server says after the body reaches the application, too."""
    heard: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([await receive(), await receive()])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guarded = make_guard(policy=semel.ietf(key_from=FIELD)).asgi(app)
    pieces: list[Any] = [
        {"type": "http.request", "body": b'{"a": ', "more_body": True},
        {"type": "http.request", "body": b"1}", "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return pieces.pop(0)

    async def send(message: Any) -> None:
        """Nobody is there to read it."""

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/x",
        "raw_path": b"/x",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    runner.run(guarded(scope, receive, send))
    assert heard == [
        {"type": "http.request", "body": b'{"a": 1}', "more_body": False},
        {"type": "http.disconnect"},
    ]


def test_a_client_that_leaves_before_its_key_was_read_runs_nothing(
    make_guard: MakeGuard, runner: asyncio.Runner, effects: Effects
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        effects.happen(KEY)

    guarded = make_guard(policy=semel.ietf(key_from=FIELD)).asgi(app)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/x",
        "raw_path": b"/x",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    runner.run(guarded(scope, receive, send))
    assert (sent, effects.all()) == ([], [])


def test_an_awaited_tenant_is_asked_for_a_key_in_the_body(
    make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    async def tenant(request: semel.Request) -> str | None:
        return request.headers.get("x-user")

    said = driver(
        "asgi",
        make_guard(tenant=tenant, policy=semel.ietf(key_from=FIELD)),
        lambda: Said(b"done"),
        runner,
    )

    def user(name: str) -> Reply:
        return said(in_body(asked(), ("x-user", name)))

    assert [user("ann").replayed, user("bob").replayed, user("ann").replayed] == [
        False,
        False,
        True,
    ]
    assert said(in_body(asked())).code == "tenant-missing"


# ── functions ─────────────────────────────────────────────────────────────────────────────────────


def test_a_message_of_a_queue_is_compared_by_its_payload(make_guard: MakeGuard) -> None:
    guard = make_guard(policy=semel.ietf(payload_from=semel.body("/arguments")))

    def take(message: dict[str, Any]) -> Once[str]:
        return guard.once(KEY, lambda: "paid", name="pay", payload=message)

    assert not take({"delivery": 1, "arguments": {"amount": 5}}).replayed
    assert take({"delivery": 2, "arguments": {"amount": 5}}).replayed
    with pytest.raises(semel.Refused) as raised:
        take({"delivery": 3, "arguments": {"amount": 6}})
    assert raised.value.code == "key-reused"
    with pytest.raises(semel.Refused) as raised:
        take({"delivery": 4})
    assert raised.value.code == "unreadable-body"
