"""`key_from=` and `payload_from=` in every adapter: the key is where the API's protocol puts it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from django.http import HttpResponse
from django.views.decorators.csrf import csrf_exempt
from fastapi import Body, Depends, FastAPI
from flask import Flask
from flask import request as flask_request
from litestar import Litestar, post
from litestar import Request as LitestarRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel
from semel.frameworks.django import guarded
from semel.frameworks.flask import guarded as guarded_flask
from semel.frameworks.flask import install as install_flask
from semel.frameworks.litestar import install as install_litestar
from semel.web.asgi_exchange import Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse
from tests.ears import Ear
from tests.frameworks.django_site import Site
from tests.web.client import Reply
from tests.web.conftest import MakeGuard
from tests.web.drive import AsgiDriver, Ask, Driver, WsgiDriver

KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
FIELD = semel.body("/meta/idempotency_key")
BOTH = ("X-Request-Key", FIELD)
LARGE = "x" * 2_000_000
"""More than a body may have and be kept in memory."""


class Shop:
    """Counts its calls, and answers with the body that it was given."""

    def __init__(self) -> None:
        self.calls = 0

    def charge(self, body: bytes) -> bytes:
        self.calls += 1
        said = json.loads(body) if body else None
        return json.dumps({"call": self.calls, "said": said}).encode()


Build = Callable[[Shop, semel.Guard, asyncio.Runner], Driver]


def asgi(shop: Shop, guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        said = shop.charge(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": said})

    return AsgiDriver(guard.asgi(app), runner)


def wsgi(shop: Shop, guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        said = shop.charge(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response("200 OK", [("content-type", "application/json")])
        return [said]

    return WsgiDriver(guard.wsgi(app))


def starlette(shop: Shop, guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    async def charge(request: Request) -> JSONResponse:
        return JSONResponse(json.loads(shop.charge(await request.body())))

    app = Starlette(routes=[Route("/x", charge, methods=["POST", "PUT"])])
    app.add_middleware(semel.Middleware, guard=guard)
    return AsgiDriver(app, runner)


def fastapi(shop: Shop, guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    """FastAPI has read the body before the gate."""
    app = FastAPI()

    @app.post("/x")
    async def charge(said: Any = Body(None)) -> Any:  # noqa: B008
        return json.loads(shop.charge(json.dumps(said).encode()))

    guard.fastapi(app)
    return AsgiDriver(app, runner)


def fastapi_unread(shop: Shop, guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    """The endpoint reads the body itself, behind the gate."""
    app = FastAPI()

    async def dependency() -> None:
        """Something that is done before."""

    @app.post("/x", dependencies=[Depends(dependency)])
    async def charge(request: Request) -> Any:
        return json.loads(shop.charge(await request.body()))

    guard.fastapi(app)
    return AsgiDriver(app, runner)


def litestar(shop: Shop, guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    @post("/x", status_code=200)
    async def charge(request: LitestarRequest[Any, Any, Any]) -> Any:
        return json.loads(shop.charge(await request.body()))

    app: Any = Litestar([charge], on_app_init=[partial(install_litestar, guard=guard)])
    return AsgiDriver(app, runner)


def flask(shop: Shop, guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    app = Flask(__name__)

    @app.before_request
    def parse() -> None:
        """Reads the body, as CSRF protection does."""
        _ = flask_request.form

    @app.post("/x")
    def charge() -> Any:
        return json.loads(shop.charge(flask_request.get_data()))

    install_flask(app, guard)
    return WsgiDriver(app.wsgi_app)


def flask_decorated(shop: Shop, guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    app = Flask(__name__)

    @app.post("/x")
    @guarded_flask(guard)
    def charge() -> Any:
        return json.loads(shop.charge(flask_request.get_data()))

    install_flask(app, guard)
    return WsgiDriver(app.wsgi_app)


def django(
    shop: Shop, guard: semel.Guard, runner: asyncio.Runner, *, colour: str, decorated: bool
) -> Driver:
    @csrf_exempt
    def view(request: Any) -> HttpResponse:
        return HttpResponse(shop.charge(request.body))

    made = guarded(guard)(view) if decorated else view
    SITES.append(Site(guard, {"x": made}))
    return SITES[-1].driver(colour, runner)


SITES: list[Site] = []
"""To be closed."""


ADAPTERS: dict[str, Build] = {
    "asgi": asgi,
    "wsgi": wsgi,
    "starlette": starlette,
    "fastapi": fastapi,
    "fastapi, body unread": fastapi_unread,
    "litestar": litestar,
    "flask": flask,
    "flask, guarded": flask_decorated,
    "django, wsgi": partial(django, colour="wsgi", decorated=False),
    "django, asgi": partial(django, colour="asgi", decorated=False),
    "django, guarded": partial(django, colour="wsgi", decorated=True),
}


class Api:
    def __init__(self, shop: Shop, send: Driver) -> None:
        self.shop = shop
        self.send = send

    def __call__(self, document: Any, *headers: tuple[str, str], method: str = "POST") -> Reply:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        said = (("content-type", "application/json"), *headers)
        return self.send(Ask(method=method, key=None, body=body, headers=said))


MakeApi = Callable[..., Api]


@pytest.fixture
def made(make_guard: MakeGuard, runner: asyncio.Runner) -> Iterator[Callable[..., Api]]:
    def begin(adapter: str, **options: Any) -> Api:
        shop = Shop()
        told = {name: options.pop(name) for name in ("on_event", "tenant") if name in options}
        guard = make_guard(policy=semel.ietf(**options), **told)
        return Api(shop, ADAPTERS[adapter](shop, guard, runner))

    yield begin
    while SITES:
        SITES.pop().close()  # each puts back what was before it


@pytest.fixture(params=ADAPTERS)
def make(request: pytest.FixtureRequest, made: Callable[..., Api]) -> MakeApi:
    return partial(made, request.param)


def asked(key: object = KEY, **more: Any) -> dict[str, Any]:
    return {"meta": {"idempotency_key": key}, "amount": 5, **more}


def test_a_key_in_the_body_makes_it_happen_once(make: MakeApi) -> None:
    api = make(key_from=FIELD)
    first, again = api(asked()), api(asked())
    assert json.loads(first.body) == {"call": 1, "said": asked()}
    assert (again.status, again.body, again.replayed) == (200, first.body, True)
    other = api(asked(amount=6))
    assert (other.status, other.code, api.shop.calls) == (422, "key-reused", 1)


def test_without_a_key_the_request_passes_with_its_body(make: MakeApi) -> None:
    api = make(key_from=BOTH)
    for call in (1, 2):
        reply = api({"amount": 5})
        assert json.loads(reply.body) == {"call": call, "said": {"amount": 5}}
        assert reply.one("idempotent-replayed") is None


def test_a_large_body_passes_and_is_kept_as_any_other(make: MakeApi) -> None:
    api = make(key_from=FIELD)
    passed = api({"amount": LARGE})
    assert json.loads(passed.body)["said"] == {"amount": LARGE}
    first, again = api(asked(amount=LARGE)), api(asked(amount=LARGE))
    assert json.loads(first.body) == {"call": 2, "said": asked(amount=LARGE)}
    assert again.replayed


def test_a_header_or_the_body_may_have_the_key(make: MakeApi) -> None:
    api = make(key_from=BOTH)
    header = ("x-request-key", KEY)
    assert api({"amount": 5, "meta": {}}, header).status == 200
    # The key is no part of what is asked for: it may come in one place, or in both.
    assert api(asked(), header).replayed
    assert api(asked()).replayed
    assert api.shop.calls == 1


def test_keys_that_disagree_are_refused(make: MakeApi) -> None:
    api = make(key_from=BOTH)
    reply = api(asked(), ("x-request-key", "another-key"))
    assert (reply.status, reply.code, api.shop.calls) == (400, "malformed-key", 0)
    assert "keys that differ" in reply.problem["detail"]


def test_a_required_key_that_is_missing_is_refused(make: MakeApi) -> None:
    api = make(key_from=BOTH, required=True)
    reply = api({"meta": {}})
    assert (reply.status, reply.code, api.shop.calls) == (400, "missing-key", 0)
    said = reply.problem["detail"]
    assert "in the X-Request-Key header or in the body at /meta/idempotency_key" in said


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (json.dumps(asked(5)).encode(), "malformed-key"),
        (json.dumps(asked(None)).encode(), "malformed-key"),
        (b'{"meta": {"idempotency_key": "a", "idempotency_key": "b"}}', "unreadable-body"),
        (b"[" + json.dumps(asked()).encode() + b"]", "unreadable-body"),
        (b"\xff" + json.dumps(asked()).encode(), "unreadable-body"),
        (b"no JSON at all", "unreadable-body"),
    ],
)
def test_a_body_with_no_one_key_is_refused_and_nothing_is_executed(
    make: MakeApi, sent: bytes, code: str, required: bool, request: pytest.FixtureRequest
) -> None:
    api = make(key_from=FIELD, required=required)
    reply = api(sent)
    if "[fastapi-" in request.node.name and sent[:1] not in (b"{", b"["):
        assert (reply.status, api.shop.calls) == (422 if sent[:1] == b"n" else 400, 0)  # its own
        return
    assert (reply.status, reply.code, api.shop.calls) == (400, code, 0)


@pytest.mark.parametrize("made_of_it", [None, "no answer", ValueError("a bug in it")], ids=repr)
def test_a_refusal_whose_shape_fails_is_a_problem_document(make: MakeApi, made_of_it: Any) -> None:
    def shape(problem: semel.Problem, request: semel.Request) -> Any:
        if isinstance(made_of_it, Exception):
            raise made_of_it
        return made_of_it

    told = Ear()
    api = make(key_from=FIELD, required=True, refusal=shape, on_event=told)
    for sent, code in ((asked(5), "malformed-key"), ({"amount": 5}, "missing-key")):
        reply = api(sent)
        assert (reply.status, reply.code, api.shop.calls) == (400, code, 0)
    assert [event["code"] for event in told.all("shape.failed")] == ["malformed-key", "missing-key"]


def test_a_body_too_large_to_look_at_is_refused(make: MakeApi) -> None:
    api = make(key_from=FIELD, max_request_body=100)
    reply = api({"amount": "x" * 100})
    assert (reply.status, reply.code, api.shop.calls) == (413, "body-too-large", 0)


def test_another_header_is_the_key_and_the_usual_one_is_none(make: MakeApi) -> None:
    api = make(key_from="X-Request-Key")
    assert api({"a": 1}, ("x-request-key", KEY)).status == 200
    assert api({"a": 1}, ("x-request-key", f'"{KEY}"')).replayed
    api({"a": 1}, ("idempotency-key", KEY))
    assert api.shop.calls == 2
    reply = api({"a": 1}, ("x-request-key", "a b"))
    assert (reply.status, reply.code) == (400, "malformed-key")
    assert "The X-Request-Key contains" in reply.problem["detail"]


def test_a_function_finds_the_key(make: MakeApi) -> None:
    def in_payment(request: semel.Request) -> str | None:
        return request.headers.get("x-payment")

    api = make(key_from=in_payment)
    assert api({"a": 1}, ("x-payment", KEY)).status == 200
    assert api({"a": 1}, ("x-payment", KEY)).replayed
    assert api({"a": 1}).status == 200
    assert api.shop.calls == 2


def test_a_function_that_fails_is_the_operators_mistake(make: MakeApi) -> None:
    told = Ear()

    def broken(request: semel.Request) -> str | None:
        raise RuntimeError("a bug in it")

    api = make(key_from=broken, on_event=told)
    reply = api({"a": 1})
    assert (reply.status, reply.code, api.shop.calls) == (500, "misconfigured", 0)
    assert [str(event.error) for event in told.all("refusal")] == ["a bug in it"]


def test_the_payload_is_the_request_and_the_envelope_is_not(make: MakeApi) -> None:
    api = make(
        key_from=FIELD, payload_from=(semel.body("/method"), semel.body("/params/arguments"))
    )

    def call(id_: int, method: str = "pay", **arguments: Any) -> Reply:
        return api(asked(id=id_, method=method, params={"arguments": arguments, "at": id_}))

    assert call(1, amount=5).status == 200
    assert call(2, amount=5).replayed
    assert call(3, amount=6).code == "key-reused"
    assert call(4, "refund", amount=5).code == "key-reused"
    assert api.shop.calls == 1


@pytest.mark.parametrize("params", [{}, {"args": 1}, 12345678901234567890])
def test_a_payload_that_is_not_there_is_refused(make: MakeApi, params: Any) -> None:
    field = "/params" if isinstance(params, int) else "/params/arguments"
    api = make(key_from=FIELD, payload_from=semel.body(field))
    reply = api(asked(params=params))
    assert (reply.status, reply.code, api.shop.calls) == (400, "unreadable-body", 0)
    assert f"the body at {field}" in reply.problem["detail"]


def test_the_tenant_is_asked_only_for_requests_with_a_key(make: MakeApi) -> None:
    def nobody(request: semel.Request) -> None:
        return None

    api = make(key_from=FIELD, tenant=nobody)
    assert api({"amount": 5}).status == 200
    reply = api(asked())
    assert (reply.status, reply.code, api.shop.calls) == (401, "tenant-missing", 1)


def test_methods_that_take_no_part_are_not_read(made: MakeApi) -> None:
    api = made("starlette", key_from=FIELD, required=True)
    api(b"no JSON at all", method="PUT")
    assert api.shop.calls == 1


@pytest.mark.parametrize("adapter", ["asgi", "wsgi", "flask", "django, wsgi", "django, asgi"])
def test_a_key_on_a_safe_method_is_seen_in_the_named_header(made: MakeApi, adapter: str) -> None:
    api = made(adapter, key_from=BOTH, safe_methods="refuse")
    reply = api(b"", ("x-request-key", KEY), method="GET")
    if adapter == "flask":  # its router has no such route
        assert reply.status == 405
        return
    assert (reply.status, reply.code) == (400, "key-on-safe-method")


def test_in_shadow_nothing_is_refused_whatever_the_body_is(make: MakeApi) -> None:
    told = Ear()
    api = make(
        key_from=FIELD,
        payload_from=semel.body("/params"),
        enforce="shadow",
        required=True,
        on_event=told,
        max_request_body=1000,
    )
    sent = [
        asked(params=1),
        asked(params=1),
        asked(),
        {"amount": 5},
        asked(5),
        [asked(params=2)],
        asked(params="x" * 1000),
    ]
    for call, document in enumerate(sent, 1):
        reply = api(document)
        assert (reply.status, json.loads(reply.body)) == (200, {"call": call, "said": document})
    codes = [event["code"] for event in told.all("shadow.would_refuse")]
    assert codes[:5] == [
        "unreadable-body",
        "missing-key",
        "malformed-key",
        "unreadable-body",
        "body-too-large",
    ]
    assert len(told.all("shadow.would_replay")) == 1
