"""Calls and answers as the tests of the client's logic need them."""

from __future__ import annotations

import json
from typing import Any

from semel.client.model import CallAnswer, LogicalCall
from semel.core.exchange.problems import refuse

URL = "https://api.example:8443/payments?secret=1"
KEY = "0198c0de-0000-7000-8000-00000000c0de"


def call(**changes: Any) -> LogicalCall:
    given: dict[str, Any] = {
        "key": KEY,
        "name": "order 17",
        "method": "POST",
        "url": URL,
        "headers": (("Content-Type", "application/json"),),
        "body": b'{"amount": 1}',
        "created_at": 1_000.0,
    }
    return LogicalCall(**{**given, **changes})


def answer(status: int, document: Any = None, **headers: str) -> CallAnswer:
    """An answer; header names with underscores for hyphens."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    if document is not None:
        named.setdefault("content-type", "application/json")
    body = b"" if document is None else json.dumps(document).encode()
    return CallAnswer(status, named, body)


def problem(code: str, **options: Any) -> CallAnswer:
    """A refusal exactly as a server of semel's sends it."""
    sent = refuse(code, **options)
    headers = {name.decode(): text.decode() for name, text in sent.headers}
    return CallAnswer(sent.status, headers, sent.body)


def accepted(
    location: str = "/semel/status/9f", state: str = "pending", **headers: str
) -> CallAnswer:
    document = {"status": state, "location": location}
    return answer(202, document, location=location, retry_after="1", **headers)
