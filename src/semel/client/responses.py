"""What an answer means for a call: its end, a refusal, still in progress, or try again.

It reads semel's problem documents and 202s, Stripe's errors and headers, and the statuses of
RFC 9110. An answer that the server says it has kept is final, whatever its status: the same key
would only bring it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_tz
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urljoin

from semel.client.errors import AnswerLost, CallRefused, KeyExpired, KeyReused
from semel.client.model import CallAnswer, LogicalCall, origin
from semel.core.exchange.problems import CATALOGUE
from semel.core.frozen import frozen


@frozen
class FinalAnswer:
    """The answer to the call, good or bad."""


@frozen
class ServerRefusal:
    """The end of the call without its answer. ``error`` is None if its outcome is unknown there."""

    error: type[CallRefused] | None
    code: str


@frozen
class InProgress:
    """The server works on it. ``status_url``: where it offers the status."""

    status_url: str | None
    after: float | None


@frozen
class TryAgain:
    """Send the request again. ``executed`` is False if the server says that nothing was."""

    after: float | None
    executed: bool


@frozen
class AccessDenied:
    """Not let in. Final for a call that was never sent before; else its outcome is unknown."""


@frozen
class SendInstead:
    """The status resource does not help: send the request itself."""


AnswerMeaning: TypeAlias = FinalAnswer | ServerRefusal | InProgress | TryAgain | AccessDenied
_Document: TypeAlias = Mapping[str, Any]

_REFUSALS: Final[Mapping[str, type[CallRefused] | None]] = {
    "key-reused": KeyReused,
    "key-expired": KeyExpired,
    "outcome-unknown": None,
    "body-not-kept": AnswerLost,
    "replay-impossible": AnswerLost,
}
_OUTCOMES: Final = frozenset({"handler-failed"})
"""Problems that are the handler's own outcome, not a refusal to run it."""
_WAITING: Final = frozenset({"in-flight", "outcome-unknown"})
_NOT_EXECUTED: Final = frozenset(
    {"attempt-failed", "malformed-body", "not-executed", "store-unavailable"}
)
_DENIED: Final = frozenset({401, 403, 407})
_NOT_RUN: Final = frozenset({408, 425, 429})
_NEVER: Final = frozenset({501, 505})
"""5xx that no repetition changes."""
_LAST_WORD: Final = re.compile(r"(?<=[/#])[a-z-]+(?=/?$)")
_TOLD: Final = re.compile(r"([a-z-]+);retryable=\?([01])")
_STATES: Final = ("pending", "in_progress", "unknown")
_IN_USE: Final = ("idempotency_key_in_use", "lock_timeout")
"""Tuples: what a server sends there may not be hashable."""
_DIGITS: Final = re.compile(r"[0-9]+")
_LONGEST_NUMBER: Final = 12
"""Digits: a wait of thirty thousand years is as good as any longer one."""


def meaning_of(call: LogicalCall, answer: CallAnswer, wall: float) -> AnswerMeaning:
    """What the answer to the request itself means."""
    status, document = answer.status, _document(answer)
    after = retry_after(answer.headers.get("retry-after"), answer.headers.get("date"), wall)
    if is_kept(answer):
        return FinalAnswer()
    if status < 400:
        # semel's 202 means "ask there"; any other 202 is the application's answer.
        location = answer.headers.get("location")
        ours = document.get("status") in _STATES and document.get("location") == location
        if status == 202 and location is not None and ours:
            return InProgress(_same_origin(call, location), after)
        return FinalAnswer()
    code, retryable = _problem(answer, document)
    if code is None:
        return _by_others(answer, document, after)
    if retryable:
        if code in _WAITING:
            return InProgress(None, after)
        not_executed = code in _NOT_EXECUTED or status in _NOT_RUN
        return TryAgain(after, executed=not not_executed)
    if code in _OUTCOMES:
        return FinalAnswer()
    if status in _DENIED:
        return AccessDenied()
    return ServerRefusal(_REFUSALS.get(code, CallRefused), code)


def status_meaning(
    call: LogicalCall, answer: CallAnswer, wall: float
) -> AnswerMeaning | SendInstead:
    """What an answer of the status resource means. Only semel's own words count there."""
    if is_kept(answer):
        return FinalAnswer()
    meaning = meaning_of(call, answer, wall)
    if answer.status == 202 and isinstance(meaning, InProgress):
        return meaning
    code, _ = _problem(answer, _document(answer))
    if isinstance(meaning, ServerRefusal) and code != "no-such-operation":
        return meaning
    if isinstance(meaning, TryAgain) and code != "attempt-failed":
        return meaning
    return SendInstead()


