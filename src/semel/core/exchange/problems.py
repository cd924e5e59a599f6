"""Every refusal semel can send, with stable codes: RFC 9457 problem documents.

A policy may put them into another shape (``refusal=``, `core/exchange/refusal_shapes.py`).

A refusal never echoes the key. ``retryable`` tells a client whether the same request with the same
key may succeed later without anybody changing it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from semel.core.frozen import frozen
from semel.core.records import Header, Headers, Micros, Response

DOCS: Final = "https://semel.readthedocs.io/reference/problems/"
"""Where the documentation answers a problem's ``type``: a page for each."""


@frozen
class Problem:
    """Why one request is refused, before it is put into words for the wire (``refusal=``)."""

    code: str
    """Stable, such as ``in-flight``; docs/reference/problems has a page for each."""
    status: int
    title: str
    detail: str
    retryable: bool
    retry_after: int | None = None
    """Whole seconds, where waiting helps."""
    extra: Mapping[str, object] = MappingProxyType({})
    """What some problems say besides, such as ``differing_fields``."""
    sent: bytes = b""
    """The body of the request; empty where it is large, or was not read yet."""

    @property
    def type(self) -> str:
        """The address of its page."""
        return DOCS + self.code

    def document(self) -> dict[str, object]:
        """As RFC 9457 has it."""
        said = {name: getattr(self, name) for name in ("type", "title", "status", "detail", "code")}
        return {**said, "retryable": self.retryable, **self.extra}


_TABLE: Final = """
missing-key 400 final: Idempotency-Key is required
    This operation must be sent with an Idempotency-Key header. Make one key for each logical
    operation and send the same key on every retry.
malformed-key 400 final: Idempotency-Key is malformed
    The Idempotency-Key header cannot be used.
key-on-safe-method 400 final: Idempotency-Key on a safe method
    This method does not change state; send it without an Idempotency-Key.
tenant-missing 401 final: Caller is not authenticated
    An Idempotency-Key is only accepted from an authenticated caller.
body-too-large 413 final: Request body is too large
    The body is larger than this operation accepts with an Idempotency-Key. Nothing was executed.
malformed-body 400 retryable: Request body is incomplete
    The body ended before the length it announced. Nothing was executed.
unreadable-body 400 final: Request body cannot be read
    The body must be read to know what is asked for, and cannot be. Nothing was executed.
length-required 411 final: Content-Length is required
    Nobody here can tell whether a body without a Content-Length has come whole. Nothing was
    executed. Send the request again with one.
key-reused 422 final: Idempotency-Key was used for another request
    The key was first used with a different request. Make a new key for a new operation, or send the
    original request unchanged.
in-flight 409 retryable: Request is still being processed
    A request with this Idempotency-Key is being processed. Wait, then send it again unchanged.
attempt-failed 409 retryable: The attempt this request waited for failed
    The attempt in progress ended without effect. Wait, then send the request again unchanged.
outcome-unknown 409 final: Outcome is not known
    An earlier attempt may or may not have taken effect, so it is not run again. It is settled by
    evidence, not by a retry.
key-expired 410 final: Idempotency-Key has expired
    The key was used before and its answer is no longer kept, or it is too old to be taken as new.
    Nothing was executed. Check the operation's outcome before making a new key.
abandoned 408 final: The request was not run in time
    The request was accepted, but nobody ran it before its time was up. Nothing was executed, and
    this key is not run any more. Make a new key to try again.
replay-impossible 409 final: The answer is no longer true
    The operation was executed once and is not run again. What it made has been retired since, so
    its answer is not repeated.
ran-again 409 final: The request ran more than once
    While keys were only watched, this request was executed more than once, and its answers are not
    the same. Neither is repeated, and it is not run again. Check what it did before making a new
    key.
no-such-operation 404 final: No such operation
    There is no operation of this caller at this address, or it was forgotten.
body-not-kept 409 final: The answer was not kept
    The operation was executed once and is not run again, but its answer was too large or was
    streamed, so it cannot be sent a second time.
replay-failed 500 retryable: The current state could not be shown
    The operation was executed once and is not run again; showing its current state failed.
handler-failed 500 retryable: The operation failed
    The operation failed and left nothing behind. It may be sent again with the same key.
not-executed 503 retryable: The operation was not executed
    Nothing was executed. Wait, then send the request again unchanged.
too-fast 429 retryable: Too many requests
    This caller sends more keys, or asks about them more often, than it may. Nothing was executed.
    Wait, then send the request again unchanged.
too-many-keys 429 retryable: Too many keys are alive
    This caller has as many keys on record as it may have, so no new one is taken. Nothing was
    executed. Wait until some have expired, then send the request again unchanged.
store-unavailable 503 retryable: Idempotency cannot be guaranteed now
    The record of used keys cannot be reached, so nothing was executed. Wait, then send the request
    again unchanged.
completion-not-durable 503 retryable: The outcome could not be recorded
    The operation ran, but its outcome could not be recorded yet. Send the request again unchanged
    to learn it; it is not run twice.
misconfigured 500 final: The server is misconfigured
    Nothing was executed. The operator has to correct the server's settings.
"""
"""Code, status, whether a retry may succeed, and title; below, what the refusal says of itself."""

