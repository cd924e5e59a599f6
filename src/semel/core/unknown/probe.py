"""Reconciling: ask somebody who can know what became of an unknown record, and settle it by that.

The next time to ask is on record before the question is put, so that a worker that dies with its
question leaves nothing behind, and of several workers one asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import frozen
from semel.core.operations.handler import Ask
from semel.core.operations.requests import Inquire, Lost
from semel.core.records import Case, Fence, Micros
from semel.core.terms import Terms
from semel.core.unknown.evidence import Absent, CannotTell, Evidence, Happened, inquiry_about
from semel.core.unknown.settle_unknown import (
    Passed,
    Render,
    Settlement,
    Undecided,
    Witness,
    settle_unknown,
)

LONGEST_PAUSE: Final[Micros] = 3_600_000_000
"""However long it has been unknown, it is asked about every hour until that is given up."""


@frozen
class GivenUp:
    """Nobody will ask any more: a dead letter, for people."""

    reason: str


Inspection: TypeAlias = Settlement | GivenUp


@frozen
class Doubt:
    """What is not known, and who can be asked: ``name`` is that of a call or of a `once`."""

    case: Case
    now: Micros
    terms: Terms
    """Those of the record."""
    name: str | None
    probe: Callable[..., Any] | None
    render: Render | None = None


def reconcile(
    doubt: Doubt, fence: Fence, jitter: float, *, asker: str | None = None
) -> Flow[Inspection]:
    """Ask once, and settle by the answer.

    ``asker``: the person who wants to know, however old it is; the audit names them.
    """
    case = doubt.case
    reason = None if asker is not None else hopeless(doubt)
    dead = reason is not None or (asker is not None and case.due_at is None)
    again_in = None if dead else int(pause(doubt.terms, case.tries) * jitter)
    record = case.record
    written = yield from ask(Inquire(record.identity, record.fence, case.tries, again_in))
    if isinstance(written, Lost):
        return Passed(None if written.record is None else written.record.state, written.now)
    if reason is not None:
        return GivenUp(reason)
    evidence = yield from ask_probe(doubt)
    if isinstance(evidence, Undecided):
        return evidence
    name, asked = doubt.name or f"{case.origin.method} {case.origin.path}", ""
    if asker is not None:
        asked = f"asked by {asker}"
    witness = Witness("probe", name, asked)
    return (yield from settle_unknown(case, doubt.now, evidence, fence, witness, doubt.render))


def pause(terms: Terms, tries: int) -> Micros:
    """How long to wait after so many questions: twice as long each time, an hour at most."""
    return min(LONGEST_PAUSE, terms.reconcile_after << min(tries, 40))


def hopeless(doubt: Doubt) -> str | None:
    """Why nobody need be asked (again).

    Old alone is not enough: were nobody there to ask for a week, all would be given up unasked.
    """
    if doubt.probe is None and not doubt.terms.probe:
        return "nobody can be asked"  # where somebody could, another version may know whom
    age = doubt.now - doubt.case.record.created_at
    give_up = doubt.terms.give_up_after
    asked_for = sum(pause(doubt.terms, each) for each in range(doubt.case.tries))  # at the least
    if age >= give_up and asked_for >= give_up:
        return f"asked {doubt.case.tries} times, and nobody could tell"
    return None


def ask_probe(doubt: Doubt) -> Flow[Evidence | Undecided]:
    """What the probe says; one that fails, or talks nonsense, cannot tell. Nothing is written."""
    case = doubt.case
    question = inquiry_about(case, doubt.name)
    try:
        said: Any = yield from ask(Ask(doubt.probe or _nobody, question))
    except Interrupted:
        raise
    except Exception as error:
        return Undecided(f"the probe failed: {type(error).__name__}", error)
    if isinstance(said, Happened | Absent | CannotTell):
        return said
    mistake = TypeError(
        f"a probe returns Happened, Absent or CannotTell, not {type(said).__name__}"
    )
    return Undecided(str(mistake), mistake)


def _nobody(_: object) -> CannotTell:
    return CannotTell("nobody can be asked")
