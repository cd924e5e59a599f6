"""The scenes. Each says what should happen, does it for real, and checks that it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from semel.demo.act import Act, Expected
from semel.demo.app import POLICY, Payment
from semel.demo.client import Answer, Client
from semel.demo.gateway import TIMEOUT

_CROWD: Final = 20

FIRST: Final = Expected(201, replayed=False)
REPLAY: Final = Expected(201, replayed=True)
REUSED: Final = Expected(422, code="key-reused")
UNKNOWN: Final = Expected(409, code="outcome-unknown")
IN_DOUBT: Final = Expected(504)


@dataclass(frozen=True, slots=True)
class Scene:
    """A title, one sentence, and what is played."""

    title: str
    shows: str
    play: Callable[[Act], None]


def lost_response(act: Act) -> None:
    payment, key = act.payment(card="card_slow"), act.key()
    sent = act.send(act.tern, payment, key)
    act.charged(payment)
    sent.cut()
    act.note("The card is charged; then the client's connection is cut, before the answer came.")
    act.world.release(payment.order)
    act.note("The client tries again, with the same key.")
    act.hear(act.send(act.tern, payment, key), REPLAY)
    act.underneath(act.tern, payment, key, "completed")


def twenty_at_once(act: Act) -> None:
    payment, key = act.payment(card="card_slow"), act.key()
    act.note(f"Sent on {_CROWD} connections before the first has its answer:")
    act.stage.request(act.tern.merchant, payment, key)
    sent = [act.tern.send(payment, key) for _ in range(_CROWD)]
    act.charged(payment)
    act.world.release(payment.order)
    answers = act.hear_all(sent)
    _one_first_answer(act, answers)
    act.underneath(act.tern, payment, key, "completed")


def _one_first_answer(act: Act, answers: list[Answer | None]) -> None:
    firsts = sum(FIRST.met_by(answer) for answer in answers)
    replays = sum(REPLAY.met_by(answer) for answer in answers)
    if act.world.guarded and (firsts, replays) != (1, _CROWD - 1):
        act.complain(
            f"expected 1 first answer and {_CROWD - 1} replays, got {firsts} and {replays}"
        )
    bodies = {answer.body for answer in answers if answer is not None}
    if len(bodies) == 1:
        act.note("All answers are equal, byte for byte.")
    else:
        act.complain(f"{_CROWD} equal requests got {len(bodies)} different answers")


def changed_payload(act: Act) -> None:
    payment, key = act.payment(), act.key()
    act.hear(act.send(act.tern, payment, key), FIRST)
    act.note("The same key, another amount:")
    act.hear(act.send(act.tern, replace(payment, amount=9900), key), REUSED)
    act.note("The same payment, its JSON laid out differently:")
    act.hear(act.send(act.tern, payment, key, rewritten=True), REPLAY)
    act.underneath(act.tern, payment, key, "completed")
    act.note("Another payment gets a key of its own:")
    other, fresh = act.payment(9900), act.key()
    act.hear(act.send(act.tern, other, fresh), FIRST)
    act.underneath(act.tern, other, fresh, "completed")


def two_tenants(act: Act) -> None:
    key = act.key()
    books, tea = act.payment(4200), act.payment(1850)
    act.hear(act.send(act.tern, books, key), FIRST)
    act.note("Another merchant, by chance with the same key:")
    act.hear(act.send(act.wren, tea, key), FIRST)
    act.note("Both try again, and each gets its own answer:")
    _own_answer_again(act, act.tern, books, key)
    _own_answer_again(act, act.wren, tea, key)
    act.underneath(act.tern, books, key, "completed")
    act.underneath(act.wren, tea, key, "completed")


def _own_answer_again(act: Act, client: Client, payment: Payment, key: str) -> None:
    answer = act.hear(act.send(client, payment, key), REPLAY)
    if answer is not None and answer.document.get("order") != payment.order:
        act.complain(f"{client.merchant} was shown another merchant's answer")


def killed_mid_charge(act: Act) -> None:
    payment, key = act.payment(card="card_slow"), act.key()
    sent = act.send(act.tern, payment, key)
    act.charged(payment)
    act.underneath(act.tern, payment, key, "in_progress")
    api = act.world.api
    act.note(f"The provider has charged and not yet answered: kill -9 {api.process.pid}, the API.")
    api.kill()
    act.hear(sent, None)
    act.world.start_api()
    act.world.release(payment.order)
    act.note(f"The API is started again, as process {api.process.pid}, and the client tries again.")
    if act.world.guarded:
        lease = POLICY.lease.seconds
        act.note(f"The dead process may hold its lease for {lease} s; the retry waits for its end.")
    _unknown_until_settled(act, payment, key)


def provider_times_out(act: Act) -> None:
    payment, key = act.payment(card="card_slow"), act.key()
    act.note(f"The API waits {TIMEOUT:.0f} s for its provider, then gives up.")
    act.hear(act.send(act.tern, payment, key), IN_DOUBT)
    act.underneath(act.tern, payment, key, "unknown")
    act.world.release(payment.order)
    act.note("The provider has recovered, and the client tries again.")
    _unknown_until_settled(act, payment, key)


def _unknown_until_settled(act: Act, payment: Payment, key: str) -> None:
    """Nobody knows whether it happened: a retry is refused, evidence decides, a retry is served."""
    act.hear(act.send(act.tern, payment, key), UNKNOWN)
    act.underneath(act.tern, payment, key, "unknown")
    if not act.world.guarded:
        return  # nothing was remembered, so there is nothing to settle
    act.settle(act.tern, key)
    act.note("The client tries once more.")
    act.hear(act.send(act.tern, payment, key), REPLAY)
    act.underneath(act.tern, payment, key, "completed")


SCENES: Final = (
    Scene(
        "Lost response and retry",
        "The network loses the answer. The client cannot know whether it has paid, so it asks "
        "again; it gets the answer it missed, and pays once.",
        lost_response,
    ),
    Scene(
        "Twenty clients at once",
        "A double click, a retrying proxy, a queue that delivers twice: twenty equal requests at "
        "the same moment. One is executed, the others wait for its answer.",
        twenty_at_once,
    ),
    Scene(
        "Changed payload",
        "A key stands for one payment. Used for another amount it is refused, and the refusal "
        "names the field; the layout of the JSON does not matter.",
        changed_payload,
    ),
    Scene(
        "Two tenants, one key",
        "Keys belong to the merchant whose token was verified. Two merchants who happen to choose "
        "the same key neither block nor see each other.",
        two_tenants,
    ),
    Scene(
        "Server killed mid-charge",
        "The server dies after the card was charged and before it could write that down. Nobody "
        "knows the outcome, so nothing guesses: retries are refused until evidence settles it.",
        killed_mid_charge,
    ),
    Scene(
        "Provider time-out",
        "The provider charges the card and does not answer in time. To the API that looks just "
        "like no charge at all, so again the outcome is unknown, not failed.",
        provider_times_out,
    ),
)
