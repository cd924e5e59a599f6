"""Views of Django REST framework: keys are claimed after it has authenticated."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.frameworks.django_site import GUARD, Row, Site, make_tables

# REST framework reads Django's settings when it is imported, so they must be there before.
# isort: split
from django.db import connections
from django.views import View
from django.views.decorators.http import require_http_methods
from rest_framework import exceptions, serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view, authentication_classes, permission_classes
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSetMixin

import semel
from semel.frameworks.django import guarded
from semel.frameworks.django.routes import CLAIMS
from semel.web.inventory import inventory
from semel.web.tags import policy_of
from tests.web.conftest import MakeGuard
from tests.web.drive import KEY, Ask, Driver

JSON = ("content-type", "application/json")


class Caller:
    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.name = name


class Bearer(BaseAuthentication):
    def authenticate(self, request: Any) -> tuple[Caller, None] | None:
        name = request.headers.get("X-User", "")
        return (Caller(name), None) if name else None

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"


class Curious(BasePermission):
    """Reads the body before the view is called."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return "amount" in request.data


class Payment(serializers.Serializer[Any]):
    amount = serializers.IntegerField()


def tenant(request: semel.Request) -> str | None:
    caller = request.raw.user
    return None if caller is None else caller.name


def asking(amount: Any = 1, who: str | None = "alice", key: str | None = KEY) -> Ask:
    body = json.dumps({"amount": amount}).encode()
    headers = (JSON, ("content-length", str(len(body))))
    known = () if who is None else (("x-user", who),)
    return Ask(key=key, body=body, headers=(*headers, *known))


Serve = Callable[..., Driver]


@pytest.fixture(params=["wsgi", "asgi"])
def serve(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Serve]:
    open_: list[Site] = []

    def begin(guard: semel.Guard, view: Any, *, layers: Any = (GUARD,)) -> Driver:
        open_.append(Site(guard, {"x": view}, MIDDLEWARE=list(layers)))
        return open_[-1].driver(request.param, runner)

    yield begin
    for site in reversed(open_):  # each puts back what was before it
        site.close()


def in_every_way(
    guard: semel.Guard, do: Callable[[Any], Response], *permissions: Any
) -> dict[str, Any]:
    """The same view in every way that REST framework has; GET is not guarded."""

    class Told(APIView):
        authentication_classes = (Bearer,)
        permission_classes = permissions

    class ByMethod(Told):
        def get(self, request: Any) -> Response:
            return do(request)

        @guarded(guard)
        def post(self, request: Any) -> Response:
            return do(request)

    @guarded(guard)
    class ByClass(Told):
        def get(self, request: Any) -> Response:
            return do(request)

        def post(self, request: Any) -> Response:
            return do(request)

    @guarded(guard)
    class BySet(ViewSetMixin, Told):
        def list(self, request: Any) -> Response:
            return do(request)

        def create(self, request: Any) -> Response:
            return do(request)

    @api_view(["GET", "POST"])
    @authentication_classes([Bearer])
    @permission_classes([*permissions])
    @guarded(guard)
    def by_function(request: Any) -> Response:
        return do(request)

    return {
        "method": ByMethod.as_view(),
        "class": ByClass.as_view(),
        "viewset": BySet.as_view({"get": "list", "post": "create"}),
        "function": by_function,
    }


def payments(guard: semel.Guard, ran: list[Any], *permissions: Any) -> dict[str, Any]:
    def pay(request: Any) -> Response:
        payment = Payment(data=request.data)
        payment.is_valid(raise_exception=True)
        ran.append((request.user.name, payment.validated_data["amount"]))
        if payment.validated_data["amount"] == 500:
            raise RuntimeError("broken")
        if payment.validated_data["amount"] == 503:
            raise exceptions.APIException("away")
        if payment.validated_data["amount"] == 504:
            raise exceptions.APIException("late") from httpx.ReadTimeout("the provider hangs")
        return Response({"paid": len(ran)}, 201, headers={"X-Paid": "yes"})

    return in_every_way(guard, pay, IsAuthenticated, *permissions)


