"""Both halves of an exchange with a call of the application between them, as one flow.

What an adapter does in its own colour is an operation here: so whoever performs it can answer for
the application, and stop at every place where a process may die.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from semel.core.exchange.answers import Answer
from semel.core.exchange.claim import claim, resume
from semel.core.exchange.exchange import Exchange, Progress, WorkerRun
from semel.core.exchange.settle import Flowing, end_stream, settle
from semel.core.flow import Flow
from semel.core.frozen import frozen
from semel.core.operations.handler import Drained, HandlerOutcome, Streaming
from semel.core.operations.requests import Claimed, FlowOperation
from semel.core.records import Case, Fence, Headers, Identity, Micros


@frozen
class Invoke(FlowOperation[HandlerOutcome]):
    """Call the application."""

    finishing: ClassVar[bool] = True

    identity: Identity
    fence: Fence
    progress: Progress
    created_at: Micros


@frozen
class Drain(FlowOperation[Drained]):
    """Send the started answer with these headers and let the rest flow."""

    finishing: ClassVar[bool] = True

    headers: Headers


@frozen
class Discard(FlowOperation[None]):
    """Stop the started answer: the record could not be secured, so nothing of it may be sent."""

    finishing: ClassVar[bool] = True


def exchange(ex: Exchange, before: Flow[None] | None = None) -> Flow[Answer]:
    """The whole way of one keyed request."""
    entry = yield from claim(ex, before)
    return entry if isinstance(entry, Answer) else (yield from execute(ex, entry))


def adopted(ex: Exchange, entry: Claimed) -> Flow[Answer]:
    """The way of a stored request whose record a worker holds."""
    held: Claimed | Answer = entry
    if ex.policy.resumable:
        held = yield from resume(ex, entry)
    return held if isinstance(held, Answer) else (yield from execute(ex, held))


def execute(ex: Exchange, entry: Claimed) -> Flow[Answer]:
    """The application is called under the lease, and what it came to is settled."""
    progress = Progress(ex.journal)
    outcome: HandlerOutcome = yield Invoke(ex.identity, ex.fence, progress, entry.created_at)
    reached = yield from settle(ex, outcome, progress)
    if isinstance(reached, Flowing):
        drained: Drained = yield Drain(reached.headers)
        return (yield from end_stream(ex, reached, drained, progress))
    if isinstance(outcome, Streaming):
        yield Discard()
    return reached


def varied(ex: Exchange, **changes: Any) -> Exchange:
    """The same exchange again, in another state."""
    made = copy.copy(ex)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def workers_run(case: Case | None = None, **how: Any) -> WorkerRun:
    """Of a case, where that matters."""
    of: Any = case
    stored: Any = None
    return WorkerRun(of, Fence(bytes(16)), stored, 0.0, **how)
