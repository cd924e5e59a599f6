"""What an OpenAPI document says of keys is what the server does."""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from fastapi import APIRouter, FastAPI, Header
from fastapi.openapi.models import OpenAPI
from litestar import Litestar, post
from litestar.testing import AsyncTestClient

import semel
from semel.core.exchange.problems import CATALOGUE
from semel.frameworks.fastapi import document
from semel.frameworks.litestar import install
from semel.web.openapi import key_schema, refusals
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, call

UUID = semel.payments(required=True, key="uuid", retention=timedelta(days=7), probe=None)


def fastapi(guard: semel.Guard) -> dict[str, Any]:
    app, router, sub = FastAPI(), APIRouter(), FastAPI()

    @router.post("/pay/{id:int}", status_code=201)
    @guard.route(UUID)
    async def pay(id: int, idempotency_key: str = Header()) -> None: ...  # noqa: A002

    @app.post("/notes")
    async def note() -> None: ...

    @app.put("/left/out")
    async def put() -> None: ...

    @sub.post("/below")
    @guard.route(semel.accepted())
    async def below() -> None: ...

    app.include_router(router, prefix="/v1")
    app.mount("/sub", sub)
    guard.fastapi(app)
    document(sub, guard)
    assert app.openapi() is app.openapi()
    made = app.openapi()
    made["below"] = sub.openapi()
    return made


def somebody(request: semel.Request) -> str:
    return "somebody"


@pytest.fixture
def schema(make_guard: MakeGuard) -> dict[str, Any]:
    return fastapi(make_guard(tenant=somebody))


def header(operation: dict[str, Any]) -> dict[str, Any]:
    (found,) = (p for p in operation["parameters"] if p["name"].lower() == "idempotency-key")
    return cast("dict[str, Any]", found)


def test_the_header_has_the_routes_format_and_retention(schema: dict[str, Any]) -> None:
    pay = header(schema["paths"]["/v1/pay/{id}"]["post"])
    assert (pay["in"], pay["required"], pay["schema"]["format"]) == ("header", True, "uuid")
    assert re.fullmatch(pay["schema"]["pattern"], "8e03978e-40d5-43e8-bc93-6894a57f9324")
    assert not re.fullmatch(pay["schema"]["pattern"], "8e03978e-40d5-13e8-bc93-6894a57f9324")
    assert "kept for 7 days" in pay["description"]
    note = header(schema["paths"]["/notes"]["post"])
    assert (note["required"], note["schema"]["minLength"], note["schema"]["maxLength"]) == (
        *(False, 1),
        255,
    )
    assert "kept for 24 hours" in note["description"]
    assert "parameters" not in schema["paths"]["/left/out"]["put"]


def test_refusals_and_headers_are_told(schema: dict[str, Any]) -> None:
    responses = schema["paths"]["/v1/pay/{id}"]["post"]["responses"]
    assert set(responses) == {"201", "400", "401", "409", "410", "413", "422", "503"}
    assert set(responses["201"]["headers"]) == {"Idempotent-Replayed", "Idempotency-Expires"}
    assert "Retry-After" in responses["409"]["headers"]
    # FastAPI's own 422 keeps its schema beside ours.
    assert set(responses["422"]["content"]) == {"application/json", "application/problem+json"}
    codes = responses["409"]["content"]["application/problem+json"]["schema"]["allOf"][1]
    assert "outcome-unknown" in codes["properties"]["code"]["enum"]
    below = schema["below"]["paths"]["/below"]["post"]["responses"]
    assert set(below["202"]["headers"]) == {"Location", "Retry-After"}


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in cast("dict[str, Any]", part).items():
            yield from [value] if name == "$ref" else references(value)
    elif hasattr(part, "append"):
        for item in part:
            yield from references(item)


def assert_valid(document: dict[str, Any]) -> None:
    """By FastAPI's own model of OpenAPI, and every reference leads somewhere."""
    OpenAPI.model_validate(document)
    found = set(references(document))
    assert "#/components/schemas/IdempotencyProblem" in found
    for reference in found:
        part: Any = document
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]
    for path in document["paths"].values():
        for operation in path.values():
            for status, response in operation.get("responses", {}).items():
                assert response["description"], status


def test_the_document_is_valid(schema: dict[str, Any]) -> None:
    assert_valid(schema.pop("below"))
    assert_valid(schema)


async def test_litestar_tells_the_same(make_guard: MakeGuard) -> None:
    @post("/pay", opt={"semel": UUID})
    async def pay() -> dict[str, int]:
        return {}

    @post("/notes")
    async def note() -> dict[str, int]:
        return {}

    app = Litestar([pay, note], on_app_init=[partial(install, guard=make_guard())])
    async with AsyncTestClient(app) as client:
        made = (await client.get("/schema/openapi.json")).json()
    assert_valid(made)
    assert header(made["paths"]["/pay"]["post"])["schema"]["format"] == "uuid"
    assert header(made["paths"]["/notes"]["post"])["required"] is False
    assert "/semel/status/{operation}" not in made["paths"]


