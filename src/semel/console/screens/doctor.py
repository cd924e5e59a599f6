"""Doctor: whether the store and its settings are fit for use, and maintenance comes round."""

from __future__ import annotations

from typing import Final

from semel.console.times import Moment
from semel.console.view import View
from semel.core.frozen import frozen
from semel.operators.doctor import checkup, examine, fit
from semel.stores.base import Finding

_WORST_FIRST: Final = ("refused", "error", "warning", "unchecked", "limit")
FRESH: Final = 30.0
"""Seconds for which a finding is shown again: an examination reads thousands of records."""


@frozen
class Diagnosis:
    store: str
    fit: bool
    findings: tuple[Finding, ...]
    at: Moment


def show(view: View) -> Diagnosis:
    """What is wrong, worst first."""
    return view.cached("doctor", FRESH, lambda: _examined(view))


def _examined(view: View) -> Diagnosis:
    backend = view.guard.backend
    findings = examine(backend)
    if fit(findings):
        findings += checkup(view.guard, view.app)
    findings.sort(key=lambda each: _WORST_FIRST.index(each.severity))
    now = view.now()
    return Diagnosis(backend.url, fit(findings), tuple(findings), Moment(now, now))
