"""Mistakes that type checkers must refuse: `make check` reads this file, nothing runs it.

Each line says the error that mypy, and the one that pyright, must report there. A comment that
suppresses nothing is itself an error, so a mistake that passes unnoticed fails `make check`.
"""

from __future__ import annotations

import semel


async def charge(key: str, amount: int) -> str:
    return f"{key} {amount}"


def insert(item: str) -> int:
    return len(item)


async def a_forgotten_await() -> str:
    op = semel.async_operation()
    op.phase("ordered", insert, "tea")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    op.call("charged", charge, 1850)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    op.enqueue("receipt", {})  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    return op.call("charged", charge, 1850)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def another_result_than_the_functions() -> str:
    return semel.operation().phase("ordered", insert, "tea")  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def other_arguments_than_the_functions() -> None:
    semel.operation().phase("ordered", insert, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    semel.operation().phase("ordered", insert)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_call_without_its_key() -> None:
    semel.operation().call("charged", lambda: "ch_1")  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]


def another_value_than_the_functions(guard: semel.Guard) -> str:
    return guard.once("message-1", lambda: 5, name="settle").value  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def says_yes(inquiry: semel.Inquiry) -> bool:
    return True


def takes_the_payload(payload: dict[str, int]) -> None: ...


def functions_of_another_kind(guard: semel.Guard) -> None:
    semel.payments(probe=says_yes)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    guard.probe("charged")(says_yes)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    guard.delivers("receipt")(takes_the_payload)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    semel.Guard(tenant=lambda request: request)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    semel.ietf(retenton=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
