"""Metrics: the same in Prometheus and in OpenTelemetry, bounded, and without secrets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import semel
from semel.runtime.events import CATALOGUE, Event, Events
from semel.telemetry.metrics import BUCKETS, MEASURES, PREFIX, tenants_by, updates
from semel.telemetry.opentelemetry import OpenTelemetry
from semel.telemetry.prometheus import Prometheus

KEY = "a-key-that-nobody-may-read"

FOUNDING = """
reserve.created reserve.replay reserve.in_progress reserve.key_misuse reserve.failed_retry
reserve.unknown store.error zombie_key ttl_pruned reconcile.scheduled reconcile.resolved
reconcile.failed
"""

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]

SAMPLE: dict[str, Any] = {
    "outcome": "executed",
    "reserved": "created",
    "tenant": "ann",
    "lost_fence": True,
    "from_memory": True,
    "up": True,
    "circuit": "open",
    "leading": True,
    "came": "settled",
    "count": 3,
}


def events() -> Iterator[Event]:
    """One of every kind, with something in every field."""
    for name, kind in CATALOGUE.items():
        numbers = dict.fromkeys(kind.fields, 2)
        yield Event(name, {**numbers, **{f: SAMPLE[f] for f in kind.fields if f in SAMPLE}})
    for reserved in ("replay", "in_progress", "key_misuse", "failed_retry", "unknown", "expired"):
        fields = dict.fromkeys(CATALOGUE["exchange"].fields, 1)
        yield Event("exchange", {**fields, "reserved": reserved, "tenant": "ann"})
    yield Event("reconcile", {**dict.fromkeys(CATALOGUE["reconcile"].fields), "came": "undecided"})


def in_prometheus(registry: CollectorRegistry) -> Numbers:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
        or sample.name == "api_idempotency_reserve_created"
    }


def in_opentelemetry(reader: InMemoryMetricReader) -> Numbers:
    """As OpenTelemetry's exporter for Prometheus names them."""
    data: Any = reader.get_metrics_data()
    names = {measure.name: measure for measure in MEASURES.values()}
    found: Numbers = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        name = names[metric.name].prometheus
        for point in metric.data.data_points:
            labels = tuple(sorted(point.attributes.items()))
            if names[metric.name].kind == "histogram":
                found[f"{name}_sum", labels] = point.sum
                found[f"{name}_count", labels] = point.count
            else:
                found[name, labels] = point.value
    return found


def test_the_founding_twelve_are_there() -> None:
    assert {*FOUNDING.split()} <= {*MEASURES}
    assert len(FOUNDING.split()) == 12
    assert all(MEASURES[name].name == PREFIX + name for name in MEASURES)


def test_every_measure_is_fed_by_some_event_with_its_own_labels() -> None:
    fed = set()
    for event in events():
        for measure, labels, value in updates(event, tenants_by(None)):
            assert len(labels) == len(measure.labels), measure
            assert value is None or value >= 0
            fed.add(measure.name)
    assert fed == {measure.name for measure in MEASURES.values()}


def test_both_kinds_have_the_same_names_labels_and_numbers() -> None:
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("semel")
    hub = Events([Prometheus(registry), OpenTelemetry(meter)])
    for event in events():
        fields: Any = dict(event.fields)
        hub.emit(event.name, level=0, **fields)
    prometheus, otel = in_prometheus(registry), in_opentelemetry(reader)
    for (name, labels), value in otel.items():
        assert prometheus[name, labels] == pytest.approx(value), (name, labels)
    assert len(otel) > len(MEASURES)
    assert {name for name, _ in prometheus} - {name for name, _ in otel} == set()


def test_opentelemetry_is_advised_of_the_same_buckets() -> None:
    reader = InMemoryMetricReader()
    hub = Events(OpenTelemetry(MeterProvider([reader]).get_meter("semel")))
    fields: Any = dict.fromkeys(CATALOGUE["maintenance"].fields, 1)
    hub.emit("maintenance", level=0, **fields)
    data: Any = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    (histogram,) = [each for each in metrics if each.name.endswith("maintenance.duration")]
    assert histogram.data.data_points[0].explicit_bounds == BUCKETS


def test_several_guards_share_a_registry() -> None:
    registry = CollectorRegistry()
    for _ in range(2):
        guard = semel.Guard("memory://", tenant=None, on_event=Prometheus(registry))
        guard.once(KEY, lambda: 1, name="n")
        guard.close()
    created = registry.get_sample_value(
        "api_idempotency_reserve_created_total",
        {"route": "once n", "policy": "ietf", "tenant": ""},
    )
    assert created == 2


def test_a_registry_holds_no_key_and_no_tenant_unless_told() -> None:
    registry = CollectorRegistry()
    guard = semel.Guard("memory://", tenant=lambda request: "x", on_event=Prometheus(registry))
    guard.once(KEY, lambda: 1, name="n", tenant="a-tenants-token")
    guard.close()
    text = generate_latest(registry).decode()
    assert KEY not in text
    assert KEY[:8] not in text
    assert "a-tenants-token" not in text


# ── tenants ───────────────────────────────────────────────────────────────────────────────────────


def test_listed_tenants_are_told_by_name_and_all_others_together() -> None:
    named = tenants_by(["ann", "bob"])
    assert [named(each) for each in ("ann", "bob", "eve", "")] == ["ann", "bob", "other", "other"]


def test_groups_of_tenants_are_bounded_stable_and_tell_no_name() -> None:
    grouped = tenants_by(16)
    groups = {grouped(f"tenant-{number}") for number in range(1000)}
    assert len(groups) == 16
    assert all(len(group) == 4 for group in groups)
    assert grouped("tenant-1") == tenants_by(16)("tenant-1")


@pytest.mark.parametrize("wrong", [0, 1000, "ann", 1.5, True])
def test_other_ways_to_tell_tenants_are_refused(wrong: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match="tenants="):
        tenants_by(wrong)


# ── spans ─────────────────────────────────────────────────────────────────────────────────────────


def spans(act: Callable[[], object], **options: Any) -> dict[str, Any]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("request"):
        act()
    (span,) = exporter.get_finished_spans()
    return dict(span.attributes or {})


@pytest.mark.parametrize("on", [True, False])
def test_the_current_span_is_told_what_came_of_the_request(on: bool) -> None:
    meter = MeterProvider().get_meter("semel")
    guard = semel.Guard("memory://", tenant=None, on_event=OpenTelemetry(meter, spans=on))
    told = [spans(lambda: guard.once(KEY, lambda: 1, name="n")) for _ in range(2)]
    guard.close()
    if not on:
        assert told == [{}, {}]
        return
    assert [each["semel.outcome"] for each in told] == ["executed", "replayed"]
    assert [each["semel.replayed"] for each in told] == [False, True]
    assert KEY not in str(told)
    assert KEY[:4] not in str(told)


# ── what is not installed ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry", "otel")],
)
def test_without_its_extra_one_sentence_says_what_to_install(
    module: str, package: str, extra: str
) -> None:
    script = f"import sys; sys.modules[{package!r}] = None\nimport semel.telemetry.{module}"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("semel.errors.ConfigurationError:")
    assert f"pip install 'semel[{extra}]'" in last
