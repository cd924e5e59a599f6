"""Whatever a client sends: a problem document or one guarded execution, never anything else."""

import gzip
import io
import json
import socket
from collections.abc import Iterable

import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

import semel
from semel.web.wsgi import Environ, StartResponse, WsgiApp
from tests.web.client import Reply
from tests.web.conftest import MakeGuard, Serve
from tests.web.drive import KEY, Ask, WsgiDriver, environ_of
from tests.web.effects import Effects

JSON = ("content-type", "application/json")


MALFORMED = {
    "empty": "",
    "blank": "   ",
    "empty string": '""',
    "too long": "k" * 256,
    "too long, quoted": f'"{"k" * 256}"',
    "64 KB": "k" * 65_536,
    "64 KB of quotes": '"' * 65_536,
    "unterminated": '"8e03978e-40d5-43e8-bc93',
    "bad escape": '"8e03978e\\x40d5-43e8-bc93"',
    "not ASCII": "8e03978e-40d5-43e8-bc93-68äöü",
    "not ASCII, quoted": '"8e03978e-40d5-43e8-bc93-68äöü"',
    "control": "8e03978e-40d5\x01-43e8-bc93-6894",
    "NUL": "8e03978e-40d5\x00-43e8-bc93-6894",
    "space inside": "8e03978e 40d5 43e8 bc93 6894",
    "list": '"8e03978e-40d5-43e8", "bc93-6894a57f9324"',
    "bare list": "8e03978e-40d5-43e8-bc93,6894a57f9324-8e03",
    "inner list": '("8e03978e-40d5-43e8-bc93-6894a57f9324")',
    "a number": "1" * 16 + ";",
    "bytes": ":OGUwMzk3OGUtNDBkNS00M2U4:;a",
    "a semicolon": "8e03978e-40d5-43e8-bc93;x=1",
}


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_key_is_refused_without_an_execution_and_never_echoed(
    value: str, serve: Serve, effects: Effects
) -> None:
    send = serve()
    reply = send(Ask(key=value))
    assert (reply.status, reply.code) == (400, "malformed-key")
    assert len(value) < 4 or value.encode("latin-1") not in reply.body
    assert effects.all() == []
    assert send.errors == []


def test_a_repeated_key_is_refused_even_when_it_is_the_same(serve: Serve, effects: Effects) -> None:
    send = serve()
    reply = send(Ask(headers=(JSON, ("idempotency-key", KEY))))
    assert (reply.status, reply.code) == (400, "malformed-key")
    assert effects.all() == []


def test_a_strict_route_takes_only_the_quoted_form(serve: Serve, effects: Effects) -> None:
    send = serve(policy=semel.ietf(strict=True))
    assert send(Ask(key=KEY)).code == "malformed-key"
    assert send(Ask(key=f'"{KEY}"')).status == 200
    assert len(effects.all()) == 1


def test_the_quoted_and_the_bare_form_are_one_key(serve: Serve, effects: Effects) -> None:
    send = serve()
    assert send(Ask(key=f'"{KEY}"')).body == send(Ask(key=f"  {KEY} ")).body
    assert len(effects.all()) == 1


@pytest.mark.parametrize("version", "1235689")
def test_a_uuid_route_takes_versions_4_and_7_only(
    version: str, serve: Serve, effects: Effects
) -> None:
    send = serve(policy=semel.ietf(key="uuid"))
    assert send(Ask(key=f"8e03978e-40d5-{version}3e8-bc93-6894a57f9324")).status == 400
    assert send(Ask(key="8e03978e-40d5-43e8-bc93-6894a57f9324")).status == 200
    assert len(effects.all()) == 1


def test_a_required_key_that_is_missing_is_refused_and_an_optional_one_passes(
    serve: Serve, effects: Effects
) -> None:
    send = serve(policy=semel.ietf(required=True))
    assert (send(Ask(key=None)).status, send(Ask(key=None)).code) == (400, "missing-key")
    assert effects.all() == []
    optional = serve()
    assert optional(Ask(key=None)).status == 200
    assert optional(Ask(key=None)).status == 200
    assert len(effects.all()) == 2


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "QUERY", "PUT", "DELETE"])
def test_methods_that_take_no_part_pass_with_and_without_a_key(
    method: str, serve: Serve, effects: Effects
) -> None:
    known = method != "QUERY"  # to wsgiref's validator
    send = serve(policy=semel.ietf(required=True), strict=known)
    replies = [send(Ask(method, key=key)) for key in (KEY, KEY, None)]
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert all(reply.one("idempotent-replayed") is None for reply in replies)
    assert len(effects.all()) == 3


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_methods_that_opt_in_are_guarded(method: str, serve: Serve, effects: Effects) -> None:
    send = serve(policy=semel.ietf(methods=("put", "DELETE", "PATCH")))
    assert send(Ask(method)).body == send(Ask(method)).body
    assert len(effects.all()) == 1


