"""Metrics for Prometheus: ``Guard(..., on_event=Prometheus())``.

Needs the extra ``prometheus``. With several worker processes set ``PROMETHEUS_MULTIPROC_DIR``, as
prometheus_client has it; docs/howto/operations/metrics.md shows both.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, Final
from weakref import WeakKeyDictionary

from semel.errors import ConfigurationError
from semel.runtime.events import Event
from semel.telemetry.metrics import BUCKETS, MEASURES, Labels, Measure, tenants_by, updates

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ConfigurationError(
        "metrics for Prometheus need: pip install 'semel[prometheus]'"
    ) from error

_MODES: Final[dict[str, Any]] = {
    "depth": "mostrecent",
    "left_alone": "mostrecent",
    "store.up": "mostrecent",
    "breaker.open": "livemax",
    "maintenance.leader": "livemax",
}
"""How the gauges of several processes become one; only the leader knows the depths."""

_known: WeakKeyDictionary[CollectorRegistry, dict[str, Any]] = WeakKeyDictionary()
"""The collectors of each registry: it takes each name once, and several guards share it."""


class Prometheus:
    """Keeps the metrics of one guard, or of several, in ``registry``.

    ``tenants``: see `semel.telemetry.metrics.tenants_by`.
    """

    inline = True

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        tenants: Collection[str] | int | None = None,
    ) -> None:
        registry = REGISTRY if registry is None else registry
        self._tenants = tenants_by(tenants)
        self._collectors = _known.get(registry) or _registered(registry)
        self._children: dict[tuple[str, Labels], Any] = {}

    def __call__(self, event: Event) -> None:
        for measure, labels, value in updates(event, self._tenants):
            if measure.kind == "gauge":
                self._set(measure, labels, value)
                continue
            child = self._children.get((measure.name, labels)) or self._child(measure, labels)
            if measure.kind == "counter":
                child.inc(value)
            else:
                child.observe(value)

    def _set(self, measure: Measure, labels: Labels, value: float | None) -> None:
        """Set or remove a gauge; not cached, since another `Prometheus` may have removed it."""
        collector = self._collectors[measure.name]
        if value is not None:
            (collector.labels(*labels) if labels else collector).set(value)
        elif not any(name.upper() == "PROMETHEUS_MULTIPROC_DIR" for name in os.environ):
            collector.remove(*labels)  # with several processes the latest value of any stands

    def _child(self, measure: Measure, labels: Labels) -> Any:
        collector = self._collectors[measure.name]
        child = collector.labels(*labels) if labels else collector
        self._children[measure.name, labels] = child
        return child


def _registered(registry: CollectorRegistry) -> dict[str, Any]:
    collectors = {
        measure.name: _collector(short, measure, registry) for short, measure in MEASURES.items()
    }
    _known[registry] = collectors
    return collectors


def _collector(short: str, measure: Measure, registry: CollectorRegistry) -> Any:
    said = (measure.prometheus, measure.help, measure.labels)
    match measure.kind:
        case "counter":
            return Counter(*said, registry=registry)
        case "gauge":
            return Gauge(*said, registry=registry, multiprocess_mode=_MODES[short])
        case "histogram":
            return Histogram(*said, registry=registry, buckets=BUCKETS)
