"""One node of an application: does what it is told by lines on its standard input.

It imports nothing of the tests: its semel is the one on its path. When nobody is left to tell it
anything, its input ends, and so does it.
"""

import io
import json
import logging
import os
import sys
import time
from typing import Any
from wsgiref.util import setup_testing_defaults

import semel
from semel.core.stored import snapshot

SECONDS = 20


class Node:
    guard: semel.Guard
    app: Any
    url: str
    effects: str

    def open(self, url: str, effects: str, **_: Any) -> dict[str, Any]:
        self.url, self.effects = url, effects
        return self.reopen()

    def reopen(self, **_: Any) -> dict[str, Any]:
        """As a restart: nothing is known of the store."""
        if hasattr(self, "guard"):
            self.guard.close()
        self.guard = semel.Guard(self.url, tenant=None, maintenance=None, breaker=None)
        self.app = self.guard.wsgi(self.handle)
        return {}

    def handle(self, environ: Any, start_response: Any) -> list[bytes]:
        nonce = os.urandom(8).hex()
        with open(self.effects, "a") as lines:  # noqa: PTH123
            lines.write(f"{environ['HTTP_IDEMPOTENCY_KEY']}\n")
        self.wait_at(environ.get("HTTP_X_GATE"))
        start_response("201 Created", [("content-type", "text/plain")])
        return [nonce.encode()]

    def wait_at(self, gate: str | None) -> None:
        """Until it is there; not for ever, where nobody is left to open it."""
        deadline = time.monotonic() + SECONDS
        while gate and not os.path.exists(gate) and time.monotonic() < deadline:  # noqa: PTH110
            time.sleep(0.002)

    def ask(self, key: str, gate: str | None = None, **_: Any) -> dict[str, Any]:
        environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": key}
        if gate is not None:
            environ["HTTP_X_GATE"] = gate
        setup_testing_defaults(environ)
        environ["wsgi.input"] = io.BytesIO()
        said: dict[str, Any] = {}

        def start(status: str, headers: Any, exc_info: Any = None) -> Any:
            said.update(status=int(status[:3]), **{n.lower(): v for n, v in headers})

        pieces = self.app(environ, start)
        said["body"] = b"".join(pieces).decode()
        if hasattr(pieces, "close"):
            pieces.close()
        return said

    def migrate(self, **_: Any) -> dict[str, Any]:
        return {"version": self.guard.migrate()}

    def form(self, magic: str, **_: Any) -> dict[str, Any]:
        """From here on answers are written in a form that has another mark."""
        vars(snapshot)["_MAGIC"] = magic.encode()
        return {}


def main() -> None:
    logging.disable(logging.CRITICAL)
    node = Node()
    for line in sys.stdin:
        told = json.loads(line)
        try:
            reply = getattr(node, told["do"])(**told)
        except semel.SemelError as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
