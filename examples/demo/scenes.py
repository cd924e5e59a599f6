"""The scenes. Each says what should happen, does it for real, and checks that it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from examples.demo.app import POLICY, Payment
from examples.demo.client import ApiAnswer, Merchant
from examples.demo.gateway import TIMEOUT
from examples.demo.scene_run import Expected, SceneRun

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
    play: Callable[[SceneRun], None]


def lost_response(run: SceneRun) -> None:
    payment, key = run.payment(card="card_slow"), run.key()
    sent = run.send(run.tern, payment, key)
    run.charged(payment)
    sent.cut()
    run.note("The card is charged; then the client's connection is cut, before the answer came.")
    run.setup.release(payment.order)
    run.note("The client tries again, with the same key.")
    run.expect(run.send(run.tern, payment, key), REPLAY)
    run.show_books(run.tern, payment, key, "completed")


def twenty_at_once(run: SceneRun) -> None:
    payment, key = run.payment(card="card_slow"), run.key()
    run.note(f"Sent on {_CROWD} connections before the first has its answer:")
    run.printer.request(run.tern.merchant, payment, key)
    sent = [run.tern.send(payment, key) for _ in range(_CROWD)]
    run.charged(payment)
    run.setup.release(payment.order)
    answers = run.answers(sent)
    _one_first_answer(run, answers)
    run.show_books(run.tern, payment, key, "completed")


def _one_first_answer(run: SceneRun, answers: list[ApiAnswer | None]) -> None:
    firsts = sum(FIRST.met_by(answer) for answer in answers)
    replays = sum(REPLAY.met_by(answer) for answer in answers)
    if run.setup.guarded and (firsts, replays) != (1, _CROWD - 1):
        run.complain(
            f"expected 1 first answer and {_CROWD - 1} replays, got {firsts} and {replays}"
        )
    bodies = {answer.body for answer in answers if answer is not None}
    if len(bodies) == 1:
        run.note("All answers are equal, byte for byte.")
    else:
        run.complain(f"{_CROWD} equal requests got {len(bodies)} different answers")


def changed_payload(run: SceneRun) -> None:
    payment, key = run.payment(), run.key()
    run.expect(run.send(run.tern, payment, key), FIRST)
    run.note("The same key, another amount:")
    run.expect(run.send(run.tern, replace(payment, amount=9900), key), REUSED)
    run.note("The same payment, its JSON laid out differently:")
    run.expect(run.send(run.tern, payment, key, rewritten=True), REPLAY)
    run.show_books(run.tern, payment, key, "completed")
    run.note("Another payment gets a key of its own:")
    other, fresh = run.payment(9900), run.key()
    run.expect(run.send(run.tern, other, fresh), FIRST)
    run.show_books(run.tern, other, fresh, "completed")


def two_tenants(run: SceneRun) -> None:
    key = run.key()
    books, tea = run.payment(4200), run.payment(1850)
    run.expect(run.send(run.tern, books, key), FIRST)
    run.note("Another merchant, by chance with the same key:")
    run.expect(run.send(run.wren, tea, key), FIRST)
    run.note("Both try again, and each gets its own answer:")
    _own_answer_again(run, run.tern, books, key)
    _own_answer_again(run, run.wren, tea, key)
    run.show_books(run.tern, books, key, "completed")
    run.show_books(run.wren, tea, key, "completed")


def _own_answer_again(run: SceneRun, client: Merchant, payment: Payment, key: str) -> None:
    answer = run.expect(run.send(client, payment, key), REPLAY)
    if answer is not None and answer.document.get("order") != payment.order:
        run.complain(f"{client.merchant} was shown another merchant's answer")


def killed_mid_charge(run: SceneRun) -> None:
    payment, key = run.payment(card="card_slow"), run.key()
    sent = run.send(run.tern, payment, key)
    run.charged(payment)
    run.show_books(run.tern, payment, key, "in_progress")
    api = run.setup.api
    run.note(f"The provider has charged and not yet answered: kill -9 {api.process.pid}, the API.")
    api.kill()
    run.expect(sent, None)
    run.setup.start_api()
    run.setup.release(payment.order)
    run.note(f"The API is started again, as process {api.process.pid}, and the client tries again.")
    if run.setup.guarded:
        lease = POLICY.lease.seconds
        run.note(f"The dead process may hold its lease for {lease} s; the retry waits for its end.")
    unknown_until_settled(run, run.tern, payment, key)


def provider_times_out(run: SceneRun) -> None:
    payment, key = run.payment(card="card_slow"), run.key()
    run.note(f"The API waits {TIMEOUT:.0f} s for its provider, then gives up.")
    run.expect(run.send(run.tern, payment, key), IN_DOUBT)
    run.show_books(run.tern, payment, key, "unknown")
    run.setup.release(payment.order)
    run.note("The provider has recovered, and the client tries again.")
    unknown_until_settled(run, run.tern, payment, key)


def unknown_until_settled(run: SceneRun, client: Merchant, payment: Payment, key: str) -> None:
    """Nobody knows whether it happened: a retry is refused, evidence decides, a retry is served."""
    run.expect(run.send(client, payment, key), UNKNOWN)
    run.show_books(client, payment, key, "unknown")
    if not run.setup.guarded:
        return  # nothing was remembered, so there is nothing to settle
    run.settle(client, key)
    run.note("The client tries once more.")
    run.expect(run.send(client, payment, key), REPLAY)
    run.show_books(client, payment, key, "completed")


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
