"""Which identities have a transaction open in this process, and what handlers are told about one.

A duplicate in the same process learns here that its key is taken: it waits for no lock and uses no
connection, however many of them there are.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Final

from semel.core.records import Identity
from semel.errors import ConfigurationError

ENDED: Final = (
    "the handler ended semel's transaction itself, by COMMIT or ROLLBACK as SQL text: leave both "
    "to semel, which commits when the handler has answered, and raise an exception to undo"
)
OVER: Final = (
    "this transaction is over: semel ended it when the handler had answered; work that goes on "
    "after the answer needs a connection of its own"
)
SHARED: Final = (
    "semel's transaction is in use by another thread or task: await or join everything that uses "
    "its connection before the next statement, and before answering"
)


def refused(what: str) -> ConfigurationError:
    """What a handler is told that would end the transaction."""
    return ConfigurationError(
        f"semel commits this transaction when the handler has answered: leave out {what}, and "
        "raise an exception to undo its writes"
    )


def in_event_loop() -> bool:
    """Whether the calling thread runs an event loop: it must be given what can be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class HeldIdentity:
    """An identity is this one's for as long as it is kept."""

    __slots__ = ("__weakref__",)


class HeldIdentities:
    """Weak, so that a transaction that was dropped without an end takes no key with it."""

    def __init__(self) -> None:
        # With the process, so that a forked child finds nothing of its parent's.
        self._held: weakref.WeakValueDictionary[tuple[int, Identity], HeldIdentity]
        self._held = weakref.WeakValueDictionary()

    def take(self, identity: Identity | None) -> HeldIdentity | None:
        """None when a transaction of this process has it."""
        hold = HeldIdentity()
        if identity is None:
            return hold
        kept = self._held.setdefault((os.getpid(), identity), hold)
        return hold if kept is hold else None
