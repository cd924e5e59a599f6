"""A provider on a real socket: as bad as it is told to be, and it remembers what it was sent."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

Act = Callable[["Provider", socket.socket], None]
"""What happens to one connection, in the provider's thread."""

_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
_HELLO = b"\x16"  # how a TLS client begins


class Provider:
    """Does the same with every connection; with ``once``, others than the first are refused."""

    def __init__(self, act: Act, *, once: bool = False) -> None:
        self.received: list[bytes] = []
        self.over = threading.Event()
        self._act, self._once = act, once
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.over.set()
        # Wakes an accept() that close() alone would leave waiting.
        if self._listener.fileno() != -1:
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    @property
    def saw_the_request(self) -> bool:
        """Whether a byte came that was neither TLS's greeting nor a word to the proxy alone."""
        return any(data and not data.startswith((_HELLO, b"CONNECT")) for data in self.received)

    def _serve(self) -> None:
        while self._listener.fileno() != -1:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._once:
                self._listener.close()
            with connection:
                try:
                    self._act(self, connection)
                except ConnectionError:
                    continue

    def read(self, connection: socket.socket) -> None:
        """Take in one whole request."""
        self.read_until(connection, _is_whole)

    def read_until(self, connection: socket.socket, enough: Callable[[bytes], bool]) -> None:
        self.received.append(b"")
        while not enough(self.received[-1]):
            data = connection.recv(65_536)
            if not data:
                return
            self.received[-1] += data


def _is_whole(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return data.startswith(_HELLO) or (bool(end) and len(body) >= int(length[1] if length else 0))


# ── what it may do ────────────────────────────────────────────────────────────────────────────────


def turn_away(provider: Provider, connection: socket.socket) -> None:
    """Accepts and closes without reading."""


def hang_up(provider: Provider, connection: socket.socket) -> None:
    provider.read(connection)


def reset(provider: Provider, connection: socket.socket) -> None:
    provider.read(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def be_silent(provider: Provider, connection: socket.socket) -> None:
    provider.read(connection)
    provider.over.wait()


def say(answer: bytes) -> Act:
    def act(provider: Provider, connection: socket.socket) -> None:
        provider.read(connection)
        connection.sendall(answer)

    return act


def say_and_stay(answer: bytes) -> Act:
    def act(provider: Provider, connection: socket.socket) -> None:
        say(answer)(provider, connection)
        provider.over.wait()

    return act


def answer(status: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, "Content-Length: 0", "Connection: close", "", ""]
    return "\r\n".join(lines).encode()


# ── where nobody is ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose queue is full: connecting to it takes for ever."""
    with ExitStack() as held, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
