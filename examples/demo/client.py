"""A merchant's client: plain HTTP, one connection per request, so that each can be cut."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from examples.demo.app import Payment
from examples.demo.servers import HOST

_PATIENCE = 20.0
"""Seconds; longer than anything the API may legitimately take."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What came back."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def replayed(self) -> bool | None:
        """What the answer says of itself; None when it says nothing."""
        said = self.headers.get("idempotent-replayed")
        return None if said is None else said == "true"

    @property
    def document(self) -> dict[str, Any]:
        """The body where it is a JSON object; of anything else, nothing."""
        try:
            document: Any = json.loads(self.body)
        except ValueError:
            return {}
        return cast("dict[str, Any]", document) if isinstance(document, dict) else {}

    @property
    def code(self) -> str | None:
        """The stable code of a refusal by semel."""
        return self.document.get("code")


class Sent:
    """A request on its way."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def answer(self) -> ApiAnswer | None:
        """Wait for the answer; None when the connection broke first."""
        try:
            got = self._connection.getresponse()
            headers = {name.lower(): value for name, value in got.getheaders()}
            return ApiAnswer(got.status, got.reason, headers, got.read())
        except (OSError, http.client.HTTPException):
            return None
        finally:
            self._connection.close()

    def cut(self) -> None:
        """Drop the connection as a dead network does: a reset, whatever is still under way."""
        sock: socket.socket = self._connection.sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Merchant:
    """One merchant."""

    port: int
    merchant: str
    token: str

    def send(self, payment: Payment, key: str | None, *, rewritten: bool = False) -> Sent:
        """Send a payment and do not wait. ``rewritten``: the same meaning in other bytes."""
        document = asdict(payment)
        if rewritten:
            document = dict(reversed(document.items()))
        body = json.dumps(document, indent=4 if rewritten else None)
        headers = {
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
        }
        if key is not None:
            headers["idempotency-key"] = key
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_PATIENCE)
        connection.request("POST", "/payments", body, headers)
        return Sent(connection)
