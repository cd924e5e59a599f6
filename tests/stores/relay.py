"""Between a store and its server: a relay that loses answers, drips, hangs up, comes too late."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

Fate = Literal["pass", "drop", "refuse", "late"]
"""What becomes of a message. drop: it reaches the server, and its answer nobody. refuse: it never
reaches the server. late: it does so when its sender has been cut off and others have been heard.
"""

SOON = 1.0
"""Seconds after which a late message comes in any case."""

DRIP = 0.02
"""Seconds from one byte to the next."""

Meets = Callable[[bytes], bool]
"""Whether this is the message that something happens to."""


def about(word: bytes) -> Meets:
    return lambda message: word in message


class Relay:
    """Forwards from a port of 127.0.0.1 to a port there, or to a Unix socket.

    ``drop`` and ``refuse`` happen to the next message that meets them, ``judge`` decides on each.
    """

    def __init__(self, to: int | Path, tls: ssl.SSLContext | None = None) -> None:
        self._to = to
        self._tls = tls
        self.drop: Meets | None = None
        self.refuse: Meets | None = None
        self.judge: Callable[[bytes], Fate] = lambda message: "pass"
        self.drip = False
        """Answers come one byte at a time: progress to a socket, and none to a caller."""
        self.heard = threading.Condition()
        self.dropped = self.connections = 0
        self.messages: list[bytes] = []
        self._open: list[socket.socket] = []
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=quietly, args=(self._serve,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shut(self) -> None:
        """Nobody comes through any more."""
        hang_up(self._listener)

    def close(self) -> None:
        """Nobody comes through any more, and who was through, or on the way, is cut off."""
        self._closed = True
        for end in (self._listener, *self._open):
            hang_up(end)

    def _serve(self) -> None:
        while True:
            near, _ = self._listener.accept()
            self.connections += 1
            try:
                if self._tls is not None:
                    near = self._tls.wrap_socket(near, server_side=True)
                self._open.append(near)
                far = connected(self._to)
            except OSError:
                hang_up(near)
                continue
            self._open.append(far)
            if self._closed:
                hang_up(near)
                hang_up(far)
                continue
            line = _Line(self, near, far)
            for pump in (line.up, line.down):
                threading.Thread(target=quietly, args=(pump,), daemon=True).start()

    def hear(self, message: bytes) -> Fate:
        with self.heard:
            self.messages.append(message)
            self.heard.notify_all()
        if self.refuse is not None and self.refuse(message):
            self.refuse = None
            return "refuse"
        if self.drop is not None and self.drop(message):
            self.drop = None
            return "drop"
        return self.judge(message)

    def hear_others(self, count: int) -> None:
        """Until so many more messages have come."""
        with self.heard:
            goal = len(self.messages) + count
            self.heard.wait_for(lambda: len(self.messages) >= goal, SOON)


class _Line:
    OTHERS = 6
    """Messages before a late one: a new connection is greeted by then, and a question put."""

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        self._relay, self._near, self._far = relay, near, far
        self._deaf = False

    def up(self) -> None:
        while message := self._near.recv(1 << 20):
            fate = self._relay.hear(message)
            if fate == "refuse":
                break
            self._deaf = self._deaf or fate != "pass"
            if fate == "late":
                hang_up(self._near)
                self._relay.hear_others(self.OTHERS)
            self._far.sendall(message)
            if fate == "late":
                return  # the server's answer ends the line
        self._hang_up()

    def down(self) -> None:
        while message := self._far.recv(1 << 20):
            if self._deaf:  # the server has done it, and has answered
                self._relay.dropped += 1
                break
            for some in _drops(message) if self._relay.drip else (message,):
                self._near.sendall(some)
        self._hang_up()

    def _hang_up(self) -> None:
        hang_up(self._near)
        hang_up(self._far)


def _drops(message: bytes) -> Iterator[bytes]:
    for byte in message:
        yield bytes([byte])
        time.sleep(DRIP)


def connected(to: int | Path) -> socket.socket:
    if isinstance(to, int):
        return socket.create_connection(("127.0.0.1", to))
    far = socket.socket(socket.AF_UNIX)
    try:
        far.connect(str(to))
    except OSError:
        far.close()
        raise
    return far


def hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def quietly(pump: Callable[[], None]) -> None:
    with suppress(OSError):
        pump()
