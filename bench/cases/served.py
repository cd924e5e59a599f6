"""Cases over HTTP: an application under one uvicorn worker, and proof that it did its work."""

from __future__ import annotations

import http.client
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from bench import plans
from bench.cases import Sample
from bench.load import BenchError, Burst, Target, answers, send
from bench.measure import cpu_seconds, peak_megabytes
from bench.plans import Plan
from bench.stage import Place, Stage, python_of
from tests.servers.apps import AppServer
from tests.servers.child import ROOT, ServerError

WARM_UP = 500
"""Requests before the measurement."""
LOOKED_AT = 20
"""Replays whose headers are read after the measurement."""


@dataclass(frozen=True)
class Served:
    """What is served, how it is wrapped, and what keys it gets."""

    name: str
    family: str
    module: str
    plan: Plan
    store: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    marks_replays: bool = True

    def measure(self, stage: Stage) -> Sample:
        """One slice of load on a server that is up from the first round to the last."""
        place = None if self.store is None else stage.place(self.store, stage.cores.store)
        server = stage.server(self.served_as(), lambda: self.serving(stage, place))
        target = Target(server.port, self.plan, self.prefix(stage), stage.connections, stage.cores)
        if stage.first_time(self.name) or self.plan is plans.MIXED:
            self.prepare(target)
        return self.burst(target, stage.seconds, server, place)

    def served_as(self) -> str:
        """Cases that differ only in their keys have one server between them."""
        return " ".join([self.module, str(self.store), *map("=".join, self.env.items())])

    def prefix(self, stage: Stage) -> str:
        """Of keys: replayed ones stay the same, all others are new in every slice."""
        own = uuid.uuid5(stage.run, self.name) if self.plan is plans.REPLAY else uuid.uuid4()
        return f"{self.plan.name[0]}{own.hex[:19]}"

    @contextmanager
    def serving(self, stage: Stage, place: Place | None) -> Iterator[AppServer]:
        script = str(ROOT / "tests" / "servers" / "serve_asgi.py")
        words: list[str | int] = [python_of(self.family), script, f"{self.module}:app", "{fd}", 1]
        env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **self.env}
        if place is not None:
            env["BENCH_STORE"] = place.url
        try:
            with AppServer([*stage.cores.server.command(words)], env) as server:
                yield server
        except ServerError as error:
            raise BenchError(f"{self.name}: {last_line(str(error))}") from error

    def prepare(self, target: Target) -> None:
        """Use the keys that will be repeated; warm up where there are none."""
        if not self.plan.primed:
            warm = replace(target, plan=plans.FRESH, prefix="w" + target.prefix[1:])
            self.first_answers(warm, WARM_UP)
            return
        prime = replace(target, plan=plans.REPLAY)
        self.first_answers(prime, plans.REPLAYED_KEYS)
        answers(prime, WARM_UP)

    def first_answers(self, target: Target, count: int) -> None:
        kinds = answers(target, count)
        if kinds != {"201": count}:
            raise BenchError(f"{self.name}: first answers were {kinds}")

    def burst(
        self, target: Target, seconds: float, server: AppServer, place: Place | None
    ) -> Sample:
        pids = [server.pid, *([] if place is None or place.pid is None else [place.pid])]
        executed, spent = executions(server.port), [cpu_seconds(pid) for pid in pids]
        burst = send(target, seconds)
        used = [cpu_seconds(pid) - before for pid, before in zip(pids, spent, strict=True)]
        self.check(burst, executions(server.port) - executed, target)
        micros = [1e6 * seconds / burst.requests for seconds in used]
        return Sample(
            burst.rate,
            burst.p50,
            burst.p99,
            cpu=micros[0],
            store_cpu=micros[1] if len(micros) > 1 else None,
            megabytes=peak_megabytes(server.pid),
            generator_load=burst.generator_load,
        )

    def check(self, burst: Burst, executed: int, target: Target) -> None:
        """Whether the work was done: every success run once, no replay run at all.

        wrk drops what is under way when its time is over: as many as there are connections may
        have run unanswered, or, among answered repetitions, not yet have run.
        """
        allowed = burst.conflicts if self.plan is plans.HERDED else 0
        if burst.broken or burst.refused > allowed:
            raise BenchError(f"{self.name}: {burst.refused} refused, {burst.broken} broken")
        expected = self.expected(burst.requests)
        under_way = target.connections + 2
        missing = 0 if self.plan is plans.FRESH else under_way
        if not expected - missing <= executed <= expected + under_way:
            raise BenchError(f"{self.name}: {executed} executions for {burst.requests} requests")
        if self.plan.primed and self.marks_replays and self.family != "bare":
            again = replace(target, plan=plans.REPLAY, connections=1)
            kinds = answers(again, LOOKED_AT)
            if kinds != {"201 replayed": LOOKED_AT}:
                raise BenchError(f"{self.name}: repeated requests were answered {kinds}")

    def expected(self, requests: int) -> float:
        return requests if self.family == "bare" else self.plan.executions(requests)


def executions(port: int) -> int:
    """How often the handler has run, as the application itself counts it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/executions")
        return int(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
