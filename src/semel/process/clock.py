"""The clock that leases are counted by.

It goes on while the machine is suspended, as the store's clock does: a process that wakes must not
believe in a lease that ran out while it slept. Where the system has no such clock, the monotonic
one is used.
"""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def lease_clock() -> float:
        """Seconds since the machine was started, sleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    lease_clock = time.monotonic
