"""The other side of a webhook: a real HTTP server that notes what came and answers as told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.waiting import PATIENCE


@dataclass(frozen=True)
class Received:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.body)
        return event


@dataclass(frozen=True)
class Reply:
    """One answer. ``drip``: its body comes a byte at a time, without end."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False
    drip: bool = False
    hang_up: bool = False


class Receiver:
    """Answers 204 unless told otherwise."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.replies: deque[Reply] = deque()
        self.ended = threading.Event()
        """Set when a hanging or dripping answer has seen its client go."""
        self._closing = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler) -> None:  # noqa: N805
                self._serve(handler)

            do_GET = do_POST  # noqa: N815

            def log_message(handler, format: str, *args: Any) -> None:  # noqa: A002, N805
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.received.append(Received(handler.command, handler.path, headers, body))
        reply = self.replies.popleft() if self.replies else Reply()
        handler.close_connection = True
        if reply.hang:
            self._wait_for_its_end(handler)
        elif not reply.hang_up:
            try:
                self._answer(handler, reply)
            except OSError:  # the other end has gone
                self.ended.set()

    def _wait_for_its_end(self, handler: BaseHTTPRequestHandler) -> None:
        handler.connection.settimeout(PATIENCE)
        if handler.rfile.read(1) == b"":
            self.ended.set()

    def _answer(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if reply.status != 204 and not reply.drip:
            handler.send_header("content-length", str(len(reply.body)))
        handler.end_headers()
        handler.wfile.write(reply.body)
        while reply.drip and not self._closing.is_set():
            handler.wfile.write(b".")
            self._closing.wait(0.005)


def fits(received: Received, secret: str) -> bool:
    """Standard Webhooks, written down a second time from its specification."""
    key = base64.b64decode(secret.split("_", 1)[1])
    signed = b".".join(
        [
            received.headers["webhook-id"].encode(),
            received.headers["webhook-timestamp"].encode(),
            received.body,
        ]
    )
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return f"v1,{expected}" in received.headers["webhook-signature"].split(" ")
