"""What a campaign came to: by the books, by the records, and by what clients were told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.proof.faults.books import Entry
from tests.proof.faults.crowd import OK
from tests.web.client import Reply


@dataclass
class Verdict:
    """Everything but the first four fields must be empty."""

    keys: int = 0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    duplicates: list[str] = field(default_factory=list)
    """Keys with more than one effect."""
    lost: list[str] = field(default_factory=list)
    """Keys that were acknowledged, and whose run is not in the books, or not on record."""
    wedged: list[str] = field(default_factory=list)
    """Keys that have not come to their answer although all faults are over."""
    differing: list[str] = field(default_factory=list)
    """Keys whose answers are not all the same."""
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
        wrong = (self.duplicates, self.lost, self.wedged, self.differing, self.strays)
        return any(wrong)

    def add(self, other: Verdict) -> None:
        self.keys += other.keys
        self.requests += other.requests
        self.faults += other.faults
        self.refusals += other.refusals
        for name in ("duplicates", "lost", "wedged", "differing", "strays", "doubted"):
            getattr(self, name).extend(getattr(other, name))

    def __str__(self) -> str:
        wrong = (
            f"{len(self.duplicates)} duplicates, {len(self.lost)} lost, {len(self.wedged)} wedged"
        )
        more = [
            ("differing", self.differing),
            ("without a record", self.strays),
            ("in doubt for a while", self.doubted),
        ]
        wrong += "".join(f", {len(found)} {name}" for name, found in more if found)
        faults = ", ".join(f"{count:,} {name}" for name, count in sorted(self.faults.items()))
        crowd = f"{self.keys:,} keys, {self.requests:,} requests, {self.refusals.total():,} refused"
        return f"{faults}; {crowd}: {wrong}"


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
