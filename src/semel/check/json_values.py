"""JSON as Python has it: reads it, and says what a value is in a way that type checkers follow."""

from __future__ import annotations

import json
from typing import Any, Final, TypeGuard

NO_JSON: Final = object()


def json_of(body: bytes) -> Any:
    """What the bytes are as JSON, or `NO_JSON`."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return NO_JSON


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
