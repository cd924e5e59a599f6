"""Traces: every span about a key carries the digits that the console's link searches for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import semel
from semel.core.operations.outbox import Enqueue
from semel.core.unknown.evidence import CannotTell, Happened
from semel.operators.operator import KeyAddress
from semel.telemetry.opentelemetry import OpenTelemetry
from semel.worker.deliveries import Deliveries
from semel.worker.reconciler import Reconciler
from semel.worker.stored_runs import StoredRuns

KEY = "a-key-that-nobody-may-read"
AT_ONCE = timedelta(milliseconds=1)


class Traced:
    """An application whose spans are kept: its server makes one for each request."""

    def __init__(self, **options: Any) -> None:
        self.exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        meter = MeterProvider().get_meter("semel")
        self.told = OpenTelemetry(meter, tracer=provider.get_tracer("semel"), **options)
        doubtful = semel.ietf(probe=self.ask, reconcile_after=AT_ONCE)
        routes = [
            semel.Route("POST", "/pay", doubtful),
            semel.Route("POST", "/export", semel.accepted(mode="deferred", required=True)),
        ]
        store: dict[str, Any] = {"maintenance": None, "routes": routes, "on_event": self.told}
        self.guard = semel.Guard("memory://", tenant=None, **store)
        self.guard.delivers("mail")(self.deliver)
        paths = [Route("/pay", self.pay, methods=["POST"])]
        paths += [Route("/export", self.export, methods=["POST"])]
        self.app = self.guard.asgi(Starlette(routes=paths))
        self.knows = False

    async def pay(self, request: Request) -> Response:
        raise semel.OutcomeUnknown("the provider did not answer")

    async def export(self, request: Request) -> Response:
        return JSONResponse({"rows": 7})

    def ask(self, inquiry: Any) -> Happened | CannotTell:
        with self.tracer.start_as_current_span("GET provider"):
            return Happened(provider_id="ch_7") if self.knows else CannotTell("not yet")

    def deliver(self, delivery: Any) -> None:
        with self.tracer.start_as_current_span("send mail"):
            pass

    async def send(self, path: str) -> int:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            with self.tracer.start_as_current_span(f"POST {path}"):
                headers = {"Idempotency-Key": KEY}
                return (await client.post(path, json={}, headers=headers)).status_code

    def identity(self, path: str) -> Any:
        found = self.guard.operator().find(KeyAddress("", "POST", path, KEY))
        assert found is not None
        return found.case.record.identity

    def spans(self, about: str | None = None) -> list[ReadableSpan]:
        """Those that were ended, or only those that a search for a record finds."""
        every = self.exporter.get_finished_spans()
        return [each for each in every if about in (None, (each.attributes or {}).get(ABOUT))]


ABOUT = "semel.identity"


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.guard.close()


@pytest.mark.parametrize("by", ["worker", "operator"])
async def test_a_search_finds_requests_duplicates_and_probes_of_a_key(
    traced: Traced, by: str
) -> None:
    await traced.send("/pay")
    assert await traced.send("/pay") == 409
    identity, operator = traced.identity("/pay"), traced.guard.operator()
    await asyncio.to_thread(operator.look, identity)
    traced.knows = True
    if by == "operator":
        await asyncio.to_thread(operator.probe_now, identity, by="ann")
    else:
        reconciler = Reconciler(traced.guard, traced.app)
        while not (await reconciler.run_once()).done:
            pass  # it is due a millisecond after it was left in doubt
    await traced.send("/pay")
    found = traced.spans(identity.hex()[:16])
    names = [each.name for each in found]
    assert names == ["POST /pay", "POST /pay", "semel probe", "semel probe", "POST /pay"]
    told = [dict(each.attributes or {}) for each in found]
    outcomes = [each.get("semel.outcome") for each in told]
    assert outcomes == ["suspended", "unknown", None, None, "receipt"]
    assert (told[3]["semel.came"], told[3]["semel.by"]) == ("settled", "probe")
    probes = {each.context.span_id for each in found[2:4] if each.context}
    asked = [each for each in traced.spans() if each.name == "GET provider"]
    assert {each.parent.span_id for each in asked if each.parent} == probes, "in their traces"


async def test_a_search_finds_the_run_of_a_worker_and_its_deliveries(traced: Traced) -> None:
    assert await traced.send("/export") == 202
    await StoredRuns(traced.guard, traced.app).run_once()
    identity = traced.identity("/export")
    traced.guard.backend.blocking().perform(Enqueue("eff_1", identity, "mail", b"{}"))
    await Deliveries(traced.guard).run_once()
    found = traced.spans(identity.hex()[:16])
    assert [each.name for each in found] == ["POST /export", "semel run", "semel delivery"]
    assert (found[1].attributes or {})["semel.outcome"] == "executed"
    assert (found[2].attributes or {})["semel.ending"] == "delivered"


async def test_neither_key_nor_error_is_in_a_span(traced: Traced) -> None:
    await traced.send("/pay")
    await asyncio.to_thread(traced.guard.operator().look, traced.identity("/pay"))

    def failing(identity: Any) -> Any:
        with traced.guard.events.span("probe", identity):
            raise ValueError("the card 4242 was refused")

    with pytest.raises(ValueError, match="4242"):
        failing(traced.identity("/pay"))
    with pytest.raises(ValueError, match="4242"), traced.told.span_about("probe", None):
        raise ValueError("the card 4242 was refused")
    said = str([each.to_json() for each in traced.spans()])
    assert len(traced.spans()) == 5
    for secret in (KEY, KEY[:4], "4242"):
        assert secret not in said


async def test_without_spans_none_are_made() -> None:
    traced = Traced(spans=False)
    await traced.send("/pay")
    await asyncio.to_thread(traced.guard.operator().look, traced.identity("/pay"))
    assert {each.name for each in traced.spans()} == {"POST /pay", "GET provider"}
    assert not any(each.attributes for each in traced.spans())
    traced.guard.close()


class Broken:
    """A subscriber whose spans cannot be begun, or cannot be ended."""

    def __init__(self, at: str) -> None:
        self._at = at

    def __call__(self, event: semel.Event) -> None:
        pass

    def span_about(self, name: str, identity: str | None) -> Any:
        if self._at == "begin":
            raise RuntimeError("no tracer")
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        raise RuntimeError("no exporter")


@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_tracer_that_fails_hurts_nobody(at: str, caplog: pytest.LogCaptureFixture) -> None:
    guard = semel.Guard("memory://", tenant=None, maintenance=None, on_event=Broken(at))
    with guard.events.span("probe", b"1" * 32):
        done = guard.once(KEY, lambda: 7, name="n").value
    guard.close()
    assert done == 7
    assert "a subscriber failed" in caplog.text
