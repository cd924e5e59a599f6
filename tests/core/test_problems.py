"""Refusals are RFC 9457 documents with stable codes."""

from __future__ import annotations

import json

import pytest

from semel.core.exchange.problems import CATALOGUE, DOCS, refuse


@pytest.mark.parametrize("code", CATALOGUE)
def test_each_refusal_is_a_problem_document(code: str) -> None:
    response = refuse(code)
    document = json.loads(response.body)
    assert document["type"] == DOCS + code
    assert document["code"] == code
    assert document["status"] == response.status == CATALOGUE[code].status
    assert isinstance(document["retryable"], bool)
    assert document["title"]
    assert document["detail"]
    assert (b"content-type", b"application/problem+json") in response.headers
    assert (b"cache-control", b"no-store") in response.headers


@pytest.mark.parametrize(("micros", "seconds"), [(1, b"1"), (1_000_000, b"1"), (1_000_001, b"2")])
def test_retry_after_is_rounded_up_to_whole_seconds(micros: int, seconds: bytes) -> None:
    assert dict(refuse("in-flight", retry_after=micros).headers)[b"retry-after"] == seconds
