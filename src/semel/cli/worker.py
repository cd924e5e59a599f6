"""``semel worker``: the loops of a guard, as one process among as many as are wanted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from semel.cli.output import DONE, FAILED, print_json, say
from semel.cli.targets import app_at, guard_at
from semel.core.frozen import frozen
from semel.errors import ConfigurationError, SemelError
from semel.guard import Guard
from semel.worker.deliveries import Deliveries
from semel.worker.maintenance import Maintenance
from semel.worker.reconciler import Reconciler
from semel.worker.stored_runs import StoredRuns
from semel.worker.wake_up import Listener, listener_for
from semel.worker.worker import DELIVER, LOOPS, MAINTAIN, RUN, Loop, Round, Worker

_BACKSTOP: Final = 10.0
"""Seconds after which a process that is done ends, though a coroutine will not."""


@frozen
class Orders:
    """The command line; durations in seconds."""

    guard: str
    app: str | None
    only: str | None
    concurrency: int
    once: bool
    drain: float
    poll: float
    lease: float
    listen_url: str | None
    as_json: bool


def run(orders: Orders) -> int:
    """Work until told to stop; the exit code."""
    guard = guard_at(orders.guard)
    app = None if orders.app is None else app_at(orders.app)
    voice = Voice(orders.as_json)
    loops = loops_of(guard, app, orders, voice)
    listener = None if orders.once else listener_for(guard.backend, orders.listen_url)
    guard.start()
    voice.start(guard, loops, orders.once)
    code = asyncio.run(_work(guard, loops, listener, orders, voice))
    sys.stdout.flush()
    return code


def loops_of(guard: Guard, app: Any, orders: Orders, voice: Voice) -> list[tuple[str, Loop]]:
    """The loops that were asked for; without a word, all that this guard has work for."""
    asked = _names(orders.only)
    loops: list[tuple[str, Loop]] = []
    for name in asked or LOOPS:
        lacking = _lacking(name, guard, app)
        if lacking is None:
            loops.append((name, _loop(name, guard, app, orders, voice)))
        elif asked:
            raise ConfigurationError(f"--only {name}: {lacking}")
    return loops


def _names(only: str | None) -> tuple[str, ...]:
    if only is None:
        return ()
    names = tuple(name.strip() for name in only.split(","))
    for name in names:
        if name not in LOOPS:
            raise ConfigurationError(f"--only takes {', '.join(LOOPS)}; not {name!r}")
    return tuple(dict.fromkeys(names))


def _lacking(name: str, guard: Guard, app: Any) -> str | None:
    if name == DELIVER:
        return None if guard.registry.deliverers else "the guard has no deliverers: guard.effect"
    if name == RUN and app is None:
        return "which application? Give --app"
    return None


def _loop(name: str, guard: Guard, app: Any, orders: Orders, voice: Voice) -> Loop:
    if name == DELIVER:
        return Deliveries(
            guard,
            concurrency=orders.concurrency,
            lease=timedelta(seconds=orders.lease),
            report=partial(voice.round, DELIVER),
        )
    if name == RUN:
        return StoredRuns(guard, app, report=partial(voice.round, RUN))
    return Maintenance(guard) if name == MAINTAIN else Reconciler(guard, app)


async def _work(
    guard: Guard,
    loops: Sequence[tuple[str, Loop]],
    listener: Listener | None,
    orders: Orders,
    voice: Voice,
) -> int:
    worker = Worker(
        loops,
        listener=listener,
        poll=timedelta(seconds=orders.poll),
        drain=timedelta(seconds=orders.drain),
        on_round=voice.round,
        on_failure=voice.failure,
    )
    _heed_signals(worker, voice)
    try:
        whole = await _once(worker, voice) if orders.once else await worker.run()
    finally:
        await worker.aclose()
        await guard.aclose()
    voice.end(whole, orders)
    # A coroutine that takes no notice of being cancelled would keep the process for ever.
    backstop = threading.Timer(_BACKSTOP, os._exit, (DONE if whole else FAILED,))
    backstop.daemon = True
    backstop.start()
    return DONE if whole else FAILED


async def _once(worker: Worker, voice: Voice) -> bool:
    try:
        await worker.run_once()
    except SemelError as error:
        voice.failure("a round", error)
        return False
    return True


def _heed_signals(worker: Worker, voice: Voice) -> None:
    """The first signal stops gracefully, the second at once."""
    loop = asyncio.get_running_loop()
    heard: list[int] = []

    def heed(number: int) -> None:
        if heard:
            sys.stdout.flush()
            os._exit(128 + number)
        heard.append(number)
        voice.stopping(signal.Signals(number).name)
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heed, number)


class Voice:
    """What the worker says: lines for people, or one JSON object per line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def start(self, guard: Guard, loops: Sequence[tuple[str, Loop]], once: bool) -> None:
        names = [name for name, _ in loops]
        effects = sorted(guard.registry.deliverers) if DELIVER in names else []
        delivers = f" (effects: {', '.join(effects)})" if effects else ""
        self._say(
            f"semel worker: {guard.backend.url}: {', '.join(names)}{delivers}",
            {"event": "start", "store": guard.backend.url, "loops": names, "effects": effects}
            | {"pid": os.getpid(), "once": once},
        )

    def round(self, name: str, round_: Round) -> None:
        note = f" ({round_.note})" if round_.note else ""
        self._say(
            f"{name}: {round_.done} done{note}",
            {"event": "round", "loop": name, "done": round_.done, "note": round_.note}
            | {"next_due_in": round_.next_due_in},
        )

    def failure(self, name: str, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        line = f"semel: {name} failed: {said}"
        if self._as_json:
            self._say(line, {"event": "failure", "loop": name, "error": said})
        else:
            say(line, err=True)

    def stopping(self, signal_name: str) -> None:
        self._say(
            f"{signal_name}: finishing what is under way; again to stop at once",
            {"event": "stopping", "signal": signal_name},
        )

    def end(self, whole: bool, orders: Orders) -> None:
        said = "done" if orders.once and whole else "stopped"
        if not whole and not orders.once:
            said = f"stopped with work under way after {orders.drain:g} s; others will take it up"
        self._say(said, {"event": "end", "whole": whole})

    def _say(self, line: str, event: dict[str, Any]) -> None:
        if self._as_json:
            print_json(event, indent=None)
        else:
            say(line)
        sys.stdout.flush()
