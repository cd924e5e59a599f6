"""The machine and the versions, for the head of the table."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.stage import PEERS_PYTHON
from tests.servers.child import ROOT

BUSY = 0.7
"""Load average above which somebody else is at work."""
PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette", "psycopg", "redis", "asyncmy")
PEERS = (
    "idemkit",
    "fastapi-idempotency",
    "asgi-idempotency-header",
    "aws-lambda-powertools",
    "dbos",
)


def described() -> list[str]:
    return [
        f"{processor()}, {os.cpu_count()} cores, {memory_gigabytes():.0f} GB, "
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}; {', '.join(versions(PACKAGES))}",
        f"semel {commit()}",
    ]


def neighbours(load: float) -> str:
    """What to make of the load average before the first round."""
    if load < BUSY:
        return f"load average before the run {load:.1f}"
    return f"load average before the run {load:.1f}: busy with other work, trust CPU × bare most"


def processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1].strip() if found else platform.machine()


def memory_gigabytes() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3


def versions(packages: tuple[str, ...]) -> list[str]:
    said = []
    for package in packages:
        try:
            said.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return said


def peer_versions() -> str:
    """As installed in the peers' own environment."""
    if not PEERS_PYTHON.exists():
        return "not installed"
    script = (
        "from importlib.metadata import version\n"
        f"print(', '.join(f'{{name}} {{version(name)}}' for name in {PEERS!r}))"
    )
    said = subprocess.run([PEERS_PYTHON, "-c", script], capture_output=True, text=True)
    return said.stdout.strip() or said.stderr.strip().splitlines()[-1]


def commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    said = subprocess.run(command, capture_output=True, text=True)
    return said.stdout.strip() or "without git"


def import_milliseconds(runs: int) -> float:
    """Importing semel where asyncio is there already, from bytecode; the best run."""
    script = "import asyncio, time; t = time.perf_counter(); import semel; "
    script += "print(time.perf_counter() - t)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", script]
    said = [
        subprocess.run(command, capture_output=True, check=True, env=env).stdout
        for _ in range(runs)
    ]
    return min(map(float, said)) * 1000
