"""Notables: noted without waiting, written beside the requests, bounded; and no request is hurt."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core import operations as ops
from semel.core.operations.notables import NotableKind
from semel.core.records import Identity
from semel.runtime import notables as recording
from semel.runtime.events import Event, Events
from semel.runtime.notables import NotableRecorder
from semel.stores.base import Backend
from semel.stores.memory import MemoryBackend
from tests.waiting import PATIENCE, until
from tests.web.faults import FaultyBackend

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

KEY = "a-key-of-some-length-that-is-hidden"
WEEK = timedelta(days=7)
MINUTE = 60_000_000
ONE, OTHER = Identity(b"\1" * 32), Identity(b"\2" * 32)
MISMATCH, CONFLICT, REFUSAL = NotableKind.MISMATCH, NotableKind.CONFLICT, NotableKind.REFUSAL


class Recorded:
    """A recorder on a store that may fail, with a clock that stands."""

    def __init__(self, inner: Backend | None = None) -> None:
        self.backend = FaultyBackend(inner)
        self.now = 0.0
        self.told: list[Event] = []
        events = Events(Inline(self.told))
        self.recorder = NotableRecorder(
            *(self.backend, events, "shop", WEEK), clock=lambda: self.now
        )

    def lines(self) -> list[tuple[str, str, int]]:
        """Kind, detail and count of what is written, the oldest first."""
        found = list(reversed(written(self.backend)))
        return [(each.kind, each.detail, each.count) for each in found]


class Inline:
    inline = True

    def __init__(self, told: list[Event]) -> None:
        self._told = told

    def __call__(self, event: Event) -> None:
        self._told.append(event)


def written(backend: Any, **filters: Any) -> tuple[ops.NotableEntry, ...]:
    found: ops.NotableEntries = backend.blocking().perform(ops.BrowseNotables(1_000, **filters))
    return found.entries


@pytest.fixture
def at() -> Iterator[Recorded]:
    made = Recorded()
    yield made
    made.recorder.stop()


# ── the recorder ──────────────────────────────────────────────────────────────────────────────────


def test_equal_ones_are_one_line_with_a_count(at: Recorded) -> None:
    for _ in range(3):
        at.recorder.note(CONFLICT, route="POST /a", tenant="t", identity=ONE)
    at.recorder.note(CONFLICT, route="POST /a", tenant="t", identity=OTHER)
    at.recorder.note(MISMATCH, route="POST /a", identity=ONE, detail={"fields": ["amount"]})
    assert at.recorder.run_once()
    assert at.lines() == [
        *(("conflict", "{}", 3), ("conflict", "{}", 1)),
        ("mismatch", '{"fields":["amount"]}', 1),
    ]
    (newest, *_) = written(at.backend)
    assert (newest.application, newest.route, newest.identity) == ("shop", "POST /a", ONE)
    assert at.backend.count(ops.WriteNotables) == 1  # one batch


def test_a_thread_writes_them_and_sleeps_while_there_are_none(
    at: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "EVERY", 0.001)
    at.recorder.note(CONFLICT, identity=ONE)
    until(lambda: at.lines())
    at.recorder.note(CONFLICT, identity=OTHER)
    until(lambda: len(at.lines()) == 2)


def test_without_one_there_is_no_thread() -> None:
    before = threading.active_count()
    recorder = NotableRecorder(MemoryBackend(), Events(), "", WEEK)
    assert threading.active_count() == before
    recorder.stop()


def test_a_line_that_goes_on_is_written_again_after_a_pause_with_all_that_was_counted(
    at: Recorded,
) -> None:
    at.recorder.note(REFUSAL, route="POST /a")
    assert at.recorder.run_once()
    for _ in range(5):
        at.recorder.note(REFUSAL, route="POST /a")
        assert not at.recorder.run_once()
    at.now += recording.PAUSE
    assert at.recorder.run_once()
    assert [count for *_, count in at.lines()] == [1, 5]


def test_a_batch_is_bounded_and_the_rest_follows(
    at: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "BATCH", 2)
    for number in range(5):
        at.recorder.note(CONFLICT, detail={"n": number})
    assert [at.recorder.run_once() for _ in range(4)] == [True, True, True, False]
    assert [len(op.notables) for op in writes(at.backend)] == [2, 2, 1]


def writes(backend: FaultyBackend) -> list[ops.WriteNotables]:
    return [op for op in backend.seen if isinstance(op, ops.WriteNotables)]


def test_what_finds_no_room_is_counted_and_said(
    at: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "ROOM", 2)
    for number in range(5):
        at.recorder.note(CONFLICT, detail={"n": number})
    at.recorder.note(CONFLICT, detail={"n": 1})  # one that is there already has room
    at.recorder.note(MISMATCH)
    assert at.recorder.run_once()
    dropped, *lines = at.lines()
    assert dropped == ("dropped", '{"conflict":3,"mismatch":1}', 4)
    assert [count for *_, count in lines] == [1, 2]
    assert [(each.name, each["count"]) for each in at.told] == [("notables.dropped", 4)]


def test_what_the_store_does_not_take_is_counted_and_said_when_it_is_back(
    at: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    at.backend.fail(ops.WriteNotables)
    at.recorder.note(CONFLICT)
    at.recorder.note(CONFLICT)
    assert not at.recorder.run_once()
    at.recorder.note(MISMATCH)
    assert not at.recorder.run_once()
    assert at.lines() == []
    at.backend.mend()
    at.recorder.note(REFUSAL)
    assert at.recorder.run_once()
    assert at.lines() == [("dropped", '{"conflict":2,"mismatch":1}', 3), ("refusal", "{}", 1)]
    said = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(said) == 1  # not one line for every second of an outage


def test_the_end_writes_all_that_is_left_without_a_pause(at: Recorded) -> None:
    at.recorder.note(CONFLICT)
    assert at.recorder.run_once()
    at.recorder.note(CONFLICT)
    at.recorder.note(MISMATCH)
    at.recorder.stop()
    assert [kind for kind, *_ in at.lines()] == ["conflict", "conflict", "mismatch"]


def test_the_end_does_not_wait_for_a_store_that_is_down(at: Recorded) -> None:
    at.backend.fail(ops.WriteNotables)
    at.recorder.note(CONFLICT)
    at.recorder.stop()
    assert at.backend.count(ops.WriteNotables) == 1


def test_where_no_other_thread_may_use_the_store_nothing_is_written() -> None:
    class Confined(FaultyBackend):
        @property
        def capabilities(self) -> Any:
            from semel.core.frozen import replace

            return replace(self.inner.capabilities, threads=False)

    backend = Confined()
    recorder = NotableRecorder(backend, Events(), "", WEEK)
    recorder.note(CONFLICT)
    recorder.stop()
    assert backend.count(ops.WriteNotables) == 0


# ── a guard ───────────────────────────────────────────────────────────────────────────────────────

MakeGuard = Callable[..., semel.Guard]


@pytest.fixture
def make_guard() -> Iterator[MakeGuard]:
    made: list[semel.Guard] = []

    def make(store: Any = "memory://", **options: Any) -> semel.Guard:
        given = {"tenant": None, "maintenance": None, **options}
        made.append(semel.Guard(store, **given))
        return made[-1]

    yield make
    for guard in made:
        guard.close()


def closed(guard: semel.Guard, **filters: Any) -> tuple[ops.NotableEntry, ...]:
    """What is written once the guard is closed."""
    guard.close()
    return written(guard.backend, **filters)


def details(entries: tuple[ops.NotableEntry, ...]) -> list[dict[str, Any]]:
    return [json.loads(each.detail) for each in entries]


def test_a_mismatch_names_fields_and_no_values(make_guard: MakeGuard) -> None:
    guard = make_guard()
    secret = {"amount": 4242, "card": "of-a-secret"}
    guard.once(KEY, lambda: 1, name="pay", payload=secret)
    with pytest.raises(semel.Refused):
        guard.once(KEY, lambda: 1, name="pay", payload={**secret, "amount": 9999})
    (entry,) = closed(guard)
    assert (entry.kind, entry.route, entry.tenant, entry.count) == ("mismatch", "once pay", "", 1)
    assert entry.identity is not None
    assert details((entry,)) == [
        {"code": "key-reused", "status": 422, "fields": ["amount"], "missing": 0}
    ]
    for hidden in (KEY, "4242", "9999", "of-a-secret"):
        assert hidden not in repr(entry) + entry.detail


def test_a_duplicate_of_a_running_request_is_a_conflict(make_guard: MakeGuard) -> None:
    guard = make_guard()

    def run() -> int:
        for _ in range(3):
            with pytest.raises(semel.Refused):
                guard.once(KEY, lambda: 2, name="pay")
        return 1

    guard.once(KEY, run, name="pay")
    (entry,) = closed(guard)
    assert (entry.kind, entry.count) == ("conflict", 3)
    assert details((entry,)) == [{"code": "in-flight", "status": 409}]


def test_a_lost_fence_is_noted_once(make_guard: MakeGuard) -> None:
    now = [MINUTE]
    policy = semel.ietf(effects="none", after_lapse="release")
    guard = make_guard(MemoryBackend(clock=lambda: now[0]), policy=policy)

    def outlived() -> str:
        now[0] += 20 * MINUTE
        return str(guard.once(KEY, lambda: "second", name="n").value)

    guard.once(KEY, outlived, name="n")
    assert [each.kind for each in closed(guard)] == ["lost_fence"]


def test_keys_that_look_suspicious_are_counted_by_route_and_tenant(make_guard: MakeGuard) -> None:
    guard = make_guard(tenant=lambda request: "")
    for number in range(3):
        guard.once(f"short-{number}", lambda: 1, name="pay", tenant="bob")
    guard.once("ann.smith@example.com", lambda: 1, name="pay", tenant="bob")
    personal, short = closed(guard)
    assert (short.kind, short.tenant, short.identity, short.count) == (
        *("suspicious_key", "bob", None),
        3,
    )
    assert details((personal, short)) == [
        {"why": "personal data"},
        {"why": "short", "length": 7},
    ]


@pytest.mark.parametrize("listens", [None, lambda event: None])
def test_replays_are_noted_only_where_that_is_asked_for(
    make_guard: MakeGuard, listens: Any
) -> None:
    for asked in (False, True):
        guard = make_guard(note_replays=asked, on_event=listens)
        for _ in range(4):
            guard.once(KEY, lambda: 1, name="pay")
        found = [(each.kind, each.count) for each in closed(guard)]
        assert found == ([("replay", 3)] if asked else [])


def test_a_guard_without_notables_notes_nothing_and_starts_no_thread(
    make_guard: MakeGuard,
) -> None:
    guard = make_guard(notables=None)
    assert guard.runtime.notables is None
    guard.once(KEY, lambda: 1, name="pay", payload=1)
    with pytest.raises(semel.Refused):
        guard.once(KEY, lambda: 1, name="pay", payload=2)
    assert closed(guard) == ()


def test_a_store_that_is_down_changes_no_answer(make_guard: MakeGuard) -> None:
    backend = FaultyBackend()
    guard = make_guard(backend)
    backend.fail(ops.WriteNotables, mishap=RuntimeError("a bug"))
    guard.once(KEY, lambda: 1, name="pay", payload=1)
    with pytest.raises(semel.Refused) as refused:
        guard.once(KEY, lambda: 1, name="pay", payload=2)
    assert refused.value.code == "key-reused"
    guard.close()
    assert guard.once(KEY, lambda: 1, name="pay", payload=1).value == 1


def test_a_closed_guard_notes_again_with_its_next_request(make_guard: MakeGuard) -> None:
    guard = make_guard()
    for number in (1, 2):
        guard.once("short", lambda: 1, name=f"pay {number}")
        assert len(closed(guard)) == number


def test_they_are_kept_as_long_as_the_guard_says(make_guard: MakeGuard) -> None:
    now = [MINUTE]
    backend = MemoryBackend(clock=lambda: now[0])
    guard = make_guard(backend, notables=timedelta(minutes=5))
    guard.once("short", lambda: 1, name="pay")
    assert len(closed(guard)) == 1
    now[0] += 5 * MINUTE
    assert backend.perform(ops.Prune(9)).counts == {"notables": 1}


@pytest.mark.parametrize("wrong", [7, timedelta(0), "7d"])
def test_how_long_is_a_duration(wrong: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match="notables= takes how long"):
        semel.Guard("memory://", tenant=None, notables=wrong)


def test_a_forked_child_writes_what_it_noted_and_nothing_of_its_parents(
    tmp_path: Path, make_guard: MakeGuard
) -> None:
    guard = make_guard(f"sqlite:///{tmp_path}/semel.db")
    guard.once("short", lambda: 1, name="of the parent")
    child = os.fork()
    if child == 0:
        threading.Thread(target=_in_the_child, args=(guard,), daemon=True).start()
        threading.Event().wait(PATIENCE)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with closing(sqlite3.connect(tmp_path / "semel.db")) as file:
        assert file.execute("SELECT route FROM semel_notable").fetchall() == [("once of a child",)]
    assert {each.route for each in closed(guard)} == {"once of the parent", "once of a child"}


def _in_the_child(guard: semel.Guard) -> None:
    guard.once("shorter", lambda: 1, name="of a child")
    guard.close()
    os._exit(0)


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def post(app: Any, key: str | None, body: bytes = b"{}") -> int:
    """Send a request to a WSGI application."""
    import io

    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/payments",
        "QUERY_STRING": "",
        "SERVER_NAME": "test",
        "SERVER_PORT": "80",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
    }
    if key is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = key
    said: list[str] = []
    chunks = app(environ, lambda status, headers, exc_info=None: said.append(status))
    b"".join(chunks)
    if hasattr(chunks, "close"):
        chunks.close()
    return int(said[0].split()[0])


def paid(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("201 Created", [("Content-Type", "text/plain")])
    return [b"paid"]


def test_refusals_at_the_door_are_counted_by_their_code(make_guard: MakeGuard) -> None:
    guard = make_guard(policy=semel.ietf(required=True))
    app = guard.wsgi(paid)
    assert [post(app, None) for _ in range(3)] == [400, 400, 400]
    assert post(app, "") == 400
    found = closed(guard)
    assert {(each.kind, each.identity, each.tenant) for each in found} == {("refusal", None, "")}
    codes = {json.loads(each.detail)["code"]: each.count for each in found}
    assert codes["missing-key"] >= 3
    assert sum(codes.values()) == 4


def test_a_mismatch_is_told_whatever_shape_the_refusal_has(make_guard: MakeGuard) -> None:
    def own(problem: semel.Problem, request: semel.Request) -> semel.Response:
        return semel.Response(problem.status, ((b"content-type", b"text/plain"),), b"no")

    guard = make_guard(policy=semel.ietf(refusal=own))
    app = guard.wsgi(paid)
    assert post(app, KEY, b'{"amount": 1}') == 201
    assert post(app, KEY, b'{"amount": 2}') == 422
    (entry,) = closed(guard)
    assert details((entry,)) == [
        {"code": "key-reused", "status": 422, "fields": ["amount"], "missing": 0}
    ]


def test_those_of_one_key_are_found_by_its_identity(make_guard: MakeGuard) -> None:
    guard = make_guard()
    app = guard.wsgi(paid)
    for key in (KEY, f"{KEY}-other"):
        assert post(app, key, b"1") == 201
        assert post(app, key, b"2") == 422
    one, other = closed(guard)
    assert one.identity != other.identity
    assert written(guard.backend, identity=one.identity) == (one,)


def test_an_outage_is_one_line_for_a_route(make_guard: MakeGuard) -> None:
    backend = FaultyBackend()
    guard = make_guard(backend, breaker=None)
    app = guard.wsgi(paid)
    assert post(app, KEY) == 201
    backend.fail(ops.Claim, ops.Read, mishap="refused")
    assert [post(app, f"{KEY}-{n}") for n in range(3)] == [503, 503, 503]
    backend.mend()
    (entry,) = closed(guard)
    assert (entry.kind, entry.identity, entry.count) == ("refusal", None, 3)
    assert details((entry,))[0]["code"] == "store-unavailable"
