"""The benchmark measures what it says it does: cases whose work was not done have no figures.

How fast a machine is decides nothing here: figures are placed, or are of so many steps. `make
proof` measures for a second each.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from bench import __main__ as command
from bench import aims, machine, plans, table
from bench.cases import Sample, peers, scale, stores
from bench.cases.served import Served
from bench.load import BenchError, Burst, NotThere, Target
from bench.measure import Cores
from bench.rounds import Result, measure
from bench.stage import Stage

UNGUARDED = Served("unguarded", "semel", "bench.served.app", plans.REPLAY)


def burst(requests: int, refused: int = 0, conflicts: int = 0, broken: int = 0) -> Burst:
    return Burst(requests, 1.0, 1.0, 2.0, refused, conflicts, broken, generator_load=0.1)


@dataclass(frozen=True)
class Placed:
    """A case whose figures are known beforehand, or why it has none."""

    name: str
    family: str
    rate: float = 0.0
    problem: BenchError | None = None

    def measure(self, stage: Stage) -> Sample:
        if self.problem is not None:
            raise self.problem
        return Sample(self.rate, cpu=1e6 / self.rate)


BARE = Placed("bare application", "bare", 200.0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(seconds=1.0, connections=4, cores=Cores()) as stage:
        yield stage


@pytest.mark.parametrize(
    ("problem", "code"), [(None, 0), (NotThere("not here"), 0), (BenchError("work not done"), 1)]
)
def test_the_command_runs_every_case_and_fails_where_one_did(
    problem: BenchError | None,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = (Placed("one", "semel", 50.0), Placed("raw", "raw", 400.0))
    monkeypatch.setattr(stores, "BARE", BARE)
    monkeypatch.setattr(machine, "import_milliseconds", lambda times: 20.0)
    monkeypatch.setattr(command, "QUICK", (*cases, Placed("other", "semel", 100.0, problem)))
    assert command.main(["--quick", "--json"]) == code
    said = {case["case"]: case for case in json.loads(capsys.readouterr().out)}
    assert said.keys() == {"bare application", "one", "raw", "other"}
    assert [said[name]["ratios"] for name in ("bare application", "one", "raw")] == [
        [1.0],
        [0.25],
        [],
    ]
    assert said["other"]["ratios"] == ([0.5] if problem is None else [])
    assert said["other"]["problem"] == (None if problem is None else str(problem))


@pytest.mark.proof
def test_the_quick_run_measures_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--only", "SQLite", "--json", "--connections", "4"]) == 0
    said = {case["case"]: case for case in json.loads(capsys.readouterr().out)}
    assert len(said) == 4, said
    assert all(case["samples"][0]["rate"] > 0 for case in said.values()), said


def test_figures_of_replays_that_ran_the_handler_are_no_figures(stage: Stage) -> None:
    target = Target(0, plans.REPLAY, "prefix", 4, stage.cores)
    with pytest.raises(BenchError, match="100 executions for 100 requests"):
        UNGUARDED.check(burst(requests=100), executed=100, target=target)


@pytest.mark.proof
def test_a_replay_that_runs_the_handler_fails(stage: Stage) -> None:
    with pytest.raises(BenchError, match="executions for"):
        UNGUARDED.measure(stage)


def test_a_replay_that_is_not_marked_fails(stage: Stage) -> None:
    with UNGUARDED.serving(stage, None) as server:
        target = Target(server.port, plans.REPLAY, "prefix", 4, stage.cores)
        with pytest.raises(BenchError, match=r"were answered \{'201': 20\}"):
            UNGUARDED.check(burst(requests=100), executed=0, target=target)


def test_an_answer_that_is_no_success_fails(stage: Stage) -> None:
    target = Target(0, plans.FRESH, "prefix", 4, stage.cores)
    fresh = replace(UNGUARDED, plan=plans.FRESH)
    fresh.check(burst(requests=100), executed=100, target=target)
    with pytest.raises(BenchError, match="1 refused"):
        fresh.check(burst(requests=100, refused=1), executed=100, target=target)
    with pytest.raises(BenchError, match="1 broken"):
        fresh.check(burst(requests=100, broken=1), executed=100, target=target)


def test_only_a_herd_may_be_told_that_its_key_is_in_flight(stage: Stage) -> None:
    target = Target(0, plans.HERDED, "prefix", 4, stage.cores)
    herd = replace(UNGUARDED, plan=plans.HERDED)
    told = burst(requests=320, refused=5, conflicts=5)
    herd.check(told, executed=10, target=target)
    with pytest.raises(BenchError, match="5 refused"):
        replace(herd, plan=plans.FRESH).check(told, executed=320, target=target)
    with pytest.raises(BenchError, match="5 refused"):
        herd.check(replace(told, conflicts=4), executed=10, target=target)


def test_an_application_that_does_not_start_fails_alone(stage: Stage) -> None:
    broken = replace(UNGUARDED, name="broken", module="bench.served.nowhere")
    results = measure([broken, BARE], stage, rounds=1)
    assert results[0].failed
    assert "nowhere" in str(results[0].problem)
    assert results[1].samples
    assert "FAILED: broken" in table.markdown(table.TITLES, table.rows(results))


@pytest.mark.parametrize("plan", plans.PLANS.values(), ids=lambda plan: plan.name)
def test_a_plan_repeats_as_many_keys_as_it_says(plan: plans.Plan) -> None:
    requests = 100 * plans.REPLAYED_KEYS
    keys = {plan.key(number) for number in range(requests)}
    repeated = plans.REPLAYED_KEYS if plan.primed else 0
    if plan is plans.MIXED:  # numbers that are fresh leave their place among the repeated unused
        repeated -= plans.REPLAYED_KEYS // plans.FRESH_EVERY
    assert len(keys) == plan.executions(requests) + repeated


def test_ratios_and_aims_are_of_the_same_round() -> None:
    bare, fresh = Result(stores.BARE), Result(stores.semel_on("SQLite", plans.FRESH))
    fresh.samples, fresh.ratios = [Sample(300.0), Sample(100.0), Sample(50.0)], [0.75, 0.5, 0.7]
    rows = {row[0]: row[1:] for row in aims.rows([bare, fresh])}
    assert rows["semel, SQLite, fresh keys: of the bare application"] == ["≥ 0.45", "0.70", "yes"]
    assert rows["semel, Redis, replays: times the fastest peer"][2] == "not measured"


def test_an_aim_takes_the_fastest_peer_of_each_round() -> None:
    mine = Result(stores.semel_on("Redis", plans.FRESH), [Sample(100.0), Sample(100.0)])
    one = Result(peers.peer("idemkit, Redis", plans.FRESH), [Sample(50.0), Sample(10.0)])
    other = peers.peer("asgi-idempotency-header, Redis", plans.FRESH)
    two = Result(other, [Sample(20.0), Sample(100.0)])
    rows = {row[0]: row[1:] for row in aims.rows([mine, one, two])}
    assert rows["semel, Redis, fresh keys: times the fastest peer"] == ["≥ 2.4", "1.50", "no"]


def test_what_is_not_on_this_machine_is_said_and_is_no_failure() -> None:
    absent = Result(stores.BARE, problem=NotThere("not installed"))
    assert not absent.failed
    assert "not run: not installed" in table.rows([absent])[0]


@pytest.mark.parametrize(
    ("store", "step"),
    [
        ("SQLite", "claim"),
        pytest.param("SQLite", "reap", marks=pytest.mark.proof),
        pytest.param("PostgreSQL", "claim", marks=pytest.mark.proof),
    ],
)
def test_a_table_is_filled_and_compared_with_an_empty_one(
    store: str, step: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "BARE", BARE)
    monkeypatch.setattr(machine, "import_milliseconds", lambda times: 20.0)
    options = ["--records", "300", "--only", f"{store}, {scale.STEPS[step]}, table of"]
    quickly = ["--rounds", "1", "--seconds", "0", "--connections", "4"]
    assert command.main([*options, *quickly]) == 0
    said, comparison = capsys.readouterr().out, scale.Comparison(store, step, 300)
    assert f"| {scale.title(comparison, 0)} " in said
    full = re.escape(scale.title(comparison, 300))
    assert re.search(rf"{full}: p50, .* ≤ 1.2 \| +\d+\.\d\d", said), said
