"""The public face is a decision, not an accident."""

from __future__ import annotations

import subprocess
import sys

import pytest

import semel


def test_the_public_names_are_exactly_these() -> None:
    assert semel.__all__ == [
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


def test_every_public_name_is_there_and_documented() -> None:
    for name in semel.__all__:
        assert getattr(semel, name).__doc__, name


def test_importing_semel_loads_no_event_loop_no_driver_and_no_framework() -> None:
    script = "import sys, semel; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"asyncio", "sqlite3", "psycopg", "starlette", "fastapi", "click", "rich", "tempfile"}
    heavy |= {"concurrent", "dataclasses", "decimal", "http_sf", "inspect", "uuid"}
    assert heavy.isdisjoint(loaded)


@pytest.mark.parametrize("kind", [semel.Operation, semel.AsyncOperation])
def test_an_operation_shows_its_handler_nothing_but_what_is_documented(kind: type) -> None:
    shown = {name for name in dir(kind) if not name.startswith("_")}
    knows = {"identity", "fence", "held", "downstream_key", "transaction", "session"}
    assert shown == knows | {"phase", "call", "enqueue", "resource", "keep_for"}


def test_asked_outside_a_keyed_request_the_error_says_so() -> None:
    with pytest.raises(LookupError, match="Idempotency-Key"):
        semel.operation()
