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
    **dict.fromkeys(("pool.size", "pool.in_use", "pool.waiting"), "livesum"),
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
        if registry not in _known:
            _known[registry] = {
                measure.name: _collector(name, measure, registry)
                for name, measure in MEASURES.items()
            }
        self._collectors = _known[registry]
        self._children: dict[tuple[str, Labels], Any] = {}

    def __call__(self, event: Event) -> None:
        for measure, labels, value in updates(event, self._tenants):
            if value is None:
                # With several processes the latest value of any stands.
                if not any(name.upper() == "PROMETHEUS_MULTIPROC_DIR" for name in os.environ):
                    self._collectors[measure.name].remove(*labels)
                continue
            child = self._children.get((measure.name, labels)) or self._child(measure, labels)
            match measure.kind:
                case "counter":
                    child.inc(value)
                case "histogram":
                    child.observe(value)
                case "gauge":
                    child.set(value)

    def _child(self, measure: Measure, labels: Labels) -> Any:
        """A metric with these labels; a gauge is not cached: another `Prometheus` may remove it."""
        collector = self._collectors[measure.name]
        child = collector.labels(*labels) if labels else collector
        if measure.kind != "gauge":
            self._children[measure.name, labels] = child
        return child


def _collector(name: str, measure: Measure, registry: CollectorRegistry) -> Any:
    said = (measure.prometheus, measure.help, measure.labels)
    match measure.kind:
        case "counter":
            return Counter(*said, registry=registry)
        case "gauge":
            return Gauge(*said, registry=registry, multiprocess_mode=_MODES[name])
        case "histogram":
            return Histogram(*said, registry=registry, buckets=BUCKETS)
