"""The two drivers: same flows, same results, and no flow is dropped where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from semel.core.flow import Flow, Interrupted, arun, ask, run
from semel.core.operations.requests import FlowOperation


@dataclass(frozen=True)
class Add(FlowOperation[int]):
    value: int


@dataclass(frozen=True)
class Finish(FlowOperation[int]):
    finishing: ClassVar[bool] = True

    value: int = 0


def total(*values: int) -> Flow[int]:
    result = 0
    for value in values:
        result += yield from ask(Add(value))
    return result


def drive_blocking(flow: Flow[Any], perform: Callable[[Any], Any]) -> Any:
    return run(flow, perform)


def drive_awaited(flow: Flow[Any], perform: Callable[[Any], Any]) -> Any:
    async def aperform(op: FlowOperation[Any]) -> Any:
        await asyncio.sleep(0)
        return perform(op)

    return asyncio.run(arun(flow, aperform))


DRIVERS = pytest.mark.parametrize("drive", [drive_blocking, drive_awaited])


@DRIVERS
def test_a_flow_gets_the_reply_to_each_operation(drive: Any) -> None:
    assert drive(total(1, 2, 3), lambda op: op.value * 10) == 60


@DRIVERS
def test_an_error_of_the_performer_is_thrown_where_it_happened(drive: Any) -> None:
    def careful() -> Flow[str]:
        try:
            yield from ask(Add(1))
        except ZeroDivisionError:
            return "caught"
        return "missed"

    assert drive(careful(), lambda op: 1 // 0) == "caught"


@DRIVERS
def test_an_error_the_flow_does_not_handle_comes_out(drive: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        drive(total(1), lambda op: 1 // 0)


def test_a_stop_iteration_of_the_performer_is_not_the_end_of_the_flow() -> None:
    def stopping(op: FlowOperation[Any]) -> Any:
        raise StopIteration("handler")

    with pytest.raises(RuntimeError):
        run(total(1), stopping)


def interruptible(seen: list[str]) -> Flow[str]:
    try:
        yield from ask(Add(1))
    except Interrupted:
        seen.append("interrupted")
        yield from ask(Finish())
        return "wound up"
    yield from ask(Finish())
    seen.append("finished")
    return "done"


class Interruption(BaseException):
    pass


def _interrupt_at(kind: type, seen: list[str]) -> Any:
    struck: list[bool] = []

    def perform(op: FlowOperation[Any]) -> int:
        seen.append(type(op).__name__)
        if isinstance(op, kind) and not struck:
            struck.append(True)
            raise Interruption
        return 0

    return perform


def test_an_interrupted_claim_winds_up() -> None:
    seen: list[str] = []
    with pytest.raises(Interruption):
        run(interruptible(seen), _interrupt_at(Add, seen))
    assert seen == ["Add", "interrupted", "Finish"]


def test_an_interrupted_finishing_write_is_performed_again() -> None:
    seen: list[str] = []
    with pytest.raises(Interruption):
        run(interruptible(seen), _interrupt_at(Finish, seen))
    assert seen == ["Add", "Finish", "Finish", "finished"]


def test_a_flow_that_cannot_wind_up_does_not_hide_what_interrupted_it() -> None:
    seen: list[str] = []
    with pytest.raises(Interruption):
        run(total(1, 2), _interrupt_at(Add, seen))
    assert seen == ["Add"]


@pytest.mark.parametrize("at", [Add, Finish])
async def test_a_cancelled_flow_is_finished_by_another_task(at: type) -> None:
    seen: list[str] = []
    reached = asyncio.Event()

    async def perform(op: FlowOperation[Any]) -> Any:
        seen.append(type(op).__name__)
        if isinstance(op, at) and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return 0

    rest: list[Flow[str]] = []
    task = asyncio.create_task(arun(interruptible(seen), perform, rest.append))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await arun(rest[0], perform)
    expected = (
        ["Add", "interrupted", "Finish"] if at is Add else ["Add", "Finish", "Finish", "finished"]
    )
    assert seen == expected
