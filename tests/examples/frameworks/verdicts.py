"""What every framework's example must do, seen from outside. The same code for all of them."""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, TypeAlias

import pytest

from tests.examples.frameworks.shop import BROKEN, DECLINED, HELD, UNAVAILABLE, Shop, new_key
from tests.waiting import until
from tests.web.client import Reply

Verdict: TypeAlias = Callable[[Shop], None]

CROWD = 20


def same(first: Reply, again: Reply) -> None:
    """``again`` is a replay of ``first``: byte for byte, and marked."""
    assert (first.status, first.body) == (again.status, again.body)
    for header in ("content-type", "location"):
        assert first.one(header) == again.one(header)
    assert again.one("idempotent-replayed") == "true"


def refused(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.code) == (status, code)


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def a_replay_is_the_first_answer_again_and_marked(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1):
        first = shop.post("payments", 100, key)
        again = shop.post("payments", 100, key)
    assert (first.status, first.one("idempotent-replayed")) == (201, "false")
    paid = json.loads(first.body)
    assert (paid["amount"], paid["currency"]) == (100, "EUR")
    location = first.one("location")
    assert location is not None
    assert location.endswith(paid["id"])
    assert first.one("idempotency-expires") == again.one("idempotency-expires") is not None
    same(first, again)


def each_key_is_a_payment_of_its_own(shop: Shop) -> None:
    with shop.runs("payments", 2):
        one, other = (shop.post("payments", 100, new_key()) for _ in range(2))
    assert json.loads(one.body)["id"] != json.loads(other.body)["id"]
    assert other.one("idempotent-replayed") == "false"


def bare_and_quoted_keys_are_the_same_key(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1):
        first = shop.post("payments", 100, key)
        same(first, shop.post("payments", 100, f'"{key}"'))


def the_same_json_written_otherwise_is_the_same_request(shop: Shop) -> None:
    key, otherwise = new_key(), '{ "currency": "EUR",\n "amount": 100 }'
    with shop.runs("payments", 1):
        first = shop.post("payments", 100, key)
        same(first, shop.post("payments", 100, key, body=otherwise))


def a_declined_payment_is_kept(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1):
        first = shop.post("payments", DECLINED, key)
        assert (first.status, b"declined" in first.body) == (402, True)
        same(first, shop.post("payments", DECLINED, key))


def a_body_the_framework_refuses_has_no_effect(shop: Shop) -> None:
    with shop.runs("payments", 0):
        for body in ('{"amount": "much"}', "{", "[]"):
            reply = shop.post("payments", 0, new_key(), body=body)
            assert 400 <= reply.status < 500, reply
            assert reply.one("content-type") != "application/problem+json", reply


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


def a_required_key_that_is_missing_is_a_400(shop: Shop) -> None:
    for route in ("payments", "transfers"):
        with shop.runs(route, 0):
            refused(shop.post(route, 100), 400, "missing-key")


def a_key_of_the_wrong_format_is_a_400(shop: Shop) -> None:
    version_1 = "c232ab00-9414-11ec-b3c8-9f6bdeced846"
    for key in ("not-a-uuid-but-long-enough", version_1, "", '"unclosed', "k" * 300):
        with shop.runs("payments", 0):
            refused(shop.post("payments", 100, key), 400, "malformed-key")


def a_key_used_for_another_payload_is_a_422_that_names_the_fields(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1):
        first = shop.post("payments", 100, key)
        other = shop.post("payments", 999, key)
        refused(other, 422, "key-reused")
        assert other.problem["differing_fields"] == ["amount"]
        assert b"999" not in other.body
        same(first, shop.post("payments", 100, key))


def a_key_means_something_else_on_another_route(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1), shop.runs("transfers", 1):
        for route in ("payments", "transfers"):
            first = shop.post(route, 100, key)
            assert first.status == 201, first
            same(first, shop.post(route, 100, key))


def an_optional_key_is_honoured_and_may_be_left_out(shop: Shop) -> None:
    key = new_key()
    with shop.runs("notes", 3):
        without = [shop.post("notes", 100) for _ in range(2)]
        first = shop.post("notes", 100, key)
        same(first, shop.post("notes", 100, key))
    assert {reply.status for reply in without} == {first.status}
    assert all(reply.one("idempotent-replayed") is None for reply in without)


