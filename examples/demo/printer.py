"""Prints the demo: colours on a terminal, plain text everywhere else."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from examples.demo.app import Payment
from examples.demo.client import ApiAnswer
from examples.demo.ledger import Charge

_WIDTH = 100

_ASCII = str.maketrans(
    {"→": "->", "←": "<-", "·": "*", "✓": "ok", "✗": "!!", "…": "...", "×": "x", "─": "-"}
)
"""For terminals and files that take nothing else."""

Piece = str | tuple[str, str]
"""Text, or text with a style."""


@dataclass(frozen=True, slots=True)
class SceneResult:
    """The result of a scene: how often each order was charged, and what went wrong."""

    title: str
    charges: dict[str, int]
    complaints: tuple[str, ...]
    more: dict[str, int] = field(default_factory=dict[str, int])
    """Orders that are meant to be charged another number of times than once."""

    @property
    def meant(self) -> int:
        return sum(map(self._meant, self.charges))

    @property
    def made(self) -> int:
        return sum(self.charges.values())

    @property
    def verdict(self) -> str:
        """Judged order by order: one doubled and one lost do not make two right."""
        if any(made > self._meant(order) for order, made in self.charges.items()):
            return "DOUBLED"
        if any(made < self._meant(order) for order, made in self.charges.items()):
            return "LOST"
        return "FAILED" if self.complaints else "ok"

    @property
    def reason(self) -> str:
        """Why it is not ok, in one line; money first."""
        wrong = [
            f"{order} was charged {times(made)}, not {times(self._meant(order))}"
            for order, made in self.charges.items()
            if made != self._meant(order)
        ]
        return "; ".join(wrong or self.complaints[:1])

    def _meant(self, order: str) -> int:
        return self.more.get(order, 1)


_STYLES = {
    "": "",
    "bold": "1",
    "dim": "2",
    "italic": "3",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}
"""The ANSI codes of the words in a style such as ``bold red``."""


class Printer:
    """Prints the scenes to ``out``: with colours on a terminal, unless NO_COLOR is set."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        terminal = out.isatty()
        self._coloured = terminal and not os.environ.get("NO_COLOR")
        self._ascii = not (out.encoding or "").lower().startswith("utf")
        columns = shutil.get_terminal_size((_WIDTH, 24)).columns
        self._width = min(columns, _WIDTH) if terminal else _WIDTH

    def line(self, *pieces: Piece) -> None:
        """Print one line as it is; the terminal wraps long ones, so that they can be copied."""
        styled = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
        text = "".join(self._styled(*each) for each in styled)
        print(text.translate(_ASCII) if self._ascii else text, file=self._out, flush=True)

    def _styled(self, text: str, style: str) -> str:
        codes = ";".join(_STYLES[word] for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m" if self._coloured and codes else text

    def prose(self, text: str, style: str = "", lead: str = "") -> None:
        """Print wrapped text; lines after the first start below the text, not below ``lead``."""
        below = " " * len(lead)
        for row in textwrap.wrap(text, self._width, initial_indent=lead, subsequent_indent=below):
            self.line((row, style))

    def gap(self) -> None:
        self.line()

    # ── a scene ───────────────────────────────────────────────────────────────────────────────────

    def scene(self, number: int, title: str, shows: str) -> None:
        self.gap()
        self.line((f"{number}  {title}", "bold cyan"))
        self.prose(shows, "italic", lead="   ")
        self.gap()

    def request(self, merchant: str, payment: Payment, key: str | None) -> None:
        what = f"{payment.order}  {money(payment.amount, payment.currency)}"
        named = "without a key" if key is None else f"key {key[:8]}…"
        self.line("   → ", ("POST /payments", "bold"), f"  {named}  {merchant}  {what}")

    def answer(self, answer: ApiAnswer | None, times: int = 1) -> None:
        if answer is None:
            self.line("   ← ", ("no answer", "bold red"), ": the connection broke")
            return
        count = f"{times} × " if times > 1 else ""
        style = "green" if answer.status < 300 else "yellow"
        status = f"{count}{answer.status} {answer.reason}"
        self.line("   ← ", (status, f"bold {style}"), *_marks(answer))

    def note(self, text: str) -> None:
        self.prose(text, lead="   · ")

    def show_books(self, order: str, charges: Sequence[Charge], state: str | None) -> None:
        made = f"{order} charged {times(len(charges))}{_listed(charges)}"
        record = f"; semel's record: {state}" if state is not None else ""
        self.line(("   = underneath: ", "dim"), (made, "magenta"), (record, "magenta"))

    def complaint(self, text: str) -> None:
        self.line(("   ✗ ", "bold red"), (text, "red"))

    def scene_ends(self, outcome: SceneResult) -> None:
        good = outcome.verdict == "ok"
        made = f"charges meant {outcome.meant}, made {outcome.made}"
        self.line(("   ✓ " if good else "   ✗ ", _style(outcome)), (made, _style(outcome)))

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def verdicts(self, outcomes: Sequence[SceneResult]) -> None:
        width = max(len(outcome.title) for outcome in outcomes)
        self.gap()
        self.line(("Verdict", "bold cyan"))
        self.gap()
        self.line(f" {'scene':<{width}}   charges meant   charges made   verdict")
        self.line(f" {'─' * (width + 43)}")
        for outcome in outcomes:
            figures = f" {outcome.title:<{width}}   {outcome.meant:>13}   {outcome.made:>12}   "
            self.line(figures, (outcome.verdict, _style(outcome)))
        self.gap()
        for outcome in outcomes:
            if outcome.verdict != "ok":
                self.line((f"{outcome.title}: ", "bold"), outcome.reason)


def _style(outcome: SceneResult) -> str:
    return "bold green" if outcome.verdict == "ok" else "bold red"


def _marks(answer: ApiAnswer) -> list[Piece]:
    """What is worth reading in an answer besides its status."""
    document = answer.document
    marks: list[Piece] = []
    if answer.replayed is not None:
        marks.append(f"  Idempotent-Replayed: {str(answer.replayed).lower()}")
    if answer.code is not None:
        retryable = str(document.get("retryable")).lower()
        marks.append(f"  {answer.code} (retryable: {retryable})")
    if fields := document.get("differing_fields"):
        marks.append(f"  differs in: {', '.join(fields)}")
    if charge := document.get("charge"):
        marks.append(f"  {charge}")
    if error := document.get("error"):
        marks.append(f"  {error}")
    return marks


def _listed(charges: Sequence[Charge]) -> str:
    if not charges:
        return ""
    more = f" and {len(charges) - 3} more" if len(charges) > 3 else ""
    return f" ({', '.join(charge.id for charge in charges[:3])}{more})"


def money(amount: int, currency: str) -> str:
    return f"{amount // 100}.{amount % 100:02d} {currency}"


def times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")
