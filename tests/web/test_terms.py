"""A record knows whose it is, and what it was promised: nobody else looks after it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import flask
import httpx
import pytest
from fastapi import APIRouter, FastAPI
from litestar import Litestar, post
from litestar import Request as LitestarRequest
from starlette.applications import Starlette
from starlette.middleware.httpsredirect import HTTPSRedirectMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router

import semel
from semel.core.operations.maintenance import Browse, Sweep
from semel.core.operations.requests import Claim, Recall, Recalled
from semel.core.records import Case, Fence, Identity, OnLapse, State
from semel.core.unknown.settle_unknown import Settled
from semel.frameworks.flask import install
from semel.operators.doctor import checkup
from semel.outbox import signatures
from semel.web.inventory import KnownRoutes
from semel.worker.deliveries import Deliveries
from semel.worker.reconciler import Reconciler, UnknownRoute
from semel.worker.stored_runs import StoredRuns
from tests.ears import listen
from tests.waiting import until

KEY = {"Idempotency-Key": "9b2f6a1e-7c1d-4b3a-8f00-0123456789ab"}
SOON = timedelta(microseconds=1)
"""What is to be asked about then is due when it is looked for."""
LABEL = b"the first label"
LATE = timedelta(hours=2) // timedelta(microseconds=1)


def bank(inquiry: semel.Inquiry) -> Any:
    """Right for payments: it takes each key once, and has never heard of this one."""
    return semel.Absent(final=True)


def carrier(inquiry: semel.Inquiry) -> Any:
    return semel.Happened(semel.Response(201, (), LABEL))


class Shop:
    """A guard on a file of its own, whose default probe is the wrong one for parcels."""

    def __init__(self, folder: Path, name: str = "", **options: Any) -> None:
        self.url = f"sqlite:///{folder}/semel.db"
        policy = semel.payments(probe=bank, reconcile_after=SOON)
        given = {"tenant": None, "policy": policy, "maintenance": None, "name": name, **options}
        self.guard = semel.Guard(self.url, **given)
        self.made: list[str] = []

    def ship(self) -> None:
        self.made.append("parcel")
        if len(self.made) == 1:
            raise TimeoutError("read time-out: the carrier may have made the label")

    def cases(self) -> tuple[Case, ...]:
        return self.guard.backend.blocking().perform(Browse(tuple(State), 99)).cases

    def case(self) -> Case:
        (case,) = self.cases()
        return case


PARCELS = semel.payments(probe=carrier, reconcile_after=SOON)
DEFERRED = semel.accepted(mode="deferred", required=True)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.guard.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Callable[[str], Shop]]:
    """Applications by their names, on one file."""
    with ExitStack() as stack:

        def opened(name: str, **options: Any) -> Shop:
            made = Shop(tmp_path, name, **options)
            stack.callback(made.guard.close)
            return made

        yield opened


async def sent(
    app: Any, path: str = "/labels", host: str = "shop.test", root: str = "", **how: Any
) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, root_path=root)
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{host}") as client:
        return await client.request(how.pop("method", "POST"), path, headers=KEY, **how)


async def round_of(loop: Any) -> str:
    came = await loop.run_once()
    close = getattr(loop, "aclose", None)
    if close is not None:
        await close()
    return str(came.note)


# ── two applications on one store ─────────────────────────────────────────────────────────────────


def plain(shop: Shop) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        shop.ship()
        await PlainTextResponse(shop.guard.name, 201)(scope, receive, send)

    return shop.guard.asgi(app)


async def test_one_key_counts_in_each_application(two: Callable[[str], Shop]) -> None:
    for name in ("billing", "shipping"):
        shop = two(name)
        shop.made.append("before")
        answer = await sent(plain(shop), json={"order": 7})
        assert (answer.status_code, answer.text) == (201, name)
        assert answer.headers["idempotent-replayed"] == "false"


async def test_another_applications_reconciler_leaves_a_record_alone(
    two: Callable[[str], Shop],
) -> None:
    billing, shipping = two("billing"), two("shipping")
    assert (await sent(plain(shipping))).status_code == 500
    ear = listen(billing.guard)
    assert await round_of(Reconciler(billing.guard)) == ""
    assert shipping.case().record.state is State.UNKNOWN
    told = ear.one("left_alone")
    assert (told["count"], told["routes"]) == (1, "shipping *")
    assert await round_of(Reconciler(shipping.guard)) == "settled 1"


async def test_an_operator_is_told_whose_a_record_is(two: Callable[[str], Shop]) -> None:
    billing, shipping = two("billing"), two("shipping")
    await sent(plain(shipping))
    identity = shipping.case().record.identity
    with pytest.raises(UnknownRoute, match=r"route \* of the application 'shipping'.*--app"):
        billing.guard.operator().probe_now(identity, by="ann")


@pytest.mark.parametrize("path", ["/exports", "/invoices"])
async def test_another_applications_worker_runs_nothing(
    two: Callable[[str], Shop], path: str
) -> None:
    billing, shipping = two("billing"), two("shipping")
    served = deferring(shipping, "/exports")
    where = (await sent(served, "/exports")).headers["location"]
    assert await round_of(StoredRuns(billing.guard, deferring(billing, path))) == ""
    assert await round_of(StoredRuns(shipping.guard, served)) == "executed 1"
    assert (await sent(served, where, method="GET")).text == "exported"
    assert (billing.made, shipping.made) == ([], ["/exports"])


def deferring(shop: Shop, path: str, method: str = "POST") -> Any:
    @shop.guard.route(semel.accepted(mode="deferred", required=True, methods=(method,)))
    async def export(request: Any) -> PlainTextResponse:
        shop.made.append(path)
        return PlainTextResponse("exported")

    return shop.guard.asgi(Starlette(routes=[Route(path, export, methods=[method])]))


async def test_another_applications_status_is_none(two: Callable[[str], Shop]) -> None:
    billing, shipping = two("billing"), two("shipping")
    where = (await sent(deferring(shipping, "/exports"), "/exports")).headers["location"]
    told = await sent(deferring(billing, "/exports"), where, method="GET")
    assert (told.status_code, told.json()["code"]) == (404, "no-such-operation")


async def test_effects_of_one_name_go_to_their_own_receivers(two: Callable[[str], Shop]) -> None:
    got: list[tuple[str, Any]] = []
    atomic = semel.ietf(mode="atomic", required=True)

    def opened(name: str) -> Shop:
        shop = two(name, policy=atomic)  # type: ignore[call-arg]

        @shop.guard.delivers("paid")
        async def deliver(delivery: semel.Delivery) -> None:
            got.append((name, delivery.payload))

        return shop

    shipping, billing = opened("shipping"), opened("billing")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await semel.async_operation().enqueue("paid", {"of": "shipping"})
        await PlainTextResponse("", 201)(scope, receive, send)

    assert (await sent(shipping.guard.asgi(app))).status_code == 201
    assert await round_of(Deliveries(billing.guard)) == ""
    assert await round_of(Deliveries(shipping.guard)) == "delivered 1"
    assert got == [("shipping", {"of": "shipping"})]


async def test_one_event_is_heard_by_each_application(two: Callable[[str], Shop]) -> None:
    """And settles only what is its own."""
    billing, shipping = two("billing"), two("shipping")
    await sent(plain(shipping))
    identity = shipping.case().record.identity
    told = [told_by_webhook(shop, identity) for shop in (billing, shipping, shipping)]
    assert told == ["ignored", "settled", "known"]


def told_by_webhook(shop: Shop, identity: Identity, **options: Any) -> str:
    secret, now = b"s" * 32, int(time.time())
    box = shop.guard.inbox(
        "bank", secret, lambda event: (event.json(), semel.Happened("ch_1")), **options
    )
    body = json.dumps(identity.hex()).encode()
    signature = signatures.sign((secret,), "evt_1", now, body)
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    answer = box.receive(dict(zip(names, ("evt_1", str(now), signature), strict=True)), body)
    return str(json.loads(answer.body)["status"])


# ── which probe is asked ──────────────────────────────────────────────────────────────────────────


def starlette(shop: Shop) -> Any:
    @shop.guard.route(PARCELS)
    async def ship(request: Any) -> PlainTextResponse:
        shop.ship()
        return PlainTextResponse("another label", 201)

    return ship


def on_a_host(shop: Shop) -> Any:
    inner = Router([Route("/labels", starlette(shop), methods=["POST"])])
    return shop.guard.asgi(Starlette(routes=[Host("shop.test", app=inner)]))


def on_a_path(shop: Shop) -> Any:
    return shop.guard.asgi(Starlette(routes=[Route("/labels", starlette(shop), methods=["POST"])]))


def in_a_mount(shop: Shop) -> Any:
    inner = Starlette(routes=[Route("/labels", starlette(shop), methods=["POST"])])
    return Starlette(routes=[Mount("/in", shop.guard.asgi(inner))])


def around_a_mount(shop: Shop) -> Any:
    inner = Starlette(routes=[Route("/labels", starlette(shop), methods=["POST"])])
    return shop.guard.asgi(Starlette(routes=[Mount("/in", inner)]))


def on_fastapi(shop: Shop) -> Any:
    app, router = FastAPI(), APIRouter(prefix="/in")

    @router.post("/labels", status_code=201)
    @shop.guard.route(PARCELS)
    async def ship() -> str:
        shop.ship()
        return "another label"

    app.include_router(router)
    shop.guard.fastapi(app)
    return app


def on_litestar(shop: Shop) -> Any:
    @post("/in/{place:str}")
    @shop.guard.route(PARCELS)
    async def ship(request: LitestarRequest[Any, Any, Any]) -> str:
        shop.ship()
        return "another label"

    app: Any = Litestar([ship], openapi_config=None)
    return shop.guard.asgi(app)


APPLICATIONS: list[tuple[Callable[[Shop], Any], str, str]] = [
    (on_a_path, "", "/labels"),
    (on_a_path, "/api", "/api/labels"),
    (on_a_host, "", "/labels"),
    (in_a_mount, "", "/in/labels"),
    (around_a_mount, "", "/in/labels"),
    (around_a_mount, "/api", "/api/in/labels"),
    (on_fastapi, "", "/in/labels"),
    (on_fastapi, "/api", "/api/in/labels"),
    (on_litestar, "", "/in/labels"),
]


@pytest.mark.parametrize(("make", "root", "path"), APPLICATIONS)
async def test_the_probe_of_the_very_route_is_asked(
    shop: Shop, make: Callable[[Shop], Any], root: str, path: str
) -> None:
    served = make(shop)
    assert (await sent(served, path, root=root)).status_code == 500
    assert KnownRoutes(shop.guard, served).knows(shop.case().terms)
    assert await round_of(Reconciler(shop.guard)) == ""  # it was not shown the application
    assert await round_of(Reconciler(shop.guard, served)) == "settled 1"
    again = await sent(served, path, root=root)
    assert (again.status_code, again.content, shop.made) == (201, LABEL, ["parcel"])


def on_flask(shop: Shop, **rule: Any) -> Any:
    app = flask.Flask("shop", subdomain_matching=True)
    app.config["SERVER_NAME"] = "shop.test"

    @app.post("/in/<place>", **rule)
    @shop.guard.route(PARCELS)
    def ship(place: str) -> tuple[str, int]:
        shop.ship()
        return "another label", 201

    return app


def guarded_around(shop: Shop, app: flask.Flask) -> Any:
    return shop.guard.wsgi(app)


def guarded_within(shop: Shop, app: flask.Flask) -> Any:
    install(app, shop.guard)
    return app


@pytest.mark.parametrize("guarded", [guarded_around, guarded_within])
@pytest.mark.parametrize(
    ("rule", "host"), [({}, "shop.test"), ({"subdomain": "ship"}, "ship.shop.test")]
)
def test_the_probe_of_the_very_view_is_asked(
    shop: Shop, guarded: Callable[[Shop, flask.Flask], Any], rule: Any, host: str
) -> None:
    served = guarded(shop, on_flask(shop, **rule))
    with httpx.Client(
        transport=httpx.WSGITransport(served, raise_app_exceptions=False),
        base_url=f"http://{host}",
        headers=KEY,
    ) as client:
        assert client.post("/in/labels").status_code == 500
        assert asyncio.run(round_of(Reconciler(shop.guard))) == ""
        assert asyncio.run(round_of(Reconciler(shop.guard, served))) == "settled 1"
        again = client.post("/in/labels")
    assert (again.status_code, again.content, shop.made) == (201, LABEL, ["parcel"])


async def test_of_two_endpoints_of_one_name_neither_is_known(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """They differ by something that no name tells: the wrong provider might be asked."""
    one, other = starlette(shop), shop.guard.route(semel.ietf())(lambda request: None)
    routes = [Route("/labels", each, methods=["POST"]) for each in (one, other)]
    served = shop.guard.asgi(Starlette(routes=routes))
    await sent(served)
    assert await round_of(Reconciler(shop.guard, served)) == ""
    assert "two endpoints are called POST /labels" in caplog.text


async def test_what_is_done_once_under_its_own_policy_has_no_other_probe(shop: Shop) -> None:
    other = semel.payments(probe=carrier, reconcile_after=SOON)

    def once(policy: semel.Policy | None) -> None:
        with pytest.raises(TimeoutError):
            shop.guard.once(KEY["Idempotency-Key"], shop.ship, name="parcel", policy=policy)

    once(other)
    assert await round_of(Reconciler(shop.guard)) == ""
    identity = shop.case().record.identity
    operator = shop.guard.operator()
    with pytest.raises(UnknownRoute, match="once parcel"):
        operator.probe_now(identity, by="ann")
    shop.guard.probe("parcel")(carrier)
    assert isinstance(await asyncio.to_thread(operator.probe_now, identity, by="ann"), Settled)


@pytest.mark.parametrize(("policy_asks", "registered"), [(0, 0), (1, 0), (0, 1)])
async def test_a_function_that_nobody_can_be_asked_about_is_a_dead_letter(
    shop: Shop, policy_asks: bool, registered: bool
) -> None:
    """It lapsed, and no worker knows its name; where somebody can be asked it is left to those."""
    policy = semel.payments(probe=carrier if policy_asks else None)
    another = Shop(Path(shop.url.removeprefix("sqlite:///")).parent)
    if registered:
        another.guard.probe("parcel")(carrier)
    another.guard.once(KEY["Idempotency-Key"], lambda: 1, name="parcel", policy=policy)
    store = shop.guard.backend.blocking()
    kept = shop.case()
    assert kept.terms is not None
    lapsed = Claim(
        *(Identity(b"l" * 32), Fence(b"f" * 16), "r1.x", b"", kept.origin, 1),
        *(OnLapse.UNKNOWN,),
        terms=kept.terms.id,
    )
    store.perform(lapsed)
    until(lambda: store.perform(Sweep(10)).counts)  # its lease is a microsecond
    ear = listen(shop.guard)
    await round_of(Reconciler(shop.guard))
    found = store.perform(Recall(lapsed.identity))
    assert isinstance(found, Recalled)
    assert found.case.record.state is State.UNKNOWN
    left_alone = policy_asks or registered
    assert (found.case.due_at is None) is not left_alone
    assert [event["came"] for event in ear.all("reconcile")] == ([] if left_alone else ["given_up"])
    another.guard.close()


async def test_a_check_up_tells_what_nobody_here_will_do(shop: Shop) -> None:
    served = on_a_path(shop)
    await sent(served)
    said = [finding.text for finding in checkup(shop.guard)]
    assert any("1 records of the route POST /labels" in text and "--app" in text for text in said)
    said = [finding.text for finding in checkup(shop.guard, served)]
    assert not any("route POST /labels" in text for text in said)


# ── what was promised ─────────────────────────────────────────────────────────────────────────────


async def in_doubt_for_a_week(shop: Shop) -> Identity:
    @shop.guard.route(semel.payments(probe=None, retention=timedelta(days=7)))
    async def pay(request: Any) -> None:
        raise TimeoutError

    await sent(shop.guard.asgi(Starlette(routes=[Route("/labels", pay, methods=["POST"])])))
    return shop.case().record.identity


@pytest.mark.parametrize("how", ["webhook", "operator", "store"])
async def test_whoever_settles_it_keeps_it_as_long_as_its_route_said(shop: Shop, how: str) -> None:
    identity = await in_doubt_for_a_week(shop)
    if how == "webhook":
        assert told_by_webhook(shop, identity) == "settled"
    else:  # by an operator who has the application's guard, or no more than the store
        guard = shop.guard if how == "operator" else semel.Guard(shop.url, tenant=None)
        guard.operator().settle(identity, semel.Happened(), by="ann", reason="the bank's list")
    record = shop.case().record
    assert record.state is State.COMPLETED
    kept = timedelta(microseconds=(record.expires_at or 0) - record.created_at)
    forgotten = timedelta(microseconds=(record.forget_at or 0) - record.created_at)
    assert (kept.days, forgotten.days) == (7, 14)


async def test_a_record_whose_terms_are_lost_is_settled_by_nobody(shop: Shop) -> None:
    import sqlite3

    identity = await in_doubt_for_a_week(shop)
    with sqlite3.connect(shop.url.removeprefix("sqlite:///")) as connection:
        connection.execute("DELETE FROM semel_terms")
    came = shop.guard.operator().settle(identity, semel.Happened(), by="ann", reason="list")
    assert "terms are not on record" in getattr(came, "reason", "")
    assert shop.case().record.state is State.UNKNOWN
    with pytest.raises(UnknownRoute, match="terms are not on record"):
        shop.guard.operator().bury(identity, by="ann", reason="given up")


# ── where a worker's run ends up ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("older", [("/v1/exports",), ("/v2/exports", "PUT"), ("/v2/exports/",)])
async def test_an_older_worker_leaves_what_it_does_not_know(
    tmp_path: Path, older: tuple[str, ...]
) -> None:
    new, old = Shop(tmp_path), Shop(tmp_path)
    served = deferring(new, "/v2/exports")
    where = (await sent(served, "/v2/exports")).headers["location"]
    assert await round_of(StoredRuns(old.guard, deferring(old, *older))) == ""
    assert await round_of(StoredRuns(new.guard, served)) == "executed 1"
    assert (await sent(served, where, method="GET")).text == "exported"
    for shop in (new, old):
        await shop.guard.aclose()


class Elsewhere:
    """Middleware further in than the guard that sends a worker's run to another route."""

    def __init__(self, app: Any, path: str) -> None:
        self.app = app
        self.path = path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if "semel.worker_run" in scope:
            scope = {**scope, "path": self.path, "raw_path": self.path.encode()}
        await self.app(scope, receive, send)


