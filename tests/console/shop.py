"""A day of a shop, for the console to show: every kind of record, and what needs a person."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from werkzeug.test import Client

from semel import Route
from semel.console import ConsoleUser
from semel.core import operations as ops
from semel.core.policy import ietf
from semel.core.records import Fence, Identity, Micros, Request
from semel.core.stored import snapshot
from semel.core.stored.requests import StoredRequest, encode
from semel.core.unknown.evidence import Happened
from semel.operators.operator import Operator
from semel.worker.maintenance import LEADER
from tests.scene import DAY, HOUR, KEY, MINUTE, SECOND, Scene, fresh_fence
from tests.stores.harness import open_harness

ROUTES = ("POST /payments", "POST /refunds", "POST /transfers", "POST /subscriptions/{id}/renew")
TENANTS = ("acme", "globex", "initech", "umbrella")
HOSTILE = "</td><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x01{{7*7}}"


def by_name(request: Request) -> ConsoleUser | None:
    """An ``authorize`` for tests: headers say who it is, and in which role."""
    role, name = request.headers.get("x-role"), request.headers.get("x-name", "ada")
    return None if role is None else ConsoleUser(name, [role])


class Shop(Scene):
    """A store in memory, whose clock is ours."""

    def __init__(self, harness: Any) -> None:
        policy = ietf(probe=lambda inquiry: Happened(provider_id="ch_3Nx81"))
        routes = [Route("POST", each.removeprefix("POST "), policy) for each in ROUTES]
        super().__init__(harness, policy, name="shop", routes=routes)
        self._numbers = iter(range(1, 1_000_000))
        self._effects = iter(range(1, 1_000_000))

    def new_identity(self) -> Identity:
        """Spread evenly, as digests are; the same in every run."""
        return Identity(sha256(f"shop {next(self._numbers)}".encode()).digest())

    def request(self, key: str, path: str) -> None:
        """A real one, through the guard."""

        def application(environ: Any, start_response: Any) -> list[bytes]:
            start_response("201 Created", [("Content-Type", "application/json")])
            return [b"{}"]

        sent = {"Idempotency-Key": key}
        answer = Client(self.guard.wsgi(application)).post(path, json={}, headers=sent)
        assert answer.status_code == 201, answer.text

    def dead_effect(self, name: str, error: str, tries: int = 1, key: str | None = None) -> str:
        """An effect that could not be delivered."""
        number = next(self._effects)
        key = key or f"eff_{sha256(f'{name} {number}'.encode()).hexdigest()[:16]}"
        self.harness.perform(ops.Enqueue(key, None, name, b'{"card":"4242"}'))
        for left in reversed(range(tries)):
            fence = fresh_fence()
            self.harness.perform(ops.TakeEffects(fence, (name,), 1, MINUTE))
            self.harness.perform(ops.MarkFailed(key, fence, error, 0 if left else None))
        return key

    def note(
        self,
        kind: ops.NotableKind,
        route: str,
        tenant: str,
        identity: Identity | None = None,
        **detail: Any,
    ) -> None:
        seen = ops.Notable(kind, "shop", route, tenant, identity, json.dumps(detail))
        self.harness.perform(ops.WriteNotables((seen,), DAY))

    def operator(self) -> Operator:
        return Operator(self.guard)


@contextmanager
def opened(folder: Path) -> Iterator[Shop]:
    with open_harness("memory-sync", folder, lambda: None) as harness:
        yield Shop(harness)


# ── a day ─────────────────────────────────────────────────────────────────────────────────────────


def fill(shop: Shop, count: int = 60) -> None:
    """So many requests, spread over a day, and all that can become of one."""
    settled_day(shop, count)
    unknowns(shop)
    dead_letters(shop)
    notables(shop)
    for number in range(6):
        held(shop, number, lease=(5, 40, 60, 30, 30, 30)[number] * SECOND)
        shop.travel((9_000_000, 4_000_000, 120_000, 90_000, 210_000, 60_000)[number])
    workers(shop)


def settled_day(shop: Shop, count: int) -> None:
    """What ran through: most of it well."""
    dice = Random(7)
    pause = 23 * HOUR // count
    for number in range(count):
        route = dice.choices(ROUTES, (60, 15, 15, 10))[0]
        how: dict[str, Any] = {"route": route, "tenant": dice.choice(TENANTS)}
        method, _, path = route.partition(" ")
        how |= {"method": method, "path": path.replace("{id}", f"sub_{4100 + number}")}
        fate = dice.random()
        if fate < 0.05:
            shop.released(**how)
        else:
            status = 201 if fate < 0.84 else 422 if fate < 0.95 else 503
            completed(shop, dice.randint(80, 900) * 1000, status, **how)
        shop.travel(dice.randint(pause // 2, pause * 3 // 2))


def completed(shop: Shop, took: Micros, status: int, **how: Any) -> Identity:
    """With its retention of a day, as policies have it."""
    identity = shop.held(**how)
    shop.travel(took)
    body = b'{"id":"pay_81","card":"4242"}'
    kept = snapshot.encode(
        snapshot.Snapshot(status, ((b"content-type", b"application/json"),), body, len(body))
    )
    op = ops.Complete(identity, shop.fences[identity], kept, DAY, 7 * DAY)
    shop.harness.perform(op)
    return identity


def held(shop: Shop, number: int, lease: Micros) -> Identity:
    """Under way, with that much of its lease left."""
    identity = shop.held(
        route=ROUTES[number % 3],
        path=ROUTES[number % 3].partition(" ")[2],
        tenant=TENANTS[number % 4],
    )
    shop.harness.perform(ops.Renew(identity, shop.fences[identity], lease))
    return identity


def stored(path: str) -> bytes:
    headers = ((b"content-type", b"application/json"), (b"idempotency-key", KEY.encode()))
    body = b'{"amount":4200,"card":"4242"}'
    return encode(StoredRequest("POST", "", path, b"", headers, body, key=KEY, principal=None))


def unknowns(shop: Shop) -> None:
    """Outcomes that nobody knows: by reason, with a journal and without, and one given up on."""
    cut = "ReadTimeout: the provider did not answer within 10 s"
    made: list[Identity] = []
    for tenant in ("acme", "globex", "initech"):
        identity = shop.unknown(
            *("order booked", "stock reserved"),
            intent="charge the card",
            reason=cut,
            route="POST /payments",
            tenant=tenant,
            request=stored("/payments"),
        )
        made.append(identity)
        shop.travel(4 * MINUTE)
    kind = ops.NotableKind
    event = {"source": "acquirer", "event": "charge.succeeded", "applied": False}
    shop.note(kind.WEBHOOK, "POST /payments", "initech", made[-1], **event)
    shop.note(kind.CONFLICT, "POST /payments", "initech", made[-1])
    lost: dict[str, Any] = {
        "reason": "the lease ended while the handler ran",
        "route": "POST /transfers",
    }
    shop.unknown(path="/transfers", tenant="umbrella", **lost)
    shop.unknown(path="/transfers", tenant="acme", probe_after=None, **lost)
    shop.travel(MINUTE)


def dead_letters(shop: Shop) -> None:
    for number in range(4):
        shop.dead_effect("receipt.mail", "SMTPRecipientsRefused: 550 no such mailbox", 8 - number)
        shop.travel(20 * SECOND)
    for _ in range(3):
        shop.dead_effect("ledger.post", "ConnectError: ledger.internal refused the connection", 5)
        shop.travel(15 * SECOND)
    shop.harness.perform(ops.Enqueue("eff_waits", None, "receipt.mail", b"{}", delay=MINUTE))


def notables(shop: Shop) -> None:
    kind = ops.NotableKind
    identity = completed(shop, 300_000, 201, route="POST /payments", tenant="globex")
    for fields in (["amount"], ["amount", "currency"], ["amount"]):
        shop.note(kind.MISMATCH, "POST /payments", "globex", identity, fields=fields)
    shop.note(kind.MISMATCH, "POST /refunds", "umbrella", identity, fields=["reason"])
    shop.note(kind.REPLAY, "POST /payments", "globex", identity)
    released = shop.released(route="POST /payments", tenant="acme")
    shop.operator().evict(released, by="grace", reason="ticket 4711: the client asked for it")
    shop.travel(30 * SECOND)


def workers(shop: Shop) -> None:
    told = [
        ("w1", "worker", "deliver, run, probe", 4211, False, 30),
        ("w2", "worker", "deliver, run, probe", 4212, False, 30),
        ("a1", "application", "maintenance", 3977, True, 60),
    ]
    for name, role, does, pid, leads, lease in told:
        info = ops.WorkerInfo(name, "shop", role, does, "9f2c41d07be3", pid, "0.1.0", leads)
        shop.harness.perform(ops.Beat(info, lease * SECOND))
    shop.harness.perform(ops.Lead(LEADER, Fence(b"leader".ljust(16)), MINUTE))


# ── what strangers may send ───────────────────────────────────────────────────────────────────────


def hostile(shop: Shop) -> Identity:
    """A record in doubt, and all about it, with HTML everywhere a stranger can put a text."""
    octets = HOSTILE.encode("latin-1", "ignore")
    request = StoredRequest(
        *("POST", "", f"/{HOSTILE}", octets),
        headers=((b"x-note", octets),),
        body=HOSTILE.encode(),
        key=KEY,
        principal=None,
    )
    identity = shop.unknown(
        HOSTILE,
        intent=HOSTILE + "!",
        reason=HOSTILE,
        path=f"/{HOSTILE}",
        tenant=HOSTILE,
        request=encode(request),
    )
    for kind in ops.NotableKind:
        shop.note(kind, HOSTILE, HOSTILE, identity, **{HOSTILE: HOSTILE, "fields": [HOSTILE]})
    shop.dead_effect(HOSTILE[:60], HOSTILE, key=f"key {HOSTILE}")
    said: dict[str, Any] = {
        "by": HOSTILE.replace("\x01", "").replace("\u202e", ""),
        "reason": HOSTILE,
    }
    shop.operator().evict(shop.released(path=f"/{HOSTILE}", tenant=HOSTILE), **said)
    shop.completed(path=f"/{HOSTILE}", tenant=HOSTILE)
    return identity
