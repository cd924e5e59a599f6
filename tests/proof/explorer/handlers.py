"""The applications of these worlds: what a handler does outside, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from semel.core import operations as ops
from semel.core.flow import Flow
from semel.core.frozen import frozen
from semel.core.records import Fence, Identity, Origin, Response
from semel.core.recovery.points import Holder, PointCall, call
from semel.core.unknown import evidence
from semel.core.unknown.evidence import Evidence
from semel.errors import NotExecuted, OutcomeUnknown
from semel.web.exchange import too_late
from tests.core.whole import Invoke
from tests.proof.explorer.plays import Script, Stopped

MADE: Final = b"x-made"
CALL: Final = "charge"


@frozen
class Choose(ops.FlowOperation[str]):
    """The handler is about to begin: what will it do? ``late``: its lease has passed."""

    fence: Fence


@frozen
class Send(ops.FlowOperation[None]):
    """The handler acts: outside, or with ``inside`` through the open transaction."""

    fence: Fence
    inside: bool


@frozen
class Redone:
    """The reply of a write that was carried through after its caller had been cancelled."""

    reply: Any


@dataclass(frozen=True)
class Kind:
    """One way for a handler to go."""

    acts: bool
    """It has an effect outside."""
    end: Callable[[bytes], ops.HandlerOutcome]
    writes: bool = False
    """It writes through the open transaction."""


def _answers(status: int) -> Callable[[bytes], ops.HandlerOutcome]:
    return lambda run: ops.Returned(Response(status, ((MADE, run),), b"made by " + run))


def _raises(error: type[Exception]) -> Callable[[bytes], ops.HandlerOutcome]:
    return lambda run: ops.Raised(error("as the world wants it"))


def _streams(run: bytes) -> ops.HandlerOutcome:
    return ops.Streaming(200, ((MADE, run),))


KINDS: Final[dict[str, Kind]] = {
    "ok": Kind(True, _answers(201)),
    "written": Kind(False, _answers(201), writes=True),
    "declined": Kind(False, _answers(402)),
    "throttled": Kind(False, _answers(429)),
    "500": Kind(False, _answers(500)),
    "500!": Kind(True, _answers(500)),
    "500w": Kind(False, _answers(500), writes=True),
    "bug": Kind(False, _raises(ValueError)),
    "bug!": Kind(True, _raises(ValueError)),
    "not-executed": Kind(False, _raises(NotExecuted)),
    "doubt": Kind(False, _raises(OutcomeUnknown)),
    "doubt!": Kind(True, _raises(OutcomeUnknown)),
    "reset": Kind(False, _raises(ConnectionResetError)),
    "reset!": Kind(True, _raises(ConnectionResetError)),
    "stream": Kind(True, _streams),
}
"""``!``: it had an effect all the same. What answers or raises without one and says so by its
status is taken at its word by some policies: that is trust, and `worlds` never breaks it unseen."""


@dataclass(frozen=True)
class Way:
    """One way for an operation's call to go."""

    acts: bool
    end: Callable[[], ops.Did | ops.Raised | ops.Abandoned]


WAYS: Final[dict[str, Way]] = {
    "did": Way(True, lambda: ops.Did("charged")),
    "not-sent": Way(False, lambda: ops.Raised(NotExecuted("refused at the door"))),
    "reset": Way(False, lambda: ops.Raised(ConnectionResetError())),
    "reset!": Way(True, lambda: ops.Raised(ConnectionResetError())),
    "cancelled": Way(False, lambda: ops.Abandoned(Stopped())),
    "cancelled!": Way(True, lambda: ops.Abandoned(Stopped())),
}


def plain(op: Invoke) -> Generator[ops.FlowOperation[Any], Any, ops.HandlerOutcome]:
    """A handler without recovery points."""
    name = yield Choose(op.fence)
    if name == "late":
        return too_late()
    kind = KINDS[name]
    if kind.writes:
        yield Send(op.fence, inside=True)
    if kind.acts:
        yield Send(op.fence, inside=False)
    return kind.end(run_of(op.fence))


def operation(repeatable: bool, probe: Callable[..., Evidence] | None) -> Script:
    """A handler with one `op.call`, as `runtime/recovery_points.py` drives it."""

    def script(op: Invoke) -> Generator[ops.FlowOperation[Any], Any, ops.HandlerOutcome]:
        how = yield Choose(op.fence)
        if how == "late":
            return too_late()
        holder = Holder(op.identity, op.fence, op.progress, op.created_at)
        asked = evidence.inquiry(op.identity, Origin("", "POST", "/", ""), CALL, 0)
        flow = call(holder, PointCall(CALL, plain, ()), repeatable, probe, asked)
        try:
            charged = yield from _see_through(flow)
        except Exception as error:
            return ops.Raised(error)
        if how == "trips":
            return ops.Raised(ValueError("as the world wants it"))
        return ops.Returned(Response(201, ((MADE, b"call"),), str(charged).encode()))

    return script


def _see_through(flow: Flow[Any]) -> Flow[Any]:
    """Cancelled in the middle of a write, it is carried through before the handler hears of it."""
    cancelled = False
    step: Callable[[], ops.FlowOperation[Any]] = flow.__next__
    while True:
        try:
            op = step()
        except StopIteration as done:
            if cancelled:
                raise Stopped from None
            return done.value
        except Exception:
            if cancelled:
                raise Stopped from None
            raise
        try:
            reply = yield op
        except Exception as error:
            step = _throwing(flow, error)
            continue
        if isinstance(reply, Redone):
            cancelled, reply = True, reply.reply
        step = _sending(flow, reply)


def _sending(flow: Flow[Any], value: Any) -> Callable[[], ops.FlowOperation[Any]]:
    return lambda: flow.send(value)


def _throwing(flow: Flow[Any], error: Exception) -> Callable[[], ops.FlowOperation[Any]]:
    return lambda: flow.throw(error)


def fence_of(name: str, life: int = 0) -> Fence:
    return Fence(f"{name}{life}".encode().ljust(16, b"."))


def run_of(fence: Fence) -> bytes:
    return fence.rstrip(b".")


def happened(identity: Identity, of_call: bool) -> Evidence:
    result: Any = "charged" if of_call else Response(200, ((MADE, b"settled"),), b"settled")
    return evidence.Happened(result, provider_id=identity.hex()[:8])
