"""The example under real servers, watched: for uvicorn and ``semel worker`` to load.

RIDES_FATE names the boundary at which the process is sent RIDES_SIGN; RIDES_WITHOUT takes a guard
out of semel.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.examples.rides.process import load
from tests.proof.crash.boundaries import Boundaries, Fate

_sign = int(os.environ.get("RIDES_SIGN", int(signal.SIGKILL)))
_fate = os.environ.get("RIDES_FATE", "")
_boundaries = Boundaries().begin(
    Fate(int(_fate) if _fate.isdigit() else _fate or None, _sign),
    Path(os.environ["RIDES_FATES"]),
    os.environ.get("RIDES_ROLE", "server"),
)
_rides: Any = load(_boundaries, os.environ.get("RIDES_WITHOUT", ""))

guard: Any = _rides.guard
app: Any = _rides.app
