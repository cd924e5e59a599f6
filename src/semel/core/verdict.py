"""The verdict on a handler's outcome: keep it, release the key, or leave it unknown.

`judge` is the one place that decides it, by the route's policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from semel.core.model import Response
from semel.core.policy import Policy
from semel.core.runner import Abandoned, HandlerOutcome, Raised, Returned, Streaming
from semel.errors import NotExecuted, OutcomeUnknown

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


def says_not_executed(error: BaseException | None) -> bool:
    """Only the handler's own word counts.

    That one call was refused says nothing about the calls the handler made before it, so no other
    exception is taken as proof; ``__context__`` is not followed for the same reason.
    """
    for link in _causes(error):
        if isinstance(link, NotExecuted):
            return True
        members = _members(link)
        if members:
            return all(says_not_executed(member) for member in members)
    return False


_AMBIGUOUS: Final = (
    OutcomeUnknown,
    TimeoutError,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    EOFError,
)
_HUNG_UP: Final = frozenset(
    {
        *(("httpx", name) for name in ("ReadError", "WriteError", "RemoteProtocolError")),
        *(("httpcore", name) for name in ("ReadError", "WriteError", "RemoteProtocolError")),
        *(("aiohttp", name) for name in ("ServerDisconnectedError", "ClientPayloadError")),
        *(("http", name) for name in ("BadStatusLine", "IncompleteRead")),
        ("urllib3", "ProtocolError"),
    }
)
"""By package and name, since none need be installed: sent, and the other side left without a word.

No exception of the system's stands behind these when a connection is closed in good order.
"""


def is_ambiguous(error: BaseException | None) -> bool:
    """Whether something may have been sent whose answer never came. In doubt, it may have."""
    seen: set[int] = set()
    behind = [error]
    while behind:
        link = behind.pop()
        # A group and its members may name each other: Starlette unpacks groups that way.
        if link is None or id(link) in seen or isinstance(link, NotExecuted):
            continue
        seen.add(id(link))
        members = _members(link)
        if members:
            behind.extend(members)
        elif isinstance(link, _AMBIGUOUS) or not isinstance(link, Exception) or _hung_up(link):
            return True
        behind.append(link.__cause__ or link.__context__)
    return False


def _hung_up(error: BaseException) -> bool:
    return any(
        (kind.__module__.partition(".")[0], kind.__name__) in _HUNG_UP
        for kind in type(error).__mro__
    )


def _members(error: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of a group; none when it is not one."""
    group: Any = error
    return group.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from; a circle ends where it began."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__