POLICIES = {
    "ietf": semel.ietf(required=True),
    "stripe": semel.stripe(),
    "payments": semel.payments(probe=None),
    "atomic": semel.ietf(mode="atomic"),
    "deferred": semel.accepted(mode="deferred", required=True),
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_refusal_stands_under_the_status_it_comes_with(
    name: str, make_guard: MakeGuard, tmp_path: Any
) -> None:
    policy, guard = POLICIES[name], make_guard(f"sqlite:///{tmp_path / 'semel.db'}")
    told = refusals(policy, guard)
    for status, codes in told.items():
        for code in codes:
            told_as = policy.mismatch_status if code == "key-reused" else CATALOGUE[code].status
            assert int(status) == told_as
    assert ("410" in told) is (name != "stripe")
    assert ("missing-key" in told["400"]) is policy.required


@pytest.mark.parametrize("by", ["policy", "guard"])
def test_refusals_in_another_shape_are_told_without_the_schema_of_problem_documents(
    by: str, make_guard: MakeGuard
) -> None:
    app = FastAPI()
    shape = {"refusal": semel.refusals.json_api} if by == "guard" else {}
    guard = make_guard(policy=semel.stripe() if by == "policy" else semel.ietf(), **shape)
    app.post("/x")(lambda: "paid")
    guard.fastapi(app)
    told = app.openapi()
    OpenAPI.model_validate(told)
    responses = told["paths"]["/x"]["post"]["responses"]
    assert "409" in responses
    assert "problem+json" not in str(told["paths"]["/x"])


KEYS = ("short", "a-key-of-enough-length", "x" * 255, "x" * 256, '"a-key-of-enough-length"')


@pytest.mark.parametrize(
    "policy",
    [
        semel.ietf(required=True),
        semel.ietf(required=True, key="strong"),
        semel.ietf(required=True, strict=True),
        UUID,
    ],
)
async def test_a_key_that_the_schema_refuses_the_server_refuses_too(
    policy: semel.Policy, make_guard: MakeGuard
) -> None:
    schema = key_schema(policy)
    app = FastAPI()
    guard = make_guard(policy=policy)
    app.post("/x")(lambda: "paid")
    guard.fastapi(app)
    for key in (*KEYS, "8e03978e-40d5-43e8-bc93-6894a57f9324"):
        allowed = schema.get("minLength", 0) <= len(key) <= schema.get("maxLength", 1024)
        allowed &= re.search(schema.get("pattern", ""), key) is not None
        reply, _ = await call(app, Ask(key=key))
        assert not allowed or reply.status == 200, key
        # The quoted form of a key is taken as well, which a plain schema does not say.
        assert allowed or key.startswith('"') or reply.status == 400, key


# ── keys that are elsewhere ───────────────────────────────────────────────────────────────────────


def described(guard: semel.Guard, **options: Any) -> dict[str, Any]:
    app = FastAPI()

    @app.post("/pay")
    @guard.route(semel.ietf(**options))
    async def pay(order: dict[str, Any]) -> None: ...

    @app.post("/bare")
    @guard.route(semel.ietf(**options))
    async def bare() -> None: ...

    guard.fastapi(app)
    paths: dict[str, Any] = app.openapi()["paths"]
    OpenAPI(**app.openapi())
    return {name: path["post"] for name, path in paths.items()}


def test_a_key_in_the_body_is_a_property_of_the_body(make_guard: MakeGuard) -> None:
    field = semel.body("/meta/key")
    found = described(make_guard(), key_from=field, key="uuid", required=True, strict=True)
    for path in ("/pay", "/bare"):
        assert "parameters" not in found[path]
        assert found[path]["requestBody"]["required"]
        schema = found[path]["requestBody"]["content"]["application/json"]["schema"]
        told = schema["allOf"][1] if path == "/pay" else schema
        assert told["required"] == ["meta"]
        assert told["properties"]["meta"]["required"] == ["key"]
        key = told["properties"]["meta"]["properties"]["key"]
        assert key["format"] == "uuid"
        assert key["description"].startswith("Required. A UUID")
        enum = found[path]["responses"]["400"]["content"]["application/problem+json"]["schema"]
        assert "unreadable-body" in enum["allOf"][1]["properties"]["code"]["enum"]


def test_of_several_places_none_is_required_by_itself(make_guard: MakeGuard) -> None:
    places = ("X-Key", "Idempotency-Key", semel.body("key"))
    pay = described(make_guard(), key_from=places, required=True)["/pay"]
    told = [(each["name"], each["required"]) for each in pay["parameters"]]
    assert told == [("X-Key", False), ("Idempotency-Key", False)]
    assert "here or in another place" in pay["parameters"][0]["description"]
    assert "required" not in pay["requestBody"]["content"]["application/json"]["schema"]["allOf"][1]


def test_a_guards_default_place_is_described(make_guard: MakeGuard) -> None:
    pay = described(make_guard(key_from="X-Key"))["/pay"]
    assert [each["name"] for each in pay["parameters"]] == ["X-Key"]
