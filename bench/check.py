"""`semel check` put to semel and to the packages it is compared with, each as its own guide sets
it up: a row for each probe, a column for each package.

    python -m bench.check            (the packages: make bench ARGS="--peers --only none")
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bench.cases.peers import PEERS
from bench.load import BenchError
from bench.stage import STORES, python_of
from semel.check import CheckOptions, CheckReport, check
from semel.check.ladder import LADDER
from semel.check.profiles import profile
from semel.check.run import CheckedOperation
from semel.check.wire import WireRequest
from tests.servers.apps import AppServer
from tests.servers.child import ROOT, ServerError

PAYMENT = CheckedOperation(
    WireRequest(
        "POST",
        "/payments",
        (("Content-Type", "application/json"),),
        b'{"amount": 100, "currency": "EUR"}',
    ),
    label="POST /payments",
)
SIGNS = {"holds": "yes", "broken": "NO", "not observable": "?", "skipped": "-"}


def checked(module: str, family: str, store: str, env: Mapping[str, str]) -> CheckReport:
    """What the check says of one package around the application of the benchmarks."""
    script = str(ROOT / "tests" / "servers" / "serve_asgi.py")
    words: list[str | int] = [python_of(family), script, f"{module}:app", "{fd}", 1]
    with STORES[store]() as place:
        given = {"PYTHONPATH": str(ROOT), "BENCH_NEW_IDS": "1", "BENCH_STORE": place.url, **env}
        with AppServer(words, given) as server:
            return check(
                CheckOptions(
                    server.url,
                    [PAYMENT],
                    profile=profile("ietf-07"),
                    token="alice-0123456789",
                    other_token="bob-0123456789",
                    effects=f"{server.url}/executions",
                    patience=10.0,
                )
            )


def main() -> int:
    columns: dict[str, CheckReport] = {}
    tenant = {"BENCH_TENANT": "authorization"}
    subjects = {"semel, SQLite": ("bench.served.guarded", "semel", "SQLite", tenant)}
    for name, (which, store, _) in PEERS.items():
        subjects[name] = ("bench.served.peers", "peer", store, {"BENCH_PEER": which})
    for name, subject in subjects.items():
        try:
            report = checked(*subject)
        except (BenchError, ServerError) as error:
            print(f"{name}: not checked: {str(error).splitlines()[-1]}", file=sys.stderr)
            continue
        print(f"{name}: {'; '.join(report.first_lines())}", file=sys.stderr)
        if report.finished:
            columns[name] = report
    print(f"| probe | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for what in ("requests", "seconds"):
        figures = [f"{getattr(report, what):.4g}" for report in columns.values()]
        print(f"| {what} | {' | '.join(figures)} |")
    for probe in LADDER:
        verdicts = [
            SIGNS[result.verdict.value]
            for report in columns.values()
            for result in report.results
            if result.name == probe.name
        ]
        print(f"| {probe.title} | {' | '.join(verdicts)} |")
    for name, report in columns.items():
        for result in report.broken:
            print(f"\n{name}, {result.name}: {result.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
