"""The provider's own book: one line per charge, only ever appended.

It is written by the provider alone and knows nothing of semel, which makes it evidence.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Charge:
    """Money that was really (pretend-really) taken."""

    id: str
    order: str
    amount: int
    currency: str
    key: str


class Ledger:
    """The charges in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, charge: Charge) -> None:
        """Durable when this returns: an answer that follows tells the truth."""
        line = json.dumps(asdict(charge)).encode() + b"\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)

    def charges(self) -> list[Charge]:
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        return [Charge(**json.loads(line)) for line in whole.splitlines()]

    def of_order(self, order: str) -> list[Charge]:
        return [charge for charge in self.charges() if charge.order == order]

    def of_key(self, key: str) -> list[Charge]:
        """The charges made for one downstream key."""
        return [charge for charge in self.charges() if charge.key == key]
