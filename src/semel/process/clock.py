"""The clock that leases are counted by.

It goes on while the machine is suspended, as the store's clock does: a process that wakes must not
believe in a lease that ran out while it slept. Where the system has no such clock, the monotonic
one is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

lease_clock: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds since the machine was started, sleep included. No function of ours: it is asked twice in
every request."""
