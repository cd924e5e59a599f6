"""Which identities have an open transaction in this process, and what its handler may not do.

A duplicate in the same process learns here that its key is taken. It waits for no lock and uses no
connection, however many duplicates there are.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, NoReturn

from semel.core.records import Identity
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.stores.sqlalchemy_sessions import Engines, JoinedSessions

ENDED: Final = (
    "the handler ended semel's transaction itself, by COMMIT or ROLLBACK as SQL text, or by a "
    "statement that commits implicitly (in MariaDB and MySQL: BEGIN, CREATE TABLE and the like): "
    "leave both to semel, which commits when the handler has answered, and raise to undo"
)
OVER: Final = (
    "this transaction is over: semel ended it when the handler had answered; work that goes on "
    "after the answer needs a connection of its own"
)
SAVEPOINT: Final = f"semel_{token_hex(8)}"
"""The savepoint of every transaction that semel begins: its name cannot be guessed.

A handler that set or released one of the same name would hide that it has ended the transaction. It
is the same for as long as the process runs, because servers keep statistics for each text.
"""
SHARED: Final = (
    "semel's transaction is in use by another thread or task: await or join everything that uses "
    "its connection before the next statement, and before answering"
)


def refused(what: str) -> ConfigurationError:
    """The error for a handler that tries to end the transaction itself."""
    return ConfigurationError(
        f"semel commits this transaction when the handler has answered: leave out {what}, and "
        "raise an exception to undo its writes"
    )


def refusing(what: str) -> Any:
    """A method of a handler's connection that refuses what would end semel's transaction."""

    def call(self: object, *given: object, **named: object) -> NoReturn:
        raise refused(what)

    return call


def in_event_loop() -> bool:
    """Whether the calling thread runs an event loop; where asyncio is not loaded, it does not."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class HeldIdentity:
    """Holds an identity for as long as this object is referenced."""

    __slots__ = ("__weakref__",)


class HeldIdentities:
    """The identities that are held. Weak: a transaction that is dropped without an end frees its
    key."""

    def __init__(self) -> None:
        # With the process id: a forked child must not see what its parent holds.
        self._held: weakref.WeakValueDictionary[tuple[int, Identity], HeldIdentity]
        self._held = weakref.WeakValueDictionary()

    def take(self, identity: Identity | None) -> HeldIdentity | None:
        """Hold the identity; None when a transaction of this process has it."""
        hold = HeldIdentity()
        if identity is None:
            return hold
        kept = self._held.setdefault((os.getpid(), identity), hold)
        return hold if kept is hold else None


class LazySessions:
    """The SQLAlchemy engines of one backend. SQLAlchemy is an extra and slow to import, so it is
    imported when a handler first asks for a session."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._engines: Engines | None = None

    def open(self, connect: Callable[[bool], Any]) -> JoinedSessions:
        try:
            from semel.stores.sqlalchemy_sessions import Engines, JoinedSessions
        except ImportError as error:
            raise ConfigurationError(
                f"transaction.session needs SQLAlchemy ({error}): pip install 'semel[sqlalchemy]'"
            ) from error
        if self._engines is None:
            self._engines = Engines(self._database)
        return JoinedSessions(self._engines, connect)
