"""A backend around another: everything is done by the one within, but for what is changed here."""

from __future__ import annotations

from typing import Any, cast

from semel.core.operations.requests import Found, NoRecord
from semel.core.records import Identity
from semel.stores.base import (
    AsyncStore,
    AsyncTransaction,
    Backend,
    Capabilities,
    Examined,
    Finding,
    Store,
    Transaction,
    Transactional,
)


class BackendWrapper:
    """Whether there are transactions says the one within, by its capabilities."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """What only some backends have."""
        if name == "inner":  # not yet there, in a copy that is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def blocking(self) -> Store:
        return self.inner.blocking()

    def awaited(self) -> AsyncStore:
        return self.inner.awaited()

    def examine(self) -> tuple[Finding, ...]:
        return self.inner.examine() if isinstance(self.inner, Examined) else ()

    @property
    def _transactional(self) -> Transactional:
        return cast("Transactional", self.inner)

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        return self._transactional.begin(identity, limit)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        return await self._transactional.abegin(identity, limit)

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        return self._transactional.ascertain(identity)

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return await self._transactional.aascertain(identity)

    def migrate(self) -> int:
        return self.inner.migrate()

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()
