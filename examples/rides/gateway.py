"""The application's way to its provider.

Nothing is caught here: semel knows what httpx's exceptions prove. A refused connection was not
sent; a time-out or a reset may have been, and then only the provider can tell.
"""

from __future__ import annotations

from typing import Any, Final

import httpx

ANSWERS: Final = {200, 201, 402, 409}
"""What became of a charge is its result, and a declined card is one: it is returned, not raised."""


class Gateway:
    """Asks the provider; every request carries the downstream key that semel made."""

    def __init__(self, url: str, patience: float = 3.0) -> None:
        self._http = httpx.Client(base_url=url, timeout=patience)

    def close(self) -> None:
        self._http.close()

    def charge(self, key: str, ride: dict[str, Any], card: str) -> dict[str, Any]:
        """Charged, declined, or voided when somebody called the charge off before."""
        asked = {"ride": ride["id"], "amount": ride["fare"], "card": card}
        return self._post("/charges", key, asked)

    def call_off(self, key: str) -> dict[str, Any]:
        """Charged or declined; when it is neither it is voided, and can be nothing else any more.

        One request does both. Between a question and a void a late charge could slip in.
        """
        return self._post(f"/charges/{key}/void", key, {})

    def mail(self, key: str, receipt: dict[str, Any]) -> str:
        """The provider's number for the receipt."""
        number: str = self._post("/receipts", key, receipt)["id"]
        return number

    def _post(self, path: str, key: str, document: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(path, json=document, headers={"idempotency-key": key})
        if answer.status_code not in ANSWERS:
            answer.raise_for_status()
        entry: dict[str, Any] = answer.json()
        return entry
