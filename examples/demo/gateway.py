"""The API's way to its payment provider: real HTTP, with a real time-out."""

from __future__ import annotations

import http.client
import json
from typing import Any

import semel
from examples.demo.ledger import Charge
from examples.demo.servers import HOST

TIMEOUT = 3.0
"""Seconds the API waits for its provider."""


class Declined(Exception):
    """The provider refused the card; nothing was charged."""


class Gateway:
    """Charges cards at the provider, and is honest about what it does not know."""

    def __init__(self, port: int) -> None:
        self._port = port

    def charge(self, payment: dict[str, Any], key: str) -> Charge:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=TIMEOUT)
        try:
            connection.connect()
        except OSError as error:
            raise semel.NotExecuted("the provider cannot be reached; nothing was sent") from error
        try:
            return self._charge(connection, payment, key)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # From the first byte sent until the answer is read, it may have happened.
            raise semel.OutcomeUnknown("the provider gave no answer") from error
        finally:
            connection.close()

    def _charge(
        self, connection: http.client.HTTPConnection, payment: dict[str, Any], key: str
    ) -> Charge:
        headers = {"content-type": "application/json", "idempotency-key": key}
        connection.request("POST", "/charges", json.dumps(payment), headers)
        answer = connection.getresponse()
        document = json.loads(answer.read())
        if answer.status == 402:
            raise Declined
        if answer.status != 201:
            raise ValueError(f"the provider answered {answer.status}")
        return Charge(**document)
