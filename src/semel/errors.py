"""Everything semel raises.

Expected outcomes are values; what is raised is an outage, a bug or a wrong setting::

    SemelError
    ├── ConfigurationError      a wrong option, URL or setting: fix it and start again
    │   ├── OperationChanged    an operation's points are not those its journal was written by
    │   ├── SchemaError         the store's schema is missing, too old or from the future
    │   └── SettingsChanged     scope or fingerprint settings differ from the recorded ones
    ├── StoreError
    │   ├── StoreUnavailable    the store did not answer; the write may or may not have happened
    │   ├── StoreCorrupt        the store answered something that cannot be true
    │   ├── EncryptionKeyMissing    stored values are under a key that this process does not have
    │   └── SchemaTooNew        what is stored was written by a newer semel than this process has
    ├── Refused                 raised by guard.once: the key may not run now, or not ever
    ├── NotExecuted             raised by handlers: nothing happened, a retry may run
    │   └── Unguarded           raised by tagged endpoints that were reached around their guard
    ├── GiveUp                  raised by deliverers: no further try will help, a dead letter
    ├── RetryLater              raised by deliverers: not now, and not before a time they name
    └── OutcomeUnknown          raised by handlers: it may have happened, nobody may run it again
        └── LeaseLost           raised by points: this run is no longer the one that counts
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = [
    "ConfigurationError",
    "EncryptionKeyMissing",
    "GiveUp",
    "LeaseLost",
    "NotExecuted",
    "OperationChanged",
    "OutcomeUnknown",
    "Refused",
    "RetryLater",
    "SchemaError",
    "SchemaTooNew",
    "SemelError",
    "SettingsChanged",
    "StoreCorrupt",
    "StoreError",
    "StoreUnavailable",
    "Unguarded",
]


class SemelError(Exception):
    """The root of the tree."""


class ConfigurationError(SemelError, ValueError):
    """A wrong option, URL or setting; the message says what to change."""


class OperationChanged(ConfigurationError):
    """A resumed operation has other recovery points than the run that began it.

    Nothing was done. Deploy the code again that the operation was begun with, or let it be settled
    by hand.
    """


class SchemaError(ConfigurationError):
    """The store's schema is not the one this version of semel works with."""


class SettingsChanged(ConfigurationError):
    """Scope or fingerprint settings changed while keys made under the old ones are alive."""


class StoreError(SemelError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """No usable answer came. ``applied`` is False only when the operation surely did not happen."""

    def __init__(self, message: str, *, applied: bool | None = None) -> None:
        super().__init__(message)
        self.applied = applied


class StoreCorrupt(StoreError):
    """The store holds or returned something that cannot be true."""


class EncryptionKeyMissing(StoreError):
    """What is stored is encrypted with a key this process was not given.

    It is not damaged: nothing is given up over it, and with the key it can be read.
    """


class SchemaTooNew(StoreError):
    """What is stored was written by a newer version of semel, in a way this one does not know.

    It is not damaged: nothing is given up over it, and a process that was upgraded can read it.
    """


class Refused(SemelError):
    """`guard.once` was refused; ``code`` is that of the problem an HTTP client would get.

    ``retryable``: the same call may succeed later, in ``retry_after`` seconds where that is known.
    """

    def __init__(
        self, code: str, detail: str, retryable: bool, retry_after: int | None = None
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


class NotExecuted(SemelError):
    """Raise it in a handler to say: nothing happened outside, running again is safe."""


class Unguarded(NotExecuted):
    """A request came to a tagged endpoint without its policy; the endpoint was not run."""


class GiveUp(SemelError):
    """Raise it in a deliverer to say: no further try will help. The effect is a dead letter."""


class RetryLater(SemelError):
    """Raise it in a deliverer to say: not delivered, and do not come again before ``after``.

    The effect's ``longest_pause`` bounds it.
    """

    def __init__(self, reason: str, *, after: timedelta) -> None:
        super().__init__(reason)
        self.after = after


doubts: ContextVar[list[OutcomeUnknown] | None] = ContextVar("semel_doubts", default=None)
"""Collects each `OutcomeUnknown` that a running handler makes.

A framework may turn the exception into an ordinary 500 before an adapter sees it. By this list the
adapter knows that the 500 does not mean "nothing happened".
"""


class OutcomeUnknown(SemelError):
    """Raise it in a handler to say: it may have happened; only evidence may decide."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        noted = doubts.get()
        if noted is not None:
            noted.append(self)


class LeaseLost(OutcomeUnknown):
    """This run lost its lease: another one, or the record's settled answer, counts instead."""
