"""A test case of Django's takes its keys with it, like every row: ``manage.py test``."""

# ruff: noqa: S101

from typing import Any

from django.test import TestCase

from examples.django.shop.guards import guard
from examples.django.shop.models import Order
from semel.testing import PrivateStore

KEY = "0d9bb1f6-0bd6-4a0c-9c0e-5d1d3e1a7c11"


class OrderTests(TestCase):
    def order(self, amount: int = 7) -> Any:
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": KEY}
        body = {"amount": amount}
        return self.client.post("/orders", body, "application/json", headers=headers)

    def test_an_order_is_made_once(self) -> None:
        first, again = self.order(), self.order()
        assert (first.status_code, again.json()) == (201, first.json())
        assert again.headers["Idempotent-Replayed"] == "true"
        assert Order.objects.count() == 1

    def test_the_key_of_another_test_is_forgotten(self) -> None:
        assert self.order().headers["Idempotent-Replayed"] == "false"

    async def test_the_same_in_an_event_loop(self) -> None:
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": KEY}
        post = self.async_client.post
        for replayed in ("false", "true"):
            answer = await post("/orders", {"amount": 7}, "application/json", headers=headers)
            assert answer.headers["Idempotent-Replayed"] == replayed
        assert await Order.objects.acount() == 1

    def test_an_order_whose_process_dies_leaves_nothing(self) -> None:
        with PrivateStore(guard) as store:
            with store.crash("before completion"):
                self.order()
            assert (store.state(KEY), Order.objects.count()) == (None, 0)
            store.assert_once(self.order)
        assert Order.objects.count() == 1

    def test_a_payment_is_made_once(self) -> None:
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": KEY}
        paid = [
            self.client.post("/payments", {"amount": 7}, "application/json", headers=headers)
            for _ in range(2)
        ]
        assert [answer.status_code for answer in paid] == [201, 201]
        assert paid[0].json() == paid[1].json()
