"""A small server with Stripe's manners: keys for a whole account, 409, 400, replays, hints.

Every answer is scripted by the order's own words; what was charged is in ``charges``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.waiting import PATIENCE


@dataclass
class KeptAnswer:
    """What is known of a key."""

    body: bytes
    done: threading.Event = field(default_factory=threading.Event)
    status: int = 0
    answer: bytes = b""


class StripeLike:
    """Serves in a thread, on a port of 127.0.0.1."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.kept: dict[str, KeptAnswer] = {}
        self.lock = threading.Lock()
        self.busy = threading.Event()
        """Somebody was told that a request with the key is under way."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/charges"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.busy.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stripe = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stripe.paths.append(self.path)
                status, document, more = stripe.answer(self.headers["Idempotency-Key"], body)
                octets = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                for name, text in {"Content-Type": "application/json", **more}.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(octets)))
                self.end_headers()
                self.wfile.write(octets)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler

    def answer(self, key: str, body: bytes) -> tuple[int, Any, Mapping[str, str]]:
        with self.lock:
            self.keys.append(key)
            kept, is_new = self.kept.get(key), key not in self.kept
            if is_new:
                kept = self.kept[key] = KeptAnswer(body)
        assert kept is not None
        if json.loads(kept.body) != json.loads(body):
            return 400, {"error": {"type": "idempotency_error"}}, {}
        if is_new:
            return self._charge(key, kept, json.loads(body))
        if not kept.done.is_set():
            self.busy.set()
            code = "idempotency_key_in_use"
            return 409, {"error": {"type": "invalid_request_error", "code": code}}, {}
        return kept.status, kept.answer, {"Idempotent-Replayed": "true"}

    def _charge(
        self, key: str, kept: KeptAnswer, order: dict[str, Any]
    ) -> tuple[int, Any, Mapping[str, str]]:
        how = order.get("how")
        if how == "try again":  # before anything was done: the key stays free
            self.kept.pop(key)
            order["how"] = None
            if self.keys.count(key) < 3:
                error = {"error": {"type": "api_error"}}
                return 500, error, {"Stripe-Should-Retry": "true"}
        self.charges.append(order["order"])
        if how == "slow":
            assert self.busy.wait(PATIENCE)
        kept.status = 500 if how == "broken" else 402 if how == "declined" else 200
        kept.answer = json.dumps({"charge": len(self.charges)}).encode()
        kept.done.set()
        return kept.status, kept.answer, {}
