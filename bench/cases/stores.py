"""semel on each store, with each plan, and the application without it."""

from __future__ import annotations

from bench import plans
from bench.cases import Case
from bench.cases.served import Served
from bench.stage import STORES

BARE = Served("bare application", "bare", "bench.served.app", plans.FRESH)


def cases() -> list[Case]:
    return [semel_on(store, plan) for store in STORES for plan in plans.PLANS.values()]


def semel_on(store: str, plan: plans.Plan) -> Served:
    return Served(f"semel, {store}, {plan.title}", "semel", "bench.served.guarded", plan, store)