def test_a_method_in_lower_case_does_not_slip_past_the_guard(
    serve: Serve, effects: Effects
) -> None:
    """Frameworks route ``post`` as POST."""
    send = serve(strict=False)
    assert send(Ask("post")).body == send(Ask("POST")).body
    assert len(effects.all()) == 1


def test_a_key_on_a_safe_method_is_refused_where_the_policy_says_so(serve: Serve) -> None:
    send = serve(policy=semel.ietf(safe_methods="refuse"))
    assert send(Ask("GET")).code == "key-on-safe-method"
    assert send(Ask("GET", key=None)).status == 200


BODIES = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "unclosed and deep": b'{"a":' * 100_000,
    "10,000 digits": b'{"n": ' + b"9" * 10_000 + b"}",
    "1e400": b'{"n": 1e400}',
    "NaN": b'{"n": NaN}',
    "duplicate names": b'{"a": 1, "a": 2}',
    "lone surrogate": b'{"a": "\\ud800"}',
    "NUL": b'{"a": "\\u0000"}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "gzip": gzip.compress(b'{"a": 1}', mtime=0),
    "wide": json.dumps({str(n): n for n in range(5_000)}).encode(),
}
TYPES = {
    "JSON": "application/json",
    "problem JSON": "application/problem+json; charset=utf-8",
    "form": "application/x-www-form-urlencoded",
    "multipart": "multipart/form-data; boundary=x",
    "multipart without boundary": "multipart/form-data",
    "nonsense": "; ; =,,",
    "none": None,
}


