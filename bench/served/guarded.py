"""The application with semel around it, on the store that ``BENCH_STORE`` names.

``BENCH_REPLAY_CACHE``: for so many seconds an answer is repeated without asking the store.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import semel
from bench.served.app import app as bare

options: dict[str, Any] = {}
if window := os.environ.get("BENCH_REPLAY_CACHE"):
    options["replay_cache"] = timedelta(seconds=float(window))

app = semel.Guard(os.environ["BENCH_STORE"], tenant=None, migrate=True, **options).asgi(bare)
