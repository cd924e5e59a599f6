"""What is sent: four patterns of keys, and how often each of them may run the handler.

The key of request number ``n`` follows from ``n`` alone, so both generators send the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

REPLAYED_KEYS: Final = 1_000
HERD: Final = 32
"""Requests in a row that have the same key; as many as there are connections by default."""
FRESH_EVERY: Final = 10
"""In the mixed plan, one request in ten has a key of its own."""

BODY: Final = json.dumps(
    {
        "amount": 12_500,
        "currency": "EUR",
        "customer": {"id": "cus_8f14e45fceea167a", "email": "someone@example.org"},
        "items": [
            {"sku": f"sku-{number:04d}", "quantity": number, "price": 1250 + number}
            for number in range(6)
        ],
        "metadata": {"channel": "web", "campaign": "autumn", "reference": "r" * 120},
    }
).encode()


@dataclass(frozen=True)
class Plan:
    """One pattern of keys."""

    name: str
    title: str
    primed: bool = False
    """Whether the repeated keys have been used once before the measurement."""

    def key(self, number: int) -> str:
        """What stands behind the prefix; load.lua says the same."""
        if self.name == "herd":
            return f"h{number // HERD:012d}"
        if self.name == "fresh" or (self.name == "mixed" and number % FRESH_EVERY == 0):
            return f"f{number:012d}"
        return f"r{number % REPLAYED_KEYS:012d}"

    def executions(self, requests: int) -> float:
        """How often the handler runs for so many requests."""
        shares = {"fresh": 1.0, "replay": 0.0, "mixed": 1 / FRESH_EVERY, "herd": 1 / HERD}
        return shares[self.name] * requests


FRESH: Final = Plan("fresh", "fresh keys")
REPLAY: Final = Plan("replay", "replays", primed=True)
MIXED: Final = Plan("mixed", "mixed 90/10", primed=True)
HERDED: Final = Plan("herd", "herd on one key")
PLANS: Final = {plan.name: plan for plan in (FRESH, REPLAY, MIXED, HERDED)}


def request(key: str) -> bytes:
    return (
        b"POST /payments HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nIdempotency-Key: %s\r\n\r\n%s" % (len(BODY), key.encode(), BODY)
    )
