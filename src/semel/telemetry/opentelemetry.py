"""Metrics and span attributes for OpenTelemetry: ``Guard(..., on_event=OpenTelemetry())``.

Needs the extra ``otel``, which is the API alone. The SDK that the application has set up exports
the numbers; without one they go nowhere.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.runtime.events import Event
from semel.telemetry.metrics import BUCKETS, MEASURES, Measure, tenants_by, updates

try:
    from opentelemetry import trace
    from opentelemetry.metrics import Meter, get_meter
    from opentelemetry.trace import Tracer
except ImportError as error:
    raise ConfigurationError("metrics for OpenTelemetry need: pip install 'semel[otel]'") from error

_ON_SPANS: Final = {
    "exchange": (
        *("identity", "outcome", "replayed", "route", "policy", "lost_fence", "from_memory"),
    ),
    "reconcile": ("identity", "came", "state", "by"),
    "run": ("identity", "came"),
    "delivery": ("effect", "ending", "tries"),
}
"""By event, the fields that become attributes of the current span, after ``semel.``."""


class OpenTelemetry:
    """Counts with ``meter``, or the global provider's, and sets attributes of the current span.

    What workers do has no request, and so no span: it gets one of ``tracer``. ``tenants``: see
    `semel.telemetry.metrics.tenants_by`. ``spans=False`` leaves spans alone, and makes none.
    """

    inline = True  # the current span is that of the request only while it is answered

    def __init__(
        self,
        meter: Meter | None = None,
        *,
        tenants: Collection[str] | int | None = None,
        spans: bool = True,
        tracer: Tracer | None = None,
    ) -> None:
        meter = get_meter("semel") if meter is None else meter
        self._tenants = tenants_by(tenants)
        self._spans = spans
        self._tracer = trace.get_tracer("semel") if tracer is None else tracer
        self._instruments = {each.name: _instrument(meter, each) for each in MEASURES.values()}

    def __call__(self, event: Event) -> None:
        for measure, labels, value in updates(event, self._tenants):
            if value is None:
                continue  # a gauge that is not set again is not exported again
            attributes = dict(zip(measure.labels, labels, strict=True))
            self._instruments[measure.name](value, attributes)
        fields = _ON_SPANS.get(event.name)
        if fields is None or not self._spans:
            return
        span = trace.get_current_span()
        if span.is_recording():
            known = ((name, event.get(name)) for name in fields)
            span.set_attributes({f"semel.{name}": each for name, each in known if each is not None})

    def span_about(self, name: str, identity: str | None) -> AbstractContextManager[object]:
        """A span around a probe, a stored request or a delivery. Of what is raised it tells
        nothing: that may say anything."""
        if not self._spans:
            return nullcontext()
        return self._tracer.start_as_current_span(
            f"semel {name}",
            attributes=None if identity is None else {"semel.identity": identity},
            record_exception=False,
            set_status_on_exception=False,
        )


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
