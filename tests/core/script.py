"""A flow whose questions are answered by a script: what each kind is told, in turn. And a record to
tell of."""

from __future__ import annotations

from typing import Any, TypeVar

from semel.core.flow import Flow, run
from semel.core.frozen import replace
from semel.core.operations.requests import FlowOperation
from semel.core.records import Fence, Identity, OnLapse, Record, State

R = TypeVar("R")
K = TypeVar("K", bound=FlowOperation[Any])


class Script:
    """``said``: replies by the name of the operation, one after the other; the last one stays.

    An exception is raised; what nothing is said about is told None.
    """

    def __init__(self, **said: Any) -> None:
        self._said = {
            name: list(replies) if isinstance(replies, list) else [replies]
            for name, replies in said.items()
        }
        self.asked: list[FlowOperation[Any]] = []

    def play(self, flow: Flow[R]) -> R:
        return run(flow, self._reply)

    def _reply(self, op: FlowOperation[Any]) -> Any:
        self.asked.append(op)
        replies = self._said.get(type(op).__name__, [None])
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def kinds(self) -> list[type[FlowOperation[Any]]]:
        return [type(op) for op in self.asked]

    def all(self, kind: type[K]) -> list[K]:
        return [op for op in self.asked if isinstance(op, kind)]

    def one(self, kind: type[K]) -> K:
        (op,) = self.all(kind)
        return op


def a_record(state: State, fence: Fence, **known: Any) -> Record:
    """One whose other fields do not matter."""
    made = Record(
        identity=Identity(bytes(32)),
        state=state,
        fence=fence,
        fingerprint="v1",
        fields=b"",
        on_lapse=OnLapse.UNKNOWN,
        created_at=0,
        leased_until=None,
        expires_at=None,
        forget_at=None,
        snapshot=None,
        reason=None,
    )
    return replace(made, **known)