def a_key_on_a_safe_method_is_ignored(shop: Shop) -> None:
    key, before = new_key(), shop.count("payments")
    with shop.runs("payments", 1):
        assert shop.count("payments", key) == before
        for _ in range(2):
            assert shop.post("payments", 100, key).status == 201
    assert shop.count("payments", key) == shop.count("payments") == before + 1


# ── callers ───────────────────────────────────────────────────────────────────────────────────────


def two_tenants_with_one_key_are_independent(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1, "alice"), shop.runs("payments", 1, "bob"):
        hers = shop.post("payments", 100, key, tenant="alice")
        his = shop.post("payments", 200, key, tenant="bob")
        assert (hers.status, his.status) == (201, 201)
        same(hers, shop.post("payments", 100, key, tenant="alice"))
        same(his, shop.post("payments", 200, key, tenant="bob"))


def without_a_valid_token_there_is_no_answer_not_even_a_kept_one(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1):
        first = shop.post("payments", 100, key)
        for tenant in (None, "mallory", "", "alice bob"):
            reply = shop.post("payments", 100, key, tenant=tenant)
            assert reply.status == 401, reply
            assert reply.one("idempotent-replayed") is None
            assert json.loads(first.body)["id"].encode() not in reply.body
        same(first, shop.post("payments", 100, key))


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


def a_503_releases_its_key(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 2):
        replies = [shop.post("payments", UNAVAILABLE, key) for _ in range(2)]
    assert [reply.status for reply in replies] == [503, 503]
    assert not any(reply.replayed for reply in replies)
    refused(shop.post("payments", 100, key), 422, "key-reused")


def an_exception_releases_its_key(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 2):
        replies = [shop.post("payments", BROKEN, key) for _ in range(2)]
    assert [reply.status for reply in replies] == [500, 500]
    assert not any(reply.replayed for reply in replies)
    refused(shop.post("payments", 100, key), 422, "key-reused")


def an_exception_in_a_transfer_leaves_it_unknown_for_good(shop: Shop) -> None:
    key = new_key()
    with shop.runs("transfers", 1):
        assert shop.post("transfers", BROKEN, key).status == 500
        for _ in range(3):
            reply = shop.post("transfers", BROKEN, key)
            refused(reply, 409, "outcome-unknown")
            assert reply.problem["retryable"] is False


def an_order_that_fails_leaves_no_row_and_may_be_tried_again(shop: Shop) -> None:
    key, before = new_key(), shop.count("orders")
    with shop.runs("orders", 2):
        replies = [shop.post("orders", BROKEN, key) for _ in range(2)]
    assert [reply.status for reply in replies] == [500, 500]
    assert shop.count("orders") == before


def an_order_and_its_key_are_one_commit(shop: Shop) -> None:
    key, before = new_key(), shop.count("orders")
    with shop.runs("orders", 1):
        first = shop.post("orders", 100, key)
        assert first.status == 201, first
        assert json.loads(first.body)["id"]
        same(first, shop.post("orders", 100, key))
    assert shop.count("orders") == before + 1


# ── at the same time ──────────────────────────────────────────────────────────────────────────────


def a_duplicate_in_flight_is_a_409_that_says_when_to_come_again(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1):
        with shop.held("payments", key) as first:
            reply = shop.unless_it_runs(lambda: shop.post("payments", HELD, key), "payments")
            refused(reply, 409, "in-flight")
            assert reply.problem["retryable"] is True
            assert int(reply.one("retry-after") or 0) >= 1
        assert first.result().status == 201
        same(first.result(), shop.post("payments", HELD, key))


def twenty_at_once_have_one_effect(shop: Shop) -> None:
    for route in ("payments", "transfers", "orders"):
        key = new_key()
        with shop.runs(route, 1):
            replies = shop.at_once(route, 100, [key] * CROWD)
            last = shop.post(route, 100, key)
        answered = [reply for reply in replies if reply.status == 201]
        waiting = [reply for reply in replies if reply.status != 201]
        assert len([reply for reply in answered if not reply.replayed]) == 1, replies
        assert {reply.body for reply in answered} == {last.body}
        for reply in waiting:
            refused(reply, 409, "in-flight")


def twenty_keys_at_once_are_twenty_effects(shop: Shop) -> None:
    for route in ("payments", "orders"):
        keys = [new_key() for _ in range(CROWD)]
        with shop.runs(route, CROWD):
            replies = shop.at_once(route, 100, keys)
            assert [reply.status for reply in replies] == [201] * CROWD
            assert len({reply.body for reply in replies}) == CROWD
            same(replies[0], shop.post(route, 100, keys[0]))


