"""Erasing a tenant: pages of the whole table, of which its settled records are erased."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from semel.core import maintenance
from semel.core.frozen import replace
from semel.core.maintenance import Erasure
from semel.core.operations.acts import Act
from semel.core.operations.audit import Belonging, ListBelongings

if TYPE_CHECKING:
    from semel.worker.flow_runner import FlowRunner

PAGE: Final = 500
"""Records that are looked at in one step."""
AT_ONCE: Final = 8
"""Writes under way: they wait for the disk together, and leave most connections to requests."""


def erase(
    runner: FlowRunner,
    application: str,
    tenant: str,
    said: Act,
    progress: Callable[[Erasure], None] | None = None,
) -> Erasure:
    """Blocking; ``progress`` is told after every page."""
    runner.run(maintenance.begin(tenant, said))
    done = Erasure()
    with ThreadPoolExecutor(AT_ONCE) as crew:
        while True:
            page = runner.perform(ListBelongings(tenant, PAGE, done.after, application))
            came = list(crew.map(partial(_one, runner, said), page.found))
            left = [each.identity for each, gone in zip(page.found, came, strict=True) if not gone]
            done = Erasure(done.erased + came.count(True), (*done.left, *left), page.until)
            if page.until is None:
                break
            if progress is not None:
                progress(done)
    runner.run(maintenance.end(tenant, said, done))
    return replace(done, after=None)


def _one(runner: FlowRunner, said: Act, each: Belonging) -> bool:
    return runner.run(maintenance.erase(each, said))
