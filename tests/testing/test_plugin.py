"""The pytest plugin, as users have it: each helper in a test that passes and one that rightly
fails."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

APP = """
from fastapi import FastAPI

import semel

charged = []


def ask_provider(inquiry):
    return semel.Happened(semel.Response(201, (), b"found"))


guard = semel.Guard("postgresql://nobody@127.0.0.1:1/nowhere", tenant=None)
app = FastAPI()


@app.post("/payments", status_code=201)
@guard.route(semel.payments(probe=ask_provider, in_flight="refuse"))
def pay():
    charged.append(semel.operation().downstream_key("charge"))
    return {"id": len(charged)}


@app.post("/orders", status_code=201)
@guard.route(semel.ietf(mode="resumable", probe=ask_provider))
def order():
    op = semel.operation()
    op.phase("written", lambda: None)
    op.phase("booked", lambda: semel.operation().enqueue("receipt", {"order": 1}))
    return {"order": 1}


@guard.delivers("receipt")
def mail(delivery):
    return "mail_1"


guard.fastapi(app)
"""

CONFTEST = """
import pytest
from fastapi.testclient import TestClient

import api


@pytest.fixture
def client():
    api.charged.clear()
    with TestClient(api.app) as made:
        yield made


@pytest.fixture
def send(client):
    def post(path, key="opaque-key-of-some-test"):
        return client.post(path, headers={"idempotency-key": key})

    return post
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """An API with a module-level guard, and the settings that name it."""
    pytester.makepyfile(api=APP, conftest=CONFTEST)
    pytester.makeini("[pytest]\nsemel_guard = api:guard\npythonpath = .\nfilterwarnings = error\n")
    return pytester


def ran(project: pytest.Pytester, tests: str) -> pytest.RunResult:
    project.makepyfile(test_api=tests)
    return project.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:schemathesis")


def complaints(result: pytest.RunResult) -> str:
    return result.stdout.str()


def test_it_is_installed_under_its_own_name() -> None:
    (plugin,) = (each for each in entry_points(group="pytest11") if each.value == "_semel_pytest")
    assert plugin.name == "_semel_pytest"


def test_what_users_write_passes(project: pytest.Pytester) -> None:
    result = ran(
        project,
        """
from datetime import timedelta

import api

KEY = "opaque-key-of-some-test"


def test_once(semel_store, send):
    assert semel_store.assert_once(lambda: send("/payments")).json() == {"id": 1}
    assert semel_store.runs(KEY) == 1


def test_alone(semel_store, send):
    assert send("/payments").headers["idempotent-replayed"] == "false"


def test_expiry(semel_store, semel_clock, send):
    send("/payments")
    semel_clock.move(timedelta(days=1))
    assert send("/payments").status_code == 410


def test_unknown(semel_store, semel_clock, send):
    with semel_store.leave_unknown():
        send("/payments")
    assert send("/payments").json()["code"] == "outcome-unknown"
    semel_clock.move(timedelta(hours=1))
    assert semel_store.run_once(api.app) == {"reconcile": 1}
    assert send("/payments").text == "found"


def test_crash(semel_store, semel_clock, send):
    with semel_store.crash("after point written"):
        send("/orders")
    assert semel_store.points(KEY) == ("written",)
    semel_clock.move(timedelta(minutes=5))
    assert semel_store.run_once(api.app) == {"run": 1, "deliver": 1}
    assert [effect.state for effect in semel_store.effects("receipt")] == ["delivered"]
    assert send("/orders").headers["idempotent-replayed"] == "true"
""",
    )
    result.assert_outcomes(passed=5)


