"""One operation's way to PostgreSQL, without I/O: shared by both colours."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from semel.core.contract import StoreOperation
from semel.stores.postgres.faults import Fault, verdict
from semel.stores.sql.plans import Rows, Statement, plan

R = TypeVar("R")

Errand: TypeAlias = Generator[Statement, Rows, R]


def errand(op: StoreOperation[R], *, doubt: bool = False) -> Errand[R]:
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
