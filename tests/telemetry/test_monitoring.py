"""The shipped alert rules and dashboard: they name what there is, and what they name is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from semel.core.delivery import DeliveryEnding
from semel.core.exchange.answers import Outcome
from semel.core.exchange.problems import CATALOGUE as PROBLEMS
from semel.runtime.events import CATALOGUE
from semel.telemetry.metrics import MEASURES, Measure
from tests.docs.pages import page
from tests.servers import AppServer, uvicorn
from tests.telemetry.promql import NotPromql, Query, read
from tests.waiting import until
from tests.web.client import Client, new_key

MONITORING = files("semel.telemetry") / "monitoring"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    *((rule["alert"], rule["expr"]) for rule in RULES),
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
]

VALUES: dict[str, set[str]] = {
    "outcome": {*Outcome},
    "ending": {*DeliveryEnding},
    "code": {*PROBLEMS},
    "of": {*CATALOGUE["depths"].fields},
    "came": {"renewed", "lost", "overrun"},
}
"""What labels that are compared with a word may say."""


def measured(metric: str) -> tuple[Measure, set[str]]:
    """The measure behind a name in Prometheus, and the labels it has there."""
    for measure in MEASURES.values():
        name = measure.prometheus
        if metric == name and measure.kind != "histogram":
            return measure, {*measure.labels}
        if measure.kind == "histogram" and metric in (f"{name}_sum", f"{name}_count"):
            return measure, {*measure.labels}
        if measure.kind == "histogram" and metric == f"{name}_bucket":
            return measure, {*measure.labels, "le"}
    raise AssertionError(f"there is no metric {metric}")


def words(matcher: str) -> set[str]:
    return set() if "$" in matcher else {*matcher.split("|")}


@pytest.mark.parametrize(("title", "text"), QUERIES)
def test_a_query_can_be_read_and_names_metrics_labels_and_values_there_are(
    title: str, text: str
) -> None:
    query: Query = read(text)
    assert query.selectors
    for selector in query.selectors:
        measure, labels = measured(selector.metric)
        assert {label for label, _, _ in selector.matchers} <= labels
        for label, _, said in selector.matchers:
            assert words(said) <= VALUES.get(label, set()), (label, said)
        # A counter alone only grows: what it says is how fast, or that it was not there before.
        born = f"unless {selector.metric}" in text
        assert selector.ranged or measure.kind == "gauge" or born, selector
        if selector.ranged and measure.kind == "gauge":
            assert "_over_time" in text
    shared = set.intersection(*(measured(each.metric)[1] for each in query.selectors))
    for group in query.grouped_by:
        assert {*group} <= shared, group


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(rate(a[5m])",
        "rate(a)",
        "sum(a[5m])",
        "a[5m]",
        "a{b='c'}",
        "a{b=c}",
        "a >",
        "> 3",
        "guess(a)",
        "sum by tenant (a)",
        "a[5x]",
        "a b",
        "",
    ],
)
def test_what_is_no_promql_is_refused(wrong: str) -> None:
    with pytest.raises(NotPromql):
        read(wrong)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_a_rule_is_complete_and_explained(rule: dict[str, Any]) -> None:
    assert {*rule} <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    assert rule["annotations"]["summary"].endswith(".")
    where, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor in page(where).anchors
    grouped = {label for group in read(rule["expr"]).grouped_by for label in group}
    used = {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])}
    assert used <= grouped


def test_every_rule_has_a_section_and_no_section_is_left_over() -> None:
    _, *sections = page("docs/howto/operations/alerts.md").headings
    assert sections == [rule["alert"] for rule in RULES]


def test_an_absent_counter_silences_no_sum() -> None:
    """What was never counted is absent, and absent plus something is absent in PromQL."""
    for rule in RULES:
        added = re.findall(r"(\S+\)+)\s*\+\s*(\S+)", rule["expr"])
        for left, right in added:
            both_sides_of_numbers = re.match(r"[\d.]+$", right)
            assert both_sides_of_numbers or left.endswith("vector(0))"), rule["alert"]


# ── the dashboard ─────────────────────────────────────────────────────────────────────────────────


def test_the_dashboard_can_be_laid_out() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len({*ids}) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        spot = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(spot["x"], spot["x"] + spot["w"])
            for y in range(spot["y"], spot["y"] + spot["h"])
        }
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_panel_has_a_source_a_unit_and_queries_of_its_own() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert {each["name"] for each in DASHBOARD["templating"]["list"]} == {"datasource", "route"}
    for panel in PANELS:
        assert panel["type"] in ("timeseries", "stat")
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted({*letters})
        shown = {*re.findall(r"{{(\w+)}}", " ".join(t["legendFormat"] for t in panel["targets"]))}
        asked = {
            label
            for target in panel["targets"]
            for group in read(target["expr"]).grouped_by
            for label in group
        }
        assert shown <= asked, panel["title"]


def test_the_dashboard_shows_every_metric() -> None:
    shown = {
        measured(selector.metric)[0].name
        for panel in PANELS
        for target in panel["targets"]
        for selector in read(target["expr"]).selectors
    }
    assert shown == {measure.name for measure in MEASURES.values()}


# ── under load ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppServer]:
    store = f"sqlite:///{tmp_path_factory.mktemp('store')}/semel.db"
    with uvicorn("tests.telemetry.served_metrics:app", env={"SEMEL_TEST_STORE": store}) as started:
        yield started


@pytest.fixture(scope="module")
def scraped(server: AppServer) -> dict[str, list[dict[str, str]]]:
    """Names and labels of what an application tells that has seen everything go wrong."""
    client, key = Client(server.url), new_key()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: client.post("/pay", new_key(), x_tenant="ann"), range(40)))
        list(pool.map(lambda _: client.post("/pay", key, x_tenant="ann"), range(10)))
        first = pool.submit(client.post, "/slow", key, x_tenant="eve")
        until(lambda: client.post("/begun", None).body == b"1")
        until(lambda: client.post("/slow", key, x_tenant="eve").status == 201)
        first.result()
    assert client.post("/pay", key, x_tenant="ann").replayed
    client.post("/pay", key, b'{"other": 1}', x_tenant="eve-of-secrets")
    client.post("/pay", key, b'{"other": 1}', x_tenant="ann")
    for path in ("/fail", "/fail", "/doubt", "/doubt"):
        client.post(path, key, x_tenant="ann")
    client.post("/doubt", new_key(), x_tenant="ann")
    client.post("/pay", key)  # no tenant: the application's own function fails
    assert client.post("/work", None).status == 200
    client.post("/break", None)
    assert client.post("/pay", new_key(), x_tenant="ann").status == 503
    with urllib.request.urlopen(f"{server.url}/metrics/") as answer:
        text = answer.read().decode()
    assert key not in text
    assert "eve-of-secrets" not in text
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_what_a_rule_watches_is_there(
    rule: dict[str, Any], scraped: dict[str, list[dict[str, str]]]
) -> None:
    for selector in read(rule["expr"]).selectors:
        assert selector.metric in scraped, selector
        _, labels = measured(selector.metric)
        assert all({*sample} == labels for sample in scraped[selector.metric])


def test_tenants_are_told_as_far_as_they_are_listed(
    scraped: dict[str, list[dict[str, str]]],
) -> None:
    samples = scraped["api_idempotency_reserve_created_total"]
    assert {sample["tenant"] for sample in samples} == {"ann", "other"}


# ── several processes ─────────────────────────────────────────────────────────────────────────────

SEVERAL = """
import os
import semel
from semel.telemetry.prometheus import Prometheus
from prometheus_client import CollectorRegistry, multiprocess

guard = semel.Guard("memory://", tenant=None, on_event=Prometheus(), maintenance=None)
for number in range(3):
    if not os.fork():
        guard.once("a-key-of-process-%d" % number, lambda: 1, name="n")
        guard.events.emit("depths", pending=number, unknown=None)
        guard.health()
        os._exit(0)
    os.wait()
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
labels = {"route": "once n", "policy": "ietf", "tenant": ""}
print(registry.get_sample_value("api_idempotency_reserve_created_total", labels))
print(registry.get_sample_value("api_idempotency_depth", {"of": "pending"}))
print(registry.get_sample_value("api_idempotency_store_up", {}))
"""


def test_processes_are_added_up_and_the_latest_depth_stands(tmp_path: Path) -> None:
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", SEVERAL], env=env, capture_output=True, text=True)
    assert ran.stdout.split() == ["3.0", "2.0", "1.0"], ran.stderr
