"""The door to SQLAlchemy, which is an extra and takes long to import: opened when asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.stores.sqlalchemy_sessions import Engines, JoinedSessions


class LazySessions:
    """The engines of one backend."""

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
