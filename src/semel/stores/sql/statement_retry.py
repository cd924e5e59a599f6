"""A plan's statements, sent again where that is safe: without I/O, for all servers and colours.

A connection that fails throws a `StatementFault` into the generator; it decides whether the
statement is sent again or the caller gets an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Protocol, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.errors import SemelError
from semel.stores.sql.plans import Rows, Statement, plan

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")


class StatementFault(Exception):
    """One statement failed.

    ``doubt``: it may have been applied all the same. ``broken``: the connection must be closed.
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
        """Whether the server itself answered with an error."""
        return False

    @property
    def contagious(self) -> bool:
        """Whether the idle connections are probably lost too: then the next try opens a new one."""
        return self.broken and self.tries > 1


class ToStoreError(Protocol):
    """Makes the error that the caller of the store gets for a fault."""

    def __call__(self, fault: StatementFault, /, *, doubt: bool) -> SemelError: ...


def retried_statements(
    op: StoreOperation[R], store_error: ToStoreError, *, doubt: bool = False
) -> Generator[Statement, Rows, R]:
    """The statements of ``op``; a `StatementFault` is thrown in at the statement that failed.

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
        except StatementFault as fault:
            doubt = doubt or fault.doubt
            if tries >= fault.tries:
                raise store_error(fault, doubt=doubt) from None
            continue
        doubt, tries = True, 0
        try:
            statement = steps.send(rows)
        except StopIteration as done:
            reply: R = done.value
            return reply


def drive(steps: Generator[Q, A, R], execute: Callable[[Q], A]) -> R:
    """Run ``steps`` to their end, blocking; faults are thrown in."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = execute(asked)
            except StatementFault as fault:
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
            except StatementFault as fault:
                asked = steps.throw(fault)
            else:
                asked = steps.send(answer)
    except StopIteration as done:
        reply: R = done.value
        return reply
