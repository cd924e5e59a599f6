"""The clients against real servers: semel's with every policy, and one with Stripe's manners."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.client import (
    AnswerLost,
    CallOutcomeUnknown,
    CallRefused,
    KeyExpired,
    KeyReused,
    Unanswered,
)
from semel.client.keys import KeyMaker
from semel.core.frozen import replace
from tests.client.conftest import Shop
from tests.client.kinds import KINDS, QUICK, Client, Reply
from tests.client.stripelike import StripeLike
from tests.client.wire import Cut, Wire
from tests.waiting import PATIENCE

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
LIBRARIES = ("httpx", "httpx2", "requests", "aiohttp")
POLICIES = ("ietf", "stripe", "accepted", "payments")
ANN = "Bearer ann's first"


def opened(kind: str, journal: Path | None, patience: float = PATIENCE, **options: Any) -> Any:
    given: dict[str, Any] = {
        "budget": QUICK,
        "credentials": lambda call: {"Authorization": ANN},
        "keep_headers": ["X-Order"],
        "resume_within": timedelta(hours=23),
        **options,
    }
    return KINDS[kind](journal, patience, **given)


def pay(client: Client, url: str, order: str, how: str = "", **arguments: Any) -> Reply:
    sale = {"order": order, "how": how}
    return client.post(url, json=sale, headers={"X-Order": order}, name=order, **arguments)


@pytest.fixture(scope="module", params=KINDS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    journal = tmp_path_factory.mktemp("client") / "calls.db"
    with opened(request.param, journal) as made:
        yield made


# ── semel ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_is_made_once_and_its_answer_is_the_librarys_own(
    client: Client, shop: Shop, order: str, policy: str
) -> None:
    reply = pay(client, f"{shop.url}/{policy}", order)
    assert (reply.status, json.loads(reply.body)["order"]) == (201, order)
    assert type(reply.native).__module__.partition(".")[0] in LIBRARIES
    assert len(shop.effects.of(order)) == len(shop.keys(order)) == 1
    assert client.pending() == []


def test_an_answer_of_the_applications_own_is_an_answer(
    client: Client, shop: Shop, order: str
) -> None:
    assert pay(client, f"{shop.url}/ietf", order, "declined").status == 402
    assert len(shop.effects.of(order)) == 1


def test_a_server_that_was_busy_is_asked_again_with_the_same_key(
    client: Client, shop: Shop, order: str
) -> None:
    assert pay(client, f"{shop.url}/ietf", order, "busy at first").status == 201
    keys = shop.keys(order)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert len(shop.effects.of(order)) == 1


@EVERY_KIND
def test_a_server_that_wants_the_key_in_the_body_gets_it_there(
    kind: str, shop: Shop, order: str, tmp_path: Path
) -> None:
    field = semel.body("/meta/key")
    with opened(kind, tmp_path / "calls.db", key_in=field) as client:
        assert pay(client, f"{shop.url}/in-body", order, "busy at first").status == 201
        assert shop.keys(order) == ["-", "-"]  # no header has it
        # The caller's own key, in the body or beside it, is the call's.
        own = {"order": f"{order}-own", "meta": {"key": f"own {order}"}}
        for arguments in ({}, {"key": f"own {order}"}):
            reply = client.post(f"{shop.url}/in-body", json=own, **arguments)
            assert reply.status == 201
    assert len(shop.effects.of(order)) == len(shop.effects.of(f"{order}-own")) == 1


def test_a_failure_that_the_server_has_kept_is_final(
    client: Client, shop: Shop, order: str
) -> None:
    """Stripe's policy keeps a 503: the same key would bring it again and again."""
    assert pay(client, f"{shop.url}/stripe", order, "busy at first").status == 503
    assert len(shop.keys(order)) == 1


# Every client and every policy, each pair of them not.
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("httpx", "ietf"),
        ("httpx2", "stripe"),
        ("awaited httpx", "payments"),
        ("requests", "accepted"),
        ("aiohttp", "accepted"),
        pytest.param("aiohttp", "stripe", marks=pytest.mark.proof),
    ],
)
def test_a_time_out_is_followed_by_waiting_for_the_answer(
    kind: str, policy: str, shop: Shop, order: str, journal: Path
) -> None:
    """The first try is still being handled when the client comes again.

    Where the machine is too slow for any other try, that is tried again as well.
    """
    with opened(kind, journal, patience=0.4, budget=replace(QUICK, tries=10_000)) as client:
        reply = pay(client, f"{shop.url}/{policy}", order, "slow")
        assert client.pending() == []
    assert reply.status == 201
    (effect,) = shop.effects.of(order)
    assert json.loads(reply.body)["nonce"] == effect.nonce
    assert len(set(shop.keys(order))) == 1


