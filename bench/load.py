"""Load: keep-alive connections that each send the next request when the last one is answered.

Run as a process of its own, so that it shares nothing with the server but the machine:
``python -m bench.load PORT CONNECTIONS SECONDS KEYS`` prints one JSON document. With ``KEYS`` 0
every request has a key of its own; otherwise that many keys are used up first, then sent again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import uvloop

BODY = json.dumps(
    {
        "amount": 12_500,
        "currency": "EUR",
        "customer": {"id": "cus_8f14e45fceea167a", "email": "someone@example.org"},
        "items": [
            {"sku": f"sku-{number:04d}", "quantity": number, "price": 1250 + number}
            for number in range(6)
        ],
        "metadata": {"channel": "web", "campaign": "autumn", "reference": "r" * 120},
    }
).encode()


def request(key: str) -> bytes:
    return (
        b"POST /payments HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nIdempotency-Key: %s\r\n\r\n%s" % (len(BODY), key.encode(), BODY)
    )


@dataclass
class Run:
    """One measurement: what to send, until when, and what came back."""

    requests: list[bytes] = field(default_factory=list)
    ends_at: float = 0.0
    limit: int | None = None
    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    def next(self) -> bytes | None:
        if self.limit is not None and self.sent >= self.limit:
            return None
        if self.limit is None and time.perf_counter() >= self.ends_at:
            return None
        self.sent += 1
        if not self.requests:
            return request(str(uuid.uuid4()))
        return self.requests[self.sent % len(self.requests)]


class Connection(asyncio.Protocol):
    """One connection; an answer is complete when its announced length has arrived."""

    def __init__(self, run: Run, done: asyncio.Future[None]) -> None:
        self._run = run
        self._done = done
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own are no subclass
        self._send()

    def _send(self) -> None:
        message = self._run.next()
        if message is None:
            self._transport.close()
            return
        self._began = time.perf_counter()
        self._transport.write(message)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found or len(rest) < _length(head):
            return
        self._buffer = b""
        replayed = b"idempotent-replayed: true" in head.lower()
        self._run.statuses[head[9:12].decode() + (" replayed" if replayed else "")] += 1
        self._run.latencies.append(time.perf_counter() - self._began)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


async def drive(port: int, connections: int, run: Run) -> float:
    """Run until it ends; returns the seconds it took."""
    loop = asyncio.get_running_loop()
    dones = [loop.create_future() for _ in range(connections)]
    began = time.perf_counter()
    for done in dones:
        await loop.create_connection(partial(Connection, run, done), "127.0.0.1", port)
    await asyncio.gather(*dones)
    return time.perf_counter() - began


async def measure(port: int, connections: int, seconds: float, keys: int) -> dict[str, object]:
    requests = [request(str(uuid.uuid4())) for _ in range(keys)]
    if requests:
        await drive(port, connections, Run(requests, limit=keys))
    else:
        await drive(port, connections, Run(ends_at=time.perf_counter() + min(1.0, seconds / 4)))
    run = Run(requests, ends_at=time.perf_counter() + seconds)
    took = await drive(port, connections, run)
    ordered = sorted(run.latencies)
    return {
        "rate": len(ordered) / took,
        "p50": ordered[len(ordered) // 2] * 1000,
        "p99": ordered[int(len(ordered) * 0.99)] * 1000,
        "statuses": dict(run.statuses),
    }


if __name__ == "__main__":
    port, connections, keys = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
    print(json.dumps(uvloop.run(measure(port, connections, float(sys.argv[3]), keys))))
