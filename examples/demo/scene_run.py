"""One run of a scene: prints what happens, and remembers what should not have happened."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from examples.demo.app import TOKENS, Payment
from examples.demo.client import ApiAnswer, Merchant, Sent
from examples.demo.ledger import Charge, Ledger
from examples.demo.printer import Printer, SceneResult, money, times
from examples.demo.records import PaymentName, PaymentRecords
from examples.demo.serve import ApiSettings
from examples.demo.servers import HOST, Server
from semel.core.policy import Enforce

_PATIENCE = 10.0
_GLANCE = 0.01


class SceneFailed(Exception):
    """A scene cannot go on; the message says what it waited for."""


@dataclass(slots=True)
class DemoSetup:
    """The two servers, the provider's ledger and semel's store."""

    folder: Path
    api: Server
    provider: Server
    guarded: bool
    enforce: Enforce = "full"
    ledger: Ledger = field(init=False)
    records: PaymentRecords = field(init=False)
    store: str = field(init=False)

    def __post_init__(self) -> None:
        self.store = f"sqlite:///{self.folder / 'semel.db'}"
        self.ledger = Ledger(self.folder / "ledger.jsonl")
        self.records = PaymentRecords(self.store)

    def start_provider(self) -> None:
        self.provider.start([str(self.provider.port), str(self.ledger.path)])

    def start_api(self) -> None:
        self._start(self.api, self.enforce)

    def start_beside(self, api: Server) -> None:
        """Start an API that enforces keys, on the same store."""
        self._start(api, "full")

    def _start(self, api: Server, enforce: Enforce) -> None:
        settings = ApiSettings(api.port, self.provider.port, self.store, self.guarded, enforce)
        api.start([json.dumps(asdict(settings))])

    def merchant(self, name: str, api: Server | None = None) -> Merchant:
        token = next(token for token, merchant in TOKENS.items() if merchant == name)
        return Merchant((api or self.api).port, name, token)

    def state(self, client: Merchant, key: str) -> str | None:
        """The state of a payment's record; None where semel is switched off."""
        if not self.guarded:
            return None
        record = self.records.read(PaymentName(client.merchant, key))
        return "none" if record is None else str(record.state)

    def release(self, order: str) -> None:
        """Let the provider answer what it has kept back for an order."""
        connection = http.client.HTTPConnection(HOST, self.provider.port, timeout=_PATIENCE)
        try:
            connection.request("POST", "/release", json.dumps({"order": order}))
            connection.getresponse().read()
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Expected:
    """The answer a scene counts on."""

    status: int
    replayed: bool | None = None
    code: str | None = None

    def met_by(self, answer: ApiAnswer | None) -> bool:
        if answer is None or answer.status != self.status:
            return False
        replayed = self.replayed is None or answer.replayed is self.replayed
        return replayed and (self.code is None or answer.code == self.code)

    def __str__(self) -> str:
        parts = [str(self.status)]
        if self.code is not None:
            parts.append(self.code)
        if self.replayed is not None:
            parts.append(f"Idempotent-Replayed: {str(self.replayed).lower()}")
        return " ".join(parts)


