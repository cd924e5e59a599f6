"""First answers and replays: what is said, what is kept, what is made anew."""

import gzip
import random
import sys
import threading
import zlib
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

import semel
from semel.core.exchange import replay
from semel.web.asgi_exchange import Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse
from tests.web.client import Reply
from tests.web.colours import TEXT, Said, once
from tests.web.conftest import Drive, MakeGuard, Serve
from tests.web.drive import Ask, Driver, WsgiDriver
from tests.web.effects import Effects

JSON = ("content-type", "application/json")


def twice(send: Driver, *headers: tuple[str, str]) -> tuple[Reply, Reply]:
    ask = Ask(headers=(JSON, *headers))
    return send(ask), send(ask)


def test_what_belongs_to_one_moment_or_one_browser_is_not_replayed(serve: Serve) -> None:
    kept = (TEXT, ("x-kept", "1"), ("x-kept", "2"), ("etag", '"v1"'), ("location", "/x/1"))
    lost = (("set-cookie", "a=1"), ("date", "Mon, 01 Jan 2024 00:00:00 GMT"), ("age", "3"))
    send = serve(lambda: Said(b"x", 201, (*kept, *lost)))
    first, again = twice(send)
    assert first.one("set-cookie") == "a=1"
    assert [again.one(name) for name, _ in lost] == [None, None, None]
    for name, _ in kept:
        assert again.all(name) == first.all(name) != []
    assert again.one("content-length") == "1"


def test_semels_own_headers_are_said_once_each(serve: Serve) -> None:
    said = (TEXT, ("cache-control", "public, max-age=60"), ("idempotency-expires", "never"))
    policy = semel.ietf(replay_header="Idempotency-Replay", retention=timedelta(days=2))
    send = serve(lambda: Said(b"x", 200, said), policy=policy)
    first, again = twice(send)
    assert (first.all("idempotency-replay"), again.all("idempotency-replay")) == (
        ["false"],
        ["true"],
    )
    for reply in (first, again):
        assert reply.all("cache-control") == ["no-store"]
        assert len(reply.all("idempotency-expires")) == 1
        assert "GMT" in reply.all("idempotency-expires")[0]


def test_answers_to_other_origins_expose_what_clients_need(serve: Serve) -> None:
    said = (TEXT, ("access-control-allow-origin", "*"), ("access-control-expose-headers", "x-a"))
    send = serve(lambda: Said(b"x", 200, said))
    for reply in twice(send):
        exposed = ", ".join(reply.all("access-control-expose-headers"))
        assert "x-a" in exposed
        assert "idempotent-replayed" in exposed.lower()
        assert "idempotency-expires" in exposed.lower()
        assert "retry-after" in exposed.lower()


def test_answers_to_the_same_origin_expose_nothing(serve: Serve) -> None:
    send = serve(lambda: Said(b"x"))
    assert [reply.one("access-control-expose-headers") for reply in twice(send)] == [None, None]


@pytest.mark.parametrize(
    ("accepted", "coded"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False), ("br", False)],
)
def test_a_coding_the_caller_does_not_accept_is_undone(
    accepted: str, coded: bool, serve: Serve
) -> None:
    body = gzip.compress(b"hello", mtime=0)
    said = (TEXT, ("content-encoding", "gzip"))
    send = serve(lambda: Said(body, 200, said))
    send(Ask(headers=(JSON, ("accept-encoding", "gzip"))))
    again = send(Ask(headers=(JSON, ("accept-encoding", accepted))))
    assert again.replayed
    assert (again.one("content-encoding") == "gzip") is coded
    assert again.body == (body if coded else b"hello")
    assert again.one("content-length") == str(len(again.body))
    plain = send(Ask(headers=(JSON,)))
    assert (plain.body, plain.one("content-encoding")) == (b"hello", None)


class Watched:
    """zlib, with a note of the threads in which it decodes."""

    error = zlib.error

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def decompressobj(self, window: int) -> Any:
        self.threads.add(threading.get_ident())
        return zlib.decompressobj(window)


def test_a_large_answer_is_decoded_outside_the_event_loop(
    serve: Serve, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = random.Random(1).randbytes(100_000)
    said = (TEXT, ("content-encoding", "gzip"))
    coded = Said(gzip.compress(plain, mtime=0), 200, said)
    send = serve(lambda: coded, replay_cache=timedelta(minutes=1))
    assert send(Ask(headers=(JSON, ("accept-encoding", "gzip")))).status == 200
    monkeypatch.setattr(replay, "zlib", watched := Watched())
    assert [send().body for _ in range(2)] == [plain] * 2
    assert (threading.get_ident() in watched.threads) == (colour == "wsgi")
    assert watched.threads


def test_a_coding_that_is_not_what_it_says_is_replayed_as_it_is(serve: Serve) -> None:
    said = (TEXT, ("content-encoding", "gzip"))
    send = serve(lambda: Said(b"not gzip", 200, said))
    first, again = twice(send)
    assert first.body == again.body == b"not gzip"


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_100_000, 5_000_000])
def test_bodies_of_any_size_are_replayed_byte_for_byte(size: int, serve: Serve) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    send = serve(lambda: Said(body))
    first, again = twice(send)
    assert (first.body, again.body, again.replayed) == (body, body, True)


