"""Refusals in the shapes of other APIs, for ``refusal=``: functions of a problem and its request.

A shape says what the body looks like. The status, ``Retry-After`` and ``Cache-Control`` are semel's
in every shape. None of them shows the key.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, Final

from semel.core.exchange.problems import Problem, ProblemResponse
from semel.core.records import Header, Request, Response

__all__ = ["acp", "json_api", "json_rpc", "problem_document", "stripe"]


def problem_document(problem: Problem, request: Request) -> Response:
    """RFC 9457, semel's own shape: for a route of a guard that has another."""
    return ProblemResponse(problem)


_STRIPE: Final = {
    "key-reused": ("idempotency_error", None),
    "in-flight": ("invalid_request_error", "idempotency_key_in_use"),
    "attempt-failed": ("invalid_request_error", "idempotency_key_in_use"),
    "too-fast": ("invalid_request_error", "rate_limit"),
    "too-many-keys": ("invalid_request_error", "rate_limit"),
}


def stripe(problem: Problem, request: Request) -> Response:
    """An ``error`` object, as Stripe's clients read it.

    They try again after some statuses by themselves; ``Stripe-Should-Retry`` tells them whether it
    helps.
    """
    usual = ("api_error" if problem.status >= 500 else "invalid_request_error", None)
    kind, code = _STRIPE.get(problem.code, usual)
    error = {
        "type": kind,
        "code": code or problem.code.replace("-", "_"),
        "message": problem.detail,
        "doc_url": problem.type,
        **problem.extra,
    }
    retry = b"true" if problem.retryable else b"false"
    return _json(problem, {"error": error}, (b"stripe-should-retry", retry))


_ACP: Final = {
    "missing-key": "idempotency_key_required",
    "key-reused": "idempotency_conflict",
    "in-flight": "idempotency_in_flight",
    "attempt-failed": "idempotency_in_flight",
}
_ACP_TYPES: Final = {
    429: "rate_limit_exceeded",
    500: "processing_error",
    503: "service_unavailable",
}


def acp(problem: Problem, request: Request) -> Response:
    """The flat object of the Agentic Commerce Protocol: ``type``, ``code`` and ``message``."""
    code = _ACP.get(problem.code) or problem.code.replace("-", "_")
    kind = _ACP_TYPES.get(problem.status, "invalid_request")
    return _json(problem, {"type": kind, "code": code, "message": problem.detail})


def json_api(problem: Problem, request: Request) -> Response:
    """A JSON:API document with one error object."""
    error = {
        "status": str(problem.status),
        "code": problem.code,
        "title": problem.title,
        "detail": problem.detail,
        "links": {"type": problem.type},
        "meta": {"retryable": problem.retryable, **problem.extra},
    }
    return _json(problem, {"errors": [error]}, media=b"application/vnd.api+json")


_BAD_REQUESTS: Final = frozenset({"missing-key", "malformed-key", "malformed-body"})
_INVALID_REQUEST, _SERVER_ERROR = -32600, -32000
_LONGEST_ID: Final = 256
_LARGEST_ID: Final = 2**63


def json_rpc(problem: Problem, request: Request) -> Response:
    """A JSON-RPC 2.0 error; ``data`` is the problem document.

    ``id`` is that of the call, and null where the call cannot be read, or is a batch.
    """
    code = _INVALID_REQUEST if problem.code in _BAD_REQUESTS else _SERVER_ERROR
    error = {"code": code, "message": problem.title, "data": problem.document()}
    return _json(problem, {"jsonrpc": "2.0", "id": _call_id(problem.sent), "error": error})


def _call_id(sent: bytes) -> str | int | float | None:
    """A text or a number, as the specification has it, that is no burden to repeat."""
    try:
        call: Any = json.loads(sent)
        given: Any = call["id"]
    except (ValueError, RecursionError, TypeError, LookupError):
        return None
    if isinstance(given, str):
        return given if len(given) <= _LONGEST_ID else None
    number = isinstance(given, int | float) and not isinstance(given, bool)
    return given if number and isfinite(given) and abs(given) < _LARGEST_ID else None


def _json(
    problem: Problem, document: object, *more: Header, media: bytes = b"application/json"
) -> Response:
    headers = ((b"content-type", media), *more)
    return Response(problem.status, headers, json.dumps(document).encode())
