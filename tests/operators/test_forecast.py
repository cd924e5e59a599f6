"""What a retry would get now, beside what a retry then gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

import semel
from semel.core.policy import Policy, accepted, ietf
from semel.core.records import Identity
from semel.core.unknown.evidence import CannotTell
from semel.operators.forecast import Forecast, Forecasts, forecast
from semel.operators.operator import KeyAddress, Operator
from tests.scene import DAY, MINUTE, Scene

KEY = "0123456789abcdef-forecast"


class Shop:
    """An application behind a guard on a store, with what its handler is to do next."""

    def __init__(self, scene: Scene, policy: Policy) -> None:
        self.scene = scene
        scene.guard.policy = policy
        self.operator = Operator(scene.guard)
        self.handle: Callable[[], bytes] = lambda: b"made"
        self.runs = 0
        self.client = Client(scene.guard.wsgi(self._application))

    def _application(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        self.runs += 1
        body = self.handle()
        start("201 Created", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    def send(self, payload: object = "first") -> TestResponse:
        return self.client.post("/payments", json={"of": payload}, headers={"Idempotency-Key": KEY})

    def foreseen(self) -> Forecasts:
        found = self.operator.find(KeyAddress("", "POST", "/payments", KEY))
        assert found is not None
        told = forecast(self.operator, found.case, found.now)
        again = self.operator.find(found.case.record.identity)
        assert again is not None
        assert again.case == found.case, "a forecast changes nothing"
        assert told is not None
        return told

    def proves(self) -> Forecasts:
        """Send both requests, and compare what they get with what was foreseen."""
        told = self.foreseen()
        self._compare(told.other, "another")
        self._compare(told.same, "first")
        return told

    def _compare(self, told: Forecast, payload: str) -> None:
        before = self.runs
        answer = self.send(payload)
        assert told.runs == (self.runs > before), (told, answer.status, answer.data)
        if told.runs:
            return
        assert told.status == answer.status_code, (told, answer.data)
        said = json.loads(answer.data) if "problem" in answer.content_type else {}
        assert told.code == said.get("code")
        assert told.retryable == said.get("retryable")
        after = answer.headers.get("retry-after")
        assert told.retry_after == (None if after is None else int(after))


def failing(error: Exception) -> Callable[[], bytes]:
    def handle() -> bytes:
        raise error

    return handle


def test_of_a_completed_record(scene: Scene) -> None:
    shop = Shop(scene, ietf())
    shop.send()
    told = shop.proves()
    assert (told.same.status, told.same.code) == (201, None)
    assert (told.other.status, told.other.code) == (422, "key-reused")
    assert told.as_promised


def test_of_one_whose_time_is_over(scene: Scene) -> None:
    shop = Shop(scene, ietf(tombstone=timedelta(0)))
    shop.send()
    scene.travel(2 * DAY)
    told = shop.foreseen()
    assert told.same.runs
    assert told.other.runs
    shop.send("another")
    assert shop.runs == 2


def test_of_an_expired_one(scene: Scene) -> None:
    shop = Shop(scene, ietf(tombstone=timedelta(days=7)))
    shop.send()
    scene.travel(2 * DAY)
    assert shop.proves().same.code == "key-expired"


@pytest.mark.parametrize("asked", [False, True])
def test_of_an_unknown_one(scene: Scene, asked: bool) -> None:
    probe = (lambda _: CannotTell("down")) if asked else None
    shop = Shop(scene, ietf(probe=probe))
    shop.handle = failing(semel.OutcomeUnknown("cut off"))
    assert shop.send().status_code == 500
    told = shop.proves()
    assert (told.same.code, told.same.retryable) == ("outcome-unknown", asked)


def test_of_one_that_failed_without_effect(scene: Scene) -> None:
    shop = Shop(scene, ietf())
    shop.handle = failing(semel.NotExecuted("not now"))
    assert shop.send().status_code == 503
    shop.handle = lambda: b"made"
    told = shop.proves()
    assert told.same.runs
    assert told.other.code == "key-reused"


def test_of_one_that_runs_and_of_one_whose_lease_has_ended(scene: Scene) -> None:
    shop = Shop(scene, ietf(lease=timedelta(minutes=1)))
    seen: list[str | None] = []

    def handle() -> bytes:
        seen.append(shop.proves().same.code)
        scene.travel(2 * MINUTE)
        seen.append(shop.proves().same.code)
        return b"late"

    shop.handle = handle
    shop.send()
    assert seen == ["in-flight", "outcome-unknown"]


def test_of_an_operation_that_goes_on(quick: Scene) -> None:
    quick.guard.policy = policy = ietf(mode="resumable")
    identity = quick.held("booked", request=b"", policy=policy)
    quick.travel(2 * MINUTE)
    told = foreseen_of(quick, identity)
    assert told.same.runs
    assert told.same.goes_on == ("booked",)


def test_of_a_deferred_one(quick: Scene) -> None:
    quick.guard.policy = policy = accepted(mode="deferred", required=True)
    told = foreseen_of(quick, quick.held(policy=policy))
    assert (told.same.status, told.same.code) == (202, None)


def test_one_that_would_wait_says_how_long(quick: Scene) -> None:
    policy = ietf(in_flight="wait", wait=timedelta(seconds=7))
    quick.guard.policy = policy
    told = foreseen_of(quick, quick.held(policy=policy))
    assert (told.same.code, told.same.waits) == ("in-flight", 7_000_000)


def test_a_route_that_was_changed_since_is_told(quick: Scene) -> None:
    identity = quick.completed()
    quick.guard.policy = ietf(retention=timedelta(days=3))
    assert not foreseen_of(quick, identity).as_promised


def test_nothing_is_foreseen_of_a_route_that_is_not_known(quick: Scene) -> None:
    found = quick.recalled(quick.completed(route="POST /elsewhere"))
    assert forecast(Operator(quick.guard), found.case, found.now) is None


def foreseen_of(scene: Scene, identity: Identity) -> Forecasts:
    found = scene.recalled(identity)
    told = forecast(Operator(scene.guard), found.case, found.now)
    assert told is not None
    return told
