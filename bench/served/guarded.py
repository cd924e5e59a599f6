"""The application with semel around it, on the store that ``BENCH_STORE`` names."""

from __future__ import annotations

import os

import semel
from bench.served.app import app as bare

app = semel.Guard(os.environ["BENCH_STORE"], tenant=None, migrate=True).asgi(bare)
