"""What the audience sees: colours on a terminal, plain text everywhere else."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.demo.app import Payment
from semel.demo.client import Answer
from semel.demo.ledger import Charge

_WIDTH = 100

_ASCII = str.maketrans({"→": "->", "←": "<-", "·": "*", "✓": "ok", "✗": "!!", "…": "...", "×": "x"})
"""For terminals and files that take nothing else."""

Piece = str | tuple[str, str]
"""Text, or text with a style."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scene came to: per order, how often its card was charged; and what went wrong."""

    title: str
    charges: dict[str, int]
    complaints: tuple[str, ...]

    @property
    def meant(self) -> int:
        return len(self.charges)

    @property
    def made(self) -> int:
        return sum(self.charges.values())

    @property
    def verdict(self) -> str:
        """Judged order by order: one doubled and one lost do not make two right."""
        if any(made > 1 for made in self.charges.values()):
            return "DOUBLED"
        if any(made < 1 for made in self.charges.values()):
            return "LOST"
        return "FAILED" if self.complaints else "ok"

    @property
    def reason(self) -> str:
        """Why it is not ok, in one line; money first."""
        wrong = [
            f"{order} was charged {times(made)}, not once"
            for order, made in self.charges.items()
            if made != 1
        ]
        return "; ".join(wrong or self.complaints[:1])


def console() -> Console:
    """Rich finds out what the terminal can do; NO_COLOR asks for no escape codes at all."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # no character is worth a crash
    here = Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    here.width = min(here.width, _WIDTH) if here.is_terminal else _WIDTH
    return here


class Stage:
    """Prints the play."""

    def __init__(self, console: Console) -> None:
        self._console = console

    # ── lines ─────────────────────────────────────────────────────────────────────────────────────

    def line(self, *pieces: Piece) -> None:
        """One line as it is: longer ones are left to the terminal, so that they can be copied."""
        styled = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
        if not self._console.encoding.startswith("utf"):
            styled = [(text.translate(_ASCII), style) for text, style in styled]
        self._console.print(Text.assemble(*styled), soft_wrap=True)

    def prose(self, text: str, style: str = "", lead: str = "") -> None:
        """Words, wrapped; lines after the first start below the text, not below ``lead``."""
        width = self._console.width
        below = " " * len(lead)
        for row in textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=below):
            self.line((row, style))

    def gap(self) -> None:
        self._console.print()

    # ── a scene ───────────────────────────────────────────────────────────────────────────────────

    def scene(self, number: int, title: str, shows: str) -> None:
        self.gap()
        self.line((f"{number}  {title}", "bold cyan"))
        self.prose(shows, "italic", lead="   ")
        self.gap()

    def request(self, merchant: str, payment: Payment, key: str) -> None:
        what = f"{payment.order}  {money(payment.amount, payment.currency)}"
        self.line("   → ", ("POST /payments", "bold"), f"  key {key[:8]}…  {merchant}  {what}")

    def answer(self, answer: Answer | None, times: int = 1) -> None:
        if answer is None:
            self.line("   ← ", ("no answer", "bold red"), ": the connection broke")
            return
        count = f"{times} × " if times > 1 else ""
        style = "green" if answer.status < 300 else "yellow"
        status = f"{count}{answer.status} {answer.reason}"
        self.line("   ← ", (status, f"bold {style}"), *_marks(answer))

    def note(self, text: str) -> None:
        self.prose(text, lead="   · ")

    def underneath(self, order: str, charges: Sequence[Charge], state: str | None) -> None:
        made = f"{order} charged {times(len(charges))}{_listed(charges)}"
        record = f"; semel's record: {state}" if state is not None else ""
        self.line(("   = underneath: ", "dim"), (made, "magenta"), (record, "magenta"))

    def complaint(self, text: str) -> None:
        self.line(("   ✗ ", "bold red"), (text, "red"))

    def scene_ends(self, outcome: Outcome) -> None:
        good = outcome.verdict == "ok"
        made = f"charges meant {outcome.meant}, made {outcome.made}"
        self.line(("   ✓ " if good else "   ✗ ", _style(outcome)), (made, _style(outcome)))

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def verdicts(self, outcomes: Sequence[Outcome]) -> None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("scene", no_wrap=True)
        table.add_column("charges meant", justify="right")
        table.add_column("charges made", justify="right")
        table.add_column("verdict", no_wrap=True)
        for outcome in outcomes:
            verdict = Text(outcome.verdict, _style(outcome))
            table.add_row(outcome.title, str(outcome.meant), str(outcome.made), verdict)
        self.gap()
        self.line(("Verdict", "bold cyan"))
        self._console.print(table)
        for outcome in outcomes:
            if outcome.verdict != "ok":
                self.line((f"{outcome.title}: ", "bold"), outcome.reason)


def _style(outcome: Outcome) -> str:
    return "bold green" if outcome.verdict == "ok" else "bold red"


def _marks(answer: Answer) -> list[Piece]:
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
