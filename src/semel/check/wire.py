"""Requests over plain sockets, as a badly behaved client sends them.

HTTP libraries forbid what has to be tried here: a header twice, a body that stops in the middle, a
client that hangs up after its last byte, twenty requests that end in the same instant.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult

from semel.errors import SemelError

Pairs: TypeAlias = tuple[tuple[str, str], ...]

NO_JSON: Final = object()
LONGEST_ANSWER: Final = 16 * 1024 * 1024


class NoReply(SemelError):
    """The API gave no answer: nobody listens there, or it took too long."""


class BudgetUsedUp(SemelError):
    """As many requests were sent as may be."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request as it is sent. A header may be there twice."""

    method: str
    target: str
    """Path and query."""
    headers: Pairs = ()
    body: bytes = b""

    def plus(self, *headers: tuple[str, str]) -> WireRequest:
        return replace(self, headers=(*self.headers, *headers))


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
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return NO_JSON

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300


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


class Caller:
    """Sends requests to one origin, and keeps what was exchanged in ``log``."""

    def __init__(self, origin: SplitResult, timeout: float, budget: RequestBudget) -> None:
        self._origin, self._timeout, self._budget = origin, timeout, budget
        self.log: list[WireExchange] = []

    @property
    def sent(self) -> int:
        return self._budget.sent

    def send(self, request: WireRequest) -> WireAnswer:
        """The whole answer; `NoReply` when there is none."""
        self._budget.take()
        try:
            connection = self._connect()
            try:
                self._write(connection, request)
                answer = _read(connection)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            self.log.append(WireExchange(request, None, _reason(error)))
            raise NoReply(f"{request.method} {request.target}: {_reason(error)}") from error
        self.log.append(WireExchange(request, answer))
        return answer

    def hang_up(self, request: WireRequest, *, keep_back: int = 0) -> None:
        """Send all but the last ``keep_back`` bytes of the body, close, and read nothing."""
        self._budget.take()
        said = "hung up in the middle of the body" if keep_back else "hung up after the last byte"
        try:
            connection = self._connect()
            try:
                self._write(connection, request, len(request.body) - keep_back)
            finally:
                connection.close()
        except OSError as error:
            raise NoReply(f"{request.method} {request.target}: {_reason(error)}") from error
        finally:
            self.log.append(WireExchange(request, None, said))

    def at_once(
        self, requests: Sequence[WireRequest], sent: Callable[[], None] | None = None
    ) -> list[WireAnswer | None]:
        """All at the same moment: each waits with its last byte until all the others have come so
        far. None where there was no answer. ``sent`` is called when all are on their way."""
        self._budget.take(len(requests))
        answers: list[WireAnswer | None] = [None] * len(requests)
        barrier = threading.Barrier(len(requests))
        left = threading.Barrier(len(requests) + 1)

        def one(place: int, request: WireRequest) -> None:
            connection = None
            try:
                with suppress(OSError, http.client.HTTPException):
                    connection = self._connect()
                    self._write(connection, request, len(request.body) - 1)
                barrier.wait(self._timeout)
                with suppress(OSError, http.client.HTTPException):
                    if connection is not None:
                        connection.send(request.body[-1:])
                left.wait(self._timeout)
                with suppress(OSError, http.client.HTTPException):
                    if connection is not None:
                        answers[place] = _read(connection)
            finally:
                if connection is not None:
                    connection.close()

        threads = [
            threading.Thread(target=one, args=each, daemon=True) for each in enumerate(requests)
        ]
        for thread in threads:
            thread.start()
        with suppress(threading.BrokenBarrierError):
            left.wait(self._timeout)
        if sent is not None:
            sent()
        deadline = time.monotonic() + 2 * self._timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for request, answer in zip(requests, answers, strict=True):
            note = "at once with the others" + ("" if answer else ": no answer")
            self.log.append(WireExchange(request, answer, note))
        return answers

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection
        if self._origin.scheme == "http":
            kind = http.client.HTTPConnection  # type: ignore[assignment]
        connection = kind(self._origin.hostname or "", self._origin.port, timeout=self._timeout)
        connection.connect()
        return connection

    def _write(
        self, connection: http.client.HTTPConnection, request: WireRequest, count: int | None = None
    ) -> None:
        connection.putrequest(request.method, request.target, skip_accept_encoding=True)
        names = {name.lower() for name, _ in request.headers}
        if request.body and "content-length" not in names:
            connection.putheader("Content-Length", str(len(request.body)))
        connection.putheader("Connection", "close")
        for name, text in request.headers:
            connection.putheader(name, text)
        connection.endheaders()
        body = request.body if count is None else request.body[:count]
        if body:
            connection.send(body)


def _read(connection: http.client.HTTPConnection) -> WireAnswer:
    response = connection.getresponse()
    body = response.read(LONGEST_ANSWER)
    return WireAnswer(response.status, tuple(response.getheaders()), body)


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
