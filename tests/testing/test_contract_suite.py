"""The contract of the stores, as people use it who write one: it passes a right store, and notices
a wrong one."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from semel.testing import contract
from semel.testing.contract import audit, lists, maintenance, notables, outbox, records, work
from tests.stores import test_contract, test_contract_rounds

pytest_plugins = ["pytester"]

PARTS = (records, work, maintenance, lists, outbox, audit, notables)

TESTS = """
from datetime import timedelta

import pytest

import stores
from semel.testing import StoreClock, contract


@pytest.fixture
def harness():
    clock = StoreClock()
    with contract.under_test(
        stores.made(clock), lambda micros: clock.move(timedelta(microseconds=micros))
    ) as opened:
        yield opened


globals().update(contract.suite(outbox=stores.OUTBOX))
"""

RIGHT = """
from semel.stores.memory import MemoryBackend

OUTBOX = True


def made(clock):
    return MemoryBackend(clock=clock)
"""

WRONG = {
    "a fence that is not looked at": (
        """
    def perform(self, op):
        if type(op) is ops.Complete:
            found = self.inner.perform(ops.Read(op.identity))
            if isinstance(found, ops.Found):
                op = replace(op, fence=found.record.fence)
        return self.inner.perform(op)
""",
        "TestLives or TestStateTable or TestRaces",
    ),
    "an effect that is lost": (
        """
    def perform(self, op):
        if type(op) is ops.Enqueue:
            return ops.EffectWritten(True, 0)
        return self.inner.perform(op)
""",
        "TestTaking",
    ),
    "bytes that are cut": (
        """
    def perform(self, op):
        if type(op) is ops.Complete:
            op = replace(op, snapshot=op.snapshot[:10])
        return self.inner.perform(op)
""",
        "TestBytes",
    ),
}


def store(perform: str) -> str:
    return f"""
from semel.core import operations as ops
from semel.core.frozen import replace
from semel.stores.base import BackendWrapper
from semel.stores.memory import MemoryBackend

OUTBOX = True


class Wrong(BackendWrapper):
    def blocking(self):
        return WrongStore(self.inner.blocking())


class WrongStore:
    def __init__(self, inner):
        self.inner = inner
{perform}

def made(clock):
    return Wrong(MemoryBackend(clock=clock))
"""


def ran(pytester: pytest.Pytester, source: str, *options: str) -> dict[str, int]:
    pytester.makepyfile(stores=source, test_stores=TESTS)
    pytester.makeini("[pytest]\npythonpath = .\naddopts = --strict-markers\n")
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", *options)
    return result.parseoutcomes()


def test_a_right_store_passes_all_of_it(pytester: pytest.Pytester) -> None:
    outcomes = ran(pytester, RIGHT)
    assert set(outcomes) == {"passed"}
    assert outcomes["passed"] > 200


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_store_is_noticed(pytester: pytest.Pytester, what: str) -> None:
    perform, where = WRONG[what]
    assert ran(pytester, store(perform), "-k", where).get("failed", 0) > 0


def test_a_store_that_only_says_that_it_has_no_outbox_is_noticed(pytester: pytest.Pytester) -> None:
    outcomes = ran(pytester, RIGHT.replace("True", "False"), "-k", "Outbox")
    assert outcomes["failed"] == 3


def classes(module: ModuleType) -> set[type]:
    """The classes of tests that a module defines."""
    return {
        each
        for each in vars(module).values()
        if inspect.isclass(each)
        and each.__module__ == module.__name__
        and any(name.startswith("test_") for name in vars(each))
    }


def test_the_suite_has_every_class_and_semels_stores_run_each() -> None:
    every = {each for part in PARTS for each in classes(part)}
    assert every == {*contract.SUITE, *contract.EFFECTS}
    mine = [*vars(test_contract).values(), *vars(test_contract_rounds).values()]
    bases = {base for each in mine if inspect.isclass(each) for base in each.__bases__}
    assert every <= bases
