"""The cases, one module for each family; every case is one line of the table.

served   what cases over HTTP share: an application under one uvicorn worker, and its proof of work
stores   semel on each store, with each plan, and the application without it
peers    other packages that do the same job
raw      claims and completions without HTTP, and as fast as each database goes
scale    a full table beside an empty one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bench.stage import Stage


@dataclass(frozen=True)
class Sample:
    """One measurement of one case. Latencies are milliseconds, CPU is microseconds per request."""

    rate: float
    p50: float | None = None
    p99: float | None = None
    cpu: float | None = None
    store_cpu: float | None = None
    megabytes: float | None = None
    generator_load: float | None = None


class Case(Protocol):
    """One line of the table."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> str:
        """bare, semel, peer or raw."""
        ...

    def measure(self, stage: Stage) -> Sample:
        """Raises BenchError where it cannot, or where the work was not done."""
        ...
