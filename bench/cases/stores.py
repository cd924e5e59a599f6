"""semel on each store, with each plan, and the application without it."""

from __future__ import annotations

import inspect
from dataclasses import replace

import semel
from bench import plans
from bench.cases import Case
from bench.cases.served import Served
from bench.stage import STORES

BARE = Served("bare application", "bare", "bench.served.app", plans.FRESH)


WINDOW = "60"
"""Seconds, more than a measurement takes."""


def cases() -> list[Case]:
    found: list[Case] = []
    for store in STORES:
        found += [semel_on(store, plan) for plan in plans.PLANS.values()]
        if has_window() and store != "memory":
            found.append(in_window(store))
    return found


def semel_on(store: str, plan: plans.Plan) -> Served:
    return Served(f"semel, {store}, {plan.title}", "semel", "bench.served.guarded", plan, store)


def in_window(store: str) -> Served:
    """Replays that are answered without asking the store."""
    asked = semel_on(store, plans.REPLAY)
    return replace(asked, name=windowed(store), env={"BENCH_REPLAY_CACHE": WINDOW})


def windowed(store: str) -> str:
    return f"semel, {store}, replays in a window"


def has_window() -> bool:
    return "replay_cache" in inspect.signature(semel.Guard).parameters
