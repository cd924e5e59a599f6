"""A real backend whose n-th answer, or n-th deed, gets lost: every place a network can break."""

from dataclasses import dataclass, field
from typing import Any

from semel.core.contract import StoreOperation
from semel.errors import StoreUnavailable
from semel.stores.base import Capabilities


@dataclass
class Faults:
    """At the n-th thing asked of the store: not done, or done and not answered."""

    at: int = 0
    after: bool = False
    lasting: bool = False
    """Whether everything from there on fails, as in an outage."""
    count: int = 0
    hit: list[str] = field(default_factory=list)

    def due(self) -> bool:
        return self.count >= self.at if self.lasting else self.count == self.at

    def before(self, what: str) -> bool:
        self.count += 1
        if not self.at or not self.due():
            return False
        self.hit.append(what)
        if not self.after:
            raise StoreUnavailable(f"{what}: not sent", applied=None)
        return True

    def heal(self) -> None:
        self.at = 0


class FaultyBackend:
    """The backend, with faults at the boundary."""

    def __init__(self, backend: Any, faults: Faults) -> None:
        self._backend = backend
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @property
    def url(self) -> str:
        return str(self._backend.url)

    @property
    def capabilities(self) -> Capabilities:
        given: Capabilities = self._backend.capabilities
        return given

    def blocking(self) -> Any:
        return _Faulty(self._backend.blocking(), self._faults)

    def awaited(self) -> Any:
        return _AsyncFaulty(self._backend.awaited(), self._faults)

    def begin(self, identity: Any, limit: float | None = None) -> Any:
        lost = self._faults.before("begin")
        begun = self._backend.begin(identity, limit)
        if begun is not None and lost:
            begun.roll_back()
            raise StoreUnavailable("begin: lost", applied=False)
        return None if begun is None else _FaultyTransaction(begun, self._faults)

    async def abegin(self, identity: Any, limit: float | None = None) -> Any:
        lost = self._faults.before("begin")
        begun = await self._backend.abegin(identity, limit)
        if begun is not None and lost:
            await begun.roll_back()
            raise StoreUnavailable("begin: lost", applied=False)
        return None if begun is None else _AsyncFaultyTransaction(begun, self._faults)

    def ascertain(self, identity: Any) -> Any:
        self._faults.before("ascertain")
        return self._backend.ascertain(identity)

    async def aascertain(self, identity: Any) -> Any:
        self._faults.before("ascertain")
        return await self._backend.aascertain(identity)

    def migrate(self) -> int:
        return int(self._backend.migrate())

    def close(self) -> None:
        self._backend.close()

    async def aclose(self) -> None:
        await self._backend.aclose()


def _name(op: StoreOperation[Any]) -> str:
    return type(op).__name__


class _Faulty:
    def __init__(self, store: Any, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def perform(self, op: StoreOperation[Any]) -> Any:
        lost = self._faults.before(_name(op))
        reply = self._store.perform(op)
        if lost:
            raise StoreUnavailable(f"{_name(op)}: its answer was lost", applied=None)
        return reply


class _AsyncFaulty(_Faulty):
    async def perform(self, op: StoreOperation[Any]) -> Any:
        lost = self._faults.before(_name(op))
        reply = await self._store.perform(op)
        if lost:
            raise StoreUnavailable(f"{_name(op)}: its answer was lost", applied=None)
        return reply


class _FaultyTransaction(_Faulty):
    def commit(self) -> None:
        lost = self._faults.before("commit")
        self._store.commit()
        if lost:
            raise StoreUnavailable("commit: its answer was lost", applied=None)


class _AsyncFaultyTransaction(_AsyncFaulty):
    async def commit(self) -> None:
        lost = self._faults.before("commit")
        await self._store.commit()
        if lost:
            raise StoreUnavailable("commit: its answer was lost", applied=None)
