"""Redis as fast as plain commands go: ``redis_pairs PORT CONNECTIONS SECONDS`` in JSON.

Each connection sends ``SET key value NX`` and, when it is answered, ``SET key snapshot``: a claim
and a completion that check nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from functools import partial
from typing import cast

import uvloop

FENCE, SNAPSHOT = b"f" * 400, b"s" * 700


def command(*words: bytes) -> bytes:
    sized = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%s" % (len(words), sized)


class Connection(asyncio.Protocol):
    def __init__(self, ends_at: float, latencies: list[float], done: asyncio.Future[None]) -> None:
        self._ends_at, self._latencies, self._done = ends_at, latencies, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._claim()

    def _claim(self) -> None:
        self._began, self._key, self._claimed = time.perf_counter(), os.urandom(32), False
        if self._began >= self._ends_at:
            self._transport.close()
            return
        self._transport.write(command(b"SET", self._key, FENCE, b"NX"))

    def data_received(self, data: bytes) -> None:
        assert data == b"+OK\r\n", data
        if not self._claimed:
            self._claimed = True
            self._transport.write(command(b"SET", self._key, SNAPSHOT))
            return
        self._latencies.append(time.perf_counter() - self._began)
        self._claim()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done.set_result(None)


async def measure(port: int, connections: int, seconds: float) -> dict[str, float]:
    loop, latencies = asyncio.get_running_loop(), list[float]()
    dones = [loop.create_future() for _ in range(connections)]
    began, spent = time.perf_counter(), time.process_time()
    for done in dones:
        factory = partial(Connection, began + seconds, latencies, done)
        await loop.create_connection(factory, "127.0.0.1", port)
    await asyncio.gather(*dones)
    took, used = time.perf_counter() - began, time.process_time() - spent
    ordered = sorted(latencies)
    return {
        "rate": len(ordered) / took,
        "p50": ordered[len(ordered) // 2] * 1000,
        "p99": ordered[int(len(ordered) * 0.99)] * 1000,
        "cpu": used / len(ordered) * 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
