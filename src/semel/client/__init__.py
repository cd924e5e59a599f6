"""A client's side of it: one key for each logical call, the same on every try, and no call lost.

`semel.client.httpx`, `semel.client.requests` and `semel.client.aiohttp` wrap the HTTP client that
you have; what they share is here.
"""

from __future__ import annotations

from semel.client.base import Resumed
from semel.client.errors import (
    AnswerLost,
    BudgetSpent,
    CallError,
    KeyExpired,
    KeyReused,
    OutcomeUnknown,
    Refused,
    Unanswered,
)
from semel.client.journal import Journal
from semel.client.journal_rows import Entry, Kept
from semel.client.keys import new_key
from semel.client.model import Call
from semel.client.retry_budget import Budget

__all__ = [
    "AnswerLost",
    "Budget",
    "BudgetSpent",
    "Call",
    "CallError",
    "Entry",
    "Journal",
    "Kept",
    "KeyExpired",
    "KeyReused",
    "OutcomeUnknown",
    "Refused",
    "Resumed",
    "Unanswered",
    "new_key",
]