def a_client_that_leaves_does_not_stop_its_payment(shop: Shop) -> None:
    key = new_key()
    with shop.runs("payments", 1):
        shop.send_and_leave("payments", HELD, key)
        shop.release()
        reply = until(lambda: _answered(shop, key))
        (shop.folder / "release").unlink()
    assert reply is not None
    assert (reply.status, reply.replayed) == (201, True)


def _answered(shop: Shop, key: str) -> Reply | None:
    reply = shop.post("payments", HELD, key)
    return None if reply.status == 409 and reply.code == "in-flight" else reply


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


def refusals_are_problem_documents_and_never_tell_the_key(shop: Shop) -> None:
    wrong, key, unknown = "a-secret-that-is-no-uuid", new_key(), new_key()
    kept = shop.post("payments", 100, key)
    shop.post("transfers", BROKEN, unknown)
    documents = [
        shop.post("payments", 100),
        shop.post("payments", 100, wrong),
        shop.post("payments", 999, key),
        shop.post("transfers", BROKEN, unknown),
    ]
    for reply in documents:
        _well_formed(reply)
    _never_told([kept, shop.post("payments", 100, key), *documents], [wrong, key, unknown])


def _well_formed(reply: Reply) -> None:
    problem = reply.problem
    assert problem["status"] == reply.status
    assert problem["type"].endswith(f"/{problem['code']}")
    assert isinstance(problem["retryable"], bool)
    assert problem["title"]
    assert problem["detail"]
    assert reply.one("cache-control") == "no-store"
    assert len(reply.all("content-type")) == 1
    assert reply.all("content-length") == [str(len(reply.body))]


def _never_told(replies: Iterable[Reply], keys: Iterable[str]) -> None:
    for reply in replies:
        told = reply.body.decode() + repr(reply.headers)
        assert not [key for key in keys if key in told]


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────


def a_server_killed_in_the_middle_of_a_payment_does_not_pay_twice(shop: Shop) -> None:
    done, key = new_key(), new_key()
    first = shop.post("payments", 100, done)
    with shop.runs("payments", 1):
        _kill_in_the_middle(shop, key)
        shop.server.start()
        shop.release()  # so that a second run would end, and be seen
        for _ in range(2):
            reply = shop.post("payments", HELD, key)
            assert (reply.status, reply.code in ("in-flight", "outcome-unknown")) == (409, True)
        (shop.folder / "release").unlink()
        same(first, shop.post("payments", 100, done))


def _kill_in_the_middle(shop: Shop, key: str) -> None:
    with shop.held("payments", key) as sent:
        shop.server.kill()
        with suppress(OSError):
            pytest.fail(f"answered by the dead: {sent.result()}")


VERDICTS: Final[tuple[Verdict, ...]] = (
    a_replay_is_the_first_answer_again_and_marked,
    each_key_is_a_payment_of_its_own,
    bare_and_quoted_keys_are_the_same_key,
    the_same_json_written_otherwise_is_the_same_request,
    a_declined_payment_is_kept,
    a_body_the_framework_refuses_has_no_effect,
    a_required_key_that_is_missing_is_a_400,
    a_key_of_the_wrong_format_is_a_400,
    a_key_used_for_another_payload_is_a_422_that_names_the_fields,
    a_key_means_something_else_on_another_route,
    an_optional_key_is_honoured_and_may_be_left_out,
    a_key_on_a_safe_method_is_ignored,
    two_tenants_with_one_key_are_independent,
    without_a_valid_token_there_is_no_answer_not_even_a_kept_one,
    a_503_releases_its_key,
    an_exception_releases_its_key,
    an_exception_in_a_transfer_leaves_it_unknown_for_good,
    an_order_that_fails_leaves_no_row_and_may_be_tried_again,
    an_order_and_its_key_are_one_commit,
    a_duplicate_in_flight_is_a_409_that_says_when_to_come_again,
    twenty_at_once_have_one_effect,
    twenty_keys_at_once_are_twenty_effects,
    a_client_that_leaves_does_not_stop_its_payment,
    refusals_are_problem_documents_and_never_tell_the_key,
    a_server_killed_in_the_middle_of_a_payment_does_not_pay_twice,
)
