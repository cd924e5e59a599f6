"""``make steadiness``: the test command again and again, some runs beside busy loops.

Every second run shares each core with a loop that never rests, until as many were loaded as asked
for. A project whose tests are sometimes red is not believed when it matters: any run that is not
green makes this command fail, and its whole output is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
BUSY = "while True: pass"
OF_THIS_MAKE = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS"}
"""What `make steadiness ARGS=...` hands down: for this command, not for the one that it runs."""


@dataclass(frozen=True)
class Run:
    """One run of the tests, and what it said of itself."""

    number: int
    loops: int
    code: int
    seconds: float
    passed: int
    skipped: int
    failed: tuple[str, ...]

    @property
    def row(self) -> str:
        beside = f"{self.loops} busy loops" if self.loops else "nothing"
        verdict = "green" if self.code == 0 else "RED " + " ".join(self.failed)
        took = f"{int(self.seconds) // 60}:{int(self.seconds) % 60:02}"
        return (
            f"{self.number:>3}  {beside:<13} {took:>7}  {self.passed:>6} {self.skipped:>7}  "
            f"{verdict}"
        )


HEAD = "run  beside          min:s  passed skipped  verdict"


def parser() -> argparse.ArgumentParser:
    said = argparse.ArgumentParser(prog="make steadiness", description=__doc__)
    said.add_argument("--runs", type=int, default=10)
    said.add_argument("--loaded", type=int, help="how many of them beside busy loops (half)")
    said.add_argument("--loops", type=int, default=os.cpu_count(), help="busy loops (one a core)")
    said.add_argument("--command", default="make test", help="what is run (make test)")
    said.add_argument("--json", action="store_true", help="for programs")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    loaded = options.runs // 2 if options.loaded is None else options.loaded
    if not 0 <= loaded <= options.runs:
        parser().error(f"--loaded takes 0 to {options.runs}, the number of runs")
    folder = Path(tempfile.mkdtemp(prefix="semel-steadiness-"))
    runs = []
    if not options.json:
        print(HEAD, flush=True)
    for number, loops in enumerate(plan(options.runs, loaded, options.loops), 1):
        runs.append(run(number, loops, options.command.split(), folder))
        if not options.json:
            print(runs[-1].row, flush=True)
    if options.json:
        print(json.dumps([asdict(each) for each in runs]))
    red = sum(each.code != 0 for each in runs)
    print(f"{len(runs) - red} of {len(runs)} green; outputs in {folder}", file=sys.stderr)
    return 1 if red else 0


def plan(runs: int, loaded: int, loops: int) -> list[int]:
    """The busy loops of each run: quiet and loaded ones in turn, the rest at the end."""
    pairs = [0, loops] * min(loaded, runs - loaded)
    return pairs + [loops if 2 * loaded > runs else 0] * (runs - len(pairs))


def run(number: int, loops: int, command: Sequence[str], folder: Path) -> Run:
    path = folder / f"run-{number}.txt"
    env = {name: value for name, value in os.environ.items() if name not in OF_THIS_MAKE}
    began = time.monotonic()
    with busy(loops), path.open("w") as output:
        code = subprocess.call(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
    seconds = time.monotonic() - began
    said = path.read_text(errors="replace")
    counts = {what: int(count) for count, what in COUNTS.findall(said)}
    failed = tuple(FAILED.findall(said))
    passed, skipped = counts.get("passed", 0), counts.get("skipped", 0)
    return Run(number, loops, code, seconds, passed, skipped, failed)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Processes that use whatever of the machine they are given."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


if __name__ == "__main__":
    sys.exit(main())
