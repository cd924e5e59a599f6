"""Pauses, and their spread in time: who failed together must not come back together."""

from __future__ import annotations


def jitter() -> float:
    """A factor between a half and one."""
    import random  # here: most processes never need it

    return random.uniform(0.5, 1.0)  # noqa: S311 - guards nothing


def pause_before(attempt: int) -> float:
    """Seconds to rest before the next try at a write: short first, a second at most."""
    return min(1.0, 0.05 * 2.0 ** min(attempt, 6))
