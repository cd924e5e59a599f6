"""A tap on the line to a MariaDB: counts what is asked, and can swallow the answers."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

QUERY = b"\x00\x03"
"""The first packet of an exchange, and the command for SQL text."""

PAUSE = threading.Event()


class Tap:
    """Listens on a port of 127.0.0.1 and forwards to a Unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.queries = 0
        self.swallow: Callable[[bytes], bool] | None = None
        """The answer to the next query that it is true of is lost, and the line with it."""
        self.drip = False
        """Answers come one byte at a time: progress to a socket, and none to a caller."""
        self._deaf: socket.socket | None = None
        self._answered = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        hang_up(self._listener)

    def waits_to_swallow(self) -> bool:
        return self.swallow is not None

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._path))
                for pump in (self._up, self._down):
                    threading.Thread(target=pump, args=(near, far), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while message := near.recv(1 << 16):
                if message[3:5] == QUERY:
                    self.queries += 1
                    if self.swallow is not None and self.swallow(message):
                        self.swallow = None
                        self._lose(message, near, far)
                        return
                far.sendall(message)
        hang_up(near, far)

    def _lose(self, message: bytes, near: socket.socket, far: socket.socket) -> None:
        """The server does what it was asked for, as its answer shows; nobody hears of it."""
        self._deaf = near
        far.sendall(message)
        assert self._answered.wait(20)
        hang_up(near, far)

    def _down(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while message := far.recv(1 << 16):
                if self._deaf is near:
                    self._answered.set()
                elif self.drip:
                    for byte in message:
                        near.sendall(bytes([byte]))
                        PAUSE.wait(0.02)
                else:
                    near.sendall(message)
        hang_up(near, far)


def hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
