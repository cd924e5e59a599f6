"""A small payments API with keys of its own making, over plain sockets: the right one.

It shares no code with semel. What the wrong servers change are its methods.
"""

from __future__ import annotations

import json
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

LONGEST = 255


@dataclass(frozen=True)
class Got:
    """A request, whole."""

    method: str
    path: str
    query: str
    headers: Message
    body: bytes

    @property
    def caller(self) -> str:
        return self.headers.get("Authorization", "")


@dataclass(frozen=True)
class Said:
    """An answer."""

    status: int
    document: Any
    headers: tuple[tuple[str, str], ...] = ()

    def plus(self, *headers: tuple[str, str]) -> Said:
        return replace(self, headers=(*self.headers, *headers))


@dataclass
class Kept:
    """What is known of one key."""

    print: object
    said: Said | None = None
    over: threading.Event = field(default_factory=threading.Event)
    early: int = 0
    """How many more retries come too early."""


class Shop:
    """The right server, in the style of the IETF's draft: 422, 409 with Retry-After, a marker."""

    mismatch: ClassVar = 422
    in_flight: ClassVar = 409
    profile: ClassVar = "semel-ietf"
    required: ClassVar = True
    declares: ClassVar[dict[str, Any] | None] = None

    def __init__(self, provider: str | None = None) -> None:
        self.provider = provider
        self.lock = threading.Lock()
        self.kept: dict[object, Kept] = {}
        self.effects = 0

    # ── one request ───────────────────────────────────────────────────────────────────────────────

    def answer(self, got: Got) -> Said:
        if got.path == "/effects":
            return Said(200, {"count": self.effects})
        if got.path == "/.well-known/idempotency" and self.declares is not None:
            return Said(200, self.declares)
        if got.path == "/restart":
            self.restart()
            return Said(200, {})
        if not got.path.startswith("/payments"):
            return Said(404, {"error": "no such path"})
        if got.method in ("GET", "HEAD"):
            return self.read(got)
        return self.guarded(got)

    def read(self, got: Got) -> Said:
        return Said(200, {"payments": self.effects})

    def guarded(self, got: Got) -> Said:
        key = self.key(got)
        if isinstance(key, Said):
            return key
        if key is None:
            return self.run(got)
        name, seen = self.identity(got, key), self.print(got)
        with self.lock:
            kept, mine = self.kept.get(name), Kept(seen)
            if kept is None:
                self.kept[name] = mine
        if kept is not None:
            return self.again(got, kept, seen)
        said = self.run(got)
        with self.lock:
            if self.keeps(said):
                mine.said = said
            else:
                self.kept.pop(name, None)
        mine.over.set()
        return said.plus(("Idempotent-Replayed", "false"))

    def again(self, got: Got, kept: Kept, seen: object) -> Said:
        if kept.print != seen:
            return Said(self.mismatch, {"error": "key reused"})
        if kept.said is None:
            return self.running(kept)
        return self.replay(kept.said)

    def running(self, kept: Kept) -> Said:
        return Said(self.in_flight, {"error": "in flight"}, (("Retry-After", "1"),))

    def replay(self, said: Said) -> Said:
        kept = tuple(each for each in said.headers if each[0] != "Set-Cookie")
        return replace(said, headers=kept).plus(("Idempotent-Replayed", "true"))

    # ── its parts ─────────────────────────────────────────────────────────────────────────────────

    def key(self, got: Got) -> str | Said | None:
        given = got.headers.get_all("Idempotency-Key") or []
        if not given:
            return Said(400, {"error": "key missing"}) if self.required else None
        if len(given) > 1:
            return Said(400, {"error": "two keys"})
        return self.read_key(given[0].strip())

    def read_key(self, text: str) -> str | Said:
        if text.startswith('"'):
            if len(text) < 2 or not text.endswith('"'):
                return Said(400, {"error": "malformed key"})
            text = text[1:-1]
        if not text or len(text) > LONGEST:
            return Said(400, {"error": "malformed key"})
        return text

    def identity(self, got: Got, key: str) -> object:
        return got.caller, got.method, got.path, key

    def print(self, got: Got) -> object:
        try:
            return got.query, json.dumps(json.loads(got.body), sort_keys=True)
        except ValueError:
            return got.query, got.body

    def keeps(self, said: Said) -> bool:
        return said.status < 500

    def restart(self) -> None:
        """Its records would be in a database."""

    def run(self, got: Got) -> Said:
        if got.method != "POST" or got.path != "/payments":
            return Said(404, {"error": "no such operation"})
        if got.headers.get("X-Fail"):
            return Said(500, {"error": "failed"})
        try:
            amount = json.loads(got.body)["amount"]
        except (ValueError, LookupError, TypeError):
            return Said(400, {"error": "no amount"})
        self.take_effect()
        name = str(uuid.uuid4())
        links = (("Link", f"</payments/{name}>; rel=self"), ("Link", "</payments>; rel=up"))
        headers = (("Location", f"/payments/{name}"), *links, ("Set-Cookie", f"session={name}"))
        return Said(201, {"id": name, "amount": amount}, headers)

    def take_effect(self) -> None:
        with self.lock:
            self.effects += 1
        if self.provider is not None:
            urllib.request.urlopen(self.provider, data=b"{}", timeout=60).close()

    # ── the wire ──────────────────────────────────────────────────────────────────────────────────

    def arrived(self) -> None:
        """A connection was accepted."""

    def left(self) -> None:
        """It is over."""

    def incomplete(self, got: Got) -> Said | None:
        """A body has stopped in the middle. None: there is nobody to answer."""
        return None

    def sent(self, got: Got, gone: bool) -> None:
        """The answer has left; ``gone``: the client had left before."""

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length)
        got = Got(handler.command, parts.path, parts.query, handler.headers, body)
        said = self.answer(got) if len(body) == length else self.incomplete(got)
        if said is None:
            return
        gone = False
        try:
            self._write(handler, said)
            # The client closes when it has the answer. Where it had closed before, this is a reset.
            handler.connection.recv(1)
        except OSError:
            gone = True
        self.sent(got, gone)

    def _write(self, handler: BaseHTTPRequestHandler, said: Said) -> None:
        body = json.dumps(said.document).encode()
        handler.send_response(said.status)
        for name, text in (*said.headers, ("Content-Type", "application/json")):
            handler.send_header(name, text)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(body)
        handler.wfile.flush()


@contextmanager
def serving(shop: Shop) -> Iterator[str]:
    """The origin of the server, which ends with the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            self.close_connection = True
            shop.arrived()
            try:
                shop.serve(self)
            finally:
                shop.left()

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """A client that has left is nothing to report."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
