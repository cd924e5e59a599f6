"""The clock of the stores whose clock is this machine's."""

from __future__ import annotations

import time

from semel.core.model import Micros


def system_clock() -> Micros:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
