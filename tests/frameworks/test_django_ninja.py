"""Operations of Django Ninja authenticate by themselves: keys are refused, not ignored."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.frameworks.django_site import Site

# Ninja reads Django's settings when it is imported, so they must be there before.
# isort: split
from ninja import NinjaAPI
from ninja.security import HttpBearer

import semel
from semel.errors import ConfigurationError
from semel.frameworks.django import guarded
from semel.web.inventory import inventory
from tests.web.conftest import MakeGuard
from tests.web.drive import KEY, Ask, Driver

KNOWN = (("authorization", "Bearer alice"),)


class Bearer(HttpBearer):
    def authenticate(self, request: Any, token: str) -> str | None:
        return token if token == "alice" else None


def api_of(ran: list[str]) -> NinjaAPI:
    api = NinjaAPI(auth=Bearer(), urls_namespace=f"api-{id(ran)}")

    @api.post("/blocking")
    def pay(request: Any) -> dict[str, int]:
        ran.append(request.auth)
        return {"paid": len(ran)}

    @api.post("/awaited")
    async def pay_awaited(request: Any) -> dict[str, int]:
        ran.append(request.auth)
        return {"paid": len(ran)}

    return api


Serve = Callable[..., Driver]


@pytest.fixture(params=["wsgi", "asgi"])
def serve(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Serve]:
    sites: list[Site] = []

    def begin(guard: semel.Guard, api: NinjaAPI, **options: Any) -> Driver:
        sites.append(Site(guard, {"api/": api.urls}, **options))
        return sites[-1].driver(request.param, runner)

    yield begin
    for site in sites:
        site.close()


@pytest.mark.parametrize("path", [b"/api/blocking", b"/api/awaited"])
def test_no_answer_is_repeated_to_one_who_was_not_authenticated(
    guard: semel.Guard, serve: Serve, path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    send = serve(guard, api_of(ran))
    assert send(Ask(path=path, key=KEY, headers=KNOWN)).code == "misconfigured"
    assert send(Ask(path=path, key=KEY)).code == "misconfigured"
    assert ran == []
    assert "Django Ninja" in caplog.text
    assert send(Ask(path=path, key=None, headers=KNOWN)).status == 200
    assert send(Ask(path=path, key=None)).status == 401


@pytest.mark.parametrize("how", ["guarded", "route"])
@pytest.mark.parametrize("colour", ["blocking", "awaited"])
def test_an_operation_cannot_be_made_of_a_function_with_a_policy(
    guard: semel.Guard, how: str, colour: str
) -> None:
    def pay(request: Any) -> dict[str, int]:
        return {"paid": 1}

    async def pay_awaited(request: Any) -> dict[str, int]:
        return {"paid": 1}

    policy = semel.ietf(required=True)
    function: Any = pay if colour == "blocking" else pay_awaited
    decorate: Any = guarded(guard, policy) if how == "guarded" else guard.route(policy)
    with pytest.raises(ConfigurationError, match="Django Ninja"):
        NinjaAPI(urls_namespace=how).post("/x")(decorate(function))


def test_the_inventory_says_that_its_operations_ignore_keys(
    make_guard: MakeGuard, serve: Serve
) -> None:
    send = serve(make_guard(policy=semel.ietf(required=True)), api_of([]))
    told = {
        each.coverage
        for each in inventory(send.app)  # type: ignore[attr-defined]
        if each.path == "/api/blocking" and each.method == "POST"
    }
    assert told == {"ignores"}


def test_work_in_an_operation_is_done_once_for_each_key(guard: semel.Guard, serve: Serve) -> None:
    """What the guide says to do instead, after Ninja has authenticated."""
    ran: list[str] = []
    api = NinjaAPI(auth=Bearer(), urls_namespace="once")

    @api.post("/pay")
    def pay(request: Any) -> Any:
        def work() -> dict[str, int]:
            ran.append(request.auth)
            return {"paid": len(ran)}

        key = request.headers["Idempotency-Key"]
        return guard.once(key, work, name="pay", payload=None, tenant=request.auth).value

    send = serve(guard, api, MIDDLEWARE=[])
    first, again = (send(Ask(path=b"/api/pay", headers=KNOWN)) for _ in range(2))
    assert [first.body, again.body] == [b'{"paid": 1}'] * 2
    assert send(Ask(path=b"/api/pay")).status == 401
    assert ran == ["alice"]
