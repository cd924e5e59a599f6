"""Chance, for pauses and turns; it guards nothing.

Drawn from the system and not from the module `random`: an application may have seeded that one and
count on its numbers, and processes forked from one another would rest for the same times.
"""

from __future__ import annotations

import os


def luck() -> float:
    """A number from 0 up to, but not including, 1."""
    return (int.from_bytes(os.urandom(7)) >> 3) * 2.0**-53


def between(least: float, most: float) -> float:
    return least + (most - least) * luck()