KINDS = ("method", "class", "viewset", "function")


@pytest.fixture
def ran() -> list[Any]:
    """Who has paid how much."""
    return []


Send = Callable[..., Driver]


@pytest.fixture
def paying(make_guard: MakeGuard, serve: Serve, ran: list[Any]) -> Send:
    """Sends payments to a view of one kind."""

    def begin(kind: str, *permissions: Any, **options: Any) -> Driver:
        guard = make_guard(tenant=tenant)
        return serve(guard, payments(guard, ran, *permissions)[kind], **options)

    return begin


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_is_claimed_after_the_framework_has_authenticated(
    paying: Send, ran: list[Any], kind: str
) -> None:
    send = paying(kind)
    first, again = send(asking()), send(asking())
    assert (first.status, again.body, again.replayed) == (201, b'{"paid":1}', True)
    for name in ("content-type", "allow", "vary", "x-paid"):
        assert first.one(name) == again.one(name) is not None, name
    assert send(asking(who=None)).status == 401
    assert send(asking(who="bob")).body == b'{"paid":2}'
    assert ran == [("alice", 1), ("bob", 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_framework_answers_is_kept_or_released_like_any_answer(
    paying: Send, ran: list[Any], kind: str
) -> None:
    send = paying(kind)
    wrong = send(asking("much"))
    assert (wrong.status, list(json.loads(wrong.body))) == (400, ["amount"])
    assert send(asking("much")).replayed
    for amount in (500, 503):
        ran.clear()
        key = f"{amount}-and-long-enough"
        assert [send(asking(amount, key=key)).status for _ in range(2)] == [500, 500]
        assert len(ran) == 2, amount


@pytest.mark.parametrize("kind", ["method", "function"])
def test_an_exception_behind_an_answer_of_the_frameworks_is_known(
    paying: Send, ran: list[Any], kind: str
) -> None:
    send = paying(kind)
    assert [send(asking(504)).status, send(asking(504)).code] == [500, "outcome-unknown"]
    assert len(ran) == 1


def form(amount: int) -> Ask:
    part = 'content-disposition: form-data; name="amount"'
    body = f"--b\r\n{part}\r\n\r\n{amount}\r\n--b--\r\n".encode()
    kind = ("content-type", "multipart/form-data; boundary=b")
    length = ("content-length", str(len(body)))
    return Ask(body=body, headers=(kind, length, ("x-user", "alice")))


@pytest.mark.parametrize("ask", [asking, form])
@pytest.mark.parametrize("layers", [(GUARD,), ()])
def test_a_body_that_was_parsed_before_the_view_is_compared_all_the_same(
    paying: Send, ran: list[Any], layers: tuple[str, ...], ask: Callable[[int], Ask]
) -> None:
    """The middleware keeps it; without the middleware a form is gone, and that is said."""
    send = paying("method", Curious, layers=layers)
    if ask is form and not layers:
        assert send(ask(1)).code == "misconfigured"
        assert ran == []
        return
    assert [send(ask(1)).status, send(ask(1)).replayed] == [201, True]
    assert send(ask(2)).code == "key-reused"
    assert ran == [("alice", 1)]


@pytest.mark.parametrize("way", ["method", "class", "viewset", "function"])
def test_a_body_over_the_limit_is_refused_in_the_shape_of_the_api(
    make_guard: MakeGuard, serve: Serve, way: str
) -> None:
    guard = make_guard(
        policy=semel.ietf(max_request_body=4), refusal=semel.refusals.json_api, tenant=None
    )
    ran: list[Any] = []
    send = serve(guard, payments(guard, ran)[way])
    reply = send(asking(1))
    (error,) = json.loads(reply.body)["errors"]
    assert (reply.status, error["code"], ran) == (413, "body-too-large", [])


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    make_tables("default")
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    yield
    connections.settings["default"]["ATOMIC_REQUESTS"] = False
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Row)


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("kind", KINDS)
def test_atomic_requests_hold_within_and_for_methods_that_are_not_guarded(
    make_guard: MakeGuard, serve: Serve, kind: str
) -> None:
    guard = make_guard(tenant=tenant)

    def write(request: Any) -> Response:
        Row.objects.create(name=request.method)
        if request.data.get("amount") == 500:
            raise RuntimeError("broken")
        return Response({"in": connections["default"].in_atomic_block}, 201)

    send = serve(guard, in_every_way(guard, write)[kind])
    assert [send(asking()).body, send(asking()).body] == [b'{"in":true}'] * 2
    assert Row.objects.count() == 1
    assert send(asking(500, key="500-and-long-enough")).status == 500
    assert Row.objects.count() == 1
    assert send(asking(key=None)).body == b'{"in":true}'
    assert send(replace(asking(key=None), method="GET")).body == b'{"in":true}'
    assert send(replace(asking(500, key=None), method="GET")).status == 500
    assert Row.objects.count() == 3


def test_actions_of_a_guarded_viewset_are_guarded(make_guard: MakeGuard, serve: Serve) -> None:
    ran: list[str] = []
    guard = make_guard(tenant=tenant)

    @guarded(guard, semel.ietf(required=True))
    class Payments(ViewSetMixin, APIView):
        authentication_classes = (Bearer,)

        @action(detail=False, methods=["post"])
        def refund(self, request: Any) -> Response:
            ran.append("refund")
            return Response({"refunds": len(ran)}, 201)

        @refund.mapping.delete
        def undo(self, request: Any) -> Response:
            ran.append("undo")
            return Response(status=204)

        @action(detail=False, methods=["get"])
        def recent(self, request: Any) -> Any: ...

    send = serve(guard, Payments.as_view({"post": "refund"}))
    assert send(asking(key=None)).code == "missing-key"
    assert [send(asking()).body, send(asking()).body] == [b'{"refunds":1}'] * 2
    assert send(asking(who=None)).status == 401
    assert ran == ["refund"]
    assert [each.__name__ for each in Payments.get_extra_actions()] == ["recent", "refund"]
    guarded_ones = {name for name in ("refund", "undo", "recent") if claims(Payments, name)}
    assert guarded_ones == {"refund", "undo"}


def claims(kind: type, name: str) -> bool:
    return hasattr(getattr(kind, name), CLAIMS)


def test_a_subclass_that_overrides_a_guarded_method_is_guarded(
    make_guard: MakeGuard, serve: Serve
) -> None:
    """And what it calls by ``super()`` is the method itself, as it would be without a guard."""
    ran: list[str] = []
    guard = make_guard(tenant=tenant)

    @guarded(guard, semel.ietf())
    class Base(APIView):
        authentication_classes = (Bearer,)

        def post(self, request: Any) -> Response:
            ran.append("base")
            if request.data["amount"] == 2:
                raise exceptions.ValidationError("too much")
            return Response({"paid": True}, 201)

    class Below(Base):
        def post(self, request: Any) -> Response:
            ran.append("below")
            try:
                response = super().post(request)
            except exceptions.ValidationError:
                return Response({"caught": True}, 402)
            response.data["below"] = len(ran)
            return response

    send = serve(guard, Below.as_view())
    first, again = send(asking()), send(asking())
    assert [first.body, again.body] == [b'{"paid":true,"below":2}'] * 2
    assert send(asking(2, key="two-and-long-enough")).body == b'{"caught":true}'
    assert send(asking(2, key=None)).body == b'{"caught":true}'
    assert ran == ["below", "base"] * 3


def test_the_nearest_decorated_class_counts(make_guard: MakeGuard) -> None:
    guard = make_guard(tenant=tenant)
    outer, inner, own = semel.ietf(), semel.ietf(required=True), semel.stripe()

    @guarded(guard, outer)
    class Base(APIView):
        def post(self, request: Any) -> Any: ...
        def patch(self, request: Any) -> Any: ...

    @guarded(guard, inner)
    class Below(Base):
        @guarded(guard, own)
        def patch(self, request: Any) -> Any: ...

    class Last(Below):
        def post(self, request: Any) -> Any: ...

    names = [(Base.post, "outer"), (Below.post, "inner"), (Last.post, "inner")]
    names += [(Base.patch, "outer"), (Below.patch, "own"), (Last.patch, "own")]
    told = {
        id(guard.bind(each)): name
        for each, name in ((outer, "outer"), (inner, "inner"), (own, "own"))
    }
    found = [told[id(policy_of(method, "POST"))] for method, _ in names]
    assert found == [name for _, name in names]


@pytest.mark.parametrize("own", [False, True])
def test_a_method_that_a_view_does_not_have_is_not_allowed_unless_it_dispatches_by_itself(
    make_guard: MakeGuard, serve: Serve, ran: list[Any], own: bool
) -> None:
    guard = make_guard()

    class Payments(APIView):
        @guarded(guard)
        def post(self, request: Any) -> Response:
            return Response("paid")

    class Dispatching(Payments):
        def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            ran.append(request.method)
            return super().dispatch(request, *args, **kwargs)

    send = serve(guard, (Dispatching if own else Payments).as_view())
    reply = send(Ask(method="PATCH"))
    assert (reply.status, ran) == ((500, []) if own else (405, []))


@pytest.mark.parametrize("required", [False, True])
def test_a_view_that_nobody_decorated_is_not_run_with_a_key_that_protects_nothing(
    make_guard: MakeGuard, serve: Serve, required: bool
) -> None:
    class Forgotten(APIView):
        def post(self, request: Any) -> Response:
            return Response("paid")

    guard = make_guard(policy=semel.ietf(required=required))
    send = serve(guard, Forgotten.as_view())
    assert send().code == "misconfigured"
    assert send(Ask(key=None)).status == (500 if required else 200)


def test_the_inventory_knows_what_is_guarded_and_what_is_not(
    make_guard: MakeGuard, serve: Serve
) -> None:
    class Forgotten(APIView):
        def post(self, request: Any) -> Response:
            return Response("paid")

    guard = make_guard(tenant=tenant, policy=semel.ietf(required=True))
    known = payments(guard, [])
    views = [(known[kind], {"GET": "ignores", "POST": "enforces"}) for kind in KINDS]
    for view, said in (*views, (Forgotten.as_view(), {"POST": "ignores"})):
        app = serve(guard, view).app  # type: ignore[attr-defined]
        told = [(it.method, it.path, it.coverage) for it in inventory(app)]
        # REST framework keeps the methods of a function in a set.
        assert sorted(told) == [(method, "/x", coverage) for method, coverage in said.items()]


def test_the_inventory_leaves_out_no_method_of_a_class(make_guard: MakeGuard, serve: Serve) -> None:
    class Odd(View):
        http_method_names = ("post", "link", "options")

        def post(self, request: Any) -> Any: ...
        def link(self, request: Any) -> Any: ...

    class ByItself(View):
        def dispatch(self, request: Any, *_: Any, **__: Any) -> Any: ...

    guard = make_guard(policy=semel.ietf(required=True))
    for view, methods in ((Odd, ["POST", "LINK"]), (ByItself, ["*"])):
        app = serve(guard, view.as_view()).app  # type: ignore[attr-defined]
        assert [it.method for it in inventory(app)] == methods


def test_the_inventory_knows_that_a_function_answers_every_method(
    make_guard: MakeGuard, serve: Serve
) -> None:
    """Django asks a function whatever the method is, unless it was told which to let through."""

    def anything(request: Any) -> Any: ...

    send = serve(make_guard(policy=semel.ietf(required=True)), anything)
    told = {it.method: it.coverage for it in inventory(send.app)}  # type: ignore[attr-defined]
    changing = {"POST": "enforces", "PATCH": "enforces", "PUT": "ignores", "DELETE": "ignores"}
    assert {method: told.get(method) for method in changing} == changing
    only = serve(make_guard(), require_http_methods(["PUT"])(anything))
    assert [it.method for it in inventory(only.app)] == ["PUT"]  # type: ignore[attr-defined]
