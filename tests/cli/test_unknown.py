"""`semel unknown`, `semel dlq` and `semel ledger` as an operator meets them."""

from __future__ import annotations

import csv
import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.cli import targets
from semel.core.records import State
from semel.core.recovery import journal
from semel.core.stored import snapshot
from semel.stores import open_backend
from semel.web import tags
from tests.cli.commandline import Done, run
from tests.operators.test_ledger import charged
from tests.operators.test_operator import dead_effect
from tests.scene import KEY, Scene
from tests.stores.harness import Harness
from tests.waiting import patient

SHOP = """
import os
import semel
from semel.core.unknown.evidence import CannotTell, Happened

def ask_provider(inquiry):
    if inquiry.path.endswith("/down"):
        return CannotTell("the provider is down")
    return Happened(semel.Response(201, (), b"paid"), "ch_7")

guard = semel.Guard(os.environ["SHOP_STORE"], tenant=None, policy=semel.ietf(probe=ask_provider))
no_guard = 7
"""


@pytest.fixture
def scene(postgres_url: str, tmp_path: Path) -> Iterator[Scene]:
    url = patient(postgres_url)
    backend = open_backend(url)
    backend.migrate()
    (tmp_path / "shop.py").write_text(SHOP)
    made = Scene(Harness(backend, lambda _: None, 0, "sync"))
    made.url, made.folder = url, tmp_path  # type: ignore[attr-defined]
    yield made
    backend.close()


def semel(scene: Any, *arguments: str, typed: str = "", guard: bool = False) -> Done:
    where = ["--guard", "shop:guard"] if guard else ["--store", scene.url]
    if arguments[0] == "ledger":
        command = ["ledger", *where, *arguments[1:]]
    else:
        command = [*arguments[:2], *where, *arguments[2:]]
    return run(*command, folder=scene.folder, typed=typed, SHOP_STORE=scene.url)


SETTLE = ("--by", "ann", "--reason", "in the dashboard")


class TestLooking:
    def test_nothing(self, scene: Scene) -> None:
        done = semel(scene, "unknown", "list")
        assert (done.returncode, done.stdout) == (0, "nothing is unknown\n")

    def test_a_table_for_people_without_keys(self, scene: Scene) -> None:
        identity = scene.unknown()
        scene.unknown(probe_after=None)
        scene.completed()
        done = semel(scene, "unknown", "list")
        assert done.returncode == 0, done.stderr
        head, *rows = done.stdout.splitlines()
        assert head.split()[:2] == ["IDENTITY", "STATE"]
        assert len(rows) == 2
        assert any(row.startswith(identity.hex()[:16]) for row in rows)
        assert "POST /payments" in rows[0]
        assert "TimeoutError" in rows[0]
        assert sum("dead" in row for row in rows) == 1
        assert KEY not in done.stdout

    def test_json_for_programs(self, scene: Scene) -> None:
        identity = scene.unknown("made", intent="charged")
        done = semel(scene, "unknown", "list", "--json")
        (told,) = json.loads(done.stdout)["records"]
        assert told["identity"] == identity.hex()
        assert told["in_doubt"] == "charged"
        assert told["key"] == "an-o...(28)"
        dead = json.loads(semel(scene, "unknown", "list", "--dead", "--json").stdout)
        assert dead == {"records": [], "after": None}

    def test_page_by_page_newest_first_while_they_are_settled(self, scene: Scene) -> None:
        """A page goes on from a time, so it does so behind a record that is gone by then."""
        made = [scene.unknown(path=f"/pay/{number}") for number in range(5)]
        paged: list[str] = []
        where: tuple[str, ...] = ()
        while True:
            told = json.loads(
                semel(scene, "unknown", "list", "--limit", "2", *where, "--json").stdout
            )
            paged += [each["identity"] for each in told["records"]]
            if told["after"] is None:
                break
            where = ("--after", told["after"])
            last = paged[-1]
            buried = semel(scene, "unknown", "bury", last, *SETTLE, "--free", "--yes")
            assert buried.returncode == 0, buried.stderr
        assert paged == [each.hex() for each in reversed(made)]
        table = semel(scene, "unknown", "list", "--limit", "1")
        assert len(table.stdout.splitlines()) == 2
        assert table.stderr.startswith("go on with --after ")
        for nonsense in ("yesterday", "12", "-", "x-y", "9" * 30 + "-a"):
            assert semel(scene, "unknown", "list", "--after", nonsense).returncode == 2

    def test_one_in_full(self, scene: Scene) -> None:
        identity = scene.unknown("made", intent="charged")
        done = semel(scene, "unknown", "show", identity.hex(), "--json")
        told = json.loads(done.stdout)
        assert told["points"] == ["phase made", "call charged: begun"]
        assert told["downstream_key"] == scene.key_of(identity, "charged")
        done = semel(scene, "unknown", "show", identity.hex(), "--call", "mailed")
        assert f"downstream key: {scene.key_of(identity, 'mailed')}\n" in done.stdout
        assert KEY not in done.stdout

    @pytest.mark.parametrize(
        ("text", "code"), [("f" * 64, 1), ("f" * 16, 1), ("xyz", 2), ("ab", 2), ("", 2)]
    )
    def test_a_record_that_is_not_there(self, scene: Scene, text: str, code: int) -> None:
        scene.unknown()
        done = semel(scene, "unknown", "show", text)
        assert done.returncode == code
        assert done.stderr.startswith("semel: ")
        assert done.stderr.count("\n") == 1


