"""`semel.Webhook` against a real server: what is sent, and what becomes of each answer."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

import semel
from semel.core.delivery import Delivery, encode_payload
from semel.core.frozen import replace
from semel.core.operations.outbox import BrowseEffects, Enqueue, Shelf
from semel.errors import ConfigurationError, GiveUp, RetryLater
from semel.outbox.webhook import Webhook, WebhookRefused
from semel.stores.memory import MemoryBackend
from semel.worker.deliveries import Deliveries
from tests.outbox.receiver import Receiver, Reply, fits
from tests.waiting import PATIENCE, Ahead, auntil

SECRET = "whsec_" + base64.b64encode(b"a secret of quite enough bytes").decode()
OLD = "whsec_" + base64.b64encode(b"the secret that was used before").decode()
CREATED = datetime(2026, 5, 4, 3, 2, 1, 500_000, UTC)
DELIVERY = Delivery("semel_1f2e", "order.paid", {"amount": "9,99 €"}, None, 1, CREATED, None)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server


# ── what is sent ──────────────────────────────────────────────────────────────────────────────────


async def test_it_posts_a_signed_cloudevent_with_the_downstream_key(receiver: Receiver) -> None:
    await Webhook(f"{receiver.url}/in?x=1", secret=SECRET, source="https://shop.example")(DELIVERY)
    (received,) = receiver.received
    assert (received.method, received.path) == ("POST", "/in?x=1")
    assert received.headers["webhook-id"] == received.headers["idempotency-key"] == "semel_1f2e"
    assert received.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert abs(int(received.headers["webhook-timestamp"]) - time.time()) < 60
    assert fits(received, SECRET)
    assert not fits(received, OLD)
    assert received.event == {
        "specversion": "1.0",
        "id": "semel_1f2e",
        "source": "https://shop.example",
        "type": "order.paid",
        "time": "2026-05-04T03:02:01.500000Z",
        "datacontenttype": "application/json",
        "data": {"amount": "9,99 €"},
    }


async def test_every_secret_signs_while_they_are_exchanged(receiver: Receiver) -> None:
    await Webhook(receiver.url, secret=[SECRET, OLD])(DELIVERY)
    (received,) = receiver.received
    assert fits(received, SECRET)
    assert fits(received, OLD)


async def test_every_try_has_the_same_id_and_the_same_bytes(receiver: Receiver) -> None:
    """A receiver that compares payloads by key must not see a second one."""
    clock = iter([1000.0, 2000.0])
    webhook = Webhook(receiver.url, secret=SECRET, clock=lambda: next(clock))
    await webhook(DELIVERY)
    await webhook(replace(DELIVERY, tries=2))
    first, second = receiver.received
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    assert fits(second, SECRET)


async def test_type_and_headers_can_be_chosen(receiver: Receiver) -> None:
    headers = {"Authorization": "Bearer t"}
    await Webhook(receiver.url, secret=SECRET, type="com.shop.paid", headers=headers)(DELIVERY)
    (received,) = receiver.received
    assert received.event["type"] == "com.shop.paid"
    assert received.headers["authorization"] == "Bearer t"


# ── what becomes of an answer ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_a_delivery(receiver: Receiver, status: int) -> None:
    receiver.replies.append(Reply(status))
    await Webhook(receiver.url, secret=SECRET)(DELIVERY)


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500, 502, 503, 429])
async def test_a_refusal_is_tried_again(receiver: Receiver, status: int) -> None:
    receiver.replies.append(Reply(status, body=b"not\n now"))
    with pytest.raises(WebhookRefused, match=f"127.0.0.1 answered {status}: not now"):
        await Webhook(receiver.url, secret=SECRET)(DELIVERY)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(receiver: Receiver, status: int) -> None:
    receiver.replies.append(Reply(status, {"location": f"{receiver.url}/elsewhere"}))
    with pytest.raises(WebhookRefused):
        await Webhook(receiver.url, secret=SECRET)(DELIVERY)
    assert [received.path for received in receiver.received] == ["/"]


async def test_410_gives_up(receiver: Receiver) -> None:
    receiver.replies.append(Reply(410))
    with pytest.raises(GiveUp):
        await Webhook(receiver.url, secret=SECRET)(DELIVERY)


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_heeded_in_both_forms(receiver: Receiver, status: int) -> None:
    now = 1_700_000_000.0
    date = format_datetime(datetime.fromtimestamp(now + 90, UTC), usegmt=True)
    for header in ("90", date):
        receiver.replies.append(Reply(status, {"retry-after": header}))
        with pytest.raises(RetryLater) as caught:
            await Webhook(receiver.url, secret=SECRET, clock=lambda: now)(DELIVERY)
        assert caught.value.after == timedelta(seconds=90)


@pytest.mark.parametrize("header", ["soon", "-5", "1.5", "Mon, 99 Xyz 2026 00:00:00 GMT", "٣"])
async def test_a_retry_after_that_says_nothing_is_ignored(receiver: Receiver, header: str) -> None:
    receiver.replies.append(Reply(503, {"retry-after": header.encode().decode("latin-1")}))
    with pytest.raises(WebhookRefused):
        await Webhook(receiver.url, secret=SECRET)(DELIVERY)


async def test_a_retry_after_without_end_is_bounded(receiver: Receiver) -> None:
    receiver.replies.append(Reply(503, {"retry-after": "9" * 4000}))
    with pytest.raises(RetryLater) as caught:
        await Webhook(receiver.url, secret=SECRET)(DELIVERY)
    assert caught.value.after == timedelta(days=1)


async def test_a_retry_after_on_other_answers_does_not_count(receiver: Receiver) -> None:
    receiver.replies.append(Reply(500, {"retry-after": "90"}))
    with pytest.raises(WebhookRefused):
        await Webhook(receiver.url, secret=SECRET)(DELIVERY)


async def test_a_server_that_hangs_up_or_is_not_there_is_tried_again(receiver: Receiver) -> None:
    receiver.replies.append(Reply(hang_up=True))
    with pytest.raises(OSError, match="closed"):
        await Webhook(receiver.url, secret=SECRET)(DELIVERY)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError):
            await Webhook(nobody, secret=SECRET)(DELIVERY)


@pytest.mark.parametrize("slow", [Reply(hang=True), Reply(200, drip=True)], ids=["hang", "drip"])
async def test_its_time_up_the_connection_is_cut_and_the_thread_ends(
    receiver: Receiver, slow: Reply
) -> None:
    receiver.replies.append(slow)
    before = set(threading.enumerate())
    task = asyncio.create_task(Webhook(receiver.url, secret=SECRET)(DELIVERY))
    await auntil(lambda: receiver.received)
    ours = [each for each in set(threading.enumerate()) - before if each.name == "semel-delivery"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for thread in ours:
        await asyncio.to_thread(thread.join, PATIENCE)
        assert not thread.is_alive()
    assert await asyncio.to_thread(receiver.ended.wait, PATIENCE)


# ── from the outbox ───────────────────────────────────────────────────────────────────────────────


class Shop:
    """A guard whose effects go to the receiver."""

    def __init__(self, receiver: Receiver, **options: Any) -> None:
        self.now = 1_700_000_000_000_000
        backend = MemoryBackend(clock=lambda: self.now)
        self.guard = semel.Guard(backend, tenant=None)
        self.guard.delivers("order.paid", **options)(Webhook(receiver.url, secret=SECRET))
        self.store = backend.blocking()
        self.store.perform(Enqueue("k1", None, "order.paid", encode_payload({"n": 1})))

    async def deliver(self) -> str:
        return (await Deliveries(self.guard, luck=lambda: 0.0).run_once()).note

    def keys(self, shelf: Shelf) -> list[str]:
        return [each.key for each in self.store.perform(BrowseEffects(shelf, 9)).effects]


async def test_a_refused_webhook_comes_again_with_the_same_key(receiver: Receiver) -> None:
    shop = Shop(receiver)
    receiver.replies.extend([Reply(500), Reply(200)])
    assert await shop.deliver() == "delivered 1, failed 1"
    assert [received.headers["webhook-id"] for received in receiver.received] == ["k1", "k1"]
    assert all(fits(received, SECRET) for received in receiver.received)


async def test_a_webhook_that_is_gone_is_a_dead_letter_at_once(receiver: Receiver) -> None:
    shop = Shop(receiver)
    receiver.replies.append(Reply(410))
    assert await shop.deliver() == "dead 1"
    assert shop.keys(Shelf.DEAD) == ["k1"]


async def test_it_does_not_come_again_before_it_was_asked_to(receiver: Receiver) -> None:
    shop = Shop(receiver)
    receiver.replies.append(Reply(503, {"retry-after": "60"}))
    assert await shop.deliver() == "failed 1"
    shop.now += 60_000_000 - 1
    assert await shop.deliver() == ""
    shop.now += 1
    assert await shop.deliver() == "delivered 1"


async def test_a_server_that_is_too_slow_is_tried_again(receiver: Receiver) -> None:
    shop = Shop(receiver, timeout=timedelta(hours=1))
    receiver.replies.append(Reply(hang=True))
    delivering = asyncio.create_task(shop.deliver())
    await auntil(lambda: receiver.received)
    await Ahead().forward(3600)
    assert await delivering == "delivered 1, failed 1"
    assert [received.headers["webhook-id"] for received in receiver.received] == ["k1", "k1"]


# ── wrong settings ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop.example/in",
        "ftp://shop.example",
        "https://",
        "https://user:hunter2@shop.example",
        "https://shop.example:99999",
        "https://shop.example/a b",
        "https://shop.example/\r\nX: y",
        "https://shöp.example",
    ],
)
def test_a_url_that_cannot_be_posted_to_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Webhook(url, secret=SECRET)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": "short"},
        {"secret": []},
        {"source": ""},
        {"type": ""},
        {"headers": {"Webhook-Signature": "v1,mine"}},
        {"headers": {"X": "a\r\nY: b"}},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Webhook("https://shop.example", **{"secret": SECRET, **wrong})


def test_its_secret_and_path_are_not_printed() -> None:
    printed = repr(Webhook("https://shop.example/token-in-path", secret=SECRET))
    assert printed == "<semel.Webhook https://shop.example>"
