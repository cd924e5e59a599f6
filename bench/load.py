"""One burst of load against one port: by wrk where it is installed, else by our own generator."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import plans
from bench.measure import Cores
from bench.plans import Plan

LUA = Path(__file__).parent / "generators" / "load.lua"


class BenchError(Exception):
    """A case could not be measured, or did not do the work it was measured for."""


class NotThere(BenchError):
    """What the case needs is not on this machine."""


@dataclass(frozen=True)
class Burst:
    """What a generator saw. Latencies are milliseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    refused: int
    """Answers other than 2xx."""
    conflicts: int
    """Of these, those that say that the same key is in flight."""
    broken: int
    """Connections refused, cut or timed out."""
    generator_load: float
    """Share of a core that the generator used: near 1 it may be what was measured."""

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


@dataclass(frozen=True)
class Target:
    """Where to send, with what keys, over how many connections."""

    port: int
    plan: Plan
    prefix: str
    connections: int
    cores: Cores


def generator() -> str:
    return "wrk" if shutil.which("wrk") else "pulse.py (Python; install wrk for a faster one)"


def send(target: Target, seconds: float) -> Burst:
    """Send for some time with the best generator there is."""
    if shutil.which("wrk"):
        return _burst(target, *_wrk(target, seconds))
    return _burst(target, *_pulse(target, seconds=seconds))


def answers(target: Target, limit: int) -> dict[str, int]:
    """Send so many requests; how many answers of which kind came: ``{"201 replayed": 20}``."""
    said, _ = _pulse(target, limit=limit)
    kinds: dict[str, int] = said["answers"]
    return kinds


def _wrk(target: Target, seconds: float) -> tuple[dict[str, Any], float]:
    with tempfile.NamedTemporaryFile() as body:
        body.write(plans.BODY)
        body.flush()
        # wrk takes whole seconds only.
        command = ["wrk", "-t1", f"-c{target.connections}", f"-d{max(1, round(seconds))}s"]
        command += ["-s", str(LUA), f"http://127.0.0.1:{target.port}/payments", "--"]
        command += [target.plan.name, target.prefix, str(plans.REPLAYED_KEYS), str(plans.HERD)]
        command += [str(plans.FRESH_EVERY), body.name]
        return _run(target, command)


def _pulse(target: Target, seconds: float = 0.0, limit: int = 0) -> tuple[dict[str, Any], float]:
    command = [sys.executable, "-m", "bench.generators.pulse", str(target.port)]
    command += [str(target.connections), str(seconds), target.plan.name, target.prefix, str(limit)]
    return _run(target, command)


def _run(target: Target, command: list[str]) -> tuple[dict[str, Any], float]:
    """What it printed, and the CPU seconds it took."""
    before = _spent()
    done = subprocess.run(
        target.cores.generator.command(command), capture_output=True, text=True, env=os.environ
    )
    if done.returncode:
        raise BenchError(f"{command[0]} failed: {done.stderr or done.stdout}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said, _spent() - before


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _burst(target: Target, said: dict[str, Any], spent: float) -> Burst:
    said.pop("answers", None)
    if not said["requests"]:
        raise BenchError(f"{target.plan.title}: no answer at all")
    return Burst(**said, generator_load=spent / said["seconds"])
