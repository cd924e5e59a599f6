"""The verdict on a handler's outcome: keep it, release the key, or leave it unknown.

`judge` is the one place that decides it, by the route's policy.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from semel.core.failures import says_not_executed as says_not_executed
from semel.core.failures import unanswered
from semel.core.model import Response
from semel.core.policy import Policy
from semel.core.runner import Abandoned, HandlerOutcome, Raised, Returned, Streaming
from semel.errors import OutcomeUnknown

DID_NOT_EXECUTE: Final = frozenset({401, 403, 407, 408, 425, 429})
"""Answers that say the request was turned away before it did anything."""


class Verdict(Enum):
    """What becomes of the record."""

    KEEP = "keep"
    RELEASE = "release"
    SUSPEND = "suspend"


_FATE: Final = {
    "keep": Verdict.KEEP,
    "release": Verdict.RELEASE,
    "unknown": Verdict.SUSPEND,
}


def judge(policy: Policy, outcome: HandlerOutcome) -> Verdict:
    """Decide by the route's policy what to do with what the handler did."""
    match outcome:
        case Returned(by_router=True):
            return Verdict.RELEASE  # nothing was executed; put right, the same key may run
        case Returned(response, error):
            return _judge_answer(policy, response, error)
        case Streaming(status, headers, error):
            return _judge_answer(policy, Response(status, headers, b""), error)
        case Raised(error):
            return _judge_error(policy, error)
        case Abandoned():
            return _FATE[policy.on_doubt]


def _judge_answer(policy: Policy, response: Response, error: BaseException | None) -> Verdict:
    if policy.keep is not None:
        keeps = policy.keep(response) if callable(policy.keep) else response.status in policy.keep
        if keeps:
            return Verdict.KEEP
        if response.status < 500:
            return _released(policy, error)
    if response.status >= 500:
        return _judge_error(policy, error)
    return _released(policy, error) if response.status in DID_NOT_EXECUTE else Verdict.KEEP


def _released(policy: Policy, error: BaseException | None) -> Verdict:
    """An answer that says "not executed" does not outweigh the handler's own doubt."""
    return _FATE[policy.on_doubt] if isinstance(error, OutcomeUnknown) else Verdict.RELEASE


def _judge_error(policy: Policy, error: BaseException | None) -> Verdict:
    if is_ambiguous(error):
        return _FATE[policy.on_doubt]
    if says_not_executed(error):
        return Verdict.RELEASE
    return _FATE[policy.on_error]


def is_ambiguous(error: BaseException | None) -> bool:
    """Whether something may have been sent whose answer never came. In doubt, it may have.

    The other way round nothing is proved here: that the last call was not sent says nothing about
    the calls that the handler made before it.
    """
    return error is not None and unanswered(error)