@pytest.mark.parametrize("media", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_any_body_is_executed_once_and_told_from_any_other(
    body: bytes, media: str | None, serve: Serve, effects: Effects
) -> None:
    send = serve()
    headers = () if media is None else (("content-type", media),)
    first, again = send(Ask(body=body, headers=headers)), send(Ask(body=body, headers=headers))
    assert (first.status, again.replayed, again.body) == (200, True, first.body)
    other = send(Ask(body=body + b"\x7f[", headers=headers))
    assert (other.status, other.code) == (422, "key-reused")
    assert len(effects.all()) == 1
    assert send.errors == []


def test_a_compressed_body_is_told_by_its_bytes_and_its_coding(
    serve: Serve, effects: Effects
) -> None:
    body, coding = gzip.compress(b"{}", mtime=0), ("content-encoding", "gzip")
    send = serve()
    first = send(Ask(body=body, headers=(JSON, coding)))
    assert send(Ask(body=body, headers=(JSON, coding))).body == first.body
    assert send(Ask(body=body, headers=(JSON,))).status == 422
    assert len(effects.all()) == 1


@pytest.mark.parametrize("size", [101, 3_000_000])
def test_a_body_over_the_cap_executes_nothing(size: int, serve: Serve, effects: Effects) -> None:
    send = serve(policy=semel.ietf(max_request_body=100))
    reply = send(Ask(body=b"x" * size))
    assert (reply.status, reply.code) == (413, "body-too-large")
    assert effects.all() == []
    assert send(Ask(body=b"x" * 100)).status == 200


# ── what only WSGI can be told ────────────────────────────────────────────────────────────────────


def serve(guard: semel.Guard, effects: Effects, **environ: object) -> tuple[Reply, WsgiDriver]:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        name = effects.happen("-").encode()
        start_response("200 OK", [("content-type", "text/plain")])
        return [name + environ["wsgi.input"].read()]

    server = WsgiDriver(guard.wsgi(app), strict=False)
    return server.serve({**environ_of(Ask(body=b"{}")), **environ}), server


@pytest.mark.parametrize(
    ("length", "status"),
    [("3", 400), ("-2", 400), ("two", 400), ("²", 400), ("9" * 10_000, 413), ("2.0", 400)],
)
def test_a_content_length_that_is_no_length_executes_nothing(
    length: str, status: int, guard: semel.Guard, effects: Effects
) -> None:
    reply, server = serve(guard, effects, CONTENT_LENGTH=length)
    assert (reply.status, server.errors) == (status, [])
    assert reply.code in ("malformed-body", "body-too-large")
    assert effects.all() == []


def chunked(server: str, body: bytes = b"1", protocol: str = "HTTP/1.1") -> dict[str, object]:
    """A request as a server hands it on that has taken the chunks apart."""
    return {
        "CONTENT_LENGTH": "",
        "HTTP_TRANSFER_ENCODING": "chunked",
        "SERVER_PROTOCOL": protocol,
        "SERVER_SOFTWARE": server,
        "wsgi.input": io.BytesIO(body),
        "wsgi.input_terminated": True,
    }


@pytest.mark.parametrize("server", ["gunicorn/27.0.0", "Werkzeug/3.1.9", "Cheroot/11.1.2 Server"])
def test_a_body_without_a_length_is_read_from_servers_that_tell_when_it_is_cut_off(
    server: str, guard: semel.Guard, effects: Effects
) -> None:
    reply, _ = serve(guard, effects, **chunked(server))
    assert reply.body == effects.all()[0].nonce.encode() + b"1"


NOBODY_TELLS = {
    "a server that calls the half that came the whole": chunked("Granian"),
    "a server that nobody knows": chunked("elsewhere/1.0"),
    "a server without a name": {**chunked(""), "SERVER_SOFTWARE": None},
    "chunks that are left to the application": {
        **chunked("gunicorn/27.0.0"),
        "wsgi.input_terminated": False,
    },
}


@pytest.mark.parametrize("environ", NOBODY_TELLS.values(), ids=NOBODY_TELLS)
def test_a_body_that_may_be_cut_off_is_never_executed(
    environ: dict[str, object], guard: semel.Guard, effects: Effects
) -> None:
    reply, server = serve(guard, effects, **environ)
    assert (reply.status, reply.code, server.errors) == (411, "length-required", [])
    assert effects.all() == []


@pytest.mark.parametrize(("protocol", "status"), [("HTTP/1.0", 200), ("HTTP/2", 411)])
def test_a_request_without_any_word_of_a_body_has_none_only_in_http_1(
    protocol: str, status: int, guard: semel.Guard, effects: Effects
) -> None:
    environ = {"CONTENT_LENGTH": "", "SERVER_PROTOCOL": protocol, "wsgi.input": io.BytesIO(b"1")}
    reply, _ = serve(guard, effects, **environ)
    assert reply.status == status
    assert len(effects.all()) == (status == 200)


class Werkzeug(WSGIRequestHandler):
    """Says nothing of what it serves."""

    def log(self, *_: object) -> None: ...


def spoken_to(app: WsgiApp, said: bytes) -> bytes:
    """What a real server answers to a client that says this and dies."""
    server = make_server("127.0.0.1", 0, app, request_handler=Werkzeug)
    client = socket.create_connection(("127.0.0.1", server.port))
    with server, client:
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        server.handle_request()
        return client.makefile("rb").read()


def test_a_client_that_dies_in_the_middle_of_a_chunk_leaves_its_key_to_its_retry(
    guard: semel.Guard, effects: Effects
) -> None:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        effects.happen(environ["wsgi.input"].read().decode())
        start_response("200 OK", [("content-length", "0")])
        return []

    head = f"POST /x HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {KEY}\r\n".encode()
    head += b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    guarded = guard.wsgi(app)
    assert b" 200 " not in spoken_to(guarded, head + b"b\r\namount=10")
    assert b" 200 " in spoken_to(guarded, head + b"b\r\namount=1000\r\n0\r\n\r\n")
    assert [effect.key for effect in effects.all()] == ["amount=1000"]


def test_a_body_without_a_length_is_capped_too(make_guard: MakeGuard, effects: Effects) -> None:
    guard = make_guard(policy=semel.ietf(max_request_body=100))
    reply, _ = serve(guard, effects, **chunked("gunicorn/27.0.0", b"x" * 1_000_000))
    assert (reply.status, reply.code, effects.all()) == (413, "body-too-large", [])


def test_an_application_may_replace_its_input(guard: semel.Guard, effects: Effects) -> None:
    """Some put a stream in its place that cannot even be closed."""

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        environ["wsgi.input"] = None
        start_response("200 OK", [("content-type", "text/plain")])
        return [effects.happen("-").encode()]

    server = WsgiDriver(guard.wsgi(app))
    assert server().status == 200
    assert server.errors == []
