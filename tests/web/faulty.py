"""A real backend whose n-th answer, or n-th deed, gets lost: every place a network can break."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from semel.core.operations.requests import StoreOperation
from semel.errors import StoreError, StoreUnavailable
from semel.stores.base import Capabilities

Mishap = Literal["not done", "not answered", "cancelled", "late"]
"""not done, not answered: an error, before it was applied or after · cancelled: whoever asked is
told to stop, while it is applied · late: an error, and applied when the next thing is asked, as
after a time-out. Within a transaction, and to begin one, late is not done; a commit is not
answered."""


@dataclass
class Faults:
    """At the n-th thing asked of the store."""

    at: int = 0
    mishap: Mishap = "not done"
    lasting: bool = False
    """Whether everything from there on fails, as in an outage."""
    count: int = 0
    hit: list[str] = field(default_factory=list)
    sure: bool = False
    """A store that says of every error that nothing was applied: for a control."""
    cancel: Callable[[], None] | None = None
    """How to stop who asks; without it, as a server ends a thread."""
    late: list[Callable[[], Any]] = field(default_factory=list)

    def set(self, at: int, mishap: Mishap, *, lasting: bool = False) -> None:
        self.at, self.mishap, self.lasting = at, mishap, lasting
        self.count, self.hit = 0, []

    def due(self) -> bool:
        return self.count >= self.at if self.lasting else self.count == self.at

    def before(self, what: str, later: Callable[[], Any] | None = None) -> bool:
        """Whether something happens afterwards."""
        self.catch_up()
        self.count += 1
        if not self.at or not self.due():
            return False
        self.hit.append(what)
        if self.mishap == "late" and later is not None:
            self.late.append(later)
        if self.mishap == "not done" or (self.mishap == "late" and what != "commit"):
            raise self.error(f"{what}: no answer came")
        if self.mishap == "cancelled" and self.cancel is not None:
            self.cancel()
            return False
        return True

    def after(self, what: str) -> None:
        if self.mishap == "cancelled":
            # Servers end the thread that answers; those that semel has beside it go on.
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(f"{what}: told to stop")
            return
        raise self.error(f"{what}: its answer was lost", surely_not=what == "begin")

    def error(self, text: str, *, surely_not: bool = False) -> StoreUnavailable:
        return StoreUnavailable(text, applied=False if surely_not or self.sure else None)

    def catch_up(self) -> None:
        """What was late comes to pass, if it still can."""
        late, self.late = self.late, []
        for apply in late:
            with suppress(StoreError):
                apply()

    def heal(self) -> None:
        self.at = 0
        self.catch_up()


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
        return _Faulty(self._backend.blocking(), self._faults, self._later)

    def awaited(self) -> Any:
        return _AsyncFaulty(self._backend.awaited(), self._faults, self._later)

    def _later(self, op: StoreOperation[Any]) -> Any:
        return self._backend.blocking().perform(op)

    def begin(self, identity: Any, limit: float | None = None) -> Any:
        lost = self._faults.before("begin")
        begun = self._backend.begin(identity, limit)
        if begun is not None and lost:
            begun.roll_back()
            self._faults.after("begin")
        return None if begun is None else _FaultyTransaction(begun, self._faults)

    async def abegin(self, identity: Any, limit: float | None = None) -> Any:
        lost = self._faults.before("begin")
        begun = await self._backend.abegin(identity, limit)
        if begun is not None and lost:
            await begun.roll_back()
            self._faults.after("begin")
        return None if begun is None else _AsyncFaultyTransaction(begun, self._faults)

    def ascertain(self, identity: Any) -> Any:
        lost = self._faults.before("ascertain")
        found = self._backend.ascertain(identity)
        if lost:
            self._faults.after("ascertain")
        return found

    async def aascertain(self, identity: Any) -> Any:
        lost = self._faults.before("ascertain")
        found = await self._backend.aascertain(identity)
        if lost:
            self._faults.after("ascertain")
        return found

    def migrate(self) -> int:
        return int(self._backend.migrate())

    def close(self) -> None:
        self._backend.close()

    async def aclose(self) -> None:
        await self._backend.aclose()


def _name(op: StoreOperation[Any]) -> str:
    return type(op).__name__


class _Faulty:
    def __init__(
        self, store: Any, faults: Faults, later: Callable[[StoreOperation[Any]], Any] | None = None
    ) -> None:
        self._store = store
        self._faults = faults
        self._later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _before(self, op: StoreOperation[Any]) -> bool:
        later = self._later
        return self._faults.before(_name(op), None if later is None else lambda: later(op))

    def perform(self, op: StoreOperation[Any]) -> Any:
        lost = self._before(op)
        reply = self._store.perform(op)
        if lost:
            self._faults.after(_name(op))
        return reply


class _AsyncFaulty(_Faulty):
    async def perform(self, op: StoreOperation[Any]) -> Any:
        lost = self._before(op)
        reply = await self._store.perform(op)
        if lost:
            self._faults.after(_name(op))
        return reply


class _FaultyTransaction(_Faulty):
    def commit(self) -> None:
        lost = self._faults.before("commit")
        self._store.commit()
        if lost:
            self._faults.after("commit")


class _AsyncFaultyTransaction(_AsyncFaulty):
    async def commit(self) -> None:
        lost = self._faults.before("commit")
        await self._store.commit()
        if lost:
            self._faults.after("commit")
