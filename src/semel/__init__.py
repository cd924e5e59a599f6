"""semel: a state-changing request takes effect once, however often it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.core.policy import Policy, accepted, exempt, ietf, payments, stripe
from semel.core.records import Request, Response
from semel.core.request.fingerprint import Recipe as Fingerprint
from semel.core.unknown.evidence import Absent, CannotTell, Happened, Inquiry
from semel.errors import (
    ConfigurationError,
    GiveUp,
    KeyMissing,
    LeaseLost,
    NewerVersion,
    NotExecuted,
    OperationChanged,
    OutcomeUnknown,
    RecipeChanged,
    Refused,
    RetryLater,
    SchemaError,
    SemelError,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    Unguarded,
)
from semel.guard import Guard
from semel.runtime.events import Event
from semel.runtime.health import Health
from semel.runtime.limits import Limits, Rate
from semel.runtime.operation import AsyncOperation, Operation, current
from semel.web.routes import Route

if TYPE_CHECKING:
    from semel.core.delivery import Delivery
    from semel.outbox.webhook import Webhook
    from semel.stores.encryption import Encryption
    from semel.web.asgi import Middleware
    from semel.web.worker_runs import principal

__version__ = "0.1.0"

__all__ = [
    "Absent",
    "AsyncOperation",
    "CannotTell",
    "ConfigurationError",
    "Delivery",
    "Encryption",
    "Event",
    "Fingerprint",
    "GiveUp",
    "Guard",
    "Happened",
    "Health",
    "Inquiry",
    "KeyMissing",
    "LeaseLost",
    "Limits",
    "Middleware",
    "NewerVersion",
    "NotExecuted",
    "Operation",
    "OperationChanged",
    "OutcomeUnknown",
    "Policy",
    "Rate",
    "RecipeChanged",
    "Refused",
    "Request",
    "Response",
    "RetryLater",
    "Route",
    "SchemaError",
    "SemelError",
    "StoreCorrupt",
    "StoreError",
    "StoreUnavailable",
    "Unguarded",
    "Webhook",
    "accepted",
    "current",
    "exempt",
    "ietf",
    "payments",
    "principal",
    "stripe",
]

_LATER = {
    # Brings asyncio along, which a WSGI process need not load.
    "Middleware": "semel.web.asgi",
    # Most applications need none of these.
    "Delivery": "semel.core.delivery",
    "Encryption": "semel.stores.encryption",
    "Webhook": "semel.outbox.webhook",
    "principal": "semel.web.worker_runs",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
