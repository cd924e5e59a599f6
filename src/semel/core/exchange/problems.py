"""Every refusal semel can send: RFC 9457 problem documents with stable codes.

A refusal never echoes the key. ``retryable`` tells a client whether the same request with the same
key may succeed later without anybody changing it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from semel.core.frozen import frozen
from semel.core.records import Header, Micros, Response

DOCS: Final = "https://semel.readthedocs.io/reference/problems/"
"""Where the documentation answers a problem's ``type``: a page for each."""


@frozen
class Problem:
    """One kind of refusal."""

    code: str
    status: int
    title: str
    detail: str
    retryable: bool


_PROBLEMS: Final = (
    Problem(
        "missing-key",
        400,
        "Idempotency-Key is required",
        "This operation must be sent with an Idempotency-Key header. Make one key for each "
        "logical operation and send the same key on every retry.",
        False,
    ),
    Problem(
        "malformed-key",
        400,
        "Idempotency-Key is malformed",
        "The Idempotency-Key header cannot be used.",
        False,
    ),
    Problem(
        "key-on-safe-method",
        400,
        "Idempotency-Key on a safe method",
        "This method does not change state; send it without an Idempotency-Key.",
        False,
    ),
    Problem(
        "tenant-missing",
        401,
        "Caller is not authenticated",
        "An Idempotency-Key is only accepted from an authenticated caller.",
        False,
    ),
    Problem(
        "body-too-large",
        413,
        "Request body is too large",
        "The body is larger than this operation accepts with an Idempotency-Key. "
        "Nothing was executed.",
        False,
    ),
    Problem(
        "malformed-body",
        400,
        "Request body is incomplete",
        "The body ended before the length it announced. Nothing was executed.",
        True,
    ),
    Problem(
        "length-required",
        411,
        "Content-Length is required",
        "Nobody here can tell whether a body without a Content-Length has come whole. Nothing was "
        "executed. Send the request again with one.",
        False,
    ),
    Problem(
        "key-reused",
        422,
        "Idempotency-Key was used for another request",
        "The key was first used with a different request. Make a new key for a new operation, or "
        "send the original request unchanged.",
        False,
    ),
    Problem(
        "in-flight",
        409,
        "Request is still being processed",
        "A request with this Idempotency-Key is being processed. Wait, then send it again "
        "unchanged.",
        True,
    ),
    Problem(
        "attempt-failed",
        409,
        "The attempt this request waited for failed",
        "The attempt in progress ended without effect. Wait, then send the request again "
        "unchanged.",
        True,
    ),
    Problem(
        "outcome-unknown",
        409,
        "Outcome is not known",
        "An earlier attempt may or may not have taken effect, so it is not run again. It is "
        "settled by evidence, not by a retry.",
        False,
    ),
    Problem(
        "key-expired",
        410,
        "Idempotency-Key has expired",
        "The key was used before and its answer is no longer kept, or it is too old to be taken "
        "as new. Nothing was executed. Check the operation's outcome before making a new key.",
        False,
    ),
    Problem(
        "abandoned",
        408,
        "The request was not run in time",
        "The request was accepted, but nobody ran it before its time was up. Nothing was "
        "executed, and this key is not run any more. Make a new key to try again.",
        False,
    ),
    Problem(
        "replay-impossible",
        409,
        "The answer is no longer true",
        "The operation was executed once and is not run again. What it made has been retired "
        "since, so its answer is not repeated.",
        False,
    ),
    Problem(
        "no-such-operation",
        404,
        "No such operation",
        "There is no operation of this caller at this address, or it was forgotten.",
        False,
    ),
    Problem(
        "body-not-kept",
        409,
        "The answer was not kept",
        "The operation was executed once and is not run again, but its answer was too large or "
        "was streamed, so it cannot be sent a second time.",
        False,
    ),
    Problem(
        "replay-failed",
        500,
        "The current state could not be shown",
        "The operation was executed once and is not run again; showing its current state failed.",
        True,
    ),
    Problem(
        "handler-failed",
        500,
        "The operation failed",
        "The operation failed and left nothing behind. It may be sent again with the same key.",
        True,
    ),
    Problem(
        "not-executed",
        503,
        "The operation was not executed",
        "Nothing was executed. Wait, then send the request again unchanged.",
        True,
    ),
    Problem(
        "too-fast",
        429,
        "Too many requests",
        "This caller sends more keys, or asks about them more often, than it may. Nothing was "
        "executed. Wait, then send the request again unchanged.",
        True,
    ),
    Problem(
        "too-many-keys",
        429,
        "Too many keys are alive",
        "This caller has as many keys on record as it may have, so no new one is taken. Nothing "
        "was executed. Wait until some have expired, then send the request again unchanged.",
        True,
    ),
    Problem(
        "store-unavailable",
        503,
        "Idempotency cannot be guaranteed now",
        "The record of used keys cannot be reached, so nothing was executed. Wait, then send the "
        "request again unchanged.",
        True,
    ),
    Problem(
        "completion-not-durable",
        503,
        "The outcome could not be recorded",
        "The operation ran, but its outcome could not be recorded yet. Send the request again "
        "unchanged to learn it; it is not run twice.",
        True,
    ),
    Problem(
        "misconfigured",
        500,
        "The server is misconfigured",
        "Nothing was executed. The operator has to correct the server's settings.",
        False,
    ),
)

CATALOGUE: Final[Mapping[str, Problem]] = {problem.code: problem for problem in _PROBLEMS}
"""Every problem, by its code."""


def refuse(
    code: str,
    *,
    detail: str | None = None,
    status: int | None = None,
    retryable: bool | None = None,
    retry_after: Micros | None = None,
    extra: Mapping[str, object] | None = None,
) -> Response:
    """The problem document for ``code``; a Retry-After is rounded up to whole seconds."""
    problem = CATALOGUE[code]
    status = problem.status if status is None else status
    document = {
        "type": DOCS + code,
        "title": problem.title,
        "status": status,
        "detail": problem.detail if detail is None else detail,
        "code": code,
        "retryable": problem.retryable if retryable is None else retryable,
        **(extra or {}),
    }
    headers: list[Header] = [
        (b"content-type", b"application/problem+json"),
        (b"cache-control", b"no-store"),
    ]
    if retry_after is not None:
        seconds = max(1, -(-retry_after // 1_000_000))
        headers.append((b"retry-after", str(seconds).encode()))
    return Response(status, tuple(headers), json.dumps(document).encode())
