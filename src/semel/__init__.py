"""semel: a state-changing request takes effect once, however often it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.core.exchange import refusal_shapes as refusals
from semel.core.exchange.problems import Problem
from semel.core.policy import Policy, accepted, acp, exempt, ietf, payments, stripe
from semel.core.records import Request, Response
from semel.core.request.fingerprint import FingerprintRule
from semel.core.request.key_places import BodyField, body
from semel.core.unknown.evidence import Absent, CannotTell, Happened, Inquiry
from semel.errors import (
    ConfigurationError,
    EncryptionKeyMissing,
    GiveUp,
    LeaseLost,
    NotExecuted,
    OperationChanged,
    OutcomeUnknown,
    Refused,
    RetryLater,
    SchemaError,
    SchemaTooNew,
    SemelError,
    SettingsChanged,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    Unguarded,
)
from semel.guard import Guard
from semel.runtime.breaker import Health
from semel.runtime.events import Event
from semel.runtime.limits import Limits, Rate
from semel.runtime.operation import AsyncOperation, Operation, async_operation, operation
from semel.web.routes import Route

if TYPE_CHECKING:
    from semel.core.delivery import Delivery
    from semel.once import Once
    from semel.outbox.webhook import Webhook
    from semel.stores.encryption import Encryption
    from semel.web.asgi import Middleware
    from semel.web.worker_runs import principal

__version__ = "0.1.0"

__all__ = [
    "Absent",
    "AsyncOperation",
    "BodyField",
    "CannotTell",
    "ConfigurationError",
    "Delivery",
    "Encryption",
    "EncryptionKeyMissing",
    "Event",
    "FingerprintRule",
    "GiveUp",
    "Guard",
    "Happened",
    "Health",
    "Inquiry",
    "LeaseLost",
    "Limits",
    "Middleware",
    "NotExecuted",
    "Once",
    "Operation",
    "OperationChanged",
    "OutcomeUnknown",
    "Policy",
    "Problem",
    "Rate",
    "Refused",
    "Request",
    "Response",
    "RetryLater",
    "Route",
    "SchemaError",
    "SchemaTooNew",
    "SemelError",
    "SettingsChanged",
    "StoreCorrupt",
    "StoreError",
    "StoreUnavailable",
    "Unguarded",
    "Webhook",
    "accepted",
    "acp",
    "async_operation",
    "body",
    "exempt",
    "ietf",
    "operation",
    "payments",
    "principal",
    "refusals",
    "stripe",
]

_LATER = {
    # Brings asyncio along, which a WSGI process need not load.
    "Middleware": "semel.web.asgi",
    # Most applications need none of these.
    "Delivery": "semel.core.delivery",
    "Encryption": "semel.stores.encryption",
    "Once": "semel.once",
    "Webhook": "semel.outbox.webhook",
    "principal": "semel.web.worker_runs",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
