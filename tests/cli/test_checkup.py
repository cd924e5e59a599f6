"""What `semel doctor` finds out about a guard and its records; each check, and its silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from fastapi import Depends, FastAPI

from semel.cli.commands import semel
from semel.core import operations as ops
from semel.core.policy import Policy, accepted, ietf
from semel.core.records import Identity, OnLapse, Origin
from semel.core.stored.snapshot import Snapshot, encode
from semel.guard import Guard
from semel.operators.doctor import ENOUGH, checkup
from semel.stores import open_backend
from semel.stores.encryption import Encryption
from semel.web.routes import Route
from semel.worker.maintenance import LEADER
from tests.scene import DAY, HOUR, KEY, MINUTE, SECOND, Scene, fresh_fence, scene_on
from tests.waiting import PATIENCE


@pytest.fixture(params=["memory-sync", "sqlite-sync", "postgresql-sync", "redis-sync"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene_on(request.param, tmp_path, request) as made:
        yield made


def found(guard: Guard, app: Any = None) -> list[tuple[str, str]]:
    return [(each.severity, each.text) for each in checkup(guard, app)]


def one(guard: Guard, app: Any = None) -> tuple[str, str]:
    (finding,) = found(guard, app)
    return finding


def test_nothing_is_found_where_nothing_is_wrong(scene: Scene) -> None:
    assert found(scene.guard) == []
    scene.completed()
    scene.held()
    scene.released()
    assert found(scene.guard) == []


class TestMaintenance:
    def test_leases_that_nobody_sweeps(self, scene: Scene) -> None:
        scene.held()
        scene.travel(3 * MINUTE)
        assert found(scene.guard) == []  # a round or two may be missed
        scene.travel(5 * MINUTE)
        severity, text = one(scene.guard)
        assert severity == "error"
        assert "1 lapsed and not swept, and maintenance never came" in text
        assert "semel worker" in text

    def test_records_that_nobody_reaps(self, scene: Scene) -> None:
        scene.completed()
        scene.travel(90 * MINUTE)
        assert found(scene.guard) == []
        scene.travel(90 * MINUTE)
        severity, text = one(scene.guard)
        assert severity == "error"
        assert "1 of 1 past their time and not reaped" in text

    def test_a_leader_that_comes_round_is_only_behind(self, scene: Scene) -> None:
        scene.completed()
        scene.travel(3 * HOUR)
        scene.harness.perform(ops.Lead(LEADER, fresh_fence(), 3 * MINUTE))
        severity, text = one(scene.guard)
        assert severity == "warning"
        assert "is behind" in text
        scene.travel(10 * MINUTE)
        severity, text = one(scene.guard)
        assert severity == "error"
        assert "was last due" in text


class TestChangedSettings:
    def test_what_the_store_will_refuse_is_said_beforehand(self, scene: Scene) -> None:
        scene.guard.start()
        changed = Guard(scene.guard.backend, tenant=None, policy=ietf(scope="tenant"))
        severity, text = one(changed)
        assert severity == "error"
        assert "these settings will be refused: *: keys here were made with" in text
        named = ietf(scope="tenant", previous=scene.guard.policy)
        assert found(Guard(scene.guard.backend, tenant=None, policy=named)) == []


class TestWorkers:
    def test_stored_requests_that_nobody_runs(self, scene: Scene) -> None:
        identity, origin = Identity(bytes(31) + b"\x07"), Origin("", "POST", "/jobs", KEY)
        patience = HOUR
        terms = scene.guard.runtime.plan("*", scene.guard.policy).terms
        scene.harness.perform(ops.Agree(terms))
        told = (identity, fresh_fence(), "r1.x", b"", origin, b"stored", patience)
        scene.harness.perform(ops.Accept(*told, terms=terms.id))
        assert found(scene.guard) == []
        scene.travel(6 * MINUTE)
        severity, text = one(scene.guard)
        assert (severity, "1 stored requests wait" in text) == ("error", True)

    def test_operations_that_nobody_completes(self, scene: Scene) -> None:
        scene.held("made")
        scene.travel(8 * MINUTE)
        severity, text = one(scene.guard)
        assert (severity, "1 operations were left" in text) == ("error", True)

    def test_unknown_outcomes(self, scene: Scene) -> None:
        scene.unknown()
        assert one(scene.guard) == ("warning", "1 unknown: look at semel unknown list")
        scene.unknown(probe_after=None)
        severity, text = one(scene.guard)
        assert (severity, text.split(":")[0]) == ("warning", "1 unknown and asked about by nobody")

    def test_effects_that_nobody_delivers(self, scene: Scene) -> None:
        if not scene.guard.backend.capabilities.outbox:
            assert found(scene.guard) == []
            return
        scene.harness.perform(ops.Enqueue("a", None, "mail", b""))
        scene.harness.perform(ops.Enqueue("later", None, "mail", b"", None, HOUR))
        assert found(scene.guard) == []
        scene.travel(6 * MINUTE)
        severity, text = one(scene.guard)
        assert (severity, "1 effects (mail) are due" in text) == ("error", True)
        fence = fresh_fence()
        scene.harness.perform(ops.TakeEffects(fence, ("mail",), 1, MINUTE))
        assert found(scene.guard) == []
        scene.harness.perform(ops.MarkFailed("a", fence, "refused", None))
        severity, text = one(scene.guard)
        assert (severity, "1 dead letters" in text) == ("warning", True)


class TestSettings:
    def test_a_retention_under_an_hour(self, scene: Scene) -> None:
        short, backend = ietf(retention=timedelta(minutes=5)), scene.guard.backend
        severity, text = one(Guard(backend, tenant=None, policy=short))
        assert (severity, "for 0:05:00" in text) == ("warning", True)
        listed = Guard(backend, tenant=None, routes=[Route("POST", "/quotes", short)])
        assert one(listed)[1].startswith("POST /quotes keeps answers for 0:05:00")

    def test_also_on_an_endpoint(self) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Route as Path_

        guard = Guard("memory://", tenant=None)

        @guard.route(ietf(retention=timedelta(minutes=5)))
        async def quote(request: Any) -> None: ...

        app = Starlette(routes=[Path_("/quotes", quote, methods=["POST"])])
        assert found(guard) == []
        assert one(guard, guard.asgi(app))[1].startswith("POST /quotes keeps answers for 0:05:00")

    def test_a_method_that_a_tag_leaves_out_and_a_commit_that_comes_too_late(self) -> None:
        guard, app = Guard("memory://", tenant=None), FastAPI()

        def session() -> Iterator[Any]:
            db: Any = None
            yield db
            db.commit()

        @app.put("/paid", dependencies=[Depends(session)])
        @guard.route(ietf())
        async def paid() -> None: ...

        left_out, late = found(guard, guard.asgi(app))
        assert left_out[1].startswith("PUT /paid is tagged with a policy that leaves PUT out")
        assert late[1].startswith("PUT /paid: the dependency session commits after its yield")


class TestEncryption:
    def test_a_key_that_is_missing_and_a_key_that_is_there(self, scene: Scene) -> None:
        keys, backend = {name: bytes([n]) * 32 for n, name in enumerate("ab")}, scene.guard.backend
        whole = Guard(backend, tenant=None, encryption=Encryption(keys, "a"))
        assert whole.backend.capabilities == backend.capabilities
        identity = scene.held()
        fence = scene.fences[identity]
        kept = encode(Snapshot(200, (), b"", 0))
        whole.backend.blocking().perform(ops.Complete(identity, fence, kept, DAY, DAY))
        assert found(whole) == []
        partial = Encryption({"b": keys["b"]}, "b")
        severity, text = one(Guard(backend, tenant=None, encryption=partial))
        assert severity == "error"
        assert "1 of 1 answers cannot be repeated" in text
        assert "the key 'a'" in text
        assert "has no encryption=" in one(Guard(backend, tenant=None))[1]


class TestRuns:
    def ran(
        self, scene: Scene, took: int, count: int = ENOUGH, policy: Policy | None = None
    ) -> None:
        """So many runs that took so long, by the store's clock."""
        held = []
        for _ in range(count):
            identity = scene.held(policy=policy)
            held.append((identity, scene.fences[identity]))
        scene.travel(took)
        kept = encode(Snapshot(200, (), b"", 0))
        for identity, fence in held:
            scene.harness.perform(ops.Complete(identity, fence, kept, DAY, DAY))

    def test_near_max_run(self, scene: Scene) -> None:
        policy = ietf(lease=timedelta(seconds=30), max_run=timedelta(seconds=50))
        guard = Guard(scene.guard.backend, tenant=None, policy=policy)
        self.ran(scene, 45 * SECOND)
        severity, text = one(guard)
        assert severity == "warning"
        assert "near max_run=50 s" in text
        assert "POST /payments" in text

    def test_longer_than_the_lease(self, scene: Scene) -> None:
        policy = ietf(lease=timedelta(seconds=30))
        guard = Guard(scene.guard.backend, tenant=None, policy=policy)
        self.ran(scene, 20 * SECOND)
        assert found(guard) == []
        self.ran(scene, 45 * SECOND)
        assert "longer than lease=30 s" in one(guard)[1]

    def test_few_runs_prove_nothing(self, scene: Scene) -> None:
        guard = Guard(scene.guard.backend, tenant=None, policy=ietf(lease=timedelta(seconds=30)))
        self.ran(scene, 45 * SECOND, ENOUGH - 1)
        assert found(guard) == []

    def test_the_time_in_a_queue_is_not_a_run(self, scene: Scene) -> None:
        policy = accepted(mode="deferred", required=True, lease=timedelta(seconds=30))
        guard = Guard(scene.guard.backend, tenant=None, policy=policy)
        self.ran(scene, 45 * SECOND, policy=policy)
        assert found(guard) == []


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(semel, ["doctor", "--json", *arguments], env={"SEMEL_STORE": None})
    return done.exit_code, json.loads(done.stdout)


