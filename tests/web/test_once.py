"""`guard.once`: any function takes effect once, in both colours."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.guard import MAX_BOUND
from tests.waiting import PATIENCE

KEY = "a-key-of-enough-length"


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[semel.Guard]:
    made = semel.Guard(f"sqlite:///{tmp_path / 'once.db'}", tenant=None)
    yield made
    made.close()


class Blocking:
    """Calls `once`."""

    def __init__(self, guard: semel.Guard) -> None:
        self._guard = guard

    def __call__(self, key: str, function: Callable[[], Any], **options: Any) -> Any:
        return self._guard.once(key, function, name="job", **options)


class Awaited(Blocking):
    """Calls `aonce`, in a loop of its own."""

    def __call__(self, key: str, function: Callable[[], Any], **options: Any) -> Any:
        async def coroutine() -> Any:
            return function()

        async def main() -> Any:
            try:
                return await self._guard.aonce(key, coroutine, name="job", **options)
            finally:
                await self._guard.backend.aclose()

        return asyncio.run(main())


@pytest.fixture(params=[Blocking, Awaited])
def once(request: pytest.FixtureRequest, guard: semel.Guard) -> Any:
    return request.param(guard)


class Counter:
    def __init__(self, result: Any = None, error: BaseException | None = None) -> None:
        self.calls = 0
        self._result = result
        self._error = error

    def __call__(self) -> Any:
        self.calls += 1
        if self._error is not None:
            raise self._error
        return self._result


def test_a_function_runs_once_and_its_result_is_kept(once: Any) -> None:
    job = Counter({"sent": [1, 2.5, None]})
    first, again = once(KEY, job, payload={"to": "a"}), once(KEY, job, payload={"to": "a"})
    assert (first.value, first.replayed) == ({"sent": [1, 2.5, None]}, False)
    assert (again.value, again.replayed) == (first.value, True)
    assert job.calls == 1


def test_another_payload_is_refused(once: Any) -> None:
    once(KEY, Counter(), payload=1)
    with pytest.raises(semel.Refused) as refused:
        once(KEY, Counter(), payload=2)
    assert (refused.value.code, refused.value.retryable) == ("key-reused", False)
    assert KEY not in str(refused.value)


def test_what_the_function_raises_is_raised_and_may_be_tried_again(once: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        once(KEY, Counter(error=ZeroDivisionError()))
    assert once(KEY, Counter("fine")).value == "fine"


def test_a_doubtful_failure_is_not_tried_again(once: Any) -> None:
    with pytest.raises(TimeoutError):
        once(KEY, Counter(error=TimeoutError()))
    job = Counter()
    with pytest.raises(semel.Refused) as refused:
        once(KEY, job)
    assert refused.value.code == "outcome-unknown"
    assert job.calls == 0


def test_a_result_that_cannot_be_kept_leaves_the_outcome_unknown(once: Any) -> None:
    with pytest.raises(semel.OutcomeUnknown, match="not JSON"):
        once(KEY, Counter(object()))
    with pytest.raises(semel.Refused, match="outcome-unknown"):
        once(KEY, Counter())


def test_the_function_knows_its_operation(once: Any) -> None:
    assert once(KEY, lambda: semel.operation().downstream_key("mail")).value.startswith("semel_")
    with pytest.raises(LookupError):
        semel.operation()


def test_a_call_beside_a_running_one_is_refused_or_waits(guard: semel.Guard) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        inside.set()
        assert go_on.wait(PATIENCE)
        return "done"

    patient = semel.ietf(in_flight="wait", wait=timedelta(seconds=PATIENCE))
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(guard.once, KEY, slow, name="job")
        assert inside.wait(PATIENCE)
        with pytest.raises(semel.Refused) as refused:
            guard.once(KEY, slow, name="job")
        assert (refused.value.code, refused.value.retryable) == ("in-flight", True)
        assert refused.value.retry_after == 1
        waiter = pool.submit(guard.once, KEY, slow, name="job", policy=patient)
        go_on.set()
        assert leader.result(PATIENCE).value == "done"
        assert waiter.result(PATIENCE).value == "done"


async def test_a_cancelled_call_is_carried_through(guard: semel.Guard) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        inside.set()
        await go_on.wait()
        return "done"

    caller = asyncio.create_task(guard.aonce(KEY, slow, name="job"))
    await inside.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go_on.set()
    await asyncio.wait(set(guard.runtime.running))
    assert (await guard.aonce(KEY, slow, name="job")).replayed
    await guard.aclose()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": ""}, semel.Refused),
        ({"name": ""}, semel.ConfigurationError),
        ({"payload": object()}, semel.ConfigurationError),
        ({"payload": float("nan")}, semel.ConfigurationError),
    ],
)
def test_nonsense_is_refused_and_nothing_runs(
    guard: semel.Guard, options: dict[str, Any], error: type[Exception]
) -> None:
    job = Counter()
    with pytest.raises(error):
        guard.once(**{"key": KEY, "function": job, "name": "job", **options})
    assert job.calls == 0


def test_policies_that_are_made_for_every_call_are_freed(guard: semel.Guard) -> None:
    def alive() -> int:
        return sum(1 for each in gc.get_objects() if type(each) is semel.Policy)

    hours = [timedelta(hours=2 + at % 3) for at in range(3 * MAX_BOUND)]
    policies = (semel.ietf(retention=each) for each in hours)
    bound = [guard.bind(policy).retention for policy in policies]
    assert bound == hours  # none was taken for another that had its place in memory
    gc.collect()
    assert alive() < 2 * MAX_BOUND


def test_a_guard_with_tenants_wants_to_know_whose_key_it_is() -> None:
    guard = semel.Guard("memory://", tenant=lambda request: "a")
    with pytest.raises(semel.ConfigurationError, match="tenant="):
        guard.once(KEY, Counter(), name="job")
    one = guard.once(KEY, Counter("a"), name="job", tenant="a")
    other = guard.once(KEY, Counter("b"), name="job", tenant="b")
    assert (one.value, other.value) == ("a", "b")
    guard.close()


@pytest.mark.parametrize("tenants", [None, lambda request: "a"], ids=["one", "many"])
@pytest.mark.parametrize("nobody", ["", b"", False])
def test_a_tenant_without_a_name_is_nobody_and_never_one_that_is_shared(
    tenants: Any, nobody: Any
) -> None:
    guard, job = semel.Guard("memory://", tenant=tenants), Counter()
    with pytest.raises(semel.ConfigurationError, match="tenant="):
        guard.once(KEY, job, name="job", tenant=nobody)
    with pytest.raises(semel.ConfigurationError, match="tenant="):
        guard.retire("order-1", tenant=nobody)
    assert job.calls == 0
    guard.close()


def test_the_tenant_nought_is_a_tenant_like_any_other() -> None:
    guard = semel.Guard("memory://", tenant=lambda request: 0)
    nought = guard.once(KEY, Counter("nought"), name="job", tenant=0)
    other = guard.once(KEY, Counter("other"), name="job", tenant=1)
    again = guard.once(KEY, Counter(), name="job", tenant="0")
    assert [done.value for done in (nought, other, again)] == ["nought", "other", "nought"]
    guard.close()
