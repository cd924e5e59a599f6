"""Overview: what needs a person first."""

from __future__ import annotations

from semel.console.view import View
from semel.core.flow import run
from semel.core.frozen import frozen
from semel.stores.base import performer
from semel.worker.maintenance import survey


@frozen
class Overview:
    """Counts of what is unsettled; None: the store has no outbox."""

    unknown: int | None
    dead: int | None
    in_progress: int | None
    pending: int | None
    waiting_effects: int | None
    dead_effects: int | None


def show(view: View) -> Overview:
    """The figures that need a person."""
    backend = view.guard.backend
    depths = run(survey(backend.capabilities.outbox), performer(backend.blocking()))
    return Overview(**depths)
