"""The application with semel around it, on the store that ``BENCH_STORE`` names.

``BENCH_REPLAY_CACHE``: for so many seconds an answer is repeated without asking the store.
``BENCH_TENANT``: the header that stands for the caller.
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

options["tenant"] = None
if header := os.environ.get("BENCH_TENANT"):
    options["tenant"] = lambda request: request.headers[header]

guard = semel.Guard(os.environ["BENCH_STORE"], migrate=True, **options)
app = guard.asgi(bare)
