"""Erasing a tenant: nothing of it is left, nothing of it runs again, nothing of others changes."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core import maintenance as erasing
from semel.core.flow import run
from semel.core.maintenance import Erasure
from semel.core.operations.acts import Act
from semel.core.operations.audit import Remark
from semel.core.operations.erasure import Belonging
from semel.core.operations.maintenance import Browse
from semel.core.operations.requests import Applied, Lost
from semel.core.records import Fence, Identity, State
from semel.errors import ConfigurationError, StoreUnavailable
from semel.operators import operator
from tests.waiting import patient
from tests.web.colours import COLOURS, Said, driver
from tests.web.drive import Ask

KEY = "a-key-of-bobs-own-telephone"
SECRET = "bobs-card-4242"


def key(number: int) -> str:
    return f"{KEY}-{number}"


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/semel.db"


def guard_on(url: str, **options: Any) -> semel.Guard:
    return semel.Guard(patient(url), tenant=lambda request: "", maintenance=None, **options)


def pay(guard: semel.Guard, tenant: str, number: int, result: str = SECRET) -> Any:
    return guard.once(key(number), lambda: result, name="pay", tenant=tenant)


def everything(url: str) -> bytes:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        rows = file.execute("SELECT * FROM semel_record").fetchall()
    return repr(rows).encode()


def test_nothing_of_a_tenant_is_left_and_nothing_runs_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "ERASED_PAGE", 4)
    guard = guard_on(url)
    for number in range(10):
        pay(guard, "bob", number)
        pay(guard, "ann", number, "ann's own")
    told: list[Erasure] = []
    done = guard.operator().erase("bob", by="eve", reason="she asked", progress=told.append)
    assert (done.erased, done.left, done.after) == (10, (), None)
    assert [each.erased for each in told] == sorted(each.erased for each in told)
    assert len(told) >= 4
    left = everything(url)
    for word in (SECRET, "bob", "pay-of-bob"):
        assert word.encode() not in left.replace(KEY.encode(), b"")
    for number in range(10):
        with pytest.raises(semel.Refused, match="key-expired"):
            guard.once(key(number), lambda: pytest.fail("it ran again"), name="pay", tenant="bob")
        assert pay(guard, "ann", number).value == "ann's own"
    assert guard.operator().erase("bob", by="eve", reason="again").erased == 0


def test_what_was_noted_of_a_tenant_goes_with_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "ERASED_PAGE", 2)
    guard = guard_on(url)

    def reuse(tenant: str, number: int) -> None:
        for payload in (1, 2):
            with suppress(semel.Refused):
                guard.once(key(number), lambda: 1, name="pay", payload=payload, tenant=tenant)

    for number in range(5):
        reuse("bob", number)
        reuse("ann", number)
    guard.close()  # what was noted is written
    reuse("bob", 6)  # and this is not, yet
    assert len(list(guard.operator().notables())) == 10
    guard.operator().erase("bob", by="eve", reason="she asked")
    guard.close()
    assert {each.tenant for each in guard.operator().notables()} == {"ann"}
    guard.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_retry_learns_that_it_is_over_whatever_it_sends(
    colour: str, url: str, runner: asyncio.Runner
) -> None:
    ran: list[int] = []

    def handle() -> Said:
        ran.append(1)
        return Said(b"done")

    guard = semel.Guard(patient(url), tenant=lambda request: "bob", maintenance=None)
    send = driver(colour, guard, handle, runner)
    assert send(Ask()).status == 200
    assert guard.operator().erase("bob", by="eve", reason="asked").erased == 1
    for body in (b"{}", b'{"other": 1}'):
        assert send(Ask(body=body)).status == 410
    assert ran == [1]
    guard.close()


def test_what_is_unsettled_is_told_and_left(url: str) -> None:
    guard = guard_on(url)

    def doubt() -> None:
        raise semel.OutcomeUnknown("timed out")

    with pytest.raises(semel.OutcomeUnknown):
        guard.once(key(0), doubt, name="pay", tenant="bob")
    pay(guard, "bob", 1)
    done = guard.operator().erase("bob", by="eve", reason="asked")
    (case,) = guard.backend.blocking().perform(Browse((State.UNKNOWN,), 9)).cases
    assert (done.erased, done.left) == (1, (case.record.identity,))
    assert case.origin.tenant == "bob"


def test_it_is_on_record_before_and_after_and_for_every_record(url: str) -> None:
    guard = guard_on(url)
    pay(guard, "bob", 0)
    guard.operator().erase("bob", by="eve", reason="she asked")
    entries = list(guard.operator().audit(verb="erase"))
    assert [entry.subject for entry in entries] == ["bob", None, "bob"]
    assert [entry.by for entry in entries] == ["operator eve"] * 3
    assert entries[2].reason == "begun: she asked"
    assert entries[1].identity is not None
    assert (entries[1].before, entries[1].after) == ("completed", "expired")
    assert entries[0].reason == "1 records erased, 0 unsettled ones left: she asked"


def test_the_audit_says_that_it_is_done_when_no_process_repeats_an_answer_any_more(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = guard_on(url)
    pay(guard, "bob", 0)
    meanwhile: list[list[str]] = []

    def told() -> list[str]:
        entries = guard.operator().audit(verb="erase")
        return [entry.reason for entry in entries if entry.subject == "bob"]

    monkeypatch.setattr(operator.Operator, "wait_out", lambda _: meanwhile.append(told()))
    guard.operator().erase("bob", by="eve", reason="she asked")
    assert meanwhile == [["begun: she asked"]]
    assert told()[0].startswith("1 records erased")


class NoAudit:
    """A store whose audit cannot be written."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def blocking(self) -> Any:
        return self

    def perform(self, op: Any) -> Any:
        if isinstance(op, Remark):
            raise StoreUnavailable("the audit is full")
        return self._inner.blocking().perform(op)


