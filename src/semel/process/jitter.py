"""Pauses, and their spread in time: who failed together must not come back together."""

from __future__ import annotations

from semel.chance import between


def jitter() -> float:
    """A factor between a half and one."""
    return between(0.5, 1.0)


def pause_before(attempt: int) -> float:
    """Seconds to rest before the next try at a write: short first, a second at most."""
    return min(1.0, 0.05 * 2.0 ** min(attempt, 6))
