"""Pauses between tries, and the random numbers that spread them. Nothing secret depends on them.

The numbers come from the system, not from the module `random`: an application may have seeded that
one, and forked processes would all pause for the same times.
"""

from __future__ import annotations

import os


def luck() -> float:
    """A number from 0 up to, but not including, 1."""
    return (int.from_bytes(os.urandom(7)) >> 3) * 2.0**-53


def between(least: float, most: float) -> float:
    """A number from ``least`` up to ``most``."""
    return least + (most - least) * luck()


# --- pauses: what failed together must not come back together


def jitter() -> float:
    """A factor between a half and one."""
    return between(0.5, 1.0)


def pause_before(attempt: int) -> float:
    """Seconds to wait before the next try at a write: short at first, one second at most."""
    return min(1.0, 0.05 * 2.0 ** min(attempt, 6))
