"""How a call can end without its answer::

    SemelError
    ├── ContractError           the server's contract cannot be read or followed; nothing was sent
    └── CallError               one logical call; has its key, and says whether it is still pending
        ├── CallRefused         the server refused it, and no repetition changes that
        │   ├── KeyReused       the key was used for another request
        │   ├── KeyExpired      the key is too old: its answer is no longer kept
        │   └── AnswerLost      it was executed once; its answer cannot be had again
        ├── CallOutcomeUnknown  it may have happened; only evidence can tell (semel.OutcomeUnknown)
        └── BudgetSpent         tries or time ran out, and surely nothing was executed
            └── Unanswered      tries or time ran out; it may have happened (semel.OutcomeUnknown)

Messages show a key masked; the attribute ``key`` has the real one. Both errors in doubt are also
`semel.OutcomeUnknown`. So a guarded handler that makes the call and raises one of them is recorded
as unknown, not as "nothing happened".
"""

from __future__ import annotations

from typing import Any

from semel import errors
from semel.client.model import CallAnswer, LogicalCall
from semel.core.request.keys import mask


class ContractError(errors.SemelError):
    """The contract of a server cannot be read, or cannot be followed. Nothing was sent.

    ``unreadable``: it is of no use for any call to that server.
    """

    def __init__(self, message: str, *, unreadable: bool = False) -> None:
        super().__init__(message)
        self.unreadable = unreadable


class CallError(errors.SemelError):
    """One logical call ended without its answer.

    ``pending``: it is still in the journal, and `resume` will send it again.
    ``response``: the HTTP library's last answer, if there was one.
    """

    pending = False

    def __init__(self, message: str, call: LogicalCall, answer: CallAnswer | None = None) -> None:
        super().__init__(f"{message} ({call.place}, key {mask(call.key)})")
        self.call = call
        self.key = call.key
        self.status: int | None = None if answer is None else answer.status
        self.response: Any = None if answer is None else answer.native


class CallRefused(CallError):
    """The server refused the call; ``code`` is the code of its problem document."""

    def __init__(
        self, message: str, call: LogicalCall, answer: CallAnswer | None = None, code: str = ""
    ) -> None:
        super().__init__(message, call, answer)
        self.code = code


class KeyReused(CallRefused):
    """The key was first used with another request. Nothing was executed for this one."""


class KeyExpired(CallRefused):
    """The key is too old for its answer to be known. Nothing was executed by this try.

    Look whether the operation happened before you make a new key.
    """


class AnswerLost(CallRefused):
    """The operation was executed once and is not run again; read its result where it lives."""


class CallOutcomeUnknown(CallError, errors.OutcomeUnknown):
    """It may have happened, and this client cannot find out now. Never make a new key for it."""

    pending = True


class BudgetSpent(CallError):
    """Tries or time ran out. ``__cause__`` is the last failure, if there was no answer."""

    pending = True

    def __init__(
        self,
        message: str,
        call: LogicalCall,
        answer: CallAnswer | None = None,
        *,
        tries: int = 0,
        elapsed: float = 0.0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, call, answer)
        self.tries = tries
        self.elapsed = elapsed
        self.retry_after = retry_after


class Unanswered(BudgetSpent, errors.OutcomeUnknown):
    """Tries or time ran out, and one of them may have been executed."""
