"""What a campaign of kills came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.proof.findings import Findings


@dataclass
class Verdict(Findings):
    kills: Counter[str] = field(default_factory=Counter)
    """Processes that SIGKILL ended, by where they were."""
    pairs: int = 0
    """Places of a first request and of its retry at which both died; each pair of places once."""
    second_places: Counter[str] = field(default_factory=Counter)
    """Those of the retry, by route and number."""
    stops: Counter[str] = field(default_factory=Counter)
    redeliveries: int = 0
    """What came to a provider again, with a key that it knew. They are no duplicates."""
    refused: int = 0
    """Processes that went on after their lease and whose write was refused."""
    late: int = 0
    """Those whose result was taken, since it was all that anybody knew."""
    receipts: int = 0
    """Keys whose answer flowed, and whose clients are told in the end that it is not kept."""
