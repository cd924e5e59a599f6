"""``semel worker``: runs the loops of a guard; many such processes may run at once."""

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
from semel.worker.heartbeat import HeartbeatLoop
from semel.worker.maintenance import Maintenance
from semel.worker.reconciler import Reconciler
from semel.worker.stored_runs import StoredRuns
from semel.worker.wake_up import Listener, listener_for
from semel.worker.worker import DELIVER, LOOPS, MAINTAIN, RUN, Loop, Round, Worker

_BACKSTOP: Final = 10.0
"""Seconds after which a process that is done ends, even if a coroutine does not."""


@frozen
class WorkerOptions:
    """The options of the command line; durations in seconds."""

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


def run(options: WorkerOptions) -> int:
    """Work until a signal says stop; return the exit code."""
    guard = guard_at(options.guard)
    app = None if options.app is None else app_at(options.app)
    log = WorkerLog(options.as_json)
    loops = loops_of(guard, app, options, log)
    listener = None if options.once else listener_for(guard.backend, options.listen_url)
    guard.start()
    names, store = [name for name, _ in loops], guard.backend.url
    effects = sorted(guard.registry.deliverers) if DELIVER in names else []
    delivers = f" (effects: {', '.join(effects)})" if effects else ""
    log.say(
        f"semel worker: {store}: {', '.join(names)}{delivers}",
        {"event": "start", "store": store, "loops": names, "effects": effects}
        | {"pid": os.getpid(), "once": options.once},
    )
    code = asyncio.run(_work(guard, loops, listener, options, log))
    sys.stdout.flush()
    return code


def loops_of(
    guard: Guard, app: Any, options: WorkerOptions, log: WorkerLog
) -> list[tuple[str, Loop]]:
    """The loops that --only names; without it, all that this guard has work for."""
    asked = dict.fromkeys(name.strip() for name in (options.only or "").split(","))
    for name in asked if options.only is not None else ():
        if name not in LOOPS:
            raise ConfigurationError(f"--only takes {', '.join(LOOPS)}; not {name!r}")
    loops: list[tuple[str, Loop]] = []
    for name in LOOPS if options.only is None else asked:
        lacking = None
        if name == DELIVER and not guard.registry.deliverers:
            lacking = "the guard has no deliverers: guard.delivers"
        elif name == RUN and app is None:
            lacking = "which application? Give --app"
        if lacking is None:
            loops.append((name, _loop(name, guard, app, options, log)))
        elif options.only is not None:
            raise ConfigurationError(f"--only {name}: {lacking}")
    return loops


def _loop(name: str, guard: Guard, app: Any, options: WorkerOptions, log: WorkerLog) -> Loop:
    if name == DELIVER:
        return Deliveries(
            guard,
            concurrency=options.concurrency,
            lease=timedelta(seconds=options.lease),
            report=partial(log.round, DELIVER),
        )
    if name == RUN:
        return StoredRuns(guard, app, report=partial(log.round, RUN))
    return Maintenance(guard) if name == MAINTAIN else Reconciler(guard, app)


async def _work(
    guard: Guard,
    loops: Sequence[tuple[str, Loop]],
    listener: Listener | None,
    options: WorkerOptions,
    log: WorkerLog,
) -> int:
    heartbeat = HeartbeatLoop(guard, [name for name, _ in loops], options.poll)
    worker = Worker(
        loops if options.once else (*loops, ("heartbeat", heartbeat)),
        listener=listener,
        poll=timedelta(seconds=options.poll),
        drain=timedelta(seconds=options.drain),
        on_round=log.round,
        on_failure=log.failure,
    )
    _heed_signals(worker, log)
    try:
        whole = await _once(worker, log) if options.once else await worker.run()
    finally:
        await worker.aclose()
        await guard.aclose()
    said = "done" if options.once and whole else "stopped"
    if not whole and not options.once:
        said = f"stopped with work under way after {options.drain:g} s; others will take it up"
    log.say(said, {"event": "end", "whole": whole})
    # A coroutine that ignores its cancellation would keep the process for ever.
    code = DONE if whole else FAILED
    backstop = threading.Timer(_BACKSTOP, os._exit, (code,))
    backstop.daemon = True
    backstop.start()
    return code


async def _once(worker: Worker, log: WorkerLog) -> bool:
    try:
        await worker.run_once()
    except SemelError as error:
        log.failure("a round", error)
        return False
    return True


def _heed_signals(worker: Worker, log: WorkerLog) -> None:
    """The first signal stops gracefully, the second at once."""
    loop = asyncio.get_running_loop()
    heard: list[int] = []

    def heed(number: int) -> None:
        if heard:
            sys.stdout.flush()
            os._exit(128 + number)
        heard.append(number)
        name = signal.Signals(number).name
        said = f"{name}: finishing what is under way; again to stop at once"
        log.say(said, {"event": "stopping", "signal": name})
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heed, number)


class WorkerLog:
    """Prints what the worker does: lines for people, or one JSON object per line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def say(self, line: str, event: dict[str, Any]) -> None:
        if self._as_json:
            print_json(event, indent=None)
        else:
            say(line)
        sys.stdout.flush()

    def round(self, name: str, round_: Round) -> None:
        note = f" ({round_.note})" if round_.note else ""
        self.say(
            f"{name}: {round_.done} done{note}",
            {"event": "round", "loop": name, "done": round_.done, "note": round_.note}
            | {"next_due_in": round_.next_due_in},
        )

    def failure(self, name: str, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        line = f"semel: {name} failed: {said}"
        if self._as_json:
            self.say(line, {"event": "failure", "loop": name, "error": said})
        else:
            say(line, err=True)
