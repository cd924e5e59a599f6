"""What an answer means for a call: the end of it, a refusal, still under way, or try again.

Read are semel's problem documents and 202s, Stripe's errors and headers, and what RFC 9110 says of
statuses. An answer that the server says it has kept is final, whatever its status: the same key
would only bring it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urljoin

from semel.client.model import Answer, Call, origin
from semel.client.retry_budget import retry_after
from semel.core.exchange.problems import CATALOGUE
from semel.core.frozen import frozen


class Why(Enum):
    """Which error a refusal becomes."""

    KEY_REUSED = "key reused"
    KEY_EXPIRED = "key expired"
    OUTCOME_UNKNOWN = "outcome unknown"
    ANSWER_LOST = "answer lost"
    REFUSED = "refused"


@frozen
class End:
    """The answer to the call, good or bad."""


@frozen
class Refusal:
    """The end of the call without its answer."""

    why: Why
    code: str


@frozen
class UnderWay:
    """Somebody is at it. ``status_url``: where that can be asked for."""

    status_url: str | None
    after: float | None


@frozen
class Again:
    """Send the request again. ``executed`` is False where the server says that nothing was."""

    after: float | None
    executed: bool


@frozen
class ShutOut:
    """Not let in: final for a call that was never sent before, else nobody can tell."""


Reading: TypeAlias = End | Refusal | UnderWay | Again | ShutOut

_REFUSALS: Final[Mapping[str, Why]] = {
    "key-reused": Why.KEY_REUSED,
    "key-expired": Why.KEY_EXPIRED,
    "outcome-unknown": Why.OUTCOME_UNKNOWN,
    "body-not-kept": Why.ANSWER_LOST,
    "replay-impossible": Why.ANSWER_LOST,
}
_OUTCOMES: Final = frozenset({"handler-failed"})
"""A problem that is the handler's own outcome, not a refusal to run it."""
_WAITING: Final = frozenset({"in-flight", "outcome-unknown"})
_NOT_EXECUTED: Final = frozenset(
    {"attempt-failed", "malformed-body", "not-executed", "store-unavailable"}
)
_SHUT_OUT: Final = frozenset({401, 403, 407})
_NOT_RUN: Final = frozenset({408, 425, 429})
_NEVER: Final = frozenset({501, 505})
"""5xx that no repetition changes."""
_LAST: Final = re.compile(r"(?<=[/#])[a-z-]+(?=/?$)")
_STATES: Final = frozenset({"pending", "in_progress", "unknown"})
_IN_USE: Final = frozenset({"idempotency_key_in_use", "lock_timeout"})


def read(call: Call, answer: Answer, wall: float) -> Reading:
    """What the answer to the request itself means."""
    document = _document(answer)
    after = retry_after(answer.headers.get("retry-after"), answer.headers.get("date"), wall)
    if is_kept(answer):
        return End()
    if answer.status == 202:
        return _accepted(call, answer, document, after)
    if answer.status < 400:
        return End()
    code = code_of(document)
    if code is not None:
        return _by_code(code, document, answer, after)
    if _is_key_reused(answer, document):
        return Refusal(Why.KEY_REUSED, "key-reused")
    return _by_hint(answer, document, after) or _by_status(answer, document, after)


def is_kept(answer: Answer) -> bool:
    """Whether the server says that it repeats, or will repeat, this very answer."""
    headers = answer.headers
    return headers.get("idempotent-replayed") == "true" or "idempotency-expires" in headers


def code_of(document: Mapping[str, Any]) -> str | None:
    """The code of a problem document of semel's; None of anybody else's.

    Its type ends with the code, wherever the server's version has its documentation.
    """
    code, named = document.get("code"), _LAST.search(str(document.get("type")))
    if named is None or code != named[0] or code not in CATALOGUE:
        return None
    return str(code)


def _document(answer: Answer) -> Mapping[str, Any]:
    """The JSON object of a problem, an error or a 202; empty where there is none."""
    if answer.status < 400 and answer.status != 202:
        return {}
    media = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        return {}
    try:
        read: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return _object(read)


def _accepted(
    call: Call, answer: Answer, document: Mapping[str, Any], after: float | None
) -> Reading:
    """semel's 202 means "ask there"; any other 202 is the application's answer."""
    location = answer.headers.get("location")
    ours = document.get("status") in _STATES and document.get("location") == location
    if location is None or not ours:
        return End()
    return UnderWay(same_origin(call, location), after)


def same_origin(call: Call, location: str) -> str | None:
    """The address, if it is the server's own: credentials are not carried elsewhere."""
    try:
        address = urljoin(call.url, location)
        return address if origin(address) == call.origin else None
    except ValueError:
        return None


def _by_code(
    code: str, document: Mapping[str, Any], answer: Answer, after: float | None
) -> Reading:
    retryable = document.get("retryable") is True
    if retryable and code in _WAITING:
        return UnderWay(None, after)
    if retryable:
        unexecuted = code in _NOT_EXECUTED or answer.status in _NOT_RUN
        return Again(after, executed=not unexecuted)
    if code in _OUTCOMES:
        return End()
    if answer.status in _SHUT_OUT:
        return ShutOut()
    return Refusal(_REFUSALS.get(code, Why.REFUSED), code)


def _is_key_reused(answer: Answer, document: Mapping[str, Any]) -> bool:
    """Stripe's 400, and the 422 of the IETF draft's example."""
    if answer.status in (400, 409, 422) and _error(document).get("type") == "idempotency_error":
        return _error(document).get("code") not in _IN_USE
    return answer.status == 422 and "idempotency-key" in str(document.get("title")).lower()


def _error(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object(document.get("error"))


def _object(read: Any) -> Mapping[str, Any]:
    return cast(dict[str, Any], read) if isinstance(read, dict) else {}


def _by_hint(answer: Answer, document: Mapping[str, Any], after: float | None) -> Reading | None:
    """By what the server says about retries, where it says anything."""
    executed = answer.status not in _NOT_RUN
    match answer.headers.get("stripe-should-retry"):
        case "true":
            return Again(after, executed)
        case "false":
            return End()
        case _:
            pass
    match document.get("retryable"):
        case True:
            return Again(after, executed)
        case False:
            return End()
        case _:
            return None


def _by_status(answer: Answer, document: Mapping[str, Any], after: float | None) -> Reading:
    status = answer.status
    if status in _SHUT_OUT:
        return ShutOut()
    if status in _NOT_RUN:
        return Again(after, executed=False)
    if status == 409 and (after is not None or _says_in_use(document)):
        return UnderWay(None, after)
    if status >= 500 and status not in _NEVER:
        return Again(after, executed=True)
    return End()


def _says_in_use(document: Mapping[str, Any]) -> bool:
    """Stripe's codes, and the title in the IETF draft's example."""
    titled = "idempotency-key" in str(document.get("title")).lower()
    return titled or _error(document).get("code") in _IN_USE


# ── the status resource ───────────────────────────────────────────────────────────────────────────


@frozen
class SendInstead:
    """The status tells nothing that helps: send the request itself."""


def read_status(call: Call, answer: Answer, wall: float) -> Reading | SendInstead:
    """What the answer of the status resource means. Only what is semel's own word counts there."""
    if is_kept(answer):
        return End()
    reading = read(call, answer, wall)
    if answer.status == 202 and isinstance(reading, UnderWay):
        return reading
    code = code_of(_document(answer))
    if isinstance(reading, Refusal) and code != "no-such-operation":
        return reading
    if isinstance(reading, Again) and code != "attempt-failed":
        return reading
    return SendInstead()
