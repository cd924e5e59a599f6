"""Bodies on their way in and out."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from semel.core.operations.handler import Drained
from semel.core.request.comparison import LARGE

if TYPE_CHECKING:
    from semel.core.policy import Policy

IN_MEMORY: Final = 1024 * 1024
"""A body larger than this is kept on disk while its request is being served."""
_PIECE: Final = 64 * 1024


class SpooledBody:
    """A body as it arrives: in memory while small, in an unnamed file beyond that.

    Everybody who reads it has a place of his own in the file: what the application reads, or
    closes, does not matter to those who read it again.
    """

    __slots__ = ("__weakref__", "_file", "_lock", "_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def write(self, piece: bytes) -> None:
        if type(piece) is not bytes:
            # An application may fill one buffer again and again; servers, who write at once, put
            # up with it.
            piece = bytes(memoryview(piece))
        self.size += len(piece)
        if self._file is not None:
            with self._lock:
                self._file.seek(0, io.SEEK_END)
                self._file.write(piece)
        elif self.size <= IN_MEMORY:
            self._pieces.append(piece)
        else:
            import tempfile  # large bodies are rare, and these are not cheap to load
            import weakref

            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            # Or with the last who reads it: a request that takes no part is nobody's to close.
            weakref.finalize(self, self._file.close).atexit = False
            self._file.writelines([*self._pieces, piece])
            self._pieces = []

    def pieces(self) -> Iterator[bytes]:
        """The body again, from the start."""
        if self._file is None:
            yield from self._pieces
            return
        at = 0
        while piece := self.read_at(at, _PIECE):
            yield piece
            at += len(piece)

    __iter__ = pieces

    def whole(self) -> bytes:
        if self._file is None and len(self._pieces) == 1:
            return self._pieces[0]
        return b"".join(self.pieces())

    def reader(self) -> IO[bytes]:
        """The body as a file to read from."""
        if self._file is None:
            return io.BytesIO(self.whole())
        return io.BufferedReader(_BodyReader(self))

    def read_at(self, at: int, size: int) -> bytes:
        """What lies in the file from there on."""
        if self._file is None:
            raise AssertionError("the body is in memory")
        with self._lock:
            self._file.seek(at)
            return self._file.read(size)

    def small(self) -> bytes | SpooledBody:
        """What has come, where that is little, as most bodies are."""
        return self if self.size >= LARGE else self.whole()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _BodyReader(io.RawIOBase):
    """Reads a body that lies in a file, from a place of its own; closing it closes nothing else."""

    def __init__(self, body: SpooledBody) -> None:
        self._body = body
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._body.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        piece = self._body.read_at(self._at, len(buffer))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


Body: TypeAlias = bytes | SpooledBody
"""The body of a request: bytes, unless it is large."""


def size_of(body: Body) -> int:
    return len(body) if isinstance(body, bytes) else body.size


def reader(body: Body) -> IO[bytes]:
    """The body as a file to read from."""
    return io.BytesIO(body) if isinstance(body, bytes) else body.reader()


def close(body: Body) -> None:
    if not isinstance(body, bytes):
        body.close()


def unkeepable(policy: Policy, begun: SpooledBody) -> bool:
    """Whether an answer whose first pieces these are flows past the record."""
    if policy.response == "stream":
        return True
    return begun.size > policy.max_response_body and policy.mode != "atomic"


class Tally:
    """What has flowed past: its size and digest."""

    __slots__ = ("_digest", "_size")

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._size += len(piece)

    def drained(self, *, whole: bool, error: BaseException | None) -> Drained:
        return Drained(self._size, self._digest.digest(), whole, error)
