"""semel: a state-changing request takes effect once, however often it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.core.fingerprint import Recipe as Fingerprint
from semel.core.model import Request, Response
from semel.core.policy import Policy, ietf, payments, stripe
from semel.errors import (
    ConfigurationError,
    NotExecuted,
    OutcomeUnknown,
    RecipeChanged,
    Refused,
    SchemaError,
    SemelError,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from semel.guard import Guard
from semel.process.current import Operation, current
from semel.web.routing import Route

if TYPE_CHECKING:
    from semel.web.asgi import Middleware

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "Fingerprint",
    "Guard",
    "Middleware",
    "NotExecuted",
    "Operation",
    "OutcomeUnknown",
    "Policy",
    "RecipeChanged",
    "Refused",
    "Request",
    "Response",
    "Route",
    "SchemaError",
    "SemelError",
    "StoreCorrupt",
    "StoreError",
    "StoreUnavailable",
    "current",
    "ietf",
    "payments",
    "stripe",
]


def __getattr__(name: str) -> object:
    # Middleware brings asyncio along, which a WSGI process need not load.
    if name == "Middleware":
        from semel.web.asgi import Middleware

        return Middleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
