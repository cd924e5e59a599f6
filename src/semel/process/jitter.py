"""Spread in time, so that many processes that failed together do not come back together."""

from __future__ import annotations


def jitter() -> float:
    """A factor between a half and one."""
    import random  # here: most processes never need it

    return random.uniform(0.5, 1.0)  # noqa: S311 - guards nothing
