"""Refusals in the shapes of other APIs: what each says, and what stays semel's in all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.core.exchange import refusal_shapes as refusals
from semel.core.exchange.problems import CATALOGUE, Problem, in_shape, refuse
from semel.core.frozen import replace
from semel.core.records import HeaderView, Request, Response

REQUEST = Request("POST", "/pay", b"", HeaderView([(b"idempotency-key", b"k" * 20)]), {})
SHAPES = [getattr(refusals, name) for name in refusals.__all__]
EVERY_CODE = pytest.mark.parametrize("code", list(CATALOGUE))
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.__name__))


def problem(code: str, **said: Any) -> Problem:
    return refuse(code, **said).problem


def document(shape: Any, given: Problem) -> Any:
    return json.loads(shape(given, REQUEST).body)


@EVERY_CODE
@EVERY_SHAPE
def test_status_and_pause_are_semels_and_the_key_is_never_shown(shape: Any, code: str) -> None:
    given = problem(code, retry_after=2_500_000)
    made = in_shape(given, shape(given, REQUEST))
    assert made.status == given.status
    headers = dict(made.headers)
    assert headers[b"retry-after"] == b"3"
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"content-type"].endswith(b"json")
    assert len(headers) == len(made.headers)
    assert b"k" * 20 not in made.body


@pytest.mark.parametrize(
    ("code", "kind", "named"),
    [
        ("key-reused", "idempotency_error", "key_reused"),
        ("in-flight", "invalid_request_error", "idempotency_key_in_use"),
        ("attempt-failed", "invalid_request_error", "idempotency_key_in_use"),
        ("missing-key", "invalid_request_error", "missing_key"),
        ("too-fast", "invalid_request_error", "rate_limit"),
        ("handler-failed", "api_error", "handler_failed"),
        ("store-unavailable", "api_error", "store_unavailable"),
    ],
)
def test_stripe_has_an_error_object(code: str, kind: str, named: str) -> None:
    error = document(refusals.stripe, problem(code))["error"]
    assert (error["type"], error["code"]) == (kind, named)
    assert error["message"] == CATALOGUE[code].detail


@EVERY_CODE
def test_stripe_tells_its_clients_whether_to_try_again(code: str) -> None:
    given = problem(code)
    told = dict(refusals.stripe(given, REQUEST).headers)[b"stripe-should-retry"]
    assert told == (b"true" if given.retryable else b"false")


@pytest.mark.parametrize(
    ("code", "kind", "named"),
    [
        ("missing-key", "invalid_request", "idempotency_key_required"),
        ("key-reused", "invalid_request", "idempotency_conflict"),
        ("in-flight", "invalid_request", "idempotency_in_flight"),
        ("malformed-key", "invalid_request", "malformed_key"),
        ("too-fast", "rate_limit_exceeded", "too_fast"),
        ("handler-failed", "processing_error", "handler_failed"),
        ("store-unavailable", "service_unavailable", "store_unavailable"),
    ],
)
def test_acp_is_a_flat_object(code: str, kind: str, named: str) -> None:
    said = document(refusals.acp, problem(code))
    assert said == {"type": kind, "code": named, "message": CATALOGUE[code].detail}


def test_json_api_has_one_error_object_with_texts() -> None:
    extra = {"differing_fields": ["amount"]}
    (error,) = document(refusals.json_api, problem("key-reused", extra=extra))["errors"]
    assert error["status"] == "422"
    assert error["code"] == "key-reused"
    assert error["meta"] == {"retryable": False, "differing_fields": ["amount"]}


@pytest.mark.parametrize(
    ("sent", "number"),
    [
        (b'{"jsonrpc": "2.0", "id": 7, "method": "pay"}', 7),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "pay"}', "a"),
        (b'[{"id": 1}]', None),
        (b"{", None),
        (b"", None),
        (b"[" * 100_000, None),
        (b'{"id": NaN}', None),
        (b'{"id": 1e999}', None),
        (b'{"id": true}', None),
        (b'{"id": {"a": 1}}', None),
        (b'{"id": ' + b"[" * 900 + b"]" * 900 + b"}", None),
        (b'{"id": "' + b"x" * 300 + b'"}', None),
        (b'{"id": ' + b"9" * 300 + b"}", None),
    ],
)
def test_json_rpc_answers_the_call_that_was_sent(sent: bytes, number: object) -> None:
    given = replace(problem("in-flight"), sent=sent)
    said = document(refusals.json_rpc, given)
    assert (said["jsonrpc"], said["id"]) == ("2.0", number)
    assert said["error"]["data"]["code"] == "in-flight"
    assert document(refusals.json_rpc, problem("missing-key"))["error"]["code"] == -32600


@pytest.mark.parametrize("nonsense", [None, b"no", {"status": 409}, Response(200, (), "text")])  # type: ignore[arg-type]
def test_what_is_no_response_is_refused(nonsense: object) -> None:
    with pytest.raises(TypeError, match=r"semel\.Response"):
        in_shape(problem("in-flight"), nonsense)


def test_a_shape_cannot_change_the_status_or_the_pause() -> None:
    theirs = Response(
        200, ((b"Retry-After", b"0"), (b"Cache-Control", b"public"), (b"x", b"y")), b""
    )
    made = in_shape(problem("in-flight", retry_after=1), theirs)
    assert made.status == 409
    assert made.headers == (
        (b"x", b"y"),
        (b"idempotency-problem", b"in-flight;retryable=?1"),
        (b"cache-control", b"no-store"),
        (b"retry-after", b"1"),
    )
