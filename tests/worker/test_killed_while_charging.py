"""A process is killed after its effect and before its record: it is not repeated, and not lost."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from semel.stores import open_backend
from tests.forms import in_proof
from tests.servers import uvicorn
from tests.time_travel import into_the_past
from tests.waiting import PATIENCE, patient, until

MODULE = "tests.worker.served_payments"
PROJECT = Path(__file__).parents[2]
KEY = {"Idempotency-Key": "order-1002-of-november"}


@pytest.mark.parametrize("store", ["sqlite", *in_proof("postgresql")])
def test_a_charge_is_made_once_and_its_answer_is_found_by_the_worker(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    if store == "postgresql":
        url = request.getfixturevalue("postgres_url")
    env = {"SEMEL_TEST_STORE": patient(url), "SEMEL_TEST_FOLDER": str(tmp_path)}
    with closing(open_backend(url, timeout=PATIENCE)) as backend:
        backend.migrate()
    (tmp_path / "die").touch()
    with uvicorn(f"{MODULE}:app", env=env) as server:
        with pytest.raises(httpx.HTTPError):
            paid(server.url)
        server.child.wait()
        (tmp_path / "die").unlink()
        server.start()
        into_the_past(url, 600)  # and with it the lease of the dead
        early = paid(server.url)
        assert (early.status_code, early.json()["code"]) == (409, "outcome-unknown")
        worker = start_worker(env)
        try:
            answer = until(lambda: answered(server.url))
        finally:
            worker.kill()
            worker.wait()
    (charge,) = (tmp_path / "charges").read_text().split()
    assert answer.status_code == 201
    assert answer.json() == {"charge": charge}
    assert answer.headers["idempotent-replayed"] == "true"


def start_worker(env: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "semel", "worker", f"{MODULE}:guard", "--app", f"{MODULE}:app"]
    command += ["--only", "reconcile,maintain", "--poll", "0.2"]
    return subprocess.Popen(
        command, env={**os.environ, **env}, cwd=PROJECT, stdout=subprocess.DEVNULL
    )


def paid(url: str) -> httpx.Response:
    return httpx.post(f"{url}/payments", headers=KEY, json={"amount": 1850}, timeout=PATIENCE)


def answered(url: str) -> httpx.Response | None:
    """None: a patient client asks again, with the same key."""
    answer = paid(url)
    if answer.status_code != 409:
        return answer
    assert answer.json()["code"] == "outcome-unknown"
    return None
