"""The pretend payment provider: takes every charge it is asked for, as often as it is asked.

It writes down the idempotency key of a request and otherwise ignores it. On purpose: a provider
that recognises duplicates would hide them, and the demo would prove nothing about semel.

The card says how the provider behaves, as test cards do:

    card_ok        charges and answers
    card_declined  does not charge, answers 402
    card_slow      charges, then keeps its answer back until `POST /release`
    card_silent    charges, then hangs up without an answer
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from examples.demo.ledger import Charge, Ledger
from examples.demo.servers import HOST, announce, bound, end_with_parent

_LONGEST_HOLD = 30.0
"""Seconds after which even a slow card is answered."""


class Provider:
    """Takes charges and remembers which answers are being kept back."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._lock = threading.Lock()
        self._count = len(ledger.charges())
        self._released: dict[str, threading.Event] = {}

    def charge(self, asked: dict[str, Any], key: str) -> Charge:
        with self._lock:
            self._count += 1
            charge = Charge(
                id=f"ch_{self._count:04d}",
                order=str(asked["order"]),
                amount=int(asked["amount"]),
                currency=str(asked["currency"]),
                key=key,
            )
            self.ledger.append(charge)
        return charge

    def hold(self, order: str) -> None:
        """Wait until the order's answers are released; they stay so for later requests too."""
        self._event(order).wait(_LONGEST_HOLD)

    def release(self, order: str) -> None:
        self._event(order).set()

    def _event(self, order: str) -> threading.Event:
        with self._lock:
            return self._released.setdefault(order, threading.Event())


class ProviderHandler(BaseHTTPRequestHandler):
    """The provider's HTTP face."""

    provider: Provider

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))))
        if self.path == "/release":
            self.provider.release(str(asked["order"]))
            self._answer(200, {})
        elif self.path == "/charges":
            self._charge(asked)
        else:
            self._answer(404, {"error": "no such page"})

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        orders = parse_qs(url.query).get("order", [])
        charges = [asdict(c) for c in self.provider.ledger.charges() if c.order in orders]
        self._answer(200, {"charges": charges})

    def _charge(self, asked: dict[str, Any]) -> None:
        card = asked["card"]
        if card == "card_declined":
            self._answer(402, {"error": "card declined"})
            return
        charge = self.provider.charge(asked, self.headers.get("idempotency-key", ""))
        if card == "card_slow":
            self.provider.hold(charge.order)
        if card != "card_silent":
            self._answer(201, asdict(charge))

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode() + b"\n"
        with suppress(ConnectionError):  # whoever asked may have given up; the charge stands
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main(port: int, ledger: Path) -> None:
    """Serve until the demo ends."""
    end_with_parent()
    ProviderHandler.provider = Provider(Ledger(ledger))
    server = _Server((HOST, port), ProviderHandler, bind_and_activate=False)
    server.socket.close()
    server.socket = bound(port)
    server.server_activate()
    announce()
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
