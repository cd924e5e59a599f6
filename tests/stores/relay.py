"""Between a store and its server: a relay that can lose an answer, hang up, or fall silent."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

Meets = Callable[[bytes], bool]
"""Whether this is the message that something happens to."""


def about(word: bytes) -> Meets:
    return lambda message: word in message


class Relay:
    """Forwards from a port of 127.0.0.1 to a port there, or to a Unix socket.

    ``drop``: the next message that meets it reaches the server, and its answer nobody.
    ``refuse``: the next message that meets it never reaches the server.
    """

    def __init__(self, to: int | Path, tls: ssl.SSLContext | None = None) -> None:
        self._to = to
        self._tls = tls
        self.drop: Meets | None = None
        self.refuse: Meets | None = None
        self.dropped = self.connections = 0
        self.messages: list[bytes] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=_quietly, args=(self._serve,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shut(self) -> None:
        """Nobody comes through any more."""
        _hang_up(self._listener)

    def close(self) -> None:
        """Nobody comes through any more, and who was through is cut off."""
        for end in (self._listener, *self._open):
            _hang_up(end)

    def _serve(self) -> None:
        while True:
            near, _ = self._listener.accept()
            self.connections += 1
            try:
                if self._tls is not None:
                    near = self._tls.wrap_socket(near, server_side=True)
                self._open.append(near)
                far = _connected(self._to)
            except OSError:
                _hang_up(near)
                continue
            self._open.append(far)
            line = _Line(self, near, far)
            for pump in (line.up, line.down):
                threading.Thread(target=_quietly, args=(pump,), daemon=True).start()


class _Line:
    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        self._relay, self._near, self._far = relay, near, far
        self._deaf = False

    def up(self) -> None:
        while message := self._near.recv(1 << 20):
            relay = self._relay
            relay.messages.append(message)
            if relay.refuse is not None and relay.refuse(message):
                relay.refuse = None
                break
            if relay.drop is not None and relay.drop(message):
                relay.drop = None
                self._deaf = True
            self._far.sendall(message)
        self._hang_up()

    def down(self) -> None:
        while message := self._far.recv(1 << 20):
            if self._deaf:  # the server has done it, and has answered
                self._relay.dropped += 1
                break
            self._near.sendall(message)
        self._hang_up()

    def _hang_up(self) -> None:
        _hang_up(self._near)
        _hang_up(self._far)


def _connected(to: int | Path) -> socket.socket:
    if isinstance(to, int):
        return socket.create_connection(("127.0.0.1", to))
    far = socket.socket(socket.AF_UNIX)
    far.connect(str(to))
    return far


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _quietly(pump: Callable[[], None]) -> None:
    with suppress(OSError):
        pump()
