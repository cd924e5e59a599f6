"""Between a client and its server: a wire that is cut after so many bytes, in either direction.

Not a `Relay`, which knows whole messages only: here the byte is what matters.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.stores.relay import hang_up


@dataclass(frozen=True)
class Cut:
    """Let so many bytes of the request, or of the answer, through; then hang up."""

    request: int | None = None
    answer: int | None = None


class Wire:
    """Forwards from a port of 127.0.0.1 to another; each connection takes the next cut, if any.

    A connection that is to be cut in its answer lets the server answer first: it has done it.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.cuts: deque[Cut] = deque()
        self.connections = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._open):
            hang_up(end)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                cut = self.cuts.popleft() if self.cuts else Cut()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                for source, target, limit in ((near, far, cut.request), (far, near, cut.answer)):
                    threading.Thread(
                        target=_pump, args=(source, target, limit), daemon=True
                    ).start()


def _pump(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    with suppress(OSError):
        left = limit
        while octets := source.recv(1 << 16):
            passed = octets if left is None else octets[:left]
            if passed:
                target.sendall(passed)
            if left is not None:
                left -= len(passed)
                if len(passed) < len(octets) or left == 0:
                    break
    hang_up(source)
    hang_up(target)
