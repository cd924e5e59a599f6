"""The table of policies, row by row, wherever the guard stands.

What became of a record is told by a retry alone: kept, it is replayed; released, it runs again;
unknown, it is refused for good.
"""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Literal, NamedTuple

import pytest

import semel
from semel.core.policy import Policy
from tests.web import positions
from tests.web.client import Reply
from tests.web.conftest import MakeGuard
from tests.web.effects import Effects
from tests.web.positions import Act

Fate = Literal["keep", "release", "unknown", "receipt"]

POLICIES: dict[str, Callable[[], Policy]] = {
    "ietf": semel.ietf,
    "stripe": lambda: semel.stripe(refusal=semel.refusals.problem_document),
    "accepted": semel.accepted,
    "payments": lambda: semel.payments(
        probe=None, in_flight="wait", wait=timedelta(milliseconds=1)
    ),
}


class Row(NamedTuple):
    """One situation of the table, with the fate it has under each policy."""

    act: Act
    ietf: Fate
    stripe: Fate
    payments: Fate
    only: frozenset[str] = frozenset(positions.ALL)

    @property
    def accepted(self) -> Fate:
        """It differs only in what is said to others while a request is under way."""
        return self.ietf


FRAMEWORKS = frozenset(positions.ALL) - {"asgi", "wsgi"}
NOT_SILENT = frozenset({"flask", "flask, installed", "litestar"})
SEEN = frozenset({"fastapi, add_middleware", "fastapi, guard.fastapi"})


def caused() -> Exception:
    error = RuntimeError("the card network is down")
    error.__cause__ = semel.NotExecuted()
    return error


def grouped() -> Exception:
    return ExceptionGroup("two calls", [ValueError(), semel.OutcomeUnknown()])


ROWS: dict[str, Row] = {
    **{f"answers {s}": Row(Act(s), "keep", "keep", "keep") for s in (200, 201, 202, 204, 303)},
    **{f"answers {s}": Row(Act(s), "keep", "keep", "keep") for s in (400, 402, 404, 409, 422)},
    **{
        f"answers {s}, did not execute": Row(Act(s), "release", "release", "release")
        for s in (401, 403, 407, 408, 425, 429)
    },
    **{f"answers {s}": Row(Act(s), "release", "keep", "unknown") for s in (500, 502, 503)},
    "raises anything": Row(Act(error=ValueError), "release", "keep", "unknown"),
    "raises NotExecuted": Row(Act(error=semel.NotExecuted), "release", "release", "release"),
    "raises from NotExecuted": Row(Act(error=caused), "release", "release", "release"),
    "raises OutcomeUnknown": Row(Act(error=semel.OutcomeUnknown), "unknown", "keep", "unknown"),
    "raises a group with OutcomeUnknown": Row(Act(error=grouped), "unknown", "keep", "unknown"),
    "raises TimeoutError": Row(Act(error=TimeoutError), "unknown", "keep", "unknown"),
    "raises ConnectionResetError": Row(
        Act(error=ConnectionResetError), "unknown", "keep", "unknown"
    ),
    "OutcomeUnknown, mapped to 500": Row(
        Act(error=semel.OutcomeUnknown, mapped=500), "unknown", "keep", "unknown", FRAMEWORKS
    ),
    "OutcomeUnknown, mapped to 503": Row(
        Act(error=semel.OutcomeUnknown, mapped=503), "unknown", "keep", "unknown", FRAMEWORKS
    ),
    "OutcomeUnknown, mapped to 408": Row(
        Act(error=semel.OutcomeUnknown, mapped=408), "unknown", "keep", "unknown", FRAMEWORKS
    ),
    "TimeoutError, mapped to 502": Row(
        Act(error=TimeoutError, mapped=502),
        "unknown",
        "keep",
        "unknown",
        # BaseHTTPMiddleware answers from another task, Flask after its except block: the exception
        # is not in sight there, and the answered 5xx is trusted like any other.
        FRAMEWORKS - {"around BaseHTTPMiddleware", "flask"},
    ),
    "an own error, mapped to 500": Row(
        Act(error=positions.Mapped, mapped=500), "release", "keep", "unknown", FRAMEWORKS
    ),
    "an own error, mapped to 422": Row(
        Act(error=positions.Mapped, mapped=422), "keep", "keep", "keep", FRAMEWORKS
    ),
    "is cancelled": Row(
        Act(error=asyncio.CancelledError),
        "unknown",
        "keep",
        "unknown",
        # Inside BaseHTTPMiddleware's task group a cancelled handler is one that never answered.
        frozenset(positions.ASGI) - {"around BaseHTTPMiddleware"},
    ),
    "is told to exit": Row(
        Act(error=SystemExit), "unknown", "keep", "unknown", frozenset(positions.WSGI)
    ),
    "answers, then raises": Row(
        Act(begun=True, error=ValueError),
        "receipt",
        "receipt",
        "receipt",
        frozenset(positions.ALL) - {"around BaseHTTPMiddleware"},
    ),
    # BaseHTTPMiddleware ends a broken answer as if it were whole; nobody outside can tell.
    "answers, then raises, unseen": Row(
        Act(begun=True, error=ValueError),
        "keep",
        "keep",
        "keep",
        frozenset({"around BaseHTTPMiddleware"}),
    ),
    "answers 500, then raises": Row(
        Act(500, begun=True, error=ValueError),
        "release",
        "receipt",
        "unknown",
        # Elsewhere the exception comes out of a task group, with a cancellation behind it.
        frozenset({"asgi", "wsgi", "flask", "flask, installed"}),
    ),
    "returns without an answer": Row(
        Act(silent=True), "release", "keep", "unknown", frozenset(positions.ALL) - NOT_SILENT - SEEN
    ),
    # There it is seen that the endpoint returned, and so has acted.
    "returns what is no answer": Row(Act(silent=True), "unknown", "keep", "unknown", SEEN),
}

