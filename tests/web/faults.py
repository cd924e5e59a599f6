"""A fault injector around a real store: chosen operations fail, lose their answer, or wait."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.errors import StoreUnavailable
from semel.stores.base import AsyncStore, Backend, Capabilities, Store
from semel.stores.memory import MemoryBackend
from tests.waiting import PATIENCE, auntil

R = TypeVar("R")

Kind = type[StoreOperation[Any]]
Mishap = Literal["refused", "unanswered", "lost"]
"""refused: surely not applied · unanswered: not applied, nobody knows · lost: applied, but the
answer never came."""


@dataclass
class Fault:
    """What happens to operations of some kinds, so many times (None: until mended)."""

    kinds: tuple[Kind, ...]
    mishap: Mishap | BaseException
    times: int | None = None

    def strikes(self, op: StoreOperation[Any]) -> bool:
        if not isinstance(op, self.kinds) or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass
class Gate:
    """Operations of a kind wait here; ``reached`` once one does."""

    kind: Kind
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)


class FaultyBackend:
    """Everything is done by the store inside; this only decides whether, when, and who hears."""

    def __init__(self, inner: Backend | None = None) -> None:
        self.inner = inner or MemoryBackend()
        self.seen: list[StoreOperation[Any]] = []
        self.faults: list[Fault] = []
        self.gates: list[Gate] = []
        self.watch: Callable[[str], None] = lambda point: None

    def fail(
        self, *kinds: Kind, mishap: Mishap | BaseException = "unanswered", times: int | None = None
    ) -> Fault:
        fault = Fault(kinds, mishap, times)
        self.faults.append(fault)
        return fault

    def hold(self, kind: Kind) -> Gate:
        gate = Gate(kind)
        self.gates.append(gate)
        return gate

    def mend(self) -> None:
        self.faults.clear()

    def count(self, kind: Kind) -> int:
        return sum(isinstance(op, kind) for op in list(self.seen))

    # ── the backend ───────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def blocking(self) -> Store:
        return _Blocking(self)

    def awaited(self) -> AsyncStore:
        return _Awaited(self)

    def migrate(self) -> int:
        return self.inner.migrate()

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()

    # ── the faults ────────────────────────────────────────────────────────────────────────────────

    def before(self, op: StoreOperation[Any]) -> Fault | None:
        """Raises what surely was not applied; returns the fault that strikes afterwards."""
        self.seen.append(op)
        fault = next((fault for fault in self.faults if fault.strikes(op)), None)
        if fault is None or fault.mishap == "lost":
            return fault
        if isinstance(fault.mishap, BaseException):
            raise fault.mishap
        raise StoreUnavailable("injected", applied=False if fault.mishap == "refused" else None)

    def after(self, fault: Fault | None) -> None:
        if fault is not None:
            raise StoreUnavailable("injected: the answer was lost")

    def gates_of(self, op: StoreOperation[Any]) -> Iterable[Gate]:
        return [gate for gate in self.gates if isinstance(op, gate.kind)]


class _Blocking:
    def __init__(self, backend: FaultyBackend) -> None:
        self._backend = backend
        self._inner = backend.inner.blocking()

    def perform(self, op: StoreOperation[R], /) -> R:
        fault = self._backend.before(op)
        for gate in self._backend.gates_of(op):
            gate.reached.set()
            assert gate.opened.wait(PATIENCE)
        reply = self._inner.perform(op)
        self._backend.after(fault)
        return reply


class _Awaited:
    def __init__(self, backend: FaultyBackend) -> None:
        self._backend = backend
        self._inner = backend.inner.awaited()

    async def perform(self, op: StoreOperation[R], /) -> R:
        name = type(op).__name__
        self._backend.watch(f"before {name}")
        await asyncio.sleep(0)
        fault = self._backend.before(op)
        for gate in self._backend.gates_of(op):
            gate.reached.set()
            await auntil(gate.opened.is_set)
        reply = await self._inner.perform(op)
        self._backend.watch(f"after {name}")
        await asyncio.sleep(0)
        self._backend.after(fault)
        return reply
