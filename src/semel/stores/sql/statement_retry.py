"""One operation's way to a database server, without I/O: shared by stores and colours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Protocol, TypeAlias, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.errors import SemelError
from semel.stores.sql.plans import Rows, Statement, plan

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")

Errand: TypeAlias = Generator[Statement, Rows, R]


class Fault(Exception):
    """One statement failed.

    ``doubt``: it may have been applied all the same. ``broken``: the connection is of no more use.
    ``tries``: how often the statement may be sent in all before giving up.
    """

    def __init__(
        self, message: str, *, doubt: bool = False, broken: bool = True, tries: int = 1
    ) -> None:
        super().__init__(message)
        self.doubt = doubt
        self.broken = broken
        self.tries = tries

    @property
    def refused(self) -> bool:
        """The server itself said no."""
        return False

    @property
    def contagious(self) -> bool:
        """What ended this connection has probably ended the others: the next try opens one."""
        return self.broken and self.tries > 1


class Verdict(Protocol):
    """What the caller of the store is told of a fault."""

    def __call__(self, fault: Fault, /, *, doubt: bool) -> SemelError: ...


def errand(op: StoreOperation[R], verdict: Verdict, *, doubt: bool = False) -> Errand[R]:
    """The statements of ``op``; a `Fault` is thrown in at the statement that failed.

    Every statement is idempotent per fence, so one whose answer was lost is simply sent again.
    ``doubt``: it was sent before, and may have been applied.
    """
    steps = plan(op)
    statement = next(steps)
    tries = 0
    while True:
        tries += 1
        try:
            rows = yield statement
        except Fault as fault:
            doubt = doubt or fault.doubt
            if tries >= fault.tries:
                raise verdict(fault, doubt=doubt) from None
            continue
        doubt, tries = True, 0
        try:
            statement = steps.send(rows)
        except StopIteration as done:
            reply: R = done.value
            return reply


def drive(steps: Generator[Q, A, R], execute: Callable[[Q], A]) -> R:
    """Run an errand, or one of its statements, to its end, blocking: faults are thrown in."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = execute(asked)
            except Fault as fault:
                asked = steps.throw(fault)
            else:
                asked = steps.send(answer)
    except StopIteration as done:
        reply: R = done.value
        return reply


async def adrive(steps: Generator[Q, A, R], execute: Callable[[Q], Awaitable[A]]) -> R:
    """The same, awaited."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = await execute(asked)
            except Fault as fault:
                asked = steps.throw(fault)
            else:
                asked = steps.send(answer)
    except StopIteration as done:
        reply: R = done.value
        return reply
