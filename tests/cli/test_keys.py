"""`semel keys` and `semel outbox` as an operator meets them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel.cli.commands import semel
from semel.core.exchange.settings_changed import announce
from semel.core.flow import run as flow_run
from semel.core.operations.outbox import Enqueue, MarkFailed, TakeEffects
from semel.core.operations.requests import Claim, Complete
from semel.core.records import Identity, Origin, State
from semel.core.stored.snapshot import Snapshot, encode
from semel.operators.lists import RecordFilter, page
from semel.stores import open_backend
from semel.stores.base import performer
from tests.scene import HOUR, KEY, MINUTE, NAMES, Scene, fresh_fence, scene_on
from tests.stores.harness import Harness
from tests.waiting import patient

BECAUSE = ("--by", "ann", "--reason", "asked for by the client", "--yes")


@pytest.fixture(params=["sqlite", "postgresql"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/semel.db"
    else:
        url = request.getfixturevalue("postgres_url")
    url = patient(url)
    backend = open_backend(url)
    backend.migrate()
    made = Scene(Harness(backend, lambda _: None, 0, "sync"))
    made.url = url  # type: ignore[attr-defined]
    yield made
    backend.close()


def run(scene: Any, *arguments: str, typed: str | None = None) -> Result:
    command = [*arguments[:2], "--store", scene.url, *arguments[2:]]
    return CliRunner().invoke(semel, command, input=typed, env={"SEMEL_STORE": None})


def listed(scene: Any, *arguments: str) -> set[str]:
    done = run(scene, "keys", "list", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return {each["identity"] for each in json.loads(done.stdout)["records"]}


class TestListing:
    def test_nothing(self, scene: Scene) -> None:
        done = run(scene, "keys", "list")
        assert (done.exit_code, done.output) == (0, "there are no such records\n")

    def test_a_table_for_people_without_keys(self, scene: Scene) -> None:
        identity = scene.unknown(path="/refunds")
        scene.completed(b"a secret answer")
        done = run(scene, "keys", "list")
        assert done.exit_code == 0, done.output
        head, *rows = done.stdout.splitlines()
        assert head.split()[:2] == ["IDENTITY", "STATE"]
        (row,) = [row for row in rows if "unknown" in row]
        assert row.startswith(identity.hex()[:16])
        assert "POST /refunds" in row
        assert "TimeoutError" in row
        assert KEY not in done.output
        assert "secret answer" not in done.output

    def test_every_filter_narrows(self, scene: Scene) -> None:
        paid, refunded = scene.completed(), scene.completed(path="/refunds/7")
        patched, unknown = scene.completed(method="PATCH"), scene.unknown()
        every = {each.hex() for each in (paid, refunded, patched, unknown)}
        assert listed(scene) == every
        assert listed(scene, "--state", "unknown") == {unknown.hex()}
        both = ("--state", "unknown", "--state", "completed")
        assert listed(scene, *both) == every
        assert listed(scene, "--path", "/refunds*") == {refunded.hex()}
        assert listed(scene, "--path", "/refunds") == set()
        assert listed(scene, "--method", "patch") == {patched.hex()}
        assert listed(scene, "--tenant", "tern") == every
        assert listed(scene, "--tenant", "other") == set()
        assert listed(scene, "--since", "1h") == every
        assert listed(scene, "--older", "1h") == set()

    def test_a_page_says_where_to_go_on(self, scene: Scene) -> None:
        made: list[str] = []
        for _ in range(5):
            made.append(scene.completed().hex())
            scene.travel(MINUTE)
        seen: list[str] = []
        after: tuple[str, ...] = ()
        told: dict[str, Any] = {}
        for _ in range(3):
            told = json.loads(run(scene, "keys", "list", "--json", "--limit", "2", *after).stdout)
            after = ("--after", told["after"] or "")
            seen += [each["identity"] for each in told["records"]]
        assert told["after"] is None
        assert seen == made[::-1]
        done = run(scene, "keys", "list", "--limit", "2")
        assert re.search(rf"go on with --after [0-9]+-{made[3]}-", done.stderr)
        assert "go on" not in done.stdout

    def test_what_is_rare_is_looked_for_among_so_many_and_no_more(self, scene: Scene) -> None:
        for n in range(5):
            scene.completed(path="/payments" if n else "/refunds")
            scene.travel(MINUTE)
        look = ("--state", "completed", "--look", "3")
        done = run(scene, "keys", "list", "--json", "--path", "/refunds", *look)
        told = json.loads(done.stdout)
        assert told["records"] == []
        assert told["looked_at"] <= 6
        done = run(
            scene, "keys", "list", "--json", "--path", "/refunds", *look, "--after", told["after"]
        )
        assert len(json.loads(done.stdout)["records"]) == 1

    def test_of_a_status_a_route_a_reason(self, scene: Scene) -> None:
        paid, unknown = scene.completed(), scene.unknown()
        status = json.loads(run(scene, "keys", "show", paid.hex(), "--json").stdout)["answer"]
        assert listed(scene, "--status", str(status["status"])) == {paid.hex()}
        assert listed(scene, "--status", "5xx") == set()
        assert listed(scene, "--reason", "timeouterror") == {unknown.hex()}
        assert listed(scene, "--route", "POST /nowhere") == set()
        assert listed(scene, "--application", "nobody") == set()
        assert listed(scene, "--resource", "nothing") == set()

    @pytest.mark.parametrize(
        "wrong",
        [
            ("--older", "soon"),
            ("--state", "lost"),
            ("--limit", "0"),
            ("--after", "xyz"),
            ("--status", "ok"),
        ],
    )
    def test_what_is_mistyped_is_exit_code_2(self, scene: Scene, wrong: tuple[str, ...]) -> None:
        assert run(scene, "keys", "list", *wrong).exit_code == 2


@pytest.mark.parametrize("name", NAMES)
def test_pages_on_every_store(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with scene_on(name, tmp_path, request) as scene:
        paid, unknown = [scene.completed() for _ in range(3)], scene.unknown()
        backend = scene.harness.backend
        first = page(backend, RecordFilter(), 3)
        rest = page(backend, RecordFilter(), 3, first.after)
        listed = [g.identity for g in (*first.glimpses, *rest.glimpses)]
        assert sorted(listed) == sorted([*paid, unknown])
        assert rest.after is None
        (seen,) = page(backend, RecordFilter((State.UNKNOWN,)), 3).glimpses
        assert seen.identity == unknown
        few = page(backend, RecordFilter((State.COMPLETED,), tenant="nobody"), 1, look=1)
        assert few.glimpses == ()
        assert 1 <= few.looked <= 4
        assert few.after is not None


class TestShowing:
    def test_one_in_full_but_neither_key_nor_body(self, scene: Scene) -> None:
        identity = scene.completed(b"a secret answer")
        done = run(scene, "keys", "show", identity.hex(), "--json")
        told = json.loads(done.stdout)
        assert told["identity"] == identity.hex()
        assert (told["state"], told["method"], told["path"]) == ("completed", "POST", "/payments")
        answer = told["answer"]
        assert (answer["status"], answer["kept"], answer["bytes"]) == (201, "whole", 15)
        assert told["expires_at"] > told["created_at"]
        for hidden in (KEY, "secret answer", scene.case(identity).record.fence.hex()):
            assert hidden not in done.output
            assert hidden not in run(scene, "keys", "show", identity.hex()).output

    def test_the_body_where_it_is_asked_for(self, scene: Scene) -> None:
        text, raw = scene.completed(b"a secret answer"), scene.completed(b"\xff\x00")
        done = run(scene, "keys", "show", text.hex(), "--body")
        assert "  body: a secret answer\n" in done.stdout
        told = json.loads(run(scene, "keys", "show", raw.hex(), "--body", "--json").stdout)
        assert told["answer"]["body_base64"] == "/wA="

    def test_what_cannot_be_read_is_told_and_the_rest_shown(self, scene: Scene) -> None:
        identity = scene.held()
        op = Complete(identity, scene.fences[identity], b"S1" + bytes(40), HOUR, HOUR)
        scene.harness.perform(op)
        done = run(scene, "keys", "show", identity.hex(), "--json")
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        assert told["state"] == "completed"
        assert "damaged" in told["answer"]["unreadable"]

    def test_how_far_an_operation_came(self, scene: Scene) -> None:
        identity = scene.unknown("made", intent="charged")
        told = json.loads(run(scene, "keys", "show", identity.hex(), "--json").stdout)
        assert [(p["kind"], p["name"], p["done"]) for p in told["points"]] == [
            ("phase", "made", True),
            ("call", "charged", False),
        ]
        assert (told["in_doubt"], told["reason"]) == ("charged", "TimeoutError")
        assert "  call charged: begun\n" in run(scene, "keys", "show", identity.hex()).stdout

    def test_what_was_done_to_it(self, scene: Scene) -> None:
        identity = scene.unknown()
        settle = ("unknown", "settle", identity.hex(), "--absent", "--final")
        assert run(scene, *settle, *BECAUSE).exit_code == 0
        told = json.loads(run(scene, "keys", "show", identity.hex(), "--json").stdout)
        (act,) = told["acts"]
        assert (act["verb"], "ann" in act["by"]) == ("settle", True)
        assert " settle by " in run(scene, "keys", "show", identity.hex()).stdout

    def test_its_effects(self, scene: Scene) -> None:
        identity = scene.completed()
        key = scene.key_of(identity, "mail", "effect")
        scene.harness.perform(Enqueue(key, identity, "mail", b"{}"))
        scene.harness.perform(Enqueue("another's", None, "mail", b"{}"))
        told = json.loads(run(scene, "keys", "show", identity.hex(), "--json").stdout)
        assert [(e["key"], e["state"]) for e in told["effects"]] == [(key, "waiting")]

    def test_by_where_the_key_was_used(self, scene: Scene) -> None:
        from semel.core.request import keys as naming

        scope = naming.Scope("tern", "POST", "/payments/7", "route")
        identity = Identity(naming.identity(scope, KEY))
        origin = Origin("tern", "POST", "/payments/7", KEY)
        scene.harness.perform(Claim(identity, fresh_fence(), "r1.x", b"", origin, MINUTE))
        where = ("--key", KEY, "--path", "/payments/7")
        done = run(scene, "keys", "show", *where, "--tenant", "tern", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["identity"] == identity.hex()
        assert run(scene, "keys", "show", *where).exit_code == 1
        assert run(scene, "keys", "show", "--key", KEY).exit_code == 2
        assert run(scene, "keys", "show", identity.hex(), *where).exit_code == 2

    @pytest.mark.parametrize(
        ("text", "code"), [("f" * 64, 1), ("f" * 16, 1), ("xyz", 2), ("ab", 2), ("0" * 65, 2)]
    )
    def test_a_record_that_is_not_there(self, scene: Scene, text: str, code: int) -> None:
        scene.completed()
        done = run(scene, "keys", "show", text)
        assert done.exit_code == code
        assert done.stderr.startswith("semel: ")
        assert done.stderr.count("\n") == 1

    def test_some_digits_are_enough_where_no_other_begins_so(self, scene: Scene) -> None:
        for number in (0x12345678 << 224, (0x12345678 << 224) + 1, 0xABCDEF01 << 224):
            _complete(scene, Identity(number.to_bytes(32, "big")))
        told = json.loads(run(scene, "keys", "show", "ABCDEF01", "--json").stdout)
        assert told["identity"] == "abcdef01" + "0" * 56
        done = run(scene, "keys", "show", "12345678")
        assert (done.exit_code, "several" in done.stderr) == (1, True)
        assert run(scene, "keys", "show", "00000000").exit_code == 1


def _complete(scene: Scene, identity: Identity) -> None:
    fence, origin = fresh_fence(), Origin("tern", "POST", "/payments", KEY)
    scene.harness.perform(Claim(identity, fence, "r1.x", b"", origin, MINUTE))
    kept = encode(Snapshot(200, (), b"", 0))
    scene.harness.perform(Complete(identity, fence, kept, HOUR, HOUR))


class TestEvicting:
    def test_settled_records_go(self, scene: Scene) -> None:
        identities = [scene.completed(), scene.released()]
        texts = [each.hex() for each in identities]
        done = run(scene, "keys", "evict", *texts, *BECAUSE)
        assert done.exit_code == 0, done.output
        assert done.stdout == "".join(f"{text[:16]}: evicted\n" for text in texts)
        assert listed(scene) == set()
        assert run(scene, "keys", "evict", *texts, *BECAUSE).exit_code == 0

    def test_the_replay_window_is_waited_out_once(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slept: list[float] = []
        monkeypatch.setattr("semel.operators.operator.time.sleep", slept.append)
        texts = [scene.completed().hex() for _ in range(3)]
        flow_run(announce(4_000_000), performer(scene.harness.backend.blocking()))
        assert run(scene, "keys", "evict", *texts, *BECAUSE).exit_code == 0
        assert slept == [pytest.approx(4, rel=0.01)]
        assert listed(scene) == set()

    def test_it_asks_first(self, scene: Scene) -> None:
        identity = scene.completed()
        done = run(scene, "keys", "evict", identity.hex(), *BECAUSE[:-1], typed="n\n")
        assert done.exit_code == 1
        assert listed(scene) == {identity.hex()}
        done = run(scene, "keys", "evict", identity.hex(), *BECAUSE[:-1], typed="y\n")
        assert (done.exit_code, listed(scene)) == (0, set())

    def test_a_reason_is_needed_but_who_it_is_is_known(self, scene: Scene) -> None:
        identity = scene.completed().hex()
        assert run(scene, "keys", "evict", identity, "--yes").exit_code == 2
        assert listed(scene) == {identity}
        done = run(scene, "keys", "evict", identity, "--reason", "asked for", "--yes")
        assert (done.exit_code, listed(scene)) == (0, set()), done.output

    def test_what_runs_is_left_alone(self, scene: Scene) -> None:
        identity = scene.held()
        done = run(scene, "keys", "evict", identity.hex(), "--force", *BECAUSE, "--json")
        (told,) = json.loads(done.stdout)
        assert (done.exit_code, told["evicted"]) == (1, False)
        assert "in_progress" in told["said"]
        assert scene.state(identity) is State.IN_PROGRESS

    def test_the_unknown_needs_force_and_leaves_a_tombstone(self, scene: Scene) -> None:
        identity, paid = scene.unknown(), scene.completed()
        both = (identity.hex(), paid.hex())
        done = run(scene, "keys", "evict", *both, *BECAUSE)
        assert done.exit_code == 1
        assert "semel unknown settle" in done.stderr
        assert scene.state(identity) is State.UNKNOWN
        assert listed(scene) == {identity.hex()}  # the others went all the same
        done = run(scene, "keys", "evict", identity.hex(), "--force", *BECAUSE)
        assert done.exit_code == 0, done.output
        assert scene.state(identity) is State.EXPIRED

    def test_or_none_where_that_is_said(self, scene: Scene) -> None:
        identity = scene.unknown().hex()
        assert run(scene, "keys", "evict", identity, "--free", *BECAUSE).exit_code == 2
        assert run(scene, "keys", "evict", identity, "--force", "--free", *BECAUSE).exit_code == 0
        assert listed(scene) == set()

    def test_identities_from_a_pipe(self, scene: Scene) -> None:
        texts = [scene.completed().hex() for _ in range(3)]
        done = run(scene, "keys", "evict", "-", *BECAUSE[:-1], typed="\n".join(texts))
        assert (done.exit_code, len(listed(scene))) == (2, 3)
        done = run(scene, "keys", "evict", "-", *BECAUSE, typed="\n".join(texts))
        assert (done.exit_code, listed(scene)) == (0, set()), done.output


def test_a_lapsed_record_is_evicted_as_what_it_is(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from semel.cli.keys import _evict
    from semel.core.records import OnLapse

    with scene_on("sqlite-sync", tmp_path, request) as scene:
        doubtful, free = scene.held(), scene.held(on_lapse=OnLapse.RELEASE)
        resumable = scene.held("made")
        scene.travel(HOUR)
        said: dict[str, Any] = {"free": False, "by": "ann", "reason": "gone"}
        opened = scene.guard.operator()
        assert _evict(opened, doubtful, force=False, **said)[0] is False
        assert [_evict(opened, each, force=True, **said)[0] for each in (doubtful, free)] == [
            True,
            True,
        ]
        assert scene.state(doubtful) is State.EXPIRED
        assert opened.find(free) is None
        assert _evict(opened, resumable, force=True, **said)[0] is False


class TestOutbox:
    @pytest.fixture
    def box(self, scene: Scene) -> Scene:
        for key in ("a", "b", "c"):
            scene.harness.perform(Enqueue(key, None, "mail", b'{"to": "ann"}'))
        scene.harness.perform(Enqueue("d", None, "later", b"{}", None, HOUR))
        fence = fresh_fence()
        taken = scene.harness.perform(TakeEffects(fence, ("mail",), 1, MINUTE)).effects
        assert [each.key for each in taken] == ["a"]
        scene.harness.perform(MarkFailed("a", fence, "refused", None))
        return scene

    def keys(self, box: Scene, *arguments: str) -> list[str]:
        done = run(box, "outbox", "list", "--json", *arguments)
        assert done.exit_code == 0, done.output
        return [each["key"] for each in json.loads(done.stdout)["effects"]]

    def test_effects_by_state_name_due_and_tries(self, box: Scene) -> None:
        assert self.keys(box) == ["d", "c", "b"]
        assert self.keys(box, "--state", "dead") == ["a"]
        assert self.keys(box, "--state", "delivered") == []
        assert self.keys(box, "--due") == ["c", "b"]
        assert self.keys(box, "--name", "later") == ["d"]
        assert self.keys(box, "--tried", "1") == []
        assert self.keys(box, "--tried", "1", "--state", "dead") == ["a"]
        assert self.keys(box, "--limit", "2") == ["d", "c"]
        told = json.loads(run(box, "outbox", "list", "--json", "--limit", "2").stdout)
        assert self.keys(box, "--limit", "2", "--after", told["after"]) == ["b"]
        assert run(box, "outbox", "list", "--after", "x").exit_code == 2

    def test_a_table_for_people(self, box: Scene) -> None:
        done = run(box, "outbox", "list", "--limit", "2")
        head, *rows = done.stdout.splitlines()
        assert head.split() == ["KEY", "NAME", "AGE", "NEXT", "TRIES", "ERROR"]
        assert [row.split()[:2] for row in rows] == [["d", "later"], ["c", "mail"]]
        assert re.search(r"--after \d+-c$", done.stderr.strip())
        assert "ann" not in done.output

    def test_one_effect(self, box: Scene) -> None:
        told = json.loads(run(box, "outbox", "show", "a", "--json").stdout)
        assert (told["state"], told["error"], told["tries"]) == ("dead", "refused", 1)
        assert "payload" not in told
        assert 'payload: {"to": "ann"}' in run(box, "outbox", "show", "a", "--body").stdout
        assert run(box, "outbox", "show", "zz").exit_code == 1


def test_a_store_without_an_outbox_says_so(valkey: Any) -> None:
    command = ["outbox", "list", "--store", valkey.url]
    done = CliRunner().invoke(semel, command, env={"SEMEL_STORE": None})
    assert (done.exit_code, "no outbox" in done.stderr) == (2, True)