class TestAsking:
    def test_the_probe_settles_it(self, scene: Scene) -> None:
        identity = scene.unknown()
        done = semel(scene, "unknown", "probe", identity.hex(), guard=True)
        assert (done.returncode, done.stdout) == (0, "settled: completed\n"), done.stderr
        assert scene.state(identity) is State.COMPLETED

    def test_or_cannot_tell(self, scene: Scene) -> None:
        identity = scene.unknown(path="/down")
        done = semel(scene, "unknown", "probe", identity.hex(), "--json", guard=True)
        assert done.returncode == 1
        said = "not settled: the provider is down"
        assert json.loads(done.stdout) == {"settled": False, "said": said}

    def test_all_that_a_filter_finds(self, scene: Scene) -> None:
        """Each is told of by itself, and one that stays unknown keeps nobody waiting."""
        down = scene.unknown(path="/down")
        paid = [scene.unknown(path=f"/pay/{number}") for number in range(2)]
        scene.unknown(path="/other")
        listed = semel(scene, "unknown", "probe", "--path", "/pay*", "--dry-run", guard=True)
        newest_first = [each.hex()[:16] for each in reversed(paid)]
        assert (listed.returncode, listed.stdout.split()) == (0, newest_first)
        assert {scene.state(each) for each in paid} == {State.UNKNOWN}
        refused = semel(scene, "unknown", "probe", "--path", "/pay*", typed="n\n", guard=True)
        assert refused.returncode == 1
        assert {scene.state(each) for each in paid} == {State.UNKNOWN}
        asked = semel(scene, "unknown", "probe", "--path", "/pay*", typed="y\n", guard=True)
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.count("settled: completed") == 2
        done = semel(scene, "unknown", "probe", "--all", "--yes", "--json", guard=True)
        assert done.returncode == 1
        told = {each["identity"]: each["settled"] for each in json.loads(done.stdout)}
        assert sorted(told.values()) == [False, True]
        assert told[down.hex()] is False
        none = semel(scene, "unknown", "probe", "--path", "/pay*", "--yes", guard=True)
        assert (none.returncode, none.stderr) == (0, "nothing fits\n")

    @pytest.mark.parametrize("which", [(), ("f" * 64, "--all"), ("f" * 64, "--dead")])
    def test_which_ones_must_be_said(self, scene: Scene, which: tuple[str, ...]) -> None:
        done = semel(scene, "unknown", "probe", *which, guard=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert "or filters, or --all" in done.stderr

    def test_nobody_to_ask(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            tags, "in_use", set[object]()
        )  # this process has had other applications
        done = semel(scene, "unknown", "probe", scene.unknown().hex())
        assert done.returncode == 2
        assert "nobody can be asked" in done.stderr


class TestSettling:
    def test_it_happened_with_an_answer(self, scene: Scene, tmp_path: Path) -> None:
        identity = scene.unknown()
        (tmp_path / "answer.json").write_text('{"charge": "ch_7"}')
        answer = ("--status", "201", "--body", "answer.json", "--provider-id", "ch_7")
        done = semel(
            scene, "unknown", "settle", identity.hex()[:16], "--happened", *answer, *SETTLE, "--yes"
        )
        assert (done.returncode, done.stdout) == (0, "settled: completed\n"), done.stderr
        record = scene.case(identity).record
        kept = snapshot.decode(record.snapshot or b"")
        assert (kept.status, kept.body) == (201, b'{"charge": "ch_7"}')
        assert kept.headers == ((b"content-type", b"application/json"),)
        assert record.reason == "operator ann: happened (ch_7): in the dashboard"

    def test_it_happened_without_one(self, scene: Scene) -> None:
        identity = scene.unknown()
        done = semel(scene, "unknown", "settle", identity.hex(), "--happened", *SETTLE, "--yes")
        assert done.returncode == 0, done.stderr
        assert snapshot.decode(scene.case(identity).record.snapshot or b"").body is None

    def test_it_happened_with_an_empty_answer(self, scene: Scene) -> None:
        identity = scene.unknown()
        empty = ("--happened", "--status", "204")
        done = semel(scene, "unknown", "settle", identity.hex(), *empty, *SETTLE, "--yes")
        assert done.returncode == 0, done.stderr
        kept = snapshot.decode(scene.case(identity).record.snapshot or b"")
        assert (kept.status, kept.headers, kept.body) == (204, (), b"")

    def test_an_operations_call_happened(self, scene: Scene) -> None:
        identity = scene.unknown("made", intent="charged")
        settle = ("unknown", "settle", identity.hex(), "--happened", *SETTLE, "--yes")
        done = semel(scene, *settle)
        assert done.returncode == 2
        assert "--body" in done.stderr
        done = semel(scene, *settle, "--body", "-", typed="not json")
        assert done.returncode == 2
        assert scene.state(identity) is State.UNKNOWN
        done = semel(scene, *settle, "--body", "-", typed='{"id": "ch_7"}')
        assert (done.returncode, done.stdout) == (0, "settled: in_progress\n"), done.stderr
        points = journal.decode(scene.case(identity).journal).points
        assert points[-1].result == {"id": "ch_7"}

    def test_a_call_that_was_settled_wrongly_is_settled_anew(self, scene: Scene) -> None:
        identity = scene.unknown("made", intent="charged")
        settle = ("unknown", "settle", identity.hex(), "--happened", *SETTLE, "--body", "-")
        semel(scene, *settle, "--yes", typed='"wrong"')
        done = semel(scene, *settle, "--yes", typed='"right"')
        assert (done.returncode, "--call" in done.stderr) == (2, True)
        done = semel(scene, *settle, "--yes", "--call", "other", typed='"right"')
        said = "not settled: the last it came to is the call 'charged'\n"
        assert (done.returncode, done.stdout) == (1, said)
        done = semel(scene, *settle, "--yes", "--call", "charged", typed='"right"')
        assert (done.returncode, done.stdout) == (0, "settled: in_progress\n"), done.stderr
        assert journal.decode(scene.case(identity).journal).points[-1].result == "right"

    def test_what_is_forgotten_is_told_first(self, scene: Scene, tmp_path: Path) -> None:
        identity = scene.unknown("made", intent="charged")
        (tmp_path / "result.json").write_text('"wrong"')
        given = ("--happened", "--body", str(tmp_path / "result.json"), *SETTLE)
        settle = ("unknown", "settle", identity.hex(), *given)
        semel(scene, *settle, "--yes")
        done = semel(scene, *settle, "--call", "charged", typed="n\n")
        assert (done.returncode, "what 'charged' came to is forgotten" in done.stderr) == (1, True)

    def test_it_did_not_happen_and_no_longer_can(self, scene: Scene) -> None:
        identity = scene.unknown()
        settle = ("unknown", "settle", identity.hex(), "--absent", *SETTLE, "--yes")
        done = semel(scene, *settle)
        assert done.returncode == 2
        assert "--final" in done.stderr
        assert "void it at the provider" in done.stderr
        assert scene.state(identity) is State.UNKNOWN
        assert semel(scene, *settle, "--final").returncode == 0
        assert scene.state(identity) is State.FAILED_RETRYABLE

    @pytest.mark.parametrize("verdict", [(), ("--happened", "--absent", "--final")])
    def test_one_verdict_is_wanted(self, scene: Scene, verdict: tuple[str, ...]) -> None:
        identity = scene.unknown()
        done = semel(scene, "unknown", "settle", identity.hex(), *verdict, *SETTLE, "--yes")
        assert done.returncode == 2
        assert scene.state(identity) is State.UNKNOWN

    def test_why_is_wanted_and_who_is_known(self, scene: Scene) -> None:
        identity = scene.unknown()
        settle = ("unknown", "settle", identity.hex(), "--happened", "--yes")
        assert semel(scene, *settle, "--by", "ann").returncode == 2
        assert semel(scene, *settle, "--reason", "in the books").returncode == 0
        said = scene.case(identity).record.reason
        assert said == f"operator {getpass.getuser()}: happened: in the books"

    @pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("", 1)])
    def test_it_asks_first(self, scene: Scene, typed: str, code: int) -> None:
        identity = scene.unknown()
        verdict = ("--absent", "--final")
        done = semel(
            scene, "unknown", "settle", identity.hex(), *verdict, *SETTLE, "--json", typed=typed
        )
        assert done.returncode == code
        assert "The next retry runs it." in done.stderr
        settled = scene.state(identity) is not State.UNKNOWN
        assert settled == (code == 0)
        if settled:
            assert json.loads(done.stdout)["settled"] is True

    def test_what_is_settled_already_is_exit_code_1(self, scene: Scene) -> None:
        identity = scene.completed()
        done = semel(scene, "unknown", "settle", identity.hex(), "--happened", *SETTLE, "--yes")
        assert (done.returncode, done.stdout) == (1, "not settled: it is completed already\n")

    def test_giving_up(self, scene: Scene) -> None:
        one, two = scene.unknown(), scene.unknown()
        done = semel(scene, "unknown", "bury", one.hex(), *SETTLE, "--yes")
        assert (done.returncode, done.stdout) == (0, "given up\n"), done.stderr
        assert scene.state(one) is State.EXPIRED
        done = semel(scene, "unknown", "bury", two.hex(), "--free", *SETTLE, typed="y\n")
        assert done.returncode == 0
        assert "happen twice" in done.stderr
        assert scene.harness.record(two) is None
        assert semel(scene, "unknown", "bury", one.hex(), *SETTLE, "--yes").returncode == 1


