"""What answers mean: semel's, Stripe's, and those of servers that are neither."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import AnswerLost, CallRefused, KeyExpired, KeyReused
from semel.client.model import CallAnswer
from semel.client.responses import (
    AccessDenied,
    FinalAnswer,
    InProgress,
    SendInstead,
    ServerRefusal,
    TryAgain,
    meaning_of,
    status_meaning,
)
from semel.core.exchange import refusal_shapes as refusals
from semel.core.exchange.problems import CATALOGUE, in_shape, refuse
from semel.core.records import HeaderView, Request
from tests.client.answers import accepted, answer, call, problem

STATUS = "https://api.example:8443/semel/status/9f"


def stripe(status: int, kind: str, code: str | None = None, **headers: str) -> CallAnswer:
    return answer(status, {"error": {"type": kind, "code": code}}, **headers)


END, SHUT_OUT = FinalAnswer(), AccessDenied()

SEMELS: list[tuple[CallAnswer, object]] = [
    (problem("key-reused"), ServerRefusal(KeyReused, "key-reused")),
    (problem("key-reused", status=400), ServerRefusal(KeyReused, "key-reused")),
    (problem("in-flight", retry_after=1), InProgress(None, 1.0)),
    (problem("attempt-failed", retry_after=1), TryAgain(1.0, executed=False)),
    (problem("outcome-unknown"), ServerRefusal(None, "outcome-unknown")),
    (
        problem("outcome-unknown", status=500),
        ServerRefusal(None, "outcome-unknown"),
    ),
    (problem("outcome-unknown", retryable=True, retry_after=2_000_000), InProgress(None, 2.0)),
    (problem("key-expired"), ServerRefusal(KeyExpired, "key-expired")),
    (problem("replay-impossible"), ServerRefusal(AnswerLost, "replay-impossible")),
    (problem("body-not-kept"), ServerRefusal(AnswerLost, "body-not-kept")),
    (problem("missing-key"), ServerRefusal(CallRefused, "missing-key")),
    (problem("abandoned"), ServerRefusal(CallRefused, "abandoned")),
    (problem("misconfigured"), ServerRefusal(CallRefused, "misconfigured")),
    (problem("tenant-missing"), SHUT_OUT),
    (problem("store-unavailable", retry_after=1), TryAgain(1.0, executed=False)),
    (problem("not-executed"), TryAgain(None, executed=False)),
    (problem("completion-not-durable"), TryAgain(None, executed=True)),
    (problem("handler-failed"), TryAgain(None, executed=True)),
    (problem("handler-failed", retryable=False), END),
    (accepted(), InProgress(STATUS, 1.0)),
]
STRIPES: list[tuple[CallAnswer, object]] = [
    (stripe(400, "idempotency_error"), ServerRefusal(KeyReused, "key-reused")),
    (stripe(409, "idempotency_error", "idempotency_key_in_use"), InProgress(None, None)),
    (stripe(409, "invalid_request_error", "lock_timeout"), InProgress(None, None)),
    (stripe(402, "card_error", "card_declined"), END),
    (stripe(500, "api_error"), TryAgain(None, executed=True)),
    (stripe(500, "api_error", stripe_should_retry="false"), END),
    (stripe(500, "api_error", idempotent_replayed="true"), END),
    (
        stripe(409, "invalid_request_error", stripe_should_retry="true"),
        TryAgain(None, executed=True),
    ),
    (stripe(429, "rate_limit", retry_after="3"), TryAgain(3.0, executed=False)),
]
OTHERS: list[tuple[CallAnswer, object]] = [
    *((answer(status), END) for status in (200, 201, 202, 204, 301, 303, 400, 404, 409, 422)),
    *((answer(status), END) for status in (501, 505)),
    *((answer(status), SHUT_OUT) for status in (401, 403, 407)),
    *((answer(status), TryAgain(None, executed=True)) for status in (500, 502, 503, 504)),
    *((answer(status), TryAgain(None, executed=False)) for status in (408, 425, 429)),
    (answer(409, retry_after="2"), InProgress(None, 2.0)),
    (answer(500, {"retryable": False}), END),
    (answer(409, {"retryable": True}), TryAgain(None, executed=True)),
    # The examples of the IETF draft.
    (
        answer(422, {"title": "Idempotency-Key is already used"}),
        ServerRefusal(KeyReused, "key-reused"),
    ),
    (
        answer(409, {"title": "A request is outstanding for this Idempotency-Key"}),
        InProgress(None, None),
    ),
    # Kept: the same key would only bring it again.
    (answer(500, idempotency_expires="Mon, 16 Nov 2026 12:00:00 GMT"), END),
    (answer(503, {"retryable": True}, idempotent_replayed="true"), END),
    # An application's own: no address to ask, or one in its own words.
    (answer(202, {"status": [], "location": "/jobs/1"}, location="/jobs/1"), END),
    (answer(409, {"error": {"type": [], "code": {}}}), END),
    (answer(202, {"status": "pending"}), END),
    (answer(202, {"status": "queued", "location": "/jobs/1"}, location="/jobs/1"), END),
    (accepted(idempotent_replayed="true"), END),
    # Problems that only look like semel's.
    (answer(409, {"code": "outcome-unknown", "type": "about:blank"}), END),
    (answer(410, {"code": "key-expired"}), END),
    (answer(410, {"code": "key-expired", "type": "https://a.example/old-key-expired"}), END),
    (answer(410, {"code": ["key-expired"], "type": "https://a.example/key-expired"}), END),
]


@pytest.mark.parametrize(("given", "means"), [*SEMELS, *STRIPES, *OTHERS])
def test_an_answer_means(given: CallAnswer, means: object) -> None:
    assert meaning_of(call(), given, 0.0) == means


@pytest.mark.parametrize("base", ["https://a.example/#", "https://a.example/p/", "/p/"])
@pytest.mark.parametrize("end", ["", "/"])
def test_a_problem_is_known_wherever_its_page_is(base: str, end: str) -> None:
    given = answer(410, {"code": "key-expired", "type": f"{base}key-expired{end}"})
    assert meaning_of(call(), given, 0.0) == ServerRefusal(KeyExpired, "key-expired")


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_problem_is_repeated_exactly_where_it_says_so(code: str) -> None:
    """Whatever is added to the catalogue later: what is not retryable is not sent again."""
    for retryable in (True, False):
        reading = meaning_of(call(), problem(code, retryable=retryable), 0.0)
        assert isinstance(reading, TryAgain | InProgress) is retryable


@pytest.mark.parametrize(
    "location",
    [
        "https://elsewhere.example/semel/status/9f",
        "//elsewhere.example/semel/status/9f",
        "http://api.example:8443/semel/status/9f",
        "https://api.example/semel/status/9f",
        "https://api.example:99999/x",
        "https://[bad/x",
    ],
)
def test_a_status_is_never_asked_for_at_another_server(location: str) -> None:
    assert meaning_of(call(), accepted(location), 0.0) == InProgress(None, 1.0)


@pytest.mark.parametrize(
    ("given", "means"),
    [
        (accepted(), InProgress(STATUS, 1.0)),
        (answer(201, {"paid": 1}, idempotent_replayed="true"), END),
        (answer(500, idempotent_replayed="true"), END),
        (problem("outcome-unknown"), ServerRefusal(None, "outcome-unknown")),
        (problem("key-expired"), ServerRefusal(KeyExpired, "key-expired")),
        (problem("attempt-failed", retry_after=1), SendInstead()),
        (problem("no-such-operation"), SendInstead()),
        (problem("store-unavailable", retry_after=1), TryAgain(1.0, executed=False)),
        (answer(502), TryAgain(None, executed=True)),
        # Whatever answers there, it is not the call's answer.
        *((answer(status), SendInstead()) for status in (200, 204, 302, 401, 404)),
    ],
)
def test_the_status_resource_means(given: CallAnswer, means: object) -> None:
    assert status_meaning(call(), given, 0.0) == means


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["code", "type", "status", "location", "error", "retryable", "title"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
names = ("retry-after", "location", "stripe-should-retry", "idempotent-replayed", "date")


@given(st.integers(200, 599), json_values, st.dictionaries(st.sampled_from(names), st.text()))
def test_no_answer_however_odd_breaks_the_reading(
    status: int, document: Any, headers: dict[str, str]
) -> None:
    given = answer(status, document)
    odd = CallAnswer(status, {**given.headers, **headers}, given.body)
    for reader in (meaning_of, status_meaning):
        reading: object = reader(call(), odd, 0.0)
        assert isinstance(
            reading,
            FinalAnswer | ServerRefusal | InProgress | TryAgain | AccessDenied | SendInstead,
        )


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 5_000])
def test_a_body_that_is_no_json_is_judged_by_its_status(body: bytes) -> None:
    odd = CallAnswer(503, {"content-type": "application/problem+json"}, body)
    assert meaning_of(call(), odd, 0.0) == TryAgain(None, executed=True)


SHAPES = [getattr(refusals, name) for name in refusals.__all__ if name != "problem_document"]


def in_the_shape(shape: Any, code: str, retryable: bool) -> CallAnswer:
    """A refusal of semel as a server with that shape sends it."""
    refused = refuse(code, retryable=retryable, retry_after=2_000_000 if retryable else None)
    request = Request("POST", "/pay", b"", HeaderView([]), {})
    made = in_shape(refused.problem, shape(refused.problem, request))
    headers = {name.decode().lower(): value.decode() for name, value in made.headers}
    return CallAnswer(made.status, headers, made.body)


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize("code", list(CATALOGUE))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.__name__))
def test_a_refusal_means_the_same_in_every_shape(shape: Any, code: str, retryable: bool) -> None:
    plain = problem(code, retryable=retryable, retry_after=2_000_000 if retryable else None)
    shaped = in_the_shape(shape, code, retryable)
    for reading in (meaning_of, status_meaning):
        assert reading(call(), shaped, 0.0) == reading(call(), plain, 0.0)


@pytest.mark.parametrize("told", ["in-flight", "made-up;retryable=?1", "in-flight;retryable=1", ""])
def test_a_header_that_is_not_semels_says_nothing(told: str) -> None:
    odd = answer(409, {"a": 1}, idempotency_problem=told)
    assert meaning_of(call(), odd, 0.0) == END


def test_stripes_advice_does_not_hide_that_a_caller_was_shut_out_or_a_key_is_in_use() -> None:
    out = stripe(401, "invalid_request_error", stripe_should_retry="false")
    assert meaning_of(call(), out, 0.0) == SHUT_OUT
    busy = stripe(
        409, "invalid_request_error", "idempotency_key_in_use", stripe_should_retry="true"
    )
    assert meaning_of(call(), busy, 0.0) == InProgress(None, None)
