"""Answers of requests that were turned away before their key was looked up."""

from __future__ import annotations

from typing import Final

from semel.core.answers import Answer, Outcome
from semel.core.exchange import Exchange
from semel.core.model import Micros
from semel.core.problems import refuse
from semel.errors import StoreUnavailable

_RESTING: Final = StoreUnavailable("it gave no answer lately and is left alone", applied=False)


class TurnedAway(Exception):
    """Thrown into a flow that may not go on; ``answer`` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.outcome.value)
        self.answer = answer


def throttled(code: str, wait: Micros) -> Answer:
    """Over a limit: nothing was executed, and nothing is left behind."""
    return Answer(refuse(code, retry_after=wait), Outcome.THROTTLED)


def resting(ex: Exchange, wait: Micros) -> Answer:
    """Fail closed without asking: the store gave no answer lately and is left alone."""
    response = refuse("store-unavailable", retry_after=max(ex.policy.retry_micros, wait))
    return Answer(response, Outcome.STORE_ERROR, _RESTING)