class TestDeadLetters:
    def test_none(self, scene: Scene) -> None:
        done = semel(scene, "dlq", "list")
        assert (done.returncode, done.stdout) == (0, "there are no dead letters\n")

    def test_listed_tried_again_and_dropped(self, scene: Scene) -> None:
        dead_effect(scene, "effect-one")
        dead_effect(scene, "effect-two")
        identity = scene.unknown(probe_after=None)
        done = semel(scene, "dlq", "list")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\neffect  ") == 2
        assert identity.hex()[:16] in done.stdout
        told = json.loads(semel(scene, "dlq", "list", "--json").stdout)
        assert [each["key"] for each in told["effects"]] == ["effect-two", "effect-one"]
        assert [each["identity"] for each in told["records"]] == [identity.hex()]
        assert semel(scene, "dlq", "retry", "effect-one").returncode == 2  # nobody said why
        assert semel(scene, "dlq", "retry", "effect-one", *SETTLE).returncode == 0
        assert semel(scene, "dlq", "retry", "effect-one", *SETTLE).returncode == 1
        drop = ("dlq", "drop", "effect-two", *SETTLE)
        assert semel(scene, *drop).returncode == 1  # nobody said yes
        assert semel(scene, *drop, "--yes").returncode == 0
        assert semel(scene, "dlq", "drop", "no-such-effect", *SETTLE, "--yes").returncode == 1
        assert json.loads(semel(scene, "dlq", "list", "--json").stdout)["effects"] == []

    def test_all_that_a_filter_finds(self, scene: Scene) -> None:
        for key in ("one", "two", "three"):
            dead_effect(scene, f"effect-{key}")
        dry = semel(scene, "dlq", "retry", "--name", "mail", *SETTLE, "--dry-run")
        assert dry.stdout.split() == ["effect-three", "effect-two", "effect-one"]
        assert "3 would be tried again" in dry.stderr
        assert semel(scene, "dlq", "retry", "--name", "mail", *SETTLE).returncode == 1  # no yes
        assert len(json.loads(semel(scene, "dlq", "list", "--json").stdout)["effects"]) == 3
        none = semel(scene, "dlq", "retry", "--error", "another", *SETTLE, "--yes")
        assert (none.returncode, none.stderr) == (0, "nothing fits\n")
        done = semel(scene, "dlq", "retry", "--error", "refused", *SETTLE, "--yes", "--json")
        assert done.returncode == 0, done.stderr
        assert [each["retried"] for each in json.loads(done.stdout)] == [True] * 3
        assert json.loads(semel(scene, "dlq", "list", "--json").stdout)["effects"] == []
        for which in ((), ("effect-one", "--all")):
            assert semel(scene, "dlq", "retry", *which, *SETTLE).returncode == 2

    def test_what_is_no_dead_letter_any_more_is_told_by_itself(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The list is fixed when one agrees to it; meanwhile another may have retried some."""
        for key in ("one", "two"):
            dead_effect(scene, f"effect-{key}")

        def agree(question: str, warning: str | None = None) -> None:
            dead_effect(scene, "effect-new")
            assert semel(scene, "dlq", "retry", "effect-one", *SETTLE).returncode == 0

        monkeypatch.setattr(targets, "confirm", agree)
        done = semel(scene, "dlq", "retry", "--all", *SETTLE)
        assert done.returncode == 1
        assert done.stdout == "effect-two: it is tried again\n"
        assert done.stderr == "effect-one: it is not dead any more, or died again\n"
        left = json.loads(semel(scene, "dlq", "list", "--json").stdout)["effects"]
        assert [each["key"] for each in left] == ["effect-new"]

    def test_both_kinds_page_by_page_newest_first(self, scene: Scene) -> None:
        dead_effect(scene, "effect-one")
        record = scene.unknown(probe_after=None)
        dead_effect(scene, "effect-two")
        first = semel(scene, "dlq", "list", "--limit", "2")
        ids = [line.split()[1] for line in first.stdout.splitlines()[1:]]
        assert ids == ["effect-two", record.hex()[:16]]
        place = first.stderr.removeprefix("go on with --after ").strip()
        told = json.loads(semel(scene, "dlq", "list", "--after", place, "--json").stdout)
        assert [each["key"] for each in told["effects"]] == ["effect-one"]
        assert (told["records"], told["after"]) == ([], None)
        assert semel(scene, "dlq", "list", "--after", "effect-one").returncode == 2

    def test_for_spreadsheets(self, scene: Scene) -> None:
        dead_effect(scene, "=cmd|calc")
        head, row = csv.reader(semel(scene, "dlq", "list", "--csv").stdout.splitlines())
        assert (head[:2], row[:3]) == (["KIND", "ID"], ["effect", "'=cmd|calc", "mail"])

    def test_watched_until_it_is_interrupted(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rounds: list[float] = []

        def sleep(seconds: float) -> None:
            rounds.append(seconds)
            if len(rounds) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr("semel.cli.output.time.sleep", sleep)
        done = semel(scene, "dlq", "list", "--watch", "2")
        assert done.returncode == 0
        assert done.stdout == "there are no dead letters\n" * 3
        assert rounds == [2.0] * 3


class TestStats:
    def test_what_is_unsettled_is_counted(self, scene: Scene) -> None:
        scene.unknown()
        scene.unknown(probe_after=None)
        dead_effect(scene, "effect-one")
        scene.completed()
        done = run("stats", "--store", scene.url, "--json")  # type: ignore[attr-defined]
        counted = json.loads(done.stdout)
        assert (counted["unknown"], counted["dead"], counted["dead_effects"]) == (2, 1, 1)
        table = run("stats", "--store", scene.url)  # type: ignore[attr-defined]
        assert "dead effects" in table.stdout


class TestEnvironment:
    def test_the_guard_of_the_environment_unless_a_store_is_typed(self, scene: Any) -> None:
        told = {"SEMEL_GUARD": "shop:guard", "SHOP_STORE": scene.url}
        identity = scene.unknown()
        done = run("unknown", "probe", identity.hex(), folder=scene.folder, **told)
        assert done.returncode == 0, done.stderr
        wrong = {**told, "SEMEL_GUARD": "shop:no_guard"}
        assert run("unknown", "list", folder=scene.folder, **wrong).returncode == 2
        typed = run("unknown", "list", "--store", scene.url, folder=scene.folder, **wrong)
        assert typed.returncode == 0, typed.stderr

    @pytest.mark.parametrize("since", ["1h", "2000-01-01", "2000-01-01T00:00:00+02:00"])
    def test_since_is_an_age_or_a_time(self, scene: Any, since: str) -> None:
        scene.unknown()
        for command in (("unknown", "list"), ("keys", "list"), ("audit", "list")):
            assert semel(scene, *command, "--since", since).returncode == 0
        listed = semel(scene, "unknown", "list", "--since", since, "--json")
        assert len(json.loads(listed.stdout)["records"]) == 1
        later = semel(scene, "unknown", "list", "--since", "2100-01-01", "--json")
        assert json.loads(later.stdout)["records"] == []
        assert semel(scene, "unknown", "list", "--since", "yesterday").returncode == 2


class TestLedgers:
    def lines(self, scene: Any, *entries: dict[str, Any]) -> str:
        path = scene.folder / "entries.jsonl"
        path.write_text("\n".join(map(json.dumps, entries)) + "\n\n")
        return str(path)

    def test_they_agree(self, scene: Scene) -> None:
        key = scene.key_of(charged(scene, id="ch_1", amount=500), "charged")
        path = self.lines(scene, {"key": key, "amount": 500})
        done = semel(scene, "ledger", "--provider", path, "--name", "charged")
        assert (done.returncode, done.stdout) == (0, "1 agree, 0 differ\n"), done.stderr

    def test_they_differ(self, scene: Any) -> None:
        one, two = charged(scene, amount=500), charged(scene, amount=700)
        path = scene.folder / "entries.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["order", "amount"])
            writer.writeheader()
            writer.writerow({"order": scene.key_of(one, "charged"), "amount": "5000"})
            writer.writerow({"order": "semel_stranger", "amount": "1"})
        options = ("--provider", str(path), "--name", "charged", "--key-field", "order")
        done = semel(scene, "ledger", *options)
        assert done.returncode == 1, done.stderr
        assert "amount: 5000 there, 500 here" in done.stdout
        assert "0 agree, 3 differ" in done.stdout
        told = json.loads(semel(scene, "ledger", *options, "--json", guard=True).stdout)
        assert [each["key"] for each in told["missing_here"]] == ["semel_stranger"]
        assert [each["identity"] for each in told["missing_there"]] == [two.hex()]
        assert [each["identity"] for each in told["differing"]] == [one.hex()]
        later = semel(scene, "ledger", *options, "--since", "2100-01-01", "--json")
        assert json.loads(later.stdout)["missing_there"] == []

    @pytest.mark.parametrize("text", ["rubbish", "[1]", '{"no": "key"}', '{"key": 7}'])
    def test_a_file_that_is_none(self, scene: Any, text: str) -> None:
        path = scene.folder / "entries.jsonl"
        path.write_text(text)
        done = semel(scene, "ledger", "--provider", str(path), "--name", "charged")
        assert done.returncode == 2
        assert done.stderr.startswith("semel: ")
        assert "Traceback" not in done.stderr


class TestWhoseRecords:
    def test_none_named(self) -> None:
        done = run("unknown", "list")
        assert done.returncode == 2
        assert "--guard" in done.stderr

    def test_both_named(self) -> None:
        done = run("dlq", "list", "--guard", "a:b", "--store", "memory://")
        assert done.returncode == 2

    def test_from_the_settings(self, tmp_path: Path) -> None:
        store = f"sqlite:///{tmp_path}/semel.db"
        assert run("migrate", SEMEL_STORE=store).returncode == 0
        done = run("unknown", "list", SEMEL_STORE=store)
        assert done.returncode == 0, done.stderr

    def test_a_file_that_is_not_there_is_not_made_to_look_as_if_all_were_well(
        self, tmp_path: Path
    ) -> None:
        done = run("unknown", "list", SEMEL_STORE=f"sqlite:///{tmp_path}/typo.db")
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no file" in done.stderr
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("guard", ["shop:no_guard", "shop:missing", "missing:guard", "shop"])
    def test_no_guard(self, guard: str, tmp_path: Path) -> None:
        (tmp_path / "shop.py").write_text(SHOP)
        done = run("unknown", "list", "--guard", guard, folder=tmp_path, SHOP_STORE="memory://")
        assert done.returncode == 2
        assert "Traceback" not in done.stderr

    def test_a_store_that_is_down(self) -> None:
        url = "postgresql://someone:hunter2@127.0.0.1:1/nowhere"
        done = run("unknown", "list", "--store", url)
        assert done.returncode == 1
        assert "hunter2" not in done.stderr
