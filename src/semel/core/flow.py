"""Sans-IO flows: generators that yield operations and receive replies; two drivers run them.

A flow is written once; ``run`` performs its operations blocking, ``arun`` awaits them. An exception
of the performer is thrown into the flow at the operation that failed.

A flow whose caller is gone (cancelled, interrupted) is not dropped where it stands: a *finishing*
operation is performed again, since every one of them is idempotent, and the flow goes on to its
end; at any other operation the flow is told by ``Interrupted`` and winds up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

from semel.core.contract import Operation

R = TypeVar("R")
T = TypeVar("T")

Flow: TypeAlias = Generator[Operation[Any], Any, T]


class Interrupted(Exception):
    """Thrown into a flow: nobody waits for it any more, take nothing more on."""


class Perform(Protocol):
    """The one verb, blocking."""

    def __call__(self, op: Operation[R], /) -> R: ...


class AsyncPerform(Protocol):
    """The one verb, awaited."""

    def __call__(self, op: Operation[R], /) -> Awaitable[R]: ...


def ask(op: Operation[R]) -> Flow[R]:
    """Yield one operation; the value is its reply, with its type."""
    reply: R = yield op
    return reply


class Step:
    """Where a flow stands: the next thing to feed it. Shared by both drivers."""

    __slots__ = ("_feed", "_send", "_throw", "_value", "op")

    def __init__(self, flow: Flow[Any]) -> None:
        self._send: Callable[[Any], Any] = flow.send
        self._throw: Callable[[Any], Any] = flow.throw
        self._feed = self._send
        self._value: Any = None
        self.op: Operation[Any] | None = None

    def advance(self) -> Operation[Any]:
        """Run the flow to its next operation; StopIteration carries the result."""
        op: Operation[Any] = self._feed(self._value)
        self.op = op
        return op

    def reply(self, value: object) -> None:
        self._feed, self._value = self._send, value

    def fail(self, error: Exception) -> None:
        self._feed, self._value = self._throw, error


Stops: TypeAlias = tuple[type[Operation[Any]], ...]
"""Operations that whoever drives a flow performs itself, in its own time."""


def run(flow: Flow[T], perform: Perform) -> T:
    """Drive ``flow`` to its end, blocking."""
    result: T = run_on(Step(flow), perform)
    return result


def run_on(step: Step, perform: Perform, stops: Stops = ()) -> Any:
    """Drive a flow on to its end, or to the first of ``stops``, which is returned unperformed."""
    while True:
        try:
            op = step.advance()
        except StopIteration as done:
            return done.value
        if isinstance(op, stops):
            return op
        _perform(step, op, perform)


def _perform(step: Step, op: Operation[Any], perform: Perform) -> None:
    # Only the performer's errors are caught here: a StopIteration of the handler must never be
    # taken for the end of the flow.
    try:
        step.reply(perform(op))
    except Exception as error:
        step.fail(error)
    except BaseException:
        with suppress(Exception):  # what the flow ends with must not hide what interrupted it
            _wind_up(step, op, perform)
        raise


def _wind_up(step: Step, op: Operation[Any], perform: Perform) -> None:
    if op.finishing:
        _perform(step, op, perform)
    else:
        step.fail(Interrupted())
    run_on(step, perform)


async def arun(step: Step, perform: AsyncPerform, stops: Stops = ()) -> Any:
    """`run_on`, awaited. Cancelled, it stays at ``step.op`` for ``wind_up`` to take over."""
    while True:
        try:
            op = step.advance()
        except StopIteration as done:
            return done.value
        if isinstance(op, stops):
            return op
        try:
            step.reply(await perform(op))
        except Exception as error:
            step.fail(error)


async def wind_up(step: Step, perform: AsyncPerform) -> Any:
    """Finish a flow whose driver was cancelled; run it in a task of its own."""
    op = step.op
    if op is None:
        return None
    if not op.finishing:
        step.fail(Interrupted())
    else:
        try:
            step.reply(await perform(op))
        except Exception as error:
            step.fail(error)
    return await arun(step, perform)