def test_an_error_is_exit_code_1_and_a_warning_is_not(tmp_path: Path) -> None:
    backend = open_backend(f"sqlite:///{tmp_path}/semel.db")
    origin = Origin("", "POST", "/payments", KEY)
    claim = ops.Claim(Identity(bytes(32)), fresh_fence(), "r1.x", b"", origin, 1)
    backend.blocking().perform(claim)
    code, told = doctor(backend.url)
    assert (code, told["fit"], told["findings"]) == (0, True, [])
    effect = ops.Enqueue("key", None, "mail", b"", None, -HOUR)
    backend.blocking().perform(effect)
    code, told = doctor(backend.url)
    assert (code, told["fit"]) == (1, False)
    backend.close()


def test_the_settings_of_a_guard_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examined.py").write_text(
        "import semel, datetime\n"
        "short = semel.ietf(retention=datetime.timedelta(minutes=5))\n"
        "guard = semel.Guard('memory://', tenant=None, policy=short)\n"
    )
    code, told = doctor("--guard", "examined:guard")
    assert (code, told["store"]) == (0, "memory://")
    assert any("0:05:00" in each["text"] for each in told["findings"])
    both = CliRunner().invoke(semel, ["doctor", "--guard", "examined:guard", "memory://"])
    assert both.exit_code == 2


def test_a_server_that_takes_no_writes_is_refused(postgres_url: str) -> None:
    open_backend(postgres_url).migrate()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode()
        )
    code, told = doctor(f"{postgres_url}&timeout={PATIENCE}")
    assert code == 1
    ((severity, text),) = [(each["severity"], each["text"]) for each in told["findings"]]
    assert severity == "refused"
    assert "read-only, semel needs the primary" in text


def test_resumable_ones_are_not_the_sweepers(scene: Scene) -> None:
    scene.held(on_lapse=OnLapse.RESUME)
    scene.travel(8 * MINUTE)
    assert all("swept" not in text for _, text in found(scene.guard))
