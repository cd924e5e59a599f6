"""One event for every keyed request, in both colours: what it came to, and what took how long."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

import semel
from semel.core.operations.requests import Claim, Release
from semel.runtime.events import CATALOGUE, Event
from semel.stores.memory import MemoryBackend
from tests.ears import Ear
from tests.web.colours import Handle, Said, driver
from tests.web.conftest import MakeGuard, Serve
from tests.web.drive import KEY, Ask, Driver
from tests.web.faults import FaultyBackend

MINUTE = 60_000_000


class Shop:
    """A guarded application that answers as told, and who hears of it."""

    def __init__(self, colour: str, make_guard: MakeGuard, runner: asyncio.Runner) -> None:
        self._colour = colour
        self._make_guard = make_guard
        self._runner = runner
        self.ear = Ear()
        self.says: Handle = lambda: Said(b"done", 201)

    def open(self, store: Any = "memory://", **options: Any) -> Driver:
        self.guard = self._make_guard(store, on_event=self.ear, **options)
        return driver(self._colour, self.guard, lambda: self.says(), self._runner)

    def outcomes(self) -> list[tuple[object, object]]:
        return [(event["outcome"], event["reserved"]) for event in self.ear.all("exchange")]

    def raise_(self, error: BaseException) -> None:
        def says() -> Said:
            raise error

        self.says = says


@pytest.fixture
def shop(colour: str, make_guard: MakeGuard, runner: asyncio.Runner) -> Shop:
    return Shop(colour, make_guard, runner)


def test_a_first_request_and_its_replay(shop: Shop) -> None:
    send = shop.open(tenant=lambda request: "ann", routes=[semel.Route("POST", "/x", semel.ietf())])
    assert [send().status, send().status] == [201, 201]
    first, again = shop.ear.all("exchange")
    assert shop.outcomes() == [("executed", "created"), ("replayed", "replay")]
    same = {"route": "POST /x", "method": "POST", "policy": "ietf", "tenant": "ann", "by": "client"}
    for event in (first, again):
        assert {name: event[name] for name in same} == same
        assert event["status"] == 201
        assert event["key"] == "8e03...(36)"
        assert KEY not in str(dict(event.fields))
        assert not event["lost_fence"]
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert (first["store_operations"], again["store_operations"]) == (4, 1)  # two enrol the route
    assert first["identity"] == again["identity"]


def test_its_time_is_told_by_what_it_was_spent_on(shop: Shop) -> None:
    send = shop.open()
    send()
    send()
    first, again = shop.ear.all("exchange")
    for event in (first, again):
        parts = [event[f"{part}_seconds"] or 0.0 for part in ("store", "handler", "waiting")]
        assert 0 < sum(map(float, parts)) <= float(event["seconds"] or 0)
    assert float(first["handler_seconds"] or 0) > 0
    assert again["handler_seconds"] is None


def test_every_field_is_told_and_none_that_is_not_in_the_catalogue(shop: Shop) -> None:
    shop.open()()
    assert {*shop.ear.one("exchange").fields} == {*CATALOGUE["exchange"].fields}


def test_misuse_and_refusals_are_told_apart(shop: Shop) -> None:
    send = shop.open(policy=semel.ietf(required=True))
    send()
    assert send(Ask(body=b'{"other": 1}')).status == 422
    assert send(Ask(key=None)).status == 400
    assert send(Ask(key="a b")).status == 400
    assert shop.outcomes()[1:] == [("mismatch", "key_misuse")]
    refusals = shop.ear.all("refusal")
    assert [event["code"] for event in refusals] == ["missing-key", "malformed-key"]
    assert {event["status"] for event in refusals} == {400}


def test_a_body_that_cannot_be_taken_is_a_refusal(shop: Shop) -> None:
    send = shop.open(policy=semel.ietf(max_request_body=4))
    assert send(Ask(body=b"12345")).status == 413
    refusal = shop.ear.one("refusal")
    assert (refusal["code"], refusal["status"], refusal["route"]) == ("body-too-large", 413, "*")
    assert shop.outcomes() == []


def test_a_request_after_a_failed_one_is_a_retry(shop: Shop) -> None:
    shop.says = lambda: Said(b"no", 503)
    send = shop.open()
    send()
    shop.says = lambda: Said(b"yes", 200)
    send()
    assert shop.outcomes() == [("released", "created"), ("executed", "failed_retry")]


def test_an_outcome_nobody_knows_is_in_doubt_once(shop: Shop) -> None:
    shop.raise_(semel.OutcomeUnknown("no answer"))
    send = shop.open()
    send()
    send()
    assert shop.outcomes() == [("suspended", "created"), ("unknown", "unknown")]
    assert shop.ear.one("doubt")["why"] == "suspended"


def test_a_lease_that_was_past_is_counted_by_who_finds_it(shop: Shop) -> None:
    now = [MINUTE]
    backend = FaultyBackend(MemoryBackend(clock=lambda: now[0]))
    send = shop.open(backend, maintenance=None)
    backend.fail(Claim, mishap="lost", times=1)
    backend.fail(Release)
    assert send().status == 503  # held by nobody, and cannot be taken back
    now[0] += 20 * MINUTE
    assert send().status == 409
    assert shop.ear.one("lapse")["by"] == "request"
    assert shop.ear.one("doubt")["why"] == "lapsed"


def test_a_store_that_fails_is_told_with_each_operation_and_logged_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FaultyBackend()
    send = shop.open(backend)
    backend.fail(Claim, times=1)
    with caplog.at_level(logging.INFO, "semel"):
        assert send().status == 503
    assert shop.outcomes() == [("store_error", None)]
    failed = [event for event in shop.ear.all("store.error") if event["during"] == "exchange"]
    assert [event["operation"] for event in failed] == ["Claim"]
    lines = [each for each in caplog.records if "store_error" in each.getMessage()]
    assert [line.levelname for line in lines] == ["ERROR"]
    assert vars(lines[0])["semel_outcome"] == "store_error"
    assert vars(lines[0])["semel_route"] == "*"


def test_no_line_of_the_log_names_a_tenant(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    backend = FaultyBackend()
    send = shop.open(backend, tenant=lambda request: "Ann Example")
    backend.fail(Claim, times=1)
    assert send().status == 503
    assert shop.ear.one("exchange")["tenant"] == "Ann Example"
    assert "exchange" in {vars(record).get("semel_event") for record in caplog.records}
    assert "Ann Example" not in str([vars(record) for record in caplog.records])


def test_answers_from_memory_are_told_to_be(shop: Shop) -> None:
    send = shop.open(replay_cache=timedelta(seconds=60))
    for _ in range(3):
        send()
    assert [event["from_memory"] for event in shop.ear.all("exchange")] == [False, False, True]
    assert shop.outcomes()[2] == ("replayed", "replay")


def test_an_operators_function_that_fails_is_loud(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    def tenant(request: semel.Request) -> str:
        raise TypeError("no such user")

    assert shop.open(tenant=tenant)().status == 500
    assert shop.ear.one("refusal")["code"] == "misconfigured"
    assert "no such user" in caplog.text


def test_a_functions_run_is_told_like_a_requests(make_guard: MakeGuard) -> None:
    ear = Ear()
    guard = make_guard(on_event=ear)
    for _ in range(2):
        guard.once("the-key-of-an-invoice", lambda: 7, name="invoice")
    assert [event["outcome"] for event in ear.all("exchange")] == ["executed", "replayed"]
    assert {(event["by"], event["route"]) for event in ear.all("exchange")} == {
        ("once", "once invoice")
    }


def test_with_nobody_listening_a_good_request_says_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    send = serve(lambda: Said(b"x"))
    with caplog.at_level(logging.DEBUG, "semel"):
        assert (send().status, send().status) == (200, 200)
    assert caplog.records == []


def test_a_subscriber_that_raises_does_not_change_an_answer(serve: Serve) -> None:
    class Broken:
        inline = True

        def __call__(self, event: Event) -> None:
            raise SystemError("of the subscriber")

    send = serve(lambda: Said(b"x"), on_event=Broken())
    assert (send().status, send().replayed) == (200, True)


def test_a_handler_that_ends_after_its_lease_is_told_to_have_lost_its_fence(
    make_guard: MakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    now, ear = [MINUTE], Ear()
    backend = MemoryBackend(clock=lambda: now[0])
    policy = semel.ietf(effects="none", after_lapse="release")
    guard = make_guard(backend, on_event=ear, policy=policy, maintenance=None)
    key = "a-key-that-two-hold"

    def outlived() -> str:
        now[0] += 20 * MINUTE
        assert guard.once(key, lambda: "second", name="n").value == "second"
        return "first"

    assert guard.once(key, outlived, name="n").value == "second"
    assert [event["lost_fence"] for event in ear.all("exchange")] == [False, True]
    assert ear.one("fence.lost")["route"] == "once n"
    assert "ended after its lease was lost" in caplog.text