def test_without_an_entry_nothing_is_erased(url: str) -> None:
    guard = guard_on(url)
    pay(guard, "bob", 0)
    whole: Any = guard.runtime.backend
    broken: Any = NoAudit(whole)
    guard.runtime.backend = broken
    with pytest.raises(StoreUnavailable):
        guard.operator().erase("bob", by="eve", reason="asked")
    guard.runtime.backend = whole
    assert pay(guard, "bob", 0).replayed


@pytest.mark.parametrize("state", State)
def test_only_what_is_settled_is_asked_for(state: State) -> None:
    asked: list[Any] = []

    def perform(op: Any) -> Any:
        asked.append(op)
        return Applied(State.EXPIRED, 1)

    each = Belonging(Identity(b"1" * 32), state, Fence(b"f" * 16))
    settled = state in (State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED)
    assert run(erasing.erase(each, Act("eve", "asked")), perform) is settled
    assert len(asked) == settled


def test_one_that_was_changed_by_somebody_just_now_is_not_called_erased() -> None:
    each = Belonging(Identity(b"1" * 32), State.COMPLETED, Fence(b"f" * 16))

    def perform(op: Any) -> Any:
        return Lost(None, 1)

    assert not run(erasing.erase(each, Act("eve", "asked")), perform)


def test_it_returns_when_no_process_repeats_an_erased_answer(url: str) -> None:
    window = timedelta(milliseconds=300)
    remembering, tool = guard_on(url, replay_cache=window), guard_on(url)
    pay(remembering, "bob", 0)
    remembering.start()
    assert pay(remembering, "bob", 0).value == SECRET  # it is in its memory now
    begun = time.monotonic()
    tool.operator().erase("bob", by="eve", reason="asked")
    assert time.monotonic() - begun >= window.total_seconds()
    with pytest.raises(semel.Refused, match="key-expired"):
        pay(remembering, "bob", 0)


@pytest.mark.parametrize(
    ("tenant", "by", "reason"), [("", "eve", "x"), ("bob", "", "x"), ("bob", "eve", " ")]
)
def test_who_why_and_whose_must_be_said(url: str, tenant: str, by: str, reason: str) -> None:
    with pytest.raises(ConfigurationError):
        guard_on(url).operator().erase(tenant, by=by, reason=reason)
