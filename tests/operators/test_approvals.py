"""The two-person rule: one proposes, another decides, once, and only on what was seen."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest

import semel
from semel.core import operations as ops
from semel.core.records import Fence, Identity, Record, State
from semel.core.unknown.evidence import Happened
from semel.errors import ConfigurationError
from semel.operators.approvals import (
    ActResult,
    Approvals,
    Intent,
    Irreversible,
    Proposal,
    TwoPersonRule,
    two_person_rule,
)
from semel.operators.operator import Operator, sighting
from tests.scene import HOUR, MINUTE, WITH_OUTBOX, Scene
from tests.waiting import patient

ALL = two_person_rule("all")


def approvals(scene: Scene, rule: TwoPersonRule = ALL) -> Approvals:
    return Approvals(Operator(scene.guard), rule)


def intent(scene: Scene, act: Irreversible, identity: Identity) -> Intent:
    return Intent(act, identity.hex(), sighting(scene.case(identity).record))


def proposed(desk: Approvals, what: Intent, by: str = "ann") -> Proposal:
    result = desk.act(what, by=by, reason="nothing there")
    assert not result.done
    assert result.proposal is not None
    return result.proposal


def verbs(scene: Scene) -> list[tuple[str, str]]:
    """What is on record, sorted: of acts of one millisecond Redis does not tell the order."""
    return sorted((each.verb, each.by) for each in Operator(scene.guard).audit())


class TestTheRule:
    def test_all_off_or_some(self) -> None:
        assert two_person_rule("all").acts == set(Irreversible)
        assert two_person_rule("off").acts == two_person_rule(None).acts == set()
        assert two_person_rule(["free", "drop"]).acts == {Irreversible.FREE, Irreversible.DROP}
        assert two_person_rule("erase").acts == {Irreversible.ERASE}

    @pytest.mark.parametrize("said", ["everything", ["free", "settle"]])
    def test_a_misspelt_act_is_refused(self, said: str | list[str]) -> None:
        with pytest.raises(ConfigurationError):
            two_person_rule(said)

    @pytest.mark.parametrize("within", [timedelta(0), timedelta(days=2)])
    def test_a_time_that_the_audit_is_not_read_for_is_refused(self, within: timedelta) -> None:
        with pytest.raises(ConfigurationError):
            TwoPersonRule(frozenset(), within)

    def test_an_act_that_it_does_not_name_is_done_at_once(self, scene: Scene) -> None:
        identity = scene.completed()
        desk = approvals(scene, two_person_rule(["free"]))
        assert desk.act(intent(scene, Irreversible.EVICT, identity), by="ann", reason="x").done
        assert scene.harness.record(identity) is None


class TestApproving:
    def test_the_first_person_changes_nothing_the_second_does(self, scene: Scene) -> None:
        identity = scene.completed()
        desk = approvals(scene)
        made = proposed(desk, intent(scene, Irreversible.EVICT, identity))
        assert scene.state(identity) is State.COMPLETED
        assert [each.number for each in desk.pending()] == [made.number]
        assert desk.approve(made.number, by="bob", reason="agreed").done
        assert scene.harness.record(identity) is None
        assert desk.pending() == []
        assert verbs(scene) == [
            ("approve", "operator bob"),
            ("evict", "operator bob"),
            ("propose", "operator ann"),
        ]
        evicted = next(Operator(scene.guard).audit(verb="evict"))
        assert evicted.reason == f"proposal {made.number[:8]} of operator ann: nothing there"

    @pytest.mark.parametrize(
        "name",
        ["ann", "ANN", "Ann", " ann ", "a nn", "\uff41nn", "\u00e1nn", "ann\u3164", "an\ufe0fn"],
    )
    def test_nobody_approves_what_he_has_proposed(self, scene: Scene, name: str) -> None:
        identity = scene.completed()
        desk = approvals(scene)
        made = proposed(desk, intent(scene, Irreversible.EVICT, identity))
        assert not desk.approve(made.number, by=name, reason="agreed").done
        assert scene.state(identity) is State.COMPLETED
        assert desk.approve(made.number, by="bob", reason="agreed").done, "it is not spent by that"

    def test_a_settlement_as_absent(self, scene: Scene) -> None:
        identity = scene.unknown()
        desk = approvals(scene)
        made = proposed(desk, intent(scene, Irreversible.ABSENT, identity))
        assert scene.state(identity) is State.UNKNOWN
        assert desk.approve(made.number, by="bob", reason="agreed").done
        assert scene.state(identity) is State.FAILED_RETRYABLE

    def test_an_unknown_record_is_freed(self, scene: Scene) -> None:
        identity = scene.unknown()
        desk = approvals(scene)
        made = proposed(desk, intent(scene, Irreversible.FREE, identity))
        assert desk.approve(made.number, by="bob", reason="agreed").done
        assert scene.harness.record(identity) is None

    def test_a_tenant_is_erased(self, scene: Scene) -> None:
        identity = scene.completed()
        desk = approvals(scene)
        made = proposed(desk, Intent(Irreversible.ERASE, "tern"))
        assert scene.state(identity) is State.COMPLETED
        assert desk.approve(made.number, by="bob", reason="agreed").said == "1 records erased"
        assert scene.state(identity) is State.EXPIRED

    def test_what_has_changed_since_is_left(self, scene: Scene) -> None:
        identity = scene.unknown()
        desk = approvals(scene)
        made = proposed(desk, intent(scene, Irreversible.ABSENT, identity))
        Operator(scene.guard).settle(identity, Happened(), by="cleo", reason="in the dashboard")
        result = desk.approve(made.number, by="bob", reason="agreed")
        assert result == ActResult(False, "it has changed since it was looked at")
        assert scene.state(identity) is State.COMPLETED
        last = next(Operator(scene.guard).audit(verb="approve"))
        assert last.reason == "came to nothing: it has changed since it was looked at"

    def test_what_has_changed_and_is_in_the_same_state_again_is_left(self, scene: Scene) -> None:
        identity = scene.released()
        desk = approvals(scene)
        made = proposed(desk, intent(scene, Irreversible.EVICT, identity))
        seen, fence = scene.case(identity).record.fence, Fence(b"another holder..")
        scene.harness.perform(ops.Retake(identity, seen, fence, MINUTE))
        scene.harness.perform(ops.Release(identity, fence, HOUR, "again"))
        assert not desk.approve(made.number, by="bob", reason="agreed").done
        assert scene.state(identity) is State.FAILED_RETRYABLE

    def test_what_was_never_looked_at_is_left(self, scene: Scene) -> None:
        identity = scene.completed()
        desk = approvals(scene, two_person_rule("off"))
        assert not desk.act(Intent(Irreversible.EVICT, identity.hex()), by="ann", reason="x").done
        assert scene.state(identity) is State.COMPLETED

    def test_it_is_bounded_in_time(self, quick: Scene) -> None:
        identity = quick.completed()
        desk = approvals(quick, TwoPersonRule(frozenset(Irreversible), timedelta(minutes=10)))
        made = proposed(desk, intent(quick, Irreversible.EVICT, identity))
        quick.travel(11 * MINUTE)
        assert desk.pending() == []
        assert not desk.approve(made.number, by="bob", reason="agreed").done
        assert quick.state(identity) is State.COMPLETED

    def test_its_own_time_holds_whatever_the_second_person_s_process_says(
        self, quick: Scene
    ) -> None:
        identity = quick.completed()
        desk = approvals(quick, TwoPersonRule(frozenset(Irreversible), timedelta(minutes=10)))
        made = proposed(desk, intent(quick, Irreversible.EVICT, identity))
        quick.travel(11 * MINUTE)
        later = approvals(quick, TwoPersonRule(frozenset(), timedelta(hours=24)))
        assert not later.approve(made.number, by="bob", reason="agreed").done

    def test_a_proposal_is_used_once(self, scene: Scene) -> None:
        """Also when the same record could be freed again: of a second life nobody has spoken."""
        desk = approvals(scene)
        made = proposed(desk, Intent(Irreversible.ERASE, "tern"))
        assert desk.approve(made.number, by="bob", reason="agreed").done
        identity = scene.completed()
        again = desk.approve(made.number, by="cleo", reason="agreed")
        assert again == ActResult(False, "somebody has decided it already")
        assert scene.state(identity) is State.COMPLETED

    def test_declined_or_withdrawn_it_cannot_be_approved(self, scene: Scene) -> None:
        identity = scene.completed()
        desk = approvals(scene)
        for by in ("bob", "ann"):
            made = proposed(desk, intent(scene, Irreversible.EVICT, identity))
            assert desk.decline(made.number, by=by, reason="no").done
            assert desk.pending() == []
            assert not desk.approve(made.number, by="cleo", reason="agreed").done
        assert scene.state(identity) is State.COMPLETED
        assert [each[0] for each in verbs(scene)] == ["decline"] * 2 + ["propose"] * 2

    def test_nobody_decides_anonymously_or_what_is_not_there(self, quick: Scene) -> None:
        desk = approvals(quick)
        made = proposed(desk, Intent(Irreversible.ERASE, "tern"))
        for decide in (desk.approve, desk.decline):
            with pytest.raises(ConfigurationError):
                decide(made.number, by=" ", reason="agreed")
            assert not decide("0" * 32, by="bob", reason="agreed").done

    def test_another_application_on_the_store_cannot_decide_it(self, quick: Scene) -> None:
        """It would erase its own tenant of that name."""
        made = proposed(approvals(quick), Intent(Irreversible.ERASE, "tern"))
        other = Scene(quick.harness, name="other")
        assert approvals(other).pending() == []
        assert not approvals(other).approve(made.number, by="bob", reason="agreed").done

    def test_a_process_that_dies_with_the_decision_leaves_the_act_undone(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        identity = scene.completed()
        desk = approvals(scene)
        made = proposed(desk, intent(scene, Irreversible.EVICT, identity))

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Operator, "evict", die)
            with pytest.raises(KeyboardInterrupt):
                desk.approve(made.number, by="bob", reason="agreed")
        assert scene.state(identity) is State.COMPLETED
        assert not desk.approve(made.number, by="cleo", reason="agreed").done
        again = proposed(desk, intent(scene, Irreversible.EVICT, identity))
        assert desk.approve(again.number, by="cleo", reason="agreed").done


@WITH_OUTBOX
def test_a_dead_effect_is_dropped_by_two_while_it_is_the_one_that_was_seen(scene: Scene) -> None:
    def dies() -> str:
        fence = Fence(b"f" * 16)
        scene.harness.perform(ops.TakeEffects(fence, ("mail",), 1, MINUTE))
        scene.harness.perform(ops.MarkFailed("one", fence, "refused", None))
        return str(scene.harness.perform(ops.FindEffect("one")).effects[0].dead_at)

    scene.harness.perform(ops.Enqueue("one", None, "mail", b"{}"))
    desk, first = approvals(scene), dies()
    made = proposed(desk, Intent(Irreversible.DROP, "one", first))
    Operator(scene.guard).retry_dead("one", by="cleo", reason="fixed")
    assert not desk.approve(made.number, by="bob", reason="agreed").done
    scene.travel(MINUTE)
    second = dies()
    assert not desk.approve(
        proposed(desk, Intent(Irreversible.DROP, "one", first)).number, by="bob", reason="agreed"
    ).done
    made = proposed(desk, Intent(Irreversible.DROP, "one", second))
    assert desk.approve(made.number, by="bob", reason="agreed").done
    assert list(Operator(scene.guard).list_dead()) == []


class TestRaces:
    def test_of_many_threads_that_decide_one_does(self, scene: Scene) -> None:
        desk = approvals(scene)
        made = proposed(desk, Intent(Irreversible.ERASE, "nobody"))
        gate = Barrier(8)

        def decide(number: int) -> ActResult:
            how = desk.approve if number % 2 else desk.decline
            gate.wait()
            return how(made.number, by=f"person {number}", reason="decided")

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(decide, range(8)))
        assert sum(each.done for each in results) == 1
        said = [verb for verb, _ in verbs(scene)]
        assert said in (["decline", "propose"], ["approve", "erase", "erase", "propose"])

    @pytest.mark.parametrize("kind", ["sqlite", "postgres"])
    def test_of_two_processes_one_does(
        self, kind: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        url = f"sqlite:///{tmp_path}/semel.db"
        if kind == "postgres":
            url = request.getfixturevalue("postgres_url")
        guard = semel.Guard(patient(url), tenant=None, maintenance=None)
        guard.backend.migrate()
        guard.once("0123456789abcdef", lambda: "paid", name="pay")
        case = next(iter(_all(guard)))
        desk = Approvals(Operator(guard), ALL)
        what = Intent(Irreversible.EVICT, case.identity.hex(), sighting(case))
        made = proposed(desk, what)
        children = [_child(patient(url), made.number, name) for name in ("bob", "cleo")]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        results = [json.loads(child.communicate()[0]) for child in children]
        assert sorted(results) == [False, True]
        done = [each.verb for each in Operator(guard).audit()]
        assert sorted(done) == ["approve", "evict", "propose"]
        guard.close()


def _all(guard: semel.Guard) -> list[Record]:
    found = guard.backend.blocking().perform(ops.Browse(tuple(State), 9))
    return [case.record for case in found.cases]


_CHILD = """
import json, sys, semel
from semel.operators.approvals import Approvals, two_person_rule
from semel.operators.operator import Operator
url, number, name = sys.argv[1:]
guard = semel.Guard(url, tenant=None, maintenance=None)
desk = Approvals(Operator(guard), two_person_rule("all"))
desk.pending()
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps(desk.approve(number, by=name, reason="agreed").done), flush=True)
"""


def _child(url: str, number: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _CHILD, url, number, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