class SceneRun:
    """The tools of a scene."""

    def __init__(self, setup: DemoSetup, printer: Printer, number: int) -> None:
        self.setup = setup
        self.printer = printer
        self.complaints: list[str] = []
        self._number = number
        self._orders: list[str] = []
        self._more: dict[str, int] = {}
        self.tern = setup.merchant("tern-books")
        self.wren = setup.merchant("wren-tea")

    def payment(self, amount: int = 4200, card: str = "card_ok", meant: int = 1) -> Payment:
        """A new order, meant to be charged once unless said otherwise."""
        order = f"order-{self._number}{len(self._orders) + 1:02d}"
        self._orders.append(order)
        self._more[order] = meant
        return Payment(order, amount, "EUR", card)

    @staticmethod
    def key() -> str:
        return str(uuid4())

    # ── requests and answers ──────────────────────────────────────────────────────────────────────

    def send(
        self, client: Merchant, payment: Payment, key: str | None, *, rewritten: bool = False
    ) -> Sent:
        self.printer.request(client.merchant, payment, key)
        return client.send(payment, key, rewritten=rewritten)

    def note(self, text: str) -> None:
        self.printer.note(text)

    def expect(self, sent: Sent, expected: Expected | None) -> ApiAnswer | None:
        """Wait for an answer and compare it; ``None`` expects the connection to break."""
        answer = sent.answer()
        self.printer.answer(answer)
        self._check(answer, expected)
        return answer

    def answers(self, sent: Sequence[Sent]) -> list[ApiAnswer | None]:
        """Wait for many answers; equal ones are shown as one."""
        answers = [each.answer() for each in sent]
        for like in dict.fromkeys(map(described, answers)):
            group = [answer for answer in answers if described(answer) == like]
            self.printer.answer(_in_common(group), len(group))
        return answers

    def _check(self, answer: ApiAnswer | None, expected: Expected | None) -> None:
        if expected is not None and not self.setup.guarded:
            expected = replace(expected, replayed=None)  # nobody is there who could say so
        met = answer is None if expected is None else expected.met_by(answer)
        if not met:
            self.complain(f"expected {expected or 'no answer'}, got {described(answer)}")
        self._check_charge(answer)

    def _check_charge(self, answer: ApiAnswer | None) -> None:
        """Nobody may be told of a charge that was not made."""
        named = answer.document.get("charge") if answer is not None else None
        if named is not None and all(c.id != named for c in self.setup.ledger.charges()):
            self.complain(f"the answer names {named}, which the provider's ledger does not have")

    # ── what happens underneath ───────────────────────────────────────────────────────────────────

    def charged(self, payment: Payment, often: int = 1) -> None:
        """Wait until the provider has charged an order, once or so often."""
        order = payment.order
        wait_until(
            lambda: len(self.setup.ledger.of_order(order)) >= often,
            f"a charge for {order}",
        )

    def show_books(self, client: Merchant, payment: Payment, key: str, state: str) -> None:
        """Show and check the provider's ledger and semel's record."""
        charges = self.setup.ledger.of_order(payment.order)
        found = self.setup.state(client, key)
        self.printer.show_books(payment.order, charges, found)
        if len(charges) != 1:
            self.complain(f"{payment.order} was charged {times(len(charges))}, not once")
        if found not in (None, state):
            self.complain(f"expected the record to be {state}, found {found}")

    def settle(self, client: Merchant, key: str) -> None:
        """The operator's part: look into the provider's ledger and decide by what it says."""
        if not self.setup.guarded:
            return
        name = PaymentName(client.merchant, key)
        record = self.setup.records.read(name)
        key_sent = "" if record is None else name.downstream_key(record)
        evidence = self.setup.ledger.of_key(key_sent)
        if len(evidence) != 1:
            self.complain(f"the ledger has {len(evidence)} charges under this downstream key")
            return
        self._settle_by(name, evidence[0])

    def _settle_by(self, name: PaymentName, charge: Charge) -> None:
        paid = f"{charge.id}, {money(charge.amount, charge.currency)}"
        self.note(
            f"An operator looks into the provider's ledger and finds {paid}, under the key that "
            "semel derived for this payment. It happened: the record is settled with this evidence."
        )
        if not self.setup.records.settle(name, charge):
            self.complain("the record could not be settled")

    def complain(self, text: str) -> None:
        self.printer.complaint(text)
        self.complaints.append(text)

    def outcome(self, title: str) -> SceneResult:
        charges = {order: len(self.setup.ledger.of_order(order)) for order in self._orders}
        return SceneResult(title, charges, tuple(self.complaints), self._more)


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Look until something has happened; it is in another process, so looking is all there is."""
    deadline = time.monotonic() + _PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise SceneFailed(f"waited {_PATIENCE:.0f} s in vain for {what}")
        time.sleep(_GLANCE)


def described(answer: ApiAnswer | None) -> str:
    if answer is None:
        return "no answer"
    return str(Expected(answer.status, answer.replayed, answer.code))


def _in_common(answers: Sequence[ApiAnswer | None]) -> ApiAnswer | None:
    """One answer for many of the same kind: its body only where it is the same in all."""
    first = answers[0]
    if first is None or all(answer == first for answer in answers):
        return first
    same = all(answer is not None and answer.body == first.body for answer in answers)
    return first if same else replace(first, body=b"")
