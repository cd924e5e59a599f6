"""What a campaign came to: by the books, by the records, and by what clients were told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from tests.proof.faults.books import Entry
from tests.proof.faults.crowd import OK
from tests.proof.findings import Findings
from tests.web.client import Reply


@dataclass
class Verdict(Findings):
    WRONG: ClassVar[dict[str, str]] = {**Findings.WRONG, "strays": "effects without a record"}

    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    strays: list[str] = field(default_factory=list)
    """Effects of keys that have no record."""
    doubted: list[str] = field(default_factory=list)
    """Keys of which somebody was told that their outcome is unknown, before they had an end."""

    @property
    def clean(self) -> bool:
        return not (self.unsound or self.doubted)

    @property
    def unsound(self) -> bool:
        """Whatever must never be, not even where an outcome may be unknown for a while."""
        return not super().clean

    def __str__(self) -> str:
        faults = ", ".join(f"{count:,} {name}" for name, count in sorted(self.faults.items()))
        crowd = f"{self.keys:,} keys, {self.requests:,} requests, {self.refusals.total():,} refused"
        doubted = f", {len(self.doubted)} in doubt for a while" if self.doubted else ""
        return f"{faults}; {crowd}: {self.figures()}{doubted}"


def audit(
    told: Mapping[str, list[Reply]], entries: Iterable[Entry], states: Mapping[str, str]
) -> Verdict:
    nonces: dict[str, list[str]] = defaultdict(list)
    for key, nonce in entries:
        nonces[key].append(nonce)
    verdict = Verdict(len(told))
    for key, replies in told.items():
        _judge(verdict, key, replies, nonces[key], states.get(key))
    verdict.duplicates = [key for key, runs in nonces.items() if len(runs) > 1]
    verdict.strays = [key for key, runs in nonces.items() if runs and key not in states]
    return verdict


def _judge(
    verdict: Verdict, key: str, replies: list[Reply], runs: list[str], state: str | None
) -> None:
    good = [reply for reply in replies if reply.status == OK]
    answers = {reply.body.decode() for reply in good}
    if answers - set(runs) or (good and state != "completed"):
        verdict.lost.append(f"{key}: {len(runs)} effects, record {state}")
    if replies[-1].status != OK:
        verdict.wedged.append(f"{key}: {[(r.status, r.body[:200]) for r in replies]}, {state}")
    elif len(good) < len(replies):
        verdict.doubted.append(key)
    if len(answers) > 1:
        verdict.differing.append(key)
