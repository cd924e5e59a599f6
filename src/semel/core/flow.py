"""Sans-IO flows: generators that yield operations and receive replies; two drivers run them.

A flow is written once; ``run`` performs its operations blocking, ``arun`` awaits them. An exception
of the performer is thrown into the flow at the operation that failed.

A flow whose caller is gone (cancelled, interrupted) is not dropped where it stands: what is left of
it is a flow again, which is driven to its end without the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

from semel.core.operations.requests import FlowOperation

R = TypeVar("R")
T = TypeVar("T")

Flow: TypeAlias = Generator[FlowOperation[Any], Any, T]


class Interrupted(Exception):
    """Thrown into a flow: nobody waits for it any more, take nothing more on."""


class Perform(Protocol):
    """The one verb, blocking."""

    def __call__(self, op: FlowOperation[R], /) -> R: ...


class AsyncPerform(Protocol):
    """The one verb, awaited."""

    def __call__(self, op: FlowOperation[R], /) -> Awaitable[R]: ...


def ask(op: FlowOperation[R]) -> Flow[R]:
    """Yield one operation; the value is its reply, with its type."""
    reply: R = yield op
    return reply


def run(flow: Flow[T], perform: Perform) -> T:
    """Drive ``flow`` to its end, blocking."""
    feed: Callable[[Any], FlowOperation[Any]] = flow.send
    value: Any = None
    while True:
        try:
            op = feed(value)
        except StopIteration as done:
            result: T = done.value
            return result
        # Only the performer's errors are caught here: a StopIteration of the handler must never be
        # taken for the end of the flow.
        try:
            value, feed = perform(op), flow.send
        except Exception as error:
            value, feed = error, flow.throw
        except BaseException:
            with suppress(Exception):  # what the flow ends with must not hide what interrupted it
                run(interrupted(flow, op), perform)
            raise


async def arun(
    flow: Flow[T], perform: AsyncPerform, left: Callable[[Flow[T]], object] | None = None
) -> T:
    """`run`, awaited. Cancelled, it leaves the flow where it stands.

    ``left`` is told, with what is left of the flow for somebody else to drive.
    """
    feed: Callable[[Any], FlowOperation[Any]] = flow.send
    value: Any = None
    while True:
        try:
            op = feed(value)
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            value, feed = await perform(op), flow.send
        except Exception as error:
            value, feed = error, flow.throw
        except BaseException:
            if left is not None:
                left(interrupted(flow, op))
            raise


def interrupted(flow: Flow[T], op: FlowOperation[Any]) -> Flow[T]:
    """What is left of a flow whose caller went away while ``op`` was being performed.

    A finishing operation is performed again, which every one of them bears; at any other the flow
    is told, and winds up.
    """
    feed: Callable[[Any], FlowOperation[Any]] = flow.throw
    value: Any = Interrupted()
    again = op.finishing
    while True:
        try:
            op = op if again else feed(value)
        except StopIteration as done:
            result: T = done.value
            return result
        again = False
        try:
            value, feed = (yield op), flow.send
        except Exception as error:
            value, feed = error, flow.throw
