"""Requests over plain sockets, as a badly behaved client sends them.

HTTP libraries forbid what has to be tried here: a header twice, a body that stops in the middle, a
client that hangs up after its last byte, twenty requests that end in the same instant.

The server may be anything. An answer has a deadline as a whole, however its bytes drip; it has a
limit in bytes; one that is cut off is no answer. Nothing is decompressed, no redirect is followed.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, cast
from urllib.parse import SplitResult, quote

from semel.check.json_values import is_object, json_of
from semel.errors import ConfigurationError, SemelError

Pairs: TypeAlias = tuple[tuple[str, str], ...]

LONGEST_ANSWER: Final = 4 * 1024 * 1024
"""Bytes of a body; an answer that is longer is none."""
LONGEST_EVIDENCE: Final = 64 * 1024
"""Bytes of a body that are kept as evidence."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(r"/[!-~]*")
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_AS_IT_IS: Final = "%/:?#[]@!$&'()*+,;=~"


class NoReply(SemelError):
    """The API gave no answer: nobody listens there, it took too long, or what came is no answer."""


class BudgetUsedUp(SemelError):
    """As many requests were sent as may be."""


def target_of(url: SplitResult) -> str:
    """Path and query of a URL, as a request line has them."""
    target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
    return quote(target, safe=_AS_IT_IS)


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request as it is sent. A header may be there twice."""

    method: str
    target: str
    """Path and query."""
    headers: Pairs = ()
    body: bytes = b""

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.method):
            raise ConfigurationError(f"{self.method!r} is no method")
        if not _TARGET.fullmatch(self.target):
            raise ConfigurationError(f"{self.target!r} is no path: it begins with / and is ASCII")
        for name, text in self.headers:
            if not _TOKEN.fullmatch(name):
                raise ConfigurationError(f"{name!r} is no name of a header")
            if not _VALUE.fullmatch(text) or any(ord(each) > 255 for each in text):
                # The value may be a secret.
                raise ConfigurationError(f"the header {name} has a value that cannot be sent")

    def plus(self, *headers: tuple[str, str]) -> WireRequest:
        return replace(self, headers=(*self.headers, *headers))

    def encoded(self, host: str) -> bytes:
        """All its bytes."""
        names = {name.lower() for name, _ in self.headers}
        headers = [("Host", host)] if "host" not in names else []
        if "user-agent" not in names:
            headers.append(("User-Agent", "semel-check"))
        if self.body and "content-length" not in names:
            headers.append(("Content-Length", str(len(self.body))))
        headers += [("Connection", "close"), *self.headers]
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{n}: {v}" for n, v in headers)]
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1") + self.body


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """One answer, whole."""

    status: int
    headers: Pairs
    body: bytes

    def values(self, name: str) -> list[str]:
        """All values of a header, in their order."""
        return [text for each, text in self.headers if each.lower() == name.lower()]

    def value(self, name: str) -> str | None:
        found = self.values(name)
        return found[0] if found else None

    @property
    def document(self) -> Any:
        """The body as JSON, or `NO_JSON`."""
        return json_of(self.body)

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300 and not self.error_inside

    @property
    def error_inside(self) -> bool:
        """Whether the body says that it failed, as GraphQL and JSON-RPC do under a 200."""
        document = self.document
        if not is_object(document):
            return False
        failed = any(document.get(name) is False for name in ("ok", "success"))
        return failed or bool(document.get("error") or document.get("errors"))


@dataclass(frozen=True, slots=True)
class WireExchange:
    """A request and what became of it: the evidence of a verdict."""

    request: WireRequest
    answer: WireAnswer | None
    note: str = ""


@dataclass(slots=True)
class RequestBudget:
    """How many requests may be sent in all."""

    most: int
    sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, count: int = 1) -> None:
        with self._lock:
            if self.sent + count > self.most:
                raise BudgetUsedUp(f"the budget of {self.most} requests is used up")
            self.sent += count


class PendingAnswer:
    """A request that is under way while the probe does something else."""

    def __init__(self, send: Callable[[], WireAnswer]) -> None:
        self._answer: WireAnswer | None = None
        self._send = send
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(NoReply):
            self._answer = self._send()

    def wait(self, seconds: float | None = None) -> WireAnswer | None:
        """The answer; None where there is none, or not yet."""
        self._thread.join(seconds)
        return self._answer


class Caller:
    """Sends requests to one origin, and keeps what was exchanged in ``log``."""

    def __init__(self, origin: SplitResult, timeout: float, budget: RequestBudget) -> None:
        self._origin, self._timeout, self._budget = origin, timeout, budget
        self._host = origin.netloc.rpartition("@")[2]
        self._tls = ssl.create_default_context() if origin.scheme == "https" else None
        self.log: list[WireExchange] = []

    @property
    def sent(self) -> int:
        return self._budget.sent

    def send(self, request: WireRequest) -> WireAnswer:
        """The whole answer; `NoReply` when there is none."""
        self._budget.take()
        return self._exchange(request)

    def begin(self, request: WireRequest) -> PendingAnswer:
        """Send it in a thread of its own."""
        self._budget.take()
        return PendingAnswer(lambda: self._exchange(request))

    def _exchange(self, request: WireRequest) -> WireAnswer:
        try:
            with self._connected() as connection:
                connection.sendall(request.encoded(self._host))
                answer = self._read(connection, request)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            self._keep(request, None, _reason(error))
            raise NoReply(f"{request.method} {request.target}: {_reason(error)}") from error
        self._keep(request, answer)
        return answer

    def hang_up(self, request: WireRequest, *, keep_back: int = 0) -> None:
        """Send all but the last ``keep_back`` bytes of the body, and close.

        Of half a request the end of the sending is told first, and the server is given a second to
        close as well: what it makes of the half has then come before the retry.
        """
        self._budget.take()
        said = "hung up in the middle of the body" if keep_back else "hung up after the last byte"
        try:
            with self._connected() as connection:
                whole = request.encoded(self._host)
                connection.sendall(whole[: len(whole) - keep_back])
                if keep_back:
                    connection.settimeout(min(self._timeout, 1.0))
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
                        connection.recv(1)
        except (OSError, UnicodeError) as error:
            raise NoReply(f"{request.method} {request.target}: {_reason(error)}") from error
        finally:
            self._keep(request, None, said)

    def at_once(self, requests: Sequence[WireRequest]) -> list[WireAnswer | None]:
        """All at the same moment: each waits with its last byte until all the others have come so
        far. None where there was no answer."""
        self._budget.take(len(requests))
        answers: list[WireAnswer | None] = [None] * len(requests)
        barrier = threading.Barrier(len(requests))

        def one(place: int, request: WireRequest) -> None:
            connection, whole = None, request.encoded(self._host)
            with suppress(OSError, UnicodeError):
                connection = self._connected()
                connection.sendall(whole[:-1])
            with suppress(threading.BrokenBarrierError):
                barrier.wait(self._timeout)  # also who could not connect: the others wait for all
            if connection is None:
                return
            with suppress(OSError, http.client.HTTPException), connection:
                connection.sendall(whole[-1:])
                answers[place] = self._read(connection, request)

        threads = [
            threading.Thread(target=one, args=each, daemon=True) for each in enumerate(requests)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 3 * self._timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for request, answer in zip(requests, list(answers), strict=True):
            note = "at once with the others" + ("" if answer else ": no answer")
            self._keep(request, answer, note)
        return list(answers)

    def _connected(self) -> socket.socket:
        port = self._origin.port or (80 if self._tls is None else 443)
        host = self._origin.hostname or ""
        plain = socket.create_connection((host, port), timeout=self._timeout)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def _read(self, connection: socket.socket, request: WireRequest) -> WireAnswer:
        source = _Source(connection, time.monotonic() + self._timeout)
        response = http.client.HTTPResponse(cast("socket.socket", source), method=request.method)
        try:
            response.begin()
            body = bytearray()
            while piece := response.read(65_536):
                body += piece
                if len(body) > LONGEST_ANSWER:
                    raise http.client.HTTPException(
                        f"its answer has more than {LONGEST_ANSWER // 1024 // 1024} MiB"
                    )
            if response.length:
                raise http.client.HTTPException("its answer was cut off")
            return WireAnswer(response.status, tuple(response.getheaders()), bytes(body))
        finally:
            response.close()

    def _keep(self, request: WireRequest, answer: WireAnswer | None, note: str = "") -> None:
        if answer is not None and len(answer.body) > LONGEST_EVIDENCE:
            note = f"{note} (the body has {len(answer.body)} bytes)".strip()
            answer = replace(answer, body=answer.body[:LONGEST_EVIDENCE])
        self.log.append(WireExchange(request, answer, note))


class _Source(io.RawIOBase):
    """What a socket gives until a deadline, for `HTTPResponse`, which wants ``makefile`` of it."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no whole answer in time"
    if isinstance(error, http.client.IncompleteRead):
        return "its answer was cut off, or is no HTTP"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without an answer"
    if isinstance(error, http.client.BadStatusLine):
        return "what it answered is no HTTP"
    return str(error) or type(error).__name__
