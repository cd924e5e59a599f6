"""A world for flows: a real memory store, a clock that is set by hand, faults at chosen steps."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from semel.core import operations as ops
from semel.core.exchange.admit import add_body, admit
from semel.core.exchange.answers import Answer
from semel.core.exchange.exchange import Exchange
from semel.core.flow import run
from semel.core.policy import Policy, RoutePlan, ietf
from semel.core.records import Fence, Headers, HeaderView, Record, Request, Response
from semel.errors import StoreUnavailable
from semel.stores.memory import MemoryBackend
from tests.core.whole import Discard, Drain, Invoke, exchange

R = TypeVar("R")

KEY = "an-opaque-key-of-some-length"
SECOND = 1_000_000


@dataclass
class World:
    """Performs what a flow asks and remembers what was asked."""

    now: int = 1_700_000_000 * SECOND
    outcomes: deque[ops.HandlerOutcome] = field(default_factory=deque)
    asked: list[ops.FlowOperation[Any]] = field(default_factory=list)
    pursued: list[ops.StoreOperation[ops.Written]] = field(default_factory=list)
    faults: dict[type, deque[str]] = field(default_factory=lambda: defaultdict(deque))
    during_handler: Callable[[], object] = lambda: None
    wakes: deque[ops.Woken | ops.Unwoken] = field(default_factory=deque)
    pauses_allowed: int = 3
    drained: ops.Drained = field(default_factory=lambda: ops.Drained(3, b"d" * 32, whole=True))

    def __post_init__(self) -> None:
        self.backend = MemoryBackend(clock=lambda: self.now)
        self.store = self.backend.blocking()

    def perform(self, op: ops.FlowOperation[R]) -> R:
        self.asked.append(op)
        reply: R = self._stored(op) if isinstance(op, ops.StoreOperation) else self._attended(op)
        return reply

    def _stored(self, op: ops.StoreOperation[Any]) -> Any:
        """Faults: "refused" (surely not applied), "lost" (not applied), "ambiguous" (applied)."""
        fault = self.faults[type(op)].popleft() if self.faults[type(op)] else ""
        if fault in ("lost", "refused"):
            raise StoreUnavailable("no", applied=False if fault == "refused" else None)
        reply = self.store.perform(op)
        if fault == "ambiguous":
            raise StoreUnavailable("answer lost", applied=None)
        return reply

    def _attended(self, op: ops.FlowOperation[Any]) -> Any:
        match op:
            case Invoke():
                self.during_handler()
                return self.outcomes.popleft()
            case Drain():
                return self.drained
            case Discard():
                return None
            case ops.Await():
                return self.wakes.popleft()
            case ops.Pause(attempt=attempt):
                return attempt < self.pauses_allowed
            case ops.Pursue(write):
                return self.pursued.append(write)
            case ops.Render():
                raise ValueError("no state to show")
            case _:
                raise AssertionError(op)

    def serve(self, call: Exchange) -> Answer:
        return run(exchange(call), self.perform)

    def record(self, call: Exchange) -> Record | None:
        reply = self.store.perform(ops.Read(call.identity))
        return getattr(reply, "record", None)

    def state(self, call: Exchange) -> str | None:
        record = self.record(call)
        return None if record is None else record.state.value

    def count(self, kind: type) -> int:
        return Counter(type(op) for op in self.asked)[kind]

    def trips(self) -> int:
        """Round trips to the store."""
        return sum(isinstance(op, ops.StoreOperation) for op in self.asked)


_fences = iter(range(1, 1_000_000))


def request(
    body: bytes = b'{"amount": 100}',
    *,
    method: str = "POST",
    path: str = "/payments",
    key: bytes | None = KEY.encode(),
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> Request:
    lines: Headers = ((b"content-type", b"application/json"), *headers)
    if key is not None:
        lines = (*lines, (b"idempotency-key", key))
    return Request(method, path, b"", HeaderView(lines), raw=body)


def call(
    body: bytes = b'{"amount": 100}',
    policy: Policy | None = None,
    *,
    seen_before: bool = False,
    tenant: str = "",
    application: str = "",
    **head: Any,
) -> Exchange:
    """A request that has been admitted, with a fence of its own."""
    policy = ietf() if policy is None else policy
    who = (lambda _: tenant) if tenant else None
    terms = policy.terms(application, "*", probe=policy.probe is not None)
    made = Exchange(RoutePlan("*", policy, terms), request(body, **head))
    admitted = admit(made, who)
    assert admitted is True, admitted
    add_body(made, body, Fence(next(_fences).to_bytes(16, "big")))
    made.seen_before = seen_before
    return made


def answered(
    status: int = 201, body: bytes = b"made", *headers: tuple[bytes, bytes]
) -> ops.Returned:
    return ops.Returned(Response(status, headers, body))
