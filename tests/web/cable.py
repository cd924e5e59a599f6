"""The cable between an application and its server, which a test can cut at a COMMIT.

Not a `Relay`: what becomes of the COMMIT is a function of the test, which holds both ends of its
line, acts in between, and lets it arrive when it likes. A relay decides by itself, message by
message.
"""

import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tests.stores.relay import connected, hang_up, quietly
from tests.waiting import PATIENCE

Cut = Callable[["Line", bytes], None]
"""What happens to a message with a COMMIT in it."""

_COMMIT = re.compile(rb"\bCOMMIT\b")
_COMMITTED = b"COMMIT\0"


class Line:
    """One connection: the application's end and the server's."""

    def __init__(self, cable: "Cable", near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self._cable = cable
        self._answered = threading.Event()
        self._deaf = False
        self._heard = b""

    def up(self) -> None:
        while message := _receive(self.near):
            cut = self._cable.cut if _COMMIT.search(message) else None
            if cut is not None:
                self._cable.cut = None
                self._deaf = True  # no answer to this one gets through
                cut(self, message)
                return
            self.far.sendall(message)
        hang_up(self.far)
        hang_up(self.near)

    def down(self) -> None:
        while message := _receive(self.far):
            if self._deaf:
                self._heard += message
            if _COMMITTED in message or (self._cable.mysql and all_done(self._heard)):
                self._answered.set()
            if not self._deaf:
                with suppress(OSError):
                    self.near.sendall(message)
        hang_up(self.near)
        hang_up(self.far)

    def commit(self, message: bytes) -> None:
        """Let the server have it, and wait until it has answered."""
        self.far.sendall(message)
        assert self._answered.wait(PATIENCE)


class Cable:
    """Listens on a port of 127.0.0.1 and forwards to the socket that a URL names."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        where = parse_qs(parts.query)
        self.mysql = parts.scheme == "mysql"
        self._path = (
            Path(where["socket"][0])
            if self.mysql
            else Path(where["host"][0], f".s.PGSQL.{where['port'][0]}")
        )
        self.cut: Cut | None = None
        self.refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"{parts.scheme}://{parts.username}@127.0.0.1:{port}{parts.path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        hang_up(self._listener)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            if self.refusing:
                raise ConnectionRefusedError
            far = connected(self._path)
        except OSError:
            hang_up(near)
            return
        line = Line(self, near, far)
        for pump in (line.up, line.down):
            threading.Thread(target=quietly, args=(pump,), daemon=True).start()


def all_done(answer: bytes) -> bool:
    """Whether MariaDB has answered every statement of a packet: its last OK says that no other
    result follows. (An OK that counts nothing has its flags in the fourth byte.)"""
    flags = 8
    while len(answer) >= 4 and len(answer) >= 4 + (size := int.from_bytes(answer[:3], "little")):
        flags, answer = answer[4 + 3], answer[4 + size :]
    return not flags & 8 and not answer


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""
