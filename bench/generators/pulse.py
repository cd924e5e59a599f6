"""Load in Python: keep-alive connections that each send the next request when one is answered.

Used where there is no wrk, and to prime keys and to look at single answers. Run as a process of its
own, so that it shares nothing with the server but the machine:
``python -m bench.generators.pulse PORT CONNECTIONS SECONDS PLAN PREFIX LIMIT`` prints one JSON
document. With a LIMIT above 0 it sends that many requests, else it goes on for SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvloop

from bench.plans import PLANS, Plan, request

CONFLICTS = ("409", "423")


@dataclass
class Run:
    """One measurement: what to send, until when, and what came back."""

    plan: Plan
    prefix: str
    seconds: float
    limit: int = 0
    sent: int = 0
    began: float = field(default_factory=time.perf_counter)
    heads: Counter[bytes] = field(default_factory=Counter)
    """Of the answers, without what differs from one to the next."""
    latencies: list[float] = field(default_factory=list)

    def next(self) -> bytes | None:
        over = time.perf_counter() >= self.began + self.seconds
        if (self.sent >= self.limit) if self.limit else over:
            return None
        self.sent += 1
        return request(self.prefix + self.plan.key(self.sent - 1))


class Connection(asyncio.Protocol):
    """One connection; an answer is complete when all of its body has arrived."""

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
        if not found or not _whole(head.lower(), rest):
            return
        self._buffer = b""
        self._run.heads[_sort(head)] += 1
        self._run.latencies.append(time.perf_counter() - self._began)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


def _whole(head: bytes, body: bytes) -> bool:
    """Whether the body is all there; some peers repeat an answer without its length."""
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    _, found, rest = head.partition(b"content-length:")
    return not found or len(body) >= int(rest.split(b"\r\n", 1)[0])


def _sort(head: bytes) -> bytes:
    """The status, and whether a header says that this is a replay."""
    lowered = head.lower()
    marks = (b"idempotent-replayed: true", b"idempotency-replayed: true")
    return head[9:12] + (b" replayed" if any(mark in lowered for mark in marks) else b"")


async def drive(port: int, connections: int, run: Run) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    dones = [loop.create_future() for _ in range(connections)]
    for done in dones:
        await loop.create_connection(partial(Connection, run, done), "127.0.0.1", port)
    await asyncio.gather(*dones)
    return summary(run, time.perf_counter() - run.began)


def summary(run: Run, took: float) -> dict[str, Any]:
    ordered = sorted(run.latencies)
    answers = {sort.decode(): count for sort, count in run.heads.items()}
    return {
        "requests": len(ordered),
        "seconds": took,
        "p50": ordered[len(ordered) // 2] * 1000 if ordered else 0.0,
        "p99": ordered[int(len(ordered) * 0.99)] * 1000 if ordered else 0.0,
        "refused": sum(n for sort, n in answers.items() if not sort.startswith("2")),
        "conflicts": sum(n for sort, n in answers.items() if sort.startswith(CONFLICTS)),
        "broken": run.sent - len(ordered),
        "answers": answers,
    }


def main(port: str, connections: str, seconds: str, plan: str, prefix: str, limit: str) -> None:
    run = Run(PLANS[plan], prefix, float(seconds), int(limit))
    print(json.dumps(uvloop.run(drive(int(port), int(connections), run))))


if __name__ == "__main__":
    main(*sys.argv[1:])