BARE = frozenset({"asgi", "wsgi"})
TOLD_APART = frozenset({200, 204, 422, 429, 500})
"""One status of each fate, and one without a body: what a framework could make something of."""


def differs(position: str, policy: str, act: Act) -> bool:
    """Whether a case runs what no other does; the others are left to `make proof`.

    The table itself is played whole where no framework stands between. Within one, each way of
    failing takes a way of its own to the guard, under each policy; an answer is an answer.
    """
    if position in BARE:
        return True
    if act.error is None and not act.silent:
        return policy == "payments" and act.status in TOLD_APART
    return policy != "accepted"


CASES = [
    pytest.param(
        position,
        policy,
        row,
        id=f"{position}: {policy}: {situation}",
        marks=() if differs(position, policy, row.act) else pytest.mark.proof,
    )
    for situation, row in ROWS.items()
    for policy in POLICIES
    for position in positions.ALL
    if position in row.only
]


def fate(first: Reply, second: Reply, executions: int) -> str:
    """What a retry tells about the record."""
    if executions == 2:
        return "release"
    if second.replayed:
        unsent = first.status == 0
        assert unsent or (second.status, second.body) == (first.status, first.body)
        return "keep"
    assert second.status == 409
    return {"outcome-unknown": "unknown", "body-not-kept": "receipt"}.get(second.code, second.code)


@pytest.mark.parametrize(("position", "policy", "row"), CASES)
def test_every_outcome_has_the_fate_of_the_table_wherever_the_guard_stands(
    position: str,
    policy: str,
    row: Row,
    make_guard: MakeGuard,
    effects: Effects,
    runner: asyncio.Runner,
) -> None:
    guard = make_guard(policy=POLICIES[policy]())
    send = positions.driver(position, row.act, guard, effects, runner)
    first = send()
    second = send()
    executions = len(effects.all())
    assert 1 <= executions <= 2
    assert fate(first, second, executions) == getattr(row, policy)
    assert_answered(first, row.act)


def assert_answered(first: Reply, act: Act) -> None:
    """The first caller gets the application's answer, or a problem document in its place."""
    if act.error is SystemExit:
        return  # the server ends with it
    assert not first.replayed
    if act.error is None and not act.silent:
        assert first.status == act.status
    elif not act.begun:
        assert first.status == act.mapped or first.status >= 500


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Handlers that raise are logged; hundreds of them would bury a failure's own output."""
    with caplog.at_level("CRITICAL"):
        yield
