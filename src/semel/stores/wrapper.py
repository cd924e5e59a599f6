"""A backend around another: it forwards everything that a subclass does not change."""

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
    """Has all methods of a transactional backend; `capabilities` says which of them work."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """Forward what only some backends have."""
        if name == "inner":  # not set yet, while a copy is made
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

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        return cast("Transactional", self.inner).begin(identity, limit)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        return await cast("Transactional", self.inner).abegin(identity, limit)

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        return cast("Transactional", self.inner).ascertain(identity)

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return await cast("Transactional", self.inner).aascertain(identity)

    def migrate(self) -> int:
        return self.inner.migrate()

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()
