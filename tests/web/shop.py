"""What the applications under real servers sell: one catalogue, whatever framework serves it.

Every handler first *happens* (one line in the effects log), then waits for a gate if the request
names one, then answers with a nonce that no other execution has.
"""

import os
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import semel
from semel.core.policy import Policy
from tests.web.effects import Effects

BIG = 5 * 1024 * 1024
KEPT_AT_MOST = 256 * 1024
OUTLIVES = 3.0

POLICIES: dict[str, Policy] = {
    "/pay": semel.ietf(required=True),
    "/goods": semel.ietf(),
    "/binary": semel.ietf(),
    "/empty": semel.ietf(),
    "/big": semel.ietf(),
    "/huge": semel.ietf(max_response_body=KEPT_AT_MOST),
    "/stream": semel.ietf(response="stream"),
    "/undeclared": semel.ietf(),
    "/wait": semel.ietf(in_flight=timedelta(seconds=20)),
    "/fail": semel.ietf(in_flight=timedelta(seconds=20)),
    "/short": semel.ietf(lease=timedelta(seconds=1)),
    "/outlive": semel.ietf(lease=timedelta(seconds=1)),
}


@dataclass(frozen=True)
class Sale:
    """An answer, in pieces; more than one piece is streamed."""

    status: int
    headers: tuple[tuple[str, str], ...]
    pieces: tuple[bytes, ...]


def effects() -> Effects:
    return Effects(os.environ["SEMEL_TEST_EFFECTS"])


def guard() -> semel.Guard:
    """The guard the environment asks for; tenants are told apart by a header."""
    url = os.environ["SEMEL_TEST_STORE"]
    return semel.Guard(
        url,
        tenant=lambda request: request.headers.get("x-tenant", "somebody"),
        routes=[semel.Route("POST", path, policy) for path, policy in listed().items()],
        migrate=not url.startswith("sqlite"),
        max_waiters=64,
    )


def listed() -> dict[str, Policy]:
    """Applications whose router semel cannot read name their policies here."""
    return POLICIES if os.environ["SEMEL_TEST_FRAMEWORK"] in ("flask", "bare") else {}


def sell(path: str, nonce: str) -> Sale:
    """The answer of one execution."""
    name = nonce.encode()
    match path:
        case "/goods":
            several = (
                ("content-type", "application/json"),
                ("link", "</a>; rel=first"),
                ("link", "</b>; rel=last"),
                ("set-cookie", "session=secret"),
                ("set-cookie", "cart=42"),
                ("x-nonce", nonce),
            )
            return Sale(201, several, (b'{"nonce": "%s"}' % name,))
        case "/binary":
            plain = (("content-type", "application/octet-stream"),)
            return Sale(200, plain, (bytes(range(256)) + name + b"\r\n\0",))
        case "/empty":
            return Sale(204, (("x-nonce", nonce),), ())
        case "/big":
            return Sale(200, (), (random.Random(nonce).randbytes(BIG),))
        case "/huge":
            return Sale(200, (), tuple(name * 4096 for _ in range(4)))
        case "/stream" | "/undeclared":
            return Sale(200, (), tuple(b"%d:%s\n" % (n, name) for n in range(5)))
        case "/fail":
            return Sale(500, (), (b"failed " + name,))
        case _:
            headers = (("content-type", "application/json"),)
            return Sale(201, headers, (b'{"nonce": "%s"}' % name,))


def block(path: str) -> None:
    """A handler that outlives its lease, and lets nobody else run meanwhile."""
    if path == "/outlive":
        time.sleep(OUTLIVES)


def opened(gate: str | None) -> bool:
    return gate is None or Path(gate).exists()