@pytest.mark.parametrize("path", ["/nowhere", "/other"])
async def test_an_answer_that_is_not_the_endpoints_is_nobodys(
    shop: Shop, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is put back, and a dead letter with the reason when there is no next time."""
    served = elsewhere(shop, path)
    where = (await sent(served, "/exports")).headers["location"]
    with caplog.at_level(logging.CRITICAL):
        await round_of(StoredRuns(shop.guard, served))
    case = shop.case()
    assert (case.record.state, shop.made) == (State.PENDING, [])
    assert (await sent(served, where, method="GET")).status_code == 202
    last_before_its_deadline(shop)
    with caplog.at_level(logging.CRITICAL):
        await round_of(StoredRuns(shop.guard, served))
    case = shop.case()
    assert (case.record.state, case.due_at) == (State.UNKNOWN, None)
    assert "before its endpoint" in (case.record.reason or "")


def elsewhere(shop: Shop, path: str) -> Any:
    async def other(request: Any) -> PlainTextResponse:
        return PlainTextResponse("another's answer")

    @shop.guard.route(DEFERRED)
    async def export(request: Any) -> PlainTextResponse:
        shop.made.append("exported")
        return PlainTextResponse("exported")

    app = Starlette(
        routes=[
            Route("/exports", export, methods=["POST"]),
            Route("/other", other, methods=["POST"]),
        ]
    )
    app.add_middleware(Elsewhere, path=path)
    return shop.guard.asgi(app)


def last_before_its_deadline(shop: Shop) -> None:
    """It is due, and its deadline comes before another run could."""
    import sqlite3

    now = int(time.time() * 1_000_000)
    with sqlite3.connect(shop.url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "UPDATE semel_record SET due_at = ?, leased_until = ?, abandon_at = ?, created_at = ?",
            (now - 1, now + LATE // 100, now + LATE // 100, now - LATE),
        )


@pytest.mark.parametrize(
    ("middleware", "options"),
    [(TrustedHostMiddleware, {"allowed_hosts": ["shop.test"]}), (HTTPSRedirectMiddleware, {})],
)
async def test_a_worker_comes_by_the_host_and_the_scheme_of_the_client(
    shop: Shop, middleware: Any, options: Any
) -> None:
    app = FastAPI()
    app.add_middleware(middleware, **options)

    @app.post("/exports")
    @shop.guard.route(DEFERRED)
    async def export() -> str:
        shop.made.append("exported")
        return "exported"

    served = shop.guard.asgi(app)
    await sent(served, "/exports")
    assert await round_of(StoredRuns(shop.guard, served)) == "executed 1"
    assert shop.made == ["exported"]


async def test_a_worker_finds_routes_of_a_host(shop: Shop) -> None:
    @shop.guard.route(DEFERRED)
    async def export(request: Any) -> PlainTextResponse:
        shop.made.append("exported")
        return PlainTextResponse("exported")

    inner = Router([Route("/exports", export, methods=["POST"])])
    served = shop.guard.asgi(Starlette(routes=[Host("shop.test", app=inner)]))
    await sent(served, "/exports")
    assert await round_of(StoredRuns(shop.guard, served)) == "executed 1"
    assert shop.made == ["exported"]


# ── downstream keys ───────────────────────────────────────────────────────────────────────────────


async def keys_sent(shop: Shop, times: int = 2) -> list[str]:
    """By a handler that is run for one key, evicted in between."""
    keys: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        keys.append(semel.async_operation().downstream_key("charge"))
        await PlainTextResponse("paid", 201)(scope, receive, send)

    served = shop.guard.asgi(app)
    for _ in range(times):
        await sent(served)
        shop.guard.operator().evict(shop.case().record.identity, by="ann", reason="again")
    return keys


async def test_a_keys_second_life_has_downstream_keys_of_its_own(shop: Shop) -> None:
    assert len(set(await keys_sent(shop))) == 2


async def test_a_retry_has_the_downstream_key_of_the_first_try(tmp_path: Path) -> None:
    """And in atomic mode too, where the first has left nothing behind."""
    for name, policy in {
        "leased": semel.ietf(),
        "atomic": semel.ietf(mode="atomic", required=True),
    }.items():
        shop = Shop(tmp_path, name, policy=policy)
        keys: list[str] = []

        async def app(scope: Any, receive: Any, send: Any, keys: list[str] = keys) -> None:
            keys.append(semel.async_operation().downstream_key("charge"))
            await PlainTextResponse("", 500 if len(keys) == 1 else 201)(scope, receive, send)

        served = shop.guard.asgi(app)
        assert [(await sent(served)).status_code for _ in range(2)] == [500, 201]
        assert len(keys) == 2
        assert len(set(keys)) == 1
        await shop.guard.aclose()


async def test_the_probe_of_an_atomic_run_asks_for_the_key_that_was_sent(tmp_path: Path) -> None:
    asked: list[str] = []

    def probe(inquiry: semel.Inquiry) -> Any:
        asked.append(inquiry.downstream_key("charge"))
        return semel.CannotTell()

    policy = semel.payments(mode="atomic", required=True, probe=probe, reconcile_after=SOON)
    shop, keys = Shop(tmp_path, policy=policy), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        keys.append(semel.async_operation().downstream_key("charge"))
        raise TimeoutError

    await sent(shop.guard.asgi(app))
    await round_of(Reconciler(shop.guard))
    assert asked == keys
    await shop.guard.aclose()


async def test_a_call_and_an_effect_of_one_name_are_two(tmp_path: Path) -> None:
    shop, keys = Shop(tmp_path, policy=semel.ietf(mode="resumable")), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        op = semel.async_operation()
        await op.call("notify", lambda key: keys.append(key))
        await op.phase("told", lambda: told(op))
        await PlainTextResponse("", 201)(scope, receive, send)

    async def told(op: Any) -> None:
        keys.append(await op.enqueue("notify", {"x": 1}))

    assert (await sent(shop.guard.asgi(app))).status_code == 201
    assert len(keys) == len(set(keys)) == 2
    await shop.guard.aclose()


def test_a_record_that_is_recalled_has_its_terms(shop: Shop) -> None:
    shop.guard.once(KEY["Idempotency-Key"], lambda: 1, name="parcel")
    identity = shop.case().record.identity
    found = shop.guard.backend.blocking().perform(Recall(identity))
    assert isinstance(found, Recalled)
    assert found.case.terms == shop.guard.runtime.plan("*", shop.guard.policy).terms
