"""What the applications under real servers sell: one catalogue, whatever framework serves it.

Every handler first *happens* (one line in the effects log), then waits for a gate if the request
names one, then answers with a nonce that no other execution has.

No lease runs out by itself, however slow the machine is: time passes when a test says so, in the
store (`Served.pass_time`) and in the process that holds the lease (`outlive`).
"""

import os
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import semel
from semel.core.policy import Policy
from semel.runtime.leases import Keeper, lease_clock
from tests.waiting import PATIENCE
from tests.web.effects import Effects

BIG = 5 * 1024 * 1024
KEPT_AT_MOST = 256 * 1024
LEASE = timedelta(seconds=2 * PATIENCE)
PATIENT = timedelta(seconds=2 * PATIENCE)
A_WHILE = 0.45 * LEASE
"""More than the third of a lease after which it is renewed; what is left of it is still ample."""

POLICIES: dict[str, Policy] = {
    "/pay": semel.ietf(required=True, lease=LEASE),
    "/goods": semel.ietf(lease=LEASE),
    "/binary": semel.ietf(lease=LEASE),
    "/empty": semel.ietf(lease=LEASE),
    "/big": semel.ietf(lease=LEASE),
    "/huge": semel.ietf(max_response_body=KEPT_AT_MOST, lease=LEASE),
    "/stream": semel.ietf(response="stream", lease=LEASE),
    "/undeclared": semel.ietf(lease=LEASE),
    "/wait": semel.ietf(in_flight="wait", wait=PATIENT, lease=LEASE),
    "/fail": semel.ietf(in_flight="wait", wait=PATIENT, lease=LEASE),
    "/outlive": semel.ietf(lease=LEASE),
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


def opened(gate: str | None) -> bool:
    return gate is None or Path(gate).exists()


class Ahead:
    """The clock by which a process renews its leases, put forward by hand."""

    def __init__(self) -> None:
        self.by = 0.0

    def __call__(self) -> float:
        return lease_clock() + self.by


def later(gate: Path, times: int) -> Path:
    """Tells a handler at ``gate`` that so many whiles have passed."""
    return gate.with_name(f"{gate.name}-later-{times}")


def outlive(keeper: Keeper, gate: Path) -> None:
    """What a handler does that outlives its lease: it lets nobody else run on its thread, which is
    the event loop's, while the hours pass that the test tells of."""
    clock, times = Ahead(), 0
    while not gate.exists():
        if later(gate, times + 1).exists():
            times += 1
            clock.by += A_WHILE.total_seconds()
            renewing = keeper.renewing
            renewing.clock = keeper.leases._clock = clock
            with renewing._wake:
                renewing._wake.notify()  # it sleeps by the real clock
        time.sleep(0.01)
