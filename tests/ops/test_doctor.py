"""`semel doctor` as people and programs meet it."""

import json
import time
from pathlib import Path

import pytest

from semel.ops.doctor import examine, fit
from semel.stores.memory import MemoryBackend
from tests.ops.commandline import run
from tests.servers import ValkeyServer


def findings(out: str) -> list[tuple[str, str]]:
    return [(each["severity"], each["text"]) for each in json.loads(out)["findings"]]


def test_a_store_that_is_fit_is_said_to_be(tmp_path: Path) -> None:
    assert run("doctor", f"sqlite:///{tmp_path}/semel.db").returncode == 2, "it is not made"
    run("migrate", f"sqlite:///{tmp_path}/semel.db")
    done = run("doctor", f"sqlite:///{tmp_path}/semel.db")
    assert done.returncode == 0
    assert done.stdout == f"sqlite:///{tmp_path}/semel.db: fit for use\n"


def test_what_a_store_cannot_promise_is_said(valkey: ValkeyServer) -> None:
    done = run("doctor", "--json", valkey.url)
    told = json.loads(done.stdout)
    limits = " ".join(text for severity, text in findings(done.stdout) if severity == "limit")
    assert "may lose keys" in limits
    assert "no transactions" in limits
    assert "no outbox" in limits
    assert (done.returncode, told["fit"]) == (0, True)


def test_a_redis_that_evicts_is_not_fit() -> None:
    with ValkeyServer({"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"}) as server:
        done = run("doctor", server.url)
    assert done.returncode == 1
    assert "not fit for use" in done.stdout
    assert "allkeys-lru" in done.stdout


def test_a_missing_schema_is_told(postgres_url: str) -> None:
    done = run("doctor", "--json", postgres_url)
    assert done.returncode == 1
    ((severity, text),) = findings(done.stdout)
    assert severity == "refused"
    assert "semel migrate" in text
    assert run("migrate", postgres_url).returncode == 0
    assert run("doctor", postgres_url).returncode == 0


def test_a_server_that_is_gone_is_told(tmp_path: Path) -> None:
    done = run("doctor", f"postgresql://postgres@/gone?host={tmp_path}&timeout=1")
    assert done.returncode == 1
    assert "not fit for use" in done.stdout


def test_without_a_store_it_asks_which() -> None:
    done = run("doctor")
    assert (done.returncode, done.stdout) == (2, "")
    assert "which store?" in done.stderr


@pytest.mark.parametrize(("ahead", "said"), [(0, False), (3600, True), (-3600, True)])
def test_clocks_that_are_far_apart_are_told(ahead: int, said: bool) -> None:
    store = MemoryBackend(clock=lambda: int((time.time() + ahead) * 1_000_000))
    found = examine(store)
    assert fit(found)
    assert any("clock" in each.text for each in found) is said
