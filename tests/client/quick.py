"""The budget of the tests' calls. Alone: processes that pay need not load every library for it."""

from __future__ import annotations

from datetime import timedelta

from semel.client import Budget
from tests.waiting import PATIENCE

QUICK = Budget(
    6, timedelta(seconds=PATIENCE), timedelta(milliseconds=10), timedelta(milliseconds=200)
)
