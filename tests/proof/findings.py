"""What every campaign that counts effects looks for, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Self


@dataclass
class Findings:
    """Everything that is named in ``WRONG`` must be empty; a campaign adds what it counts."""

    WRONG: ClassVar[dict[str, str]] = {
        "duplicates": "duplicate effects",
        "lost": "lost results",
        "differing": "differing answers",
        "wedged": "wedged keys",
    }
    """And what each is called."""

    keys: int = 0
    duplicates: list[str] = field(default_factory=list)
    """Keys with more than one effect."""
    lost: list[str] = field(default_factory=list)
    """Keys whose result or effect was there or acknowledged, and is not there any more."""
    wedged: list[str] = field(default_factory=list)
    """Keys that come to no end."""
    differing: list[str] = field(default_factory=list)
    """Keys whose clients got two different final answers."""

    @property
    def clean(self) -> bool:
        return not any(getattr(self, name) for name in self.WRONG)

    def add(self, other: Self) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def figures(self) -> str:
        """What was wrong, in numbers."""
        found = {called: getattr(self, name) for name, called in self.WRONG.items()}
        return ", ".join(f"{len(keys)} {called}" for called, keys in found.items())