FAILING = {
    "two replays": (
        """
from semel.testing import assert_replayed

def test_it(semel_store, send):
    send("/payments")
    assert_replayed(send("/payments"), send("/payments"))
""",
        "idempotent-replayed is True and True",
    ),
    "work on routes that nobody knows": (
        """
from datetime import timedelta

def test_it(semel_store, semel_clock, send):
    with semel_store.leave_unknown():
        send("/payments")
    semel_clock.move(timedelta(hours=1))
    semel_store.run_once()
""",
        "is due and was left alone: POST /payments. Name your application: run_once(app)",
    ),
    "a handler that ran twice": (
        """
def test_it(semel_store, send):
    keys = iter(["opaque-key-of-some-one", "opaque-key-of-some-two"])
    semel_store.assert_once(lambda: send("/payments", next(keys)))
""",
        "not a replay: its body is b'{\"id\":2}', and was b'{\"id\":1}'",
    ),
    "a point that does not exist": (
        """
def test_it(semel_store, send):
    with semel_store.crash("after point writen"):
        send("/orders")
""",
        "'after point writen' was not reached; reached were: after claim, within point written, "
        "after point written, within point booked, after point booked, before completion",
    ),
    "a place that cannot be": (
        """
def test_it(semel_store, send):
    with semel_store.crash("before the end"):
        send("/orders")
""",
        "no such place: 'before the end'; there are after claim, within point NAME",
    ),
    "a clock that is moved back": (
        """
from datetime import timedelta

def test_it(semel_clock):
    semel_clock.move(-timedelta(hours=1))
""",
        "a store's clock does not go back",
    ),
    "an unknown outcome where none can be": (
        """
def test_it(semel_store, send):
    with semel_store.leave_unknown():
        pass
""",
        "'before completion' was not reached; reached were: no places",
    ),
    "an effect that is not there": (
        """
def test_it(semel_store, send):
    send("/orders")
    assert [effect.payload for effect in semel_store.effects("receipt")] == [{"order": 2}]
""",
        "[{'order': 1}] == [{'order': 2}]",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_what_is_wrong_fails_and_is_said(project: pytest.Pytester, case: str) -> None:
    tests, said = FAILING[case]
    result = ran(project, tests)
    result.assert_outcomes(failed=1)
    assert said in complaints(result)


def test_without_its_name_the_guard_is_asked_for(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\npythonpath = .\n")
    result = ran(project, "def test_it(semel_store): ...")
    result.assert_outcomes(errors=1)
    assert "write semel_guard = shop.app:guard into pytest's settings" in complaints(result)


def test_a_fixture_may_give_the_guard(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\npythonpath = .\n")
    result = ran(
        project,
        """
import pytest

@pytest.fixture
def semel_guard():
    import api
    return api.guard

def test_it(semel_store, send):
    semel_store.assert_once(lambda: send("/payments"))
""",
    )
    result.assert_outcomes(passed=1)


def test_a_guard_that_serves_already_is_refused(project: pytest.Pytester) -> None:
    """A test before it used the guard's own store, which here is not even there."""
    project.makepyfile(
        test_api="""
from fastapi.testclient import TestClient

import api

def test_first():
    # Not entered: so the application never shuts down, and its guard is not closed.
    answer = TestClient(api.app).post("/payments", headers={"idempotency-key": "k" * 16})
    assert answer.status_code == 503

def test_second(semel_store, send):
    send("/payments")
""",
    )
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:schemathesis")
    result.assert_outcomes(passed=1, errors=1)
    assert "a test used it without a private store" in complaints(result)


def test_a_store_that_is_not_given_back_fails_the_run(project: pytest.Pytester) -> None:
    """In a process of its own: nobody would give it back here either."""
    project.makepyfile(
        test_api="""
import api
from semel.testing import PrivateStore

def test_it():
    PrivateStore(api.guard).__enter__()
"""
    )
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:schemathesis")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "test_api.py:5, which was never given back" in complaints(result)


def test_plain_tests_do_not_notice_it(project: pytest.Pytester) -> None:
    project.makepyfile(
        conftest="",
        test_api="import sys\n\ndef test_it():\n    assert 'semel' not in sys.modules\n",
    )
    project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:schemathesis").assert_outcomes(
        passed=1
    )


def test_unittest_uses_the_same_helpers(project: pytest.Pytester) -> None:
    result = ran(
        project,
        """
import unittest

from fastapi.testclient import TestClient

import api
from semel.testing import PrivateStore


class Payments(unittest.TestCase):
    def setUp(self):
        self.store = self.enterContext(PrivateStore(api.guard))
        self.client = self.enterContext(TestClient(api.app))

    def test_once(self):
        headers = {"idempotency-key": "opaque-key-of-some-test"}
        self.store.assert_once(lambda: self.client.post("/payments", headers=headers))
""",
    )
    result.assert_outcomes(passed=1)
