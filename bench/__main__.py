"""``make bench``: what a guard costs, beside the bare application, its peers and the raw limits.

One uvicorn worker with a core of its own for each; all are up from the first round to the last, and
every round sends each of them load for a second, the bare application again and again between them.
Figures are the medians of the rounds' ratios to the bare application, with the least and the
greatest. A case whose answers are wrong, or whose handler did not run as often as it should have,
has no figures, and the command fails.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench import aims, machine, table
from bench.cases import Case, peers, raw, scale, stores
from bench.load import generator
from bench.measure import Cores
from bench.plans import BODY, FRESH, REPLAY
from bench.rounds import Result, measure
from bench.stage import Stage

RESULTS = Path(__file__).parent / "results"
QUICK = (
    stores.semel_on("SQLite", FRESH),
    stores.semel_on("SQLite", REPLAY),
    stores.semel_on("PostgreSQL", FRESH),
    raw.Pairs("SQLite"),
)


def parser() -> argparse.ArgumentParser:
    said = argparse.ArgumentParser(prog="make bench", description=__doc__)
    said.add_argument("--quick", action="store_true", help="a few cases, once, under a minute")
    said.add_argument("--peers", action="store_true", help="other packages too (.venv-bench)")
    said.add_argument("--only", action="append", help="cases whose name contains this; repeatable")
    said.add_argument("--rounds", type=int, default=9)
    said.add_argument(
        "--seconds", type=float, default=1.0, help="of load on each case in each round"
    )
    said.add_argument("--connections", type=int, default=32)
    said.add_argument(
        "--records",
        type=int,
        default=0,
        help="also whether a table of so many records costs more than an empty one",
    )
    said.add_argument("--save", action="store_true", help="write bench/results/DATE.md")
    said.add_argument("--json", action="store_true", help="every sample, for programs")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 1.0)
    with Stage(options.seconds, options.connections, Cores.divided()) as stage:
        results = measure(chosen(options), stage, options.rounds)
        text = report(results, stage, options.rounds)
    if options.json:
        print(json.dumps([_document(result) for result in results]))
    else:
        print(text)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}.md"
        path.write_text(text + "\n")
        print(f"written to {path}", file=sys.stderr)
    return 1 if any(result.failed for result in results) else 0


def chosen(options: argparse.Namespace) -> list[Case]:
    """The bare application is always among them: it is what the others are compared with."""
    cases: list[Case] = [*(QUICK if options.quick else [*stores.cases(), *raw.cases()])]
    if options.peers:
        cases += peers.cases()
    if options.records:
        cases += scale.cases(options.records)
    if options.only:
        cases = [case for case in cases if any(part in case.name for part in options.only)]
    return [stores.BARE, *cases]


def report(results: Sequence[Result], stage: Stage, rounds: int) -> str:
    """The whole document: the machine, the table, the aims."""
    return "\n\n".join(
        [
            f"# Benchmark of {datetime.now(UTC):%Y-%m-%d}",
            "\n".join(f"- {line}" for line in _circumstances(results, stage, rounds)),
            table.markdown(table.TITLES, table.rows(results)),
            table.markdown(aims.TITLES, aims.rows(results)),
        ]
    )


def _circumstances(results: Sequence[Result], stage: Stage, rounds: int) -> list[str]:
    said = [*machine.described(), machine.neighbours(stage.load)]
    said += [f"{store}: {title}" for store, title in stage.titles().items()]
    if any(result.case.family == "peer" for result in results):
        said.append(f"peers: {machine.peer_versions()}")
    return [
        *said,
        f"generator: {generator()}; {stage.cores}",
        f"1 uvicorn worker, {stage.connections} connections, {len(BODY)} bytes of JSON; median of "
        f"{rounds} rounds of {stage.seconds:g} s",
        f"import semel: {machine.import_milliseconds(3):.0f} ms",
    ]


def _document(result: Result) -> dict[str, object]:
    return {
        "case": result.case.name,
        "problem": None if result.problem is None else str(result.problem),
        "ratios": result.ratios,
        "samples": [asdict(sample) for sample in result.samples],
    }


if __name__ == "__main__":
    # Told to end, it clears up behind it: a full table is gigabytes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
