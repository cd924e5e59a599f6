"""A roll-out on the payments API: it is watched in shadow first, and keys are enforced then.

In shadow every request is charged, as without semel; that is what the first scene means by "charges
meant". The report says what keys would have done. Then an API that enforces them is started beside
the one in shadow, as in a rolling restart, while a payment is under way.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Final

from examples.demo.app import Payment
from examples.demo.client import Merchant, Sent
from examples.demo.scene_run import Expected, SceneRun, wait_until
from examples.demo.scenes import FIRST, REPLAY, REUSED, Scene, unknown_until_settled
from examples.demo.servers import ROOT, Server

RAN_AGAIN: Final = Expected(409, code="ran-again")
NO_KEY: Final = Expected(400, code="missing-key")
DECLINED_AGAIN: Final = Expected(402, replayed=True)

REPORT: Final = """\
ROUTE           REQUESTS  WITH A KEY  COVERAGE  LOOK-ALIKES WITHOUT ONE
POST /payments  11        9           81 %      1

What keys would have done:
ROUTE           REPLAYED  IN CONFLICT  REFUSED  ANSWERS DIFFER  NOT RECORDED
POST /payments  2         1            3        2               0

ROUTE           WOULD BE REFUSED WITH  REQUESTS
POST /payments  key-reused             1
POST /payments  missing-key            2
"""
"""What must be reported of the requests below."""


@dataclass(slots=True)
class RollOut:
    """The scenes of a roll-out, and the payments that they share: each with its key."""

    enforcing: Server
    once: list[tuple[Payment, str]] = field(default_factory=list[tuple[Payment, str]])
    often: list[tuple[Payment, str]] = field(default_factory=list[tuple[Payment, str]])
    declined: list[tuple[Payment, str]] = field(default_factory=list[tuple[Payment, str]])
    reused: list[tuple[Payment, str]] = field(default_factory=list[tuple[Payment, str]])

    def scenes(self) -> tuple[Scene, ...]:
        return (
            Scene(
                "In shadow",
                "The API is in use, and its clients have habits. semel watches: every request is "
                "charged, as without it, and nobody is refused.",
                self.watch,
            ),
            Scene(
                "The report",
                "What keys would have done, from what the API has counted: coverage first.",
                self.report,
            ),
            Scene(
                "The switch",
                "An API that enforces keys is started beside the one in shadow. A payment is under "
                "way meanwhile; another is cut off when the old process is killed.",
                self.switch,
            ),
            Scene(
                "Enforced",
                "Keys from shadow are known: what ran once is answered again; what ran twice, with "
                "two answers, is refused. Nothing of it is charged again.",
                self.enforce,
            ),
        )

    # ── in shadow ─────────────────────────────────────────────────────────────────────────────────

    def watch(self, run: SceneRun) -> None:
        run.note("A client that behaves, and one whose card is declined twice:")
        ordinary, key = run.payment(), run.key()
        _as_without_semel(run, run.send(run.tern, ordinary, key), 201)
        self.once.append((ordinary, key))
        self._declined_twice(run)
        run.note("A client that lost the answer tries again, and pays twice. A key would help it:")
        retried, key = run.payment(meant=2), run.key()
        for _ in range(2):
            _as_without_semel(run, run.send(run.tern, retried, key), 201)
        self.often.append((retried, key))
        self._two_at_once(run)
        run.note("A client with one key for all it does. It would be refused:")
        first, key = run.payment(1100), run.key()
        _as_without_semel(run, run.send(run.wren, first, key), 201)
        _as_without_semel(run, run.send(run.wren, run.payment(9900), key), 201)
        self.reused.append((first, key))
        run.note("A client without keys sends the same payment twice. Nobody can say why:")
        alike = run.payment(2500, meant=2)
        for _ in range(2):
            _as_without_semel(run, run.send(run.wren, alike, None), 201)

    def _declined_twice(self, run: SceneRun) -> None:
        declined, key = run.payment(card="card_declined", meant=0), run.key()
        for _ in range(2):
            _as_without_semel(run, run.send(run.tern, declined, key), 402)
        self.declined.append((declined, key))

    def _two_at_once(self, run: SceneRun) -> None:
        run.note("A double click: the second request comes while the first is under way.")
        clicked, key = run.payment(card="card_slow", meant=2), run.key()
        sent = [run.send(run.tern, clicked, key)]
        run.charged(clicked)
        sent.append(run.send(run.tern, clicked, key))
        run.charged(clicked, 2)
        run.setup.release(clicked.order)
        for each in sent:
            _as_without_semel(run, each, 201)
        self.often.append((clicked, key))

    def report(self, run: SceneRun) -> None:
        """The API adds what it has counted every few seconds."""
        command = [sys.executable, "-m", "semel", "shadow", "report", "--store", run.setup.store]
        reported = ""

        def is_complete() -> bool:
            nonlocal reported
            reported = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
            return reported == REPORT

        try:
            wait_until(is_complete, "the report to be complete")
        finally:
            run.printer.line(f"$ semel shadow report --store {run.setup.store}")
            for line in reported.splitlines():
                run.printer.line(line)

    # ── the switch ────────────────────────────────────────────────────────────────────────────────

    def switch(self, run: SceneRun) -> None:
        run.setup.start_beside(self.enforcing)
        run.note(
            f"Keys are enforced at {self.enforcing.url}, process {self.enforcing.process.pid}. "
            "The old process still serves, in shadow, and gets one more payment:"
        )
        client = run.setup.merchant("tern-books", self.enforcing)
        payment, key = run.payment(card="card_slow"), run.key()
        sent = run.send(run.tern, payment, key)
        run.charged(payment)
        run.show_books(run.tern, payment, key, "in_progress")
        run.note("Before it has its answer, its client tries again, at the new process:")
        again = run.send(client, payment, key)
        run.setup.release(payment.order)
        _as_without_semel(run, sent, 201)
        run.expect(again, REPLAY)
        run.show_books(run.tern, payment, key, "completed")
        self._killed_in_shadow(run, client)

    def _killed_in_shadow(self, run: SceneRun, client: Merchant) -> None:
        payment, key = run.payment(card="card_slow"), run.key()
        sent = run.send(run.tern, payment, key)
        run.charged(payment)
        run.note(f"The old process is killed in the middle of another: kill -9 {_pid(run)}.")
        run.setup.api.kill()
        run.expect(sent, None)
        run.setup.release(payment.order)
        unknown_until_settled(run, client, payment, key)

    # ── enforced ──────────────────────────────────────────────────────────────────────────────────

    def enforce(self, run: SceneRun) -> None:
        before = len(run.setup.ledger.charges())
        tern = run.setup.merchant("tern-books", self.enforcing)
        wren = run.setup.merchant("wren-tea", self.enforcing)
        run.note("What ran once, and what was declined each time:")
        self._again(run, tern, self.once, REPLAY)
        self._again(run, tern, self.declined, DECLINED_AGAIN)
        run.note("What ran twice, with two answers. Neither is promised:")
        self._again(run, tern, self.often, RAN_AGAIN)
        run.note("One key for two payments: it is the first one's.")
        self._again(run, wren, self.reused, REPLAY)
        self._again(run, wren, [(replace(p, amount=9900), k) for p, k in self.reused], REUSED)
        run.note("No key:")
        run.expect(run.send(wren, run.payment(2500, meant=0), None), NO_KEY)
        made = len(run.setup.ledger.charges()) - before
        if made:
            run.complain(f"{made} charges were made for requests from shadow")
        run.note("A new payment, and its retry:")
        payment, key = run.payment(), run.key()
        run.expect(run.send(tern, payment, key), FIRST)
        run.expect(run.send(tern, payment, key), REPLAY)
        run.show_books(tern, payment, key, "completed")

    def _again(
        self,
        run: SceneRun,
        client: Merchant,
        payments: list[tuple[Payment, str]],
        expected: Expected,
    ) -> None:
        for payment, key in payments:
            run.expect(run.send(client, payment, key), expected)


def _as_without_semel(run: SceneRun, sent: Sent, status: int) -> None:
    """The handler's own answer, with nothing of semel's in it."""
    answer = run.expect(sent, Expected(status))
    if answer is not None and any(name.startswith("idempot") for name in answer.headers):
        run.complain("the answer has headers of semel's")


def _pid(run: SceneRun) -> int:
    return run.setup.api.process.pid
