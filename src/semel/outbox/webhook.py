"""`Webhook`: the ready deliverer for signed HTTP.

The request is signed by Standard Webhooks and has a CloudEvents 1.0 body. It needs the standard
library only: a request in a thread, on a new connection. A kept-alive connection that the receiver
has just closed would fail like a lost answer; and receivers limit the rate, not connections.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, NoReturn
from urllib.parse import SplitResult, urlsplit

from semel.core.delivery import Delivery
from semel.errors import ConfigurationError, GiveUp, RetryLater, SemelError
from semel.outbox import signatures
from semel.runtime.flow_runner import in_thread

_MOST_READ: Final = 64 * 1024
"""Bytes read of an answer; the rest is not needed."""
_QUOTED: Final = 200
"""Characters of a refusal that the dead letter keeps."""
_OURS: Final = frozenset(
    {"content-type", "content-length", "host", "user-agent", "transfer-encoding", "connection"}
    | {"webhook-id", "webhook-timestamp", "webhook-signature", "idempotency-key"}
)
_GONE: Final = 410
_LATER: Final = frozenset({429, 503})


class WebhookRefused(SemelError):
    """The receiver answered, but not with a 2xx."""


class Webhook:
    """Delivers an effect as a signed HTTP POST: ``guard.delivers("paid")(semel.Webhook(url, …))``.

    ``secret``: ``whsec_<base64>`` or bytes; several while they are exchanged, all of them sign.
    ``source`` and ``type`` are those of the CloudEvent; the type is the effect's name unless given.
    ``headers`` are sent besides. A 2xx answer is a delivery; 410 gives up; 429 and 503 say with
    Retry-After when to come again; everything else is tried again. Redirects are not followed.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | Iterable[str | bytes],
        source: str = "semel",
        type: str | None = None,  # noqa: A002 - the word of CloudEvents
        headers: Mapping[str, str] | None = None,
        connect_timeout: timedelta = timedelta(seconds=10),
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not source or type == "":
            empty = "type" if source else "source"
            raise ConfigurationError(f"{empty}= of a webhook may not be empty")
        self._url = _checked(url)
        self._secrets = signatures.secrets(secret)
        self._source, self._type = source, type
        self._headers = _extra(headers or {})
        self._connect_timeout = connect_timeout.total_seconds()
        self._tls = tls
        self._clock = clock

    def __repr__(self) -> str:
        return f"<semel.Webhook {self._url.scheme}://{self._url.netloc}>"

    async def __call__(self, delivery: Delivery) -> None:
        exchange = _Exchange(self._connection())
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        body = self.body(delivery)
        headers = self._signed(delivery, body)
        try:
            status, retry_after, read = await in_thread(lambda: exchange.run(target, body, headers))
        except asyncio.CancelledError:
            # Time is up. The thread waits for the socket: closed, the thread ends.
            exchange.cut()
            raise
        if not 200 <= status < 300:
            self._refuse(status, retry_after, read)

    def body(self, delivery: Delivery) -> bytes:
        """The CloudEvent: the same bytes on every try."""
        event = {
            "specversion": "1.0",
            "id": delivery.key,
            "source": self._source,
            "type": self._type or delivery.name,
            "time": delivery.created_at.isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": delivery.payload,
        }
        return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()

    def _signed(self, delivery: Delivery, body: bytes) -> dict[str, str]:
        timestamp = int(self._clock())
        return {
            **self._headers,
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": "semel",
            "Connection": "close",
            "Idempotency-Key": delivery.key,
            "webhook-id": delivery.key,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signatures.sign(self._secrets, delivery.key, timestamp, body),
        }

    def _connection(self) -> http.client.HTTPConnection:
        host, timeout = str(self._url.hostname), self._connect_timeout
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, self._url.port, timeout=timeout)
        tls = self._tls = self._tls or ssl.create_default_context()
        return http.client.HTTPSConnection(host, self._url.port, timeout=timeout, context=tls)

    def _refuse(self, status: int, retry_after: str | None, body: bytes) -> NoReturn:
        """Raise what tells the worker to try again, to come later, or to give up."""
        text = " ".join(body.decode("utf-8", "replace").split())[:_QUOTED]
        reason = f"{self._url.hostname} answered {status}{': ' if text else ''}{text}"
        if status == _GONE:
            raise GiveUp(reason)
        if status not in _LATER or retry_after is None:
            raise WebhookRefused(reason)
        if retry_after.isascii() and retry_after.isdecimal():
            raise RetryLater(reason, after=timedelta(seconds=min(int(retry_after[:9]), 86_400)))
        with suppress(ValueError, TypeError, OverflowError):
            then = parsedate_to_datetime(retry_after)
            if then.tzinfo is not None:
                after = then - datetime.fromtimestamp(self._clock(), UTC)
                raise RetryLater(reason, after=max(timedelta(0), after))
        raise WebhookRefused(reason)


class _Exchange:
    """One request and its answer, blocking, in a thread; ``cut`` ends it from another thread."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._socket: socket.socket | None = None
        self._cut = False

    def run(
        self, target: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str | None, bytes]:
        """Send it; returns the status of the answer, its Retry-After, and its body."""
        try:
            self._connection.connect()
            # Kept here: http.client forgets it once it has read the head of a last answer.
            self._socket = self._connection.sock
            # From here on the deliverer's time-out bounds it.
            self._connection.sock.settimeout(None)
            if self._cut:
                raise TimeoutError("the time was up before the request was sent")
            self._connection.request("POST", target, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.headers["retry-after"], answer.read(_MOST_READ)
        finally:
            self._connection.close()

    def cut(self) -> None:
        self._cut = True
        if self._socket is not None:
            with suppress(OSError, ValueError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise ConfigurationError("the URL of a webhook cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise ConfigurationError("the URL of a webhook must be https://host/… or http://host/…")
    if "@" in parts.netloc:
        raise ConfigurationError("a webhook's URL takes no user and password; give headers=")
    if not url.isascii() or any(character <= " " for character in url):
        raise ConfigurationError("the URL of a webhook must be percent-encoded")
    return parts


def _extra(headers: Mapping[str, str]) -> dict[str, str]:
    for name, line in headers.items():
        if name.lower() in _OURS:
            raise ConfigurationError(f"headers= of a webhook may not set {name}")
        if not name.isascii() or any(character in "\r\n\0" for character in name + line):
            raise ConfigurationError(f"headers= of a webhook: {name!r} cannot be sent")
    return dict(headers)