@pytest.mark.parametrize(("size", "kept"), [(100, True), (101, False)])
def test_an_answer_over_the_limit_leaves_a_receipt(size: int, kept: bool, serve: Serve) -> None:
    send = serve(lambda: Said(b"x" * size), policy=semel.ietf(max_response_body=100))
    first, again = twice(send)
    assert first.body == b"x" * size
    assert (again.status == 200) is kept
    assert kept or again.problem["original_status"] == 200


def test_the_current_state_is_rendered_where_the_policy_says_so(
    serve: Serve, effects: Effects
) -> None:
    def current(request: semel.Request, kept: semel.Response) -> semel.Response:
        return semel.Response(200, kept.headers, b"now")

    send = serve(policy=semel.ietf(on_replay=current))
    first, again = twice(send)
    assert first.body == effects.all()[0].nonce.encode()
    assert again.body == b"now"
    assert len(effects.all()) == 1


def test_a_renderer_that_fails_runs_nothing_again(serve: Serve, effects: Effects) -> None:
    def broken(request: semel.Request, kept: semel.Response) -> semel.Response:
        raise ZeroDivisionError

    send = serve(policy=semel.ietf(on_replay=broken))
    _, again = twice(send)
    assert (again.status, again.code) == (500, "replay-failed")
    assert len(effects.all()) == 1


@pytest.mark.parametrize(
    ("keep", "status", "executions"),
    [((200,), 200, 1), ((200,), 404, 2), (lambda response: response.status == 404, 404, 1)],
)
def test_keep_decides_what_is_kept(
    keep: Any, status: int, executions: int, serve: Serve, effects: Effects
) -> None:
    send = serve(lambda: Said(once(effects)().body, status), policy=semel.ietf(keep=keep))
    twice(send)
    assert len(effects.all()) == executions


@pytest.mark.parametrize("keep", [lambda response: bool(1 / 0), lambda response: None])
def test_a_keep_that_fails_or_says_nothing_leaves_the_outcome_unknown(
    keep: Any, serve: Serve, effects: Effects
) -> None:
    send = serve(policy=semel.ietf(keep=keep))
    _, again = twice(send)
    assert again.code == "outcome-unknown"
    assert len(effects.all()) == 1


# ── what only WSGI can do ─────────────────────────────────────────────────────────────────────────


def served(app: Any, make_guard: MakeGuard, **options: Any) -> WsgiDriver:
    return WsgiDriver(make_guard(policy=semel.ietf(**options)).wsgi(app))


def test_a_head_that_was_taken_back_is_not_the_answer(make_guard: MakeGuard) -> None:
    """A generator often starts its answer before it works; a server then still answers 500."""

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        runs.append(1)
        start_response("200 OK", [("Content-Type", "text/plain")])
        if len(runs) == 1:
            raise ZeroDivisionError
        yield b"second"

    runs: list[int] = []
    send = served(app, make_guard)
    first, again = twice(send)
    assert (first.status, first.code) == (500, "handler-failed")
    assert (again.status, again.body, again.replayed) == (200, b"second", False)


def test_a_head_may_be_replaced_until_the_first_byte(make_guard: MakeGuard) -> None:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            start_response("409 Conflict", [("Content-Type", "text/plain")], sys.exc_info())
        return [b"conflict"]

    first, again = twice(served(app, make_guard))
    assert (first.status, again.status, again.replayed) == (409, 409, True)


def test_a_head_is_not_replaced_after_the_first_byte(make_guard: MakeGuard) -> None:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"begun"
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            start_response("500 No", [("Content-Type", "text/plain")], sys.exc_info())
        yield b"never"

    send = served(app, make_guard)
    first, again = twice(send)
    assert (first.status, first.body) == (200, b"begun")
    assert isinstance(send.errors[0], ZeroDivisionError)
    assert again.code == "body-not-kept"


def test_bodies_given_to_write_are_part_of_the_answer(make_guard: MakeGuard) -> None:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"one ")
        return [b"two"]

    first, again = twice(served(app, make_guard))
    assert first.body == again.body == b"one two"


def test_a_buffer_that_is_filled_again_does_not_change_what_was_answered(
    guard: semel.Guard, drive: Drive
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        buffer = bytearray(4)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for filling in (b"one ", b"two ", b"end."):
            buffer[:] = filling
            await send(
                {"type": "http.response.body", "body": memoryview(buffer), "more_body": True}
            )
        await send({"type": "http.response.body"})

    first, again = twice(drive(guard.asgi(app)))
    assert first.body == again.body == b"one two end."


def test_a_head_that_no_server_would_take_is_no_answer(make_guard: MakeGuard, drive: Drive) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [("not", "octets")]})

    send = drive(make_guard(policy=semel.payments(probe=None)).asgi(app))
    first, again = twice(send)
    assert (first.status, first.code, again.code) == (500, "outcome-unknown", "outcome-unknown")
    assert isinstance(send.errors[0], TypeError)


class Closing:
    """An answer that wants to be told when it has been sent."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.closed = 0
        self._error = error

    def __iter__(self) -> Any:
        yield b"x"
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("error", [None, ZeroDivisionError(), SystemExit()])
@pytest.mark.parametrize("response", ["buffer", "stream"])
def test_the_application_is_told_once_that_its_answer_was_sent(
    error: BaseException | None, response: Any, make_guard: MakeGuard
) -> None:
    answer = Closing(error)

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return answer

    served(app, make_guard, response=response)()
    assert answer.closed == 1