def is_kept(answer: CallAnswer) -> bool:
    """Whether the server says that it repeats, or will repeat, this very answer."""
    headers = answer.headers
    return headers.get("idempotent-replayed") == "true" or "idempotency-expires" in headers


def _problem(answer: CallAnswer, document: _Document) -> tuple[str | None, bool]:
    """The code of semel's problem, and whether a retry helps.

    Where the API has a shape of its own for refusals, a header tells them.
    """
    told = _TOLD.fullmatch(answer.headers.get("idempotency-problem", ""))
    if told is not None and told[1] in CATALOGUE:
        return told[1], told[2] == "1"
    return code_of(document), document.get("retryable") is True


def code_of(document: _Document) -> str | None:
    """The code of a problem document of semel; None for any other document.

    Its type ends with the code, wherever the server's version has its documentation.
    """
    code, named = document.get("code"), _LAST_WORD.search(str(document.get("type")))
    if named is None or code != named[0] or code not in CATALOGUE:
        return None
    return str(code)


def _same_origin(call: LogicalCall, location: str) -> str | None:
    """The address, if it is on the call's server: credentials must not go elsewhere."""
    try:
        address = urljoin(call.url, location)
        return address if origin(address) == call.origin else None
    except ValueError:
        return None


def _document(answer: CallAnswer) -> _Document:
    """The JSON object of a problem, an error or a 202; empty if there is none."""
    media = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media == "application/json" or media.endswith("+json")
    if not is_json or (answer.status < 400 and answer.status != 202):
        return {}
    try:
        return _object(json.loads(answer.body))
    except (ValueError, RecursionError):
        return {}


def _object(value: Any) -> _Document:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _by_others(answer: CallAnswer, document: _Document, after: float | None) -> AnswerMeaning:
    """What an error of another server means: Stripe's, the IETF draft's, then by its status."""
    status, error = answer.status, _object(document.get("error"))
    in_use = error.get("code") in _IN_USE
    titled = "idempotency-key" in str(document.get("title")).lower()
    stripes = error.get("type") == "idempotency_error" and status in (400, 409, 422)
    if (not in_use) if stripes else (status == 422 and titled):
        return ServerRefusal(KeyReused, "key-reused")
    if status in _DENIED:
        return AccessDenied()
    if in_use and status == 409:
        return InProgress(None, after)
    stripe_retry = {"true": True, "false": False}.get(answer.headers.get("stripe-should-retry", ""))
    for retry in (stripe_retry, document.get("retryable")):
        if retry is True:
            return TryAgain(after, executed=status not in _NOT_RUN)
        if retry is False:
            return FinalAnswer()
    if status in _NOT_RUN:
        return TryAgain(after, executed=False)
    if status == 409 and (after is not None or titled):
        return InProgress(None, after)
    if status >= 500 and status not in _NEVER:
        return TryAgain(after, executed=True)
    return FinalAnswer()


def retry_after(value: str | None, date: str | None, wall: float) -> float | None:
    """The seconds that a Retry-After asks for (RFC 9110, 10.2.3); None if it is not usable.

    A date is counted from the answer's own ``Date`` if there is one: the server's clock may differ
    from ours.
    """
    value = (value or "").strip()
    if _DIGITS.fullmatch(value):
        return float(value if len(value) <= _LONGEST_NUMBER else "9" * _LONGEST_NUMBER)
    moment = _moment(value)
    if moment is None:
        return None
    said = _moment((date or "").strip())
    return max(0.0, moment - (wall if said is None else said))


def kept_for(call: LogicalCall, answer: CallAnswer, wall: float) -> float | None:
    """Seconds from the making of the call until its answer expires; None if that is not told.

    What is left is counted by the server's own clock. Without its ``Date`` nobody knows.
    """
    expires = _moment(answer.headers.get("idempotency-expires", "").strip())
    said = _moment(answer.headers.get("date", "").strip())
    if expires is None or said is None:
        return None
    return expires - said + wall - call.created_at


def _moment(text: str) -> float | None:
    """Seconds since 1970 of an HTTP date in any of its three forms; None for anything else."""
    if not text or len(text) > 64:
        return None
    try:
        read = parsedate_tz(text)
        if read is None:
            return None
        year, month, day, hour, minute, second, *_, offset = read
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
        return moment.timestamp() - (offset or 0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