def test_a_key_for_another_request_is_refused_by_the_server(
    client: Client, shop: Shop, order: str
) -> None:
    """The journal of this client does not know the key: somebody else used it."""
    for policy in ("ietf", "stripe"):
        key = f"the-same-key-{order}"
        with opened("httpx", None) as other:
            pay(other, f"{shop.url}/{policy}", order, key=key)
        with pytest.raises(KeyReused) as raised:
            pay(client, f"{shop.url}/{policy}", order, "declined", key=key)
        assert raised.value.key == key
        assert key not in str(raised.value)
        assert raised.value.status == (422 if policy == "ietf" else 400)
    assert len(shop.effects.of(order)) == 2


def test_a_key_of_ones_own_is_the_same_call(client: Client, shop: Shop, order: str) -> None:
    url, key = f"{shop.url}/ietf", f"own-{order}"
    first = pay(client, url, order, key=key)
    again = pay(client, url, order, key=key)
    assert first.body == again.body
    assert again.headers["Idempotent-Replayed"] == "true"
    with pytest.raises(KeyReused, match="nothing was sent"):
        pay(client, url, order, "declined", key=key)
    assert shop.keys(order) == [key, key]


def test_a_key_that_is_too_old_is_never_run(client: Client, shop: Shop, order: str) -> None:
    with pytest.raises(KeyExpired):
        pay(client, f"{shop.url}/ietf", order, key=KeyMaker(lambda: 1_600_000_000_000)())
    assert shop.effects.of(order) == []


def test_an_outcome_that_the_server_does_not_know_stays_pending(
    client: Client, shop: Shop, order: str
) -> None:
    with pytest.raises(CallOutcomeUnknown) as raised:
        pay(client, f"{shop.url}/payments", order, "in doubt")
    assert raised.value.status == 409  # after the framework's own 500, which is tried again
    (entry,) = client.pending()
    assert (entry.call.name, entry.held) == (order, False)
    (done,) = client.resume()
    assert isinstance(done.error, CallOutcomeUnknown)
    assert done.error.status == 409
    assert len(shop.effects.of(order)) == 1
    forget(client)


def forget(client: Any) -> None:
    journal = client._client.journal
    for entry in journal.pending():
        journal.forget(entry.call)


def test_a_request_that_was_refused_was_not_executed(
    client: Client, shop: Shop, order: str
) -> None:
    with pytest.raises(CallRefused) as raised:
        pay(client, f"{shop.url}/strict", order)
    assert raised.value.code == "malformed-key"
    assert not isinstance(raised.value, KeyReused | KeyExpired | AnswerLost)
    assert shop.effects.of(order) == []


@EVERY_KIND
def test_a_key_travels_quoted_where_a_server_wants_it_so(kind: str, shop: Shop, order: str) -> None:
    with opened(kind, None, quoted=True) as client:
        assert pay(client, f"{shop.url}/strict", order).status == 201


# ── a wire that is cut ────────────────────────────────────────────────────────────────────────────

CUTS = [
    *(Cut(request=count) for count in (0, 1, 40, 120, 10_000)),
    *(Cut(answer=count) for count in (0, 1, 30, 150, 10_000)),
]


@EVERY_KIND
def test_wherever_the_wire_is_cut_there_is_one_effect_and_its_answer(
    kind: str, shop: Shop, order: str, journal: Path
) -> None:
    """At the first bytes, in the headers, in the body, at the last byte; of request and answer."""
    size = 20_000  # so that the cuts at 10,000 are in a body
    with Wire(shop.server.port) as wire:
        for number, cut in enumerate(CUTS):
            this = f"{order}-{number}"
            wire.cuts.append(cut)
            with opened(kind, journal, budget=QUICK) as client:
                sale = {"order": this, "padding": "x" * size}
                reply = client.post(f"{wire.url}/ietf", json=sale, headers={"X-Order": this})
            (effect,) = shop.effects.of(this)
            assert json.loads(reply.body) == {"order": this, "nonce": effect.nonce}
            assert len(set(shop.keys(this))) == 1
            assert wire.connections >= number + 1
    assert wire.connections > len(CUTS)


class Closing(StripeLike):
    """Says that it will hang up before it says how long its answer is."""

    def answer(self, key: str, body: bytes) -> tuple[int, Any, Mapping[str, str]]:
        status, document, more = super().answer(key, body)
        return status, document, {**more, "Connection": "close"}