_ENTRY: Final = re.compile(r"^(\S+) (\d+) (retryable|final): (.+)((?:\n    .+)+)", re.MULTILINE)

CATALOGUE: Final[Mapping[str, Problem]] = {
    code: Problem(code, int(status), title, " ".join(detail.split()), word == "retryable")
    for code, status, word, title, detail in _ENTRY.findall(_TABLE)
}
"""Every problem, by its code."""


class ProblemResponse(Response):
    """A refusal: the problem document, and the problem it was made of."""

    __slots__ = ("problem",)

    problem: Problem

    def __init__(self, problem: Problem) -> None:
        headers = ((b"content-type", b"application/problem+json"), *said_by_semel(problem))
        super().__init__(problem.status, headers, json.dumps(problem.document()).encode())
        object.__setattr__(self, "problem", problem)


def refuse(
    code: str,
    *,
    detail: str | None = None,
    status: int | None = None,
    retryable: bool | None = None,
    retry_after: Micros | None = None,
    extra: Mapping[str, object] | None = None,
) -> ProblemResponse:
    """The refusal for ``code``; a Retry-After is rounded up to whole seconds."""
    usual = CATALOGUE[code]
    return ProblemResponse(
        Problem(
            code=code,
            status=usual.status if status is None else status,
            title=usual.title,
            detail=usual.detail if detail is None else detail,
            retryable=usual.retryable if retryable is None else retryable,
            retry_after=None if retry_after is None else max(1, -(-retry_after // 1_000_000)),
            extra=extra or {},
        )
    )


def said_by_semel(problem: Problem) -> Headers:
    """The headers that a refusal has in every shape."""
    if problem.retry_after is None:
        return (_NO_STORE,)
    return _NO_STORE, (b"retry-after", b"%d" % problem.retry_after)


def problem_code(response: Response) -> str | None:
    """The code of a refusal, in whatever shape it is; None of another response."""
    if isinstance(response, ProblemResponse):
        return response.problem.code
    told = dict(response.headers).get(PROBLEM_HEADER)
    return None if told is None else told.partition(b";")[0].decode("ascii", "replace")


_NO_STORE: Final = (b"cache-control", b"no-store")
PROBLEM_HEADER: Final = b"idempotency-problem"
"""Tells the code and whether a retry helps where the body is in another shape."""
OF_ONE_CONNECTION: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"),
        b"transfer-encoding",
    }
)
"""Headers that a server says to its neighbour only (RFC 9110, 7.6.1)."""
_SAID_BY_SEMEL: Final = OF_ONE_CONNECTION | {
    *(b"cache-control", b"retry-after", b"content-length", b"date", PROBLEM_HEADER),
    *(b"idempotent-replayed", b"idempotency-expires"),
}
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


def in_shape(problem: Problem, rendered: object, replay_name: bytes = b"") -> Response:
    """What a ``refusal=`` function made of a problem; raises where no server could send that.

    The status, the pause, and what else semel says of an answer stay as they are.
    """
    if not isinstance(rendered, Response) or not isinstance(rendered.body, bytes):
        raise TypeError(f"refusal= must return a semel.Response, not {type(rendered).__name__}")
    theirs: list[Header] = []
    for name, text in rendered.headers:
        if not (isinstance(name, bytes) and isinstance(text, bytes)):
            raise TypeError("refusal= must return headers as pairs of bytes")
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(text)):
            raise ValueError(f"refusal= returned a header that cannot be sent: {name!r}")
        if name.lower() not in _SAID_BY_SEMEL and name.lower() != replay_name:
            theirs.append((name, text))
    told = b"%b;retryable=?%d" % (problem.code.encode(), problem.retryable)
    ours = ((PROBLEM_HEADER, told), *said_by_semel(problem))
    return Response(problem.status, (*theirs, *ours), rendered.body)
