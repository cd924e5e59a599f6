"""The verdicts can fail: without a guard all of them do, with one put in wrongly those that see it.

And a shop that does everything right passes all, whatever the examples do.
"""

from collections.abc import Callable

import pytest

from tests.examples.frameworks import verdicts
from tests.examples.frameworks.example import ExampleServer
from tests.examples.frameworks.shop import Shop
from tests.examples.frameworks.verdicts import VERDICTS, Verdict

LINE = "exec uvicorn tests.examples.frameworks.control:app --port $PORT --log-level error"

PASSED_WITHOUT_A_GUARD = {verdicts.a_body_the_framework_refuses_has_no_effect}

SEEN: dict[str, set[Verdict]] = {
    "unguarded": {*VERDICTS} - PASSED_WITHOUT_A_GUARD,
    "careless": {
        verdicts.two_tenants_with_one_key_are_independent,
        verdicts.without_a_valid_token_there_is_no_answer_not_even_a_kept_one,
        verdicts.an_exception_in_a_transfer_leaves_it_unknown_for_good,
        verdicts.an_order_that_fails_leaves_no_row_and_may_be_tried_again,
        verdicts.a_server_killed_in_the_middle_of_a_payment_does_not_pay_twice,
    },
}
"""What is wrong with a shop, and the verdicts that must see it."""


@pytest.mark.parametrize("wrong", SEEN)
def test_what_is_wrong_is_seen(wrong: str) -> None:
    with ExampleServer(LINE, {"CONTROL": wrong}) as server:
        shop = Shop(server)
        passed = [verdict.__name__ for verdict in VERDICTS if _judge(shop, verdict, SEEN[wrong])]
    assert not passed


def _judge(shop: Shop, verdict: Callable[[Shop], None], must_fail: set[Verdict]) -> bool:
    """Whether ``shop`` passes a verdict that it must fail."""
    if verdict not in must_fail:
        return False
    try:
        verdict(shop)
    except AssertionError:
        return False
    return True


def test_a_shop_with_its_guard_in_place_passes_all() -> None:
    with ExampleServer(LINE, {"CONTROL": "right"}) as server:
        for verdict in VERDICTS:
            verdict(Shop(server))
