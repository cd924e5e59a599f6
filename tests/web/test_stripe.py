"""`semel.stripe()` as Stripe's own client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import stripe

from tests.canary import new_key
from tests.servers import uvicorn
from tests.waiting import until


class Api:
    """The server, and Stripe's client for it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def pay(self, key: str, amount: int = 100, description: str = "", *, retries: int = 0) -> Any:
        client = stripe.StripeClient(
            "sk_test_none",
            base_addresses={"api": self.url},
            max_network_retries=retries,
            http_client=stripe.RequestsClient(),
        )
        params: Any = {"amount": amount, "currency": "eur", "description": description}
        return client.v1.payment_intents.create(params, {"idempotency_key": key})

    def count(self, name: str) -> int:
        file = self.folder / name
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0.01)
    monkeypatch.setattr(stripe.HTTPClient, "MAX_DELAY", 0.05)
    with uvicorn("tests.web.stripe_api:app", env={"FOLDER": str(tmp_path)}) as server:
        yield Api(server.url, tmp_path)


def test_a_repeated_payment_is_the_same_payment(api: Api) -> None:
    key = new_key()
    first, second = api.pay(key), api.pay(key)
    assert first.id == second.id
    assert second.last_response.headers["idempotent-replayed"] == "true"
    assert api.count("ran") == 1


def test_a_key_with_another_payment_is_an_idempotency_error(api: Api) -> None:
    key = new_key()
    api.pay(key)
    with pytest.raises(stripe.IdempotencyError) as refused:
        api.pay(key, amount=200, retries=5)
    assert refused.value.http_status == 400
    assert refused.value.error is not None
    assert refused.value.error.type == "idempotency_error"
    assert key not in str(refused.value.http_body)
    assert (api.count("ran"), api.count("arrived")) == (1, 2), "it was tried again in vain"


def test_its_own_retries_wait_for_a_payment_that_is_in_flight(api: Api) -> None:
    key = new_key()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(api.pay, key, description="slow")
        until(lambda: api.count("ran") == 1)
        second = pool.submit(api.pay, key, description="slow", retries=100_000)
        until(lambda: api.count("arrived") >= 4)
        (api.folder / "go").touch()
        assert first.result().id == second.result().id
    assert api.count("ran") == 1


def test_without_retries_a_payment_in_flight_is_an_error_that_says_so(api: Api) -> None:
    key = new_key()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(api.pay, key, description="slow")
        until(lambda: api.count("ran") == 1)
        with pytest.raises(stripe.APIError) as refused:
            api.pay(key, description="slow")
        (api.folder / "go").touch()
        first.result()
    assert refused.value.http_status == 409
    assert refused.value.error is not None
    assert refused.value.error.code == "idempotency_key_in_use"


def test_a_declined_card_stays_declined(api: Api) -> None:
    key = new_key()
    for _ in range(2):
        with pytest.raises(stripe.CardError, match=r"No\."):
            api.pay(key, description="declined")
    assert api.count("ran") == 1


def test_a_500_is_kept(api: Api) -> None:
    key = new_key()
    for _ in range(2):
        with pytest.raises(stripe.APIError, match=r"Oh\."):
            api.pay(key, description="broken")
    assert api.count("ran") == 1