def test_headers_that_are_cut_off_are_not_taken_for_an_empty_answer(
    order: str, journal: Path
) -> None:
    """By `http.client`, below requests, they are."""
    with Closing() as stripe, opened("requests", journal) as client:
        for count in range(60, 220, 10):
            with Wire(stripe.port) as wire:
                wire.cuts.append(Cut(answer=count))
                this = f"{order}-{count}"
                reply = client.post(f"{wire.url}/v1/charges", json={"order": this})
            assert json.loads(reply.body)["charge"] == len(stripe.charges)
            assert stripe.charges.count(this) == 1


@EVERY_KIND
def test_nobody_there_is_tried_to_the_end_of_the_budget(
    kind: str, order: str, journal: Path
) -> None:
    from tests.servers.ports import bound_somewhere

    with bound_somewhere() as nobody, opened(kind, journal) as client:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/ietf"
        with pytest.raises(Exception) as raised:
            pay(client, url, order)
        error: Any = raised.value
        assert type(error).__name__ == "BudgetSpent"  # not Unanswered: nothing was ever sent
        assert error.tries == QUICK.tries
        assert error.__cause__ is not None
        assert [entry.call.name for entry in client.pending()] == [order]


def test_without_a_journal_nothing_is_kept_and_tries_still_have_one_key(
    shop: Shop, order: str
) -> None:
    with opened("httpx", None) as client:
        pay(client, f"{shop.url}/ietf", order, "busy at first")
    assert len(set(shop.keys(order))) == 1


# ── Stripe ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def stripe() -> Iterator[StripeLike]:
    with StripeLike() as server:
        yield server


def test_a_charge_is_made_once_and_replayed(client: Client, stripe: StripeLike, order: str) -> None:
    key = f"own-{order}"
    first = pay(client, stripe.url, order, key=key)
    again = pay(client, stripe.url, order, key=key)
    assert (first.status, again.body) == (200, first.body)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert stripe.charges.count(order) == 1


def test_a_hint_to_try_again_is_followed(client: Client, stripe: StripeLike, order: str) -> None:
    reply = pay(client, stripe.url, order, "try again")
    assert reply.status == 200
    assert stripe.charges.count(order) == 1


def test_a_failure_that_is_repeated_is_final(
    client: Client, stripe: StripeLike, order: str
) -> None:
    """The first 500 is tried again; the second says that it is a replay."""
    reply = pay(client, stripe.url, order, "broken", key=f"own-{order}")
    assert reply.status == 500
    assert stripe.keys.count(f"own-{order}") == 2
    assert stripe.charges.count(order) == 1


def test_a_declined_card_is_an_answer(client: Client, stripe: StripeLike, order: str) -> None:
    assert pay(client, stripe.url, order, "declined").status == 402


def test_other_parameters_under_the_key_are_a_misuse(
    client: Client, stripe: StripeLike, order: str
) -> None:
    key = f"own-{order}"
    with opened("httpx", None) as other:
        pay(other, stripe.url, order, key=key)
    with pytest.raises(KeyReused):
        pay(client, stripe.url, order, "declined", key=key)
    assert stripe.charges.count(order) == 1


@EVERY_KIND
def test_a_charge_under_way_elsewhere_is_waited_for(
    kind: str, stripe: StripeLike, order: str
) -> None:
    """Two at once with one key: the second is told 409 until the first is through."""
    key, replies = f"own-{order}", list[Reply]()
    stripe.busy.clear()

    def first() -> None:
        with opened("httpx", None) as client:
            replies.append(pay(client, stripe.url, order, "slow", key=key))

    thread = threading.Thread(target=first)
    thread.start()
    with opened(kind, None) as client:
        replies.append(pay(client, stripe.url, order, "slow", key=key))
    thread.join()
    assert replies[0].body == replies[1].body
    assert stripe.charges.count(order) == 1
    assert stripe.keys.count(key) >= 3


def test_a_server_that_never_answers_leaves_the_call_in_doubt(
    shop: Shop, order: str, journal: Path
) -> None:
    """And when it can be reached again, the same call is resumed: by then the token is another."""
    with Wire(shop.server.port) as wire:
        wire.cuts.extend([Cut(answer=1)] * QUICK.tries)
        with opened("httpx", journal) as client, pytest.raises(Unanswered):
            pay(client, f"{wire.url}/ietf", order)
        second = {"Authorization": "Bearer ann's second"}
        with opened("httpx", journal, credentials=lambda call: second) as client:
            (done,) = client.resume()
            assert client.pending() == []
    assert done.call.name == order
    assert done.response.status_code == 201
    assert len(shop.effects.of(order)) == 1
    assert len(set(shop.keys(order))) == 1
