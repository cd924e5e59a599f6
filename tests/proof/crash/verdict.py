"""What a campaign of kills came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

WRONG = ("duplicates", "lost", "wedged", "differing")


@dataclass
class Verdict:
    """Everything that is named in `WRONG` must be empty."""

    keys: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """Processes that SIGKILL ended, by where they were."""
    stops: Counter[str] = field(default_factory=Counter)
    redeliveries: int = 0
    """What came to a provider again, with a key that it knew. They are no duplicates."""
    refused: int = 0
    """Processes that went on after their lease and whose write was refused."""
    late: int = 0
    """Those whose result was taken, since it was all that anybody knew."""
    duplicates: list[str] = field(default_factory=list)
    """Keys with more than one effect."""
    lost: list[str] = field(default_factory=list)
    """Keys whose result or effect was there, and is no more."""
    wedged: list[str] = field(default_factory=list)
    """Keys that come to no end."""
    differing: list[str] = field(default_factory=list)
    """Keys whose clients got two different final answers."""

    @property
    def clean(self) -> bool:
        return not any(getattr(self, name) for name in WRONG)

    def add(self, other: Verdict) -> None:
        self.kills += other.kills
        self.stops += other.stops
        for name in ("keys", "redeliveries", "refused", "late"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in WRONG:
            getattr(self, name).extend(getattr(other, name))

    def figures(self) -> str:
        """What was wrong, in numbers."""
        return (
            f"{len(self.duplicates)} duplicate effects, {len(self.lost)} lost results, "
            f"{len(self.differing)} differing answers, {len(self.wedged)} wedged keys"
        )
