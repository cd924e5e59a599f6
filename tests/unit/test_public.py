"""The public face is a decision, not an accident."""

from __future__ import annotations

import subprocess
import sys

import pytest

import semel


def test_the_public_names_are_exactly_these() -> None:
    assert semel.__all__ == [
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


def test_every_public_name_is_there_and_documented() -> None:
    for name in semel.__all__:
        assert getattr(semel, name).__doc__, name


def test_importing_semel_loads_no_event_loop_no_driver_and_no_framework() -> None:
    script = "import sys, semel; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"asyncio", "sqlite3", "psycopg", "starlette", "fastapi", "click", "rich", "tempfile"}
    heavy |= {"concurrent", "dataclasses", "decimal", "http_sf", "inspect", "logging", "uuid"}
    assert heavy.isdisjoint(loaded)


def test_an_operation_shows_its_handler_nothing_but_what_is_documented() -> None:
    shown = {name for name in dir(semel.Operation) if not name.startswith("_")}
    assert shown == {"identity", "fence", "held", "downstream_key"}


def test_asked_outside_a_keyed_request_the_error_says_so() -> None:
    with pytest.raises(LookupError, match="Idempotency-Key"):
        semel.current()
