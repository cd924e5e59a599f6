"""A process is killed after its effect and before its record: it is not repeated, and not lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.servers import uvicorn

MODULE = "tests.effects.served_payments"
PROJECT = Path(__file__).parents[2]
KEY = {"Idempotency-Key": "order-1002-of-november"}


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_charge_is_made_once_and_its_answer_is_found_by_the_worker(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    if store == "postgresql":
        url = request.getfixturevalue("postgres_url")
    env = {"SEMEL_TEST_STORE": url, "SEMEL_TEST_FOLDER": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "semel", "migrate", url], check=True, timeout=60)
    (tmp_path / "die").touch()
    with uvicorn(f"{MODULE}:app", env=env) as server:
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"{server.url}/payments", headers=KEY, json={"amount": 1850}, timeout=30)
        server.child.wait()
        (tmp_path / "die").unlink()
        server.start()
        early = httpx.post(f"{server.url}/payments", headers=KEY, json={"amount": 1850}, timeout=30)
        assert early.status_code == 409  # in flight, or unknown: never run again
        worker = start_worker(env)
        try:
            answer = retried(f"{server.url}/payments")
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


def retried(url: str) -> httpx.Response:
    """As a patient client: again, with the same key, until there is an answer."""
    deadline = time.monotonic() + 60
    while True:
        answer = httpx.post(url, headers=KEY, json={"amount": 1850}, timeout=30)
        if answer.status_code != 409 or time.monotonic() > deadline:
            return answer
        assert json.loads(answer.content)["code"] in ("in-flight", "outcome-unknown")
        time.sleep(0.1)
