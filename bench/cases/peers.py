"""Other packages that do the same job, around the same application on the same stores."""

from __future__ import annotations

from bench import plans
from bench.cases import Case
from bench.cases.served import Served

# Name in the table -> (name in bench/served/peers.py, store, whether it marks its replays)
PEERS: dict[str, tuple[str, str, bool]] = {
    "idemkit, Redis": ("idemkit-redis", "Redis", True),
    "idemkit, PostgreSQL": ("idemkit-postgres", "PostgreSQL", True),
    "fastapi-idempotency, memory": ("fastapi-idempotency", "memory", True),
    "asgi-idempotency-header, Redis": ("asgi-idempotency-header", "Redis", True),
    "aws-lambda-powertools, Redis": ("powertools", "Redis", False),
    "dbos, PostgreSQL": ("dbos", "PostgreSQL", False),
}


def cases() -> list[Case]:
    return [peer(name, plan) for name in PEERS for plan in (plans.FRESH, plans.REPLAY)]


def peer(name: str, plan: plans.Plan) -> Served:
    which, store, marks = PEERS[name]
    return Served(
        f"{name}, {plan.title}",
        "peer",
        "bench.served.peers",
        plan,
        store,
        {"BENCH_PEER": which},
        marks,
    )
