"""Metrics and span attributes for OpenTelemetry: ``Guard(..., on_event=OpenTelemetry())``.

Needs the extra ``otel``, which is the API alone. The SDK that the application has set up exports
the numbers; without one they go nowhere.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.runtime.events import Event
from semel.telemetry.metrics import BUCKETS, MEASURES, Measure, tenants_by, updates

try:
    from opentelemetry import trace
    from opentelemetry.metrics import Meter, get_meter
except ImportError as error:
    raise ConfigurationError("metrics for OpenTelemetry need: pip install 'semel[otel]'") from error

_ON_SPANS: Final = ("outcome", "replayed", "route", "policy", "lost_fence", "from_memory")
"""Fields of an exchange that become attributes of the current span, after ``semel.``."""


class OpenTelemetry:
    """Counts with ``meter``, or the global provider's, and sets attributes of the current span.

    ``tenants``: see `semel.telemetry.metrics.tenants_by`. ``spans=False`` leaves spans alone.
    """

    inline = True  # the current span is that of the request only while it is answered

    def __init__(
        self,
        meter: Meter | None = None,
        *,
        tenants: Collection[str] | int | None = None,
        spans: bool = True,
    ) -> None:
        meter = get_meter("semel") if meter is None else meter
        self._tenants = tenants_by(tenants)
        self._spans = spans
        self._instruments = {each.name: _instrument(meter, each) for each in MEASURES.values()}

    def __call__(self, event: Event) -> None:
        for measure, labels, value in updates(event, self._tenants):
            if value is None:
                continue  # a gauge that is not set again is not exported again
            attributes = dict(zip(measure.labels, labels, strict=True))
            self._instruments[measure.name](value, attributes)
        if not self._spans or event.name != "exchange":
            return
        span = trace.get_current_span()
        if span.is_recording():
            known = ((name, event.get(name)) for name in _ON_SPANS)
            span.set_attributes({f"semel.{name}": each for name, each in known if each is not None})


def _instrument(meter: Meter, measure: Measure) -> Any:
    said = (measure.name, measure.unit, measure.help)
    match measure.kind:
        case "counter":
            return meter.create_counter(*said).add
        case "gauge":
            return meter.create_gauge(*said).set
        case "histogram":
            advised = list(BUCKETS)
            return meter.create_histogram(*said, explicit_bucket_boundaries_advisory=advised).record
