"""In shadow every request runs and none is refused; enforcement begins without a broken promise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import semel
from semel.core import operations as ops
from semel.core.exchange.answers import identity_of_second_run
from semel.core.operations.maintenance import Browse
from semel.core.records import Case, State
from semel.errors import ConfigurationError, StoreUnavailable
from semel.runtime import shadow as counting
from semel.runtime.shadow import read_counts
from semel.web.asgi_exchange import Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse
from tests.ears import Ear
from tests.waiting import PATIENCE, until
from tests.web.client import Reply
from tests.web.colours import Said, driver
from tests.web.conftest import MakeGuard, Serve
from tests.web.drive import KEY, AsgiDriver, Ask, Driver, WsgiDriver
from tests.web.effects import Effects
from tests.web.faults import FaultyBackend

OTHER = b'{"amount": 2}'
ALL = tuple(State)


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend()


@pytest.fixture
def told() -> Ear:
    return Ear()


@pytest.fixture
def watched(make_guard: MakeGuard, backend: FaultyBackend, told: Ear) -> semel.Guard:
    """A guard that watches."""
    return make_guard(backend, enforce="shadow", on_event=told)


@pytest.fixture
def kept_to(make_guard: MakeGuard, backend: FaultyBackend) -> semel.Guard:
    """The same when its keys are enforced: on the same store."""
    return make_guard(backend)


def nobody(request: semel.Request) -> None:
    return None


def tenant_of(request: semel.Request) -> str:
    return request.headers["x-tenant"]


def cases(backend: FaultyBackend) -> list[Case]:
    return list(backend.inner.blocking().perform(Browse(ALL, 100)).cases)


def counts_of(guard: semel.Guard) -> dict[str, int]:
    """What is on record of the guard's own route, after it has written everything down."""
    guard.runtime.shadow.run_once()
    store = guard.backend.blocking()
    return read_counts(store, guard.name, datetime(2000, 1, 1, tzinfo=UTC)).get("*", {})


def beside(send: Callable[[], Driver], ask: Ask | None = None) -> Reply:
    """A request in a thread and a loop of its own, while another one runs."""
    got: list[Reply] = []
    thread = threading.Thread(target=lambda: got.append(send()(ask or Ask())))
    thread.start()
    thread.join(PATIENCE)
    return got[0]


@pytest.fixture
def elsewhere(colour: str) -> Iterator[Callable[[semel.Guard, Callable[[], Said]], Driver]]:
    """Drivers whose event loops are not this thread's."""
    with asyncio.Runner() as runner:
        yield lambda guard, handle: driver(colour, guard, handle, runner)


class Handler:
    """Runs, and answers what it is told to; the same each time unless told otherwise."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.says: list[Said] = []
        self.first: Callable[[], object] = lambda: None
        """What happens within the first run."""

    def __call__(self) -> Said:
        self.effects.happen("-")
        runs = len(self.effects.all())
        if runs == 1:
            self.first()
        return self.says[runs - 1] if runs <= len(self.says) else Said(b"paid")


@pytest.fixture
def handler(effects: Effects) -> Handler:
    return Handler(effects)


# ── while it is watched ───────────────────────────────────────────────────────────────────────────


def test_a_duplicate_runs_and_gets_its_own_answer_as_without_a_guard(
    serve: Serve, watched: semel.Guard, handler: Handler, told: Ear, backend: FaultyBackend
) -> None:
    handler.says = [Said(b"one"), Said(b"two")]
    send = serve(handler, guard=watched)
    first, second = send(), send()
    assert (first.body, second.body) == (b"one", b"two")
    for reply in (first, second):
        names = {name.lower() for name, _ in reply.headers}
        assert names.isdisjoint({"idempotent-replayed", "idempotency-expires", "cache-control"})
    assert len(handler.effects.all()) == 2
    replayed = told.one("shadow.would_replay")
    assert (replayed["route"], replayed["method"], replayed["status"]) == ("*", "POST", 200)
    assert told.one("exchange")["outcome"] == "executed"
    counts = counts_of(watched)
    assert counts == {"keyed": 2, "would_replay": 1, "differs": 1}
    assert {case.origin.key for case in cases(backend)} == {KEY}


def test_what_would_be_refused_runs_and_is_counted_by_its_code(
    serve: Serve, watched: semel.Guard, handler: Handler, told: Ear
) -> None:
    send = serve(handler, guard=watched)
    assert send().body == send(Ask(body=OTHER)).body == b"paid"
    for key in ("", "k" * 256, "kÿ"):
        assert send(Ask(key=key)).body == b"paid"
    assert len(handler.effects.all()) == 5
    assert told.tally("shadow.would_refuse", "code") == {"key-reused": 1, "malformed-key": 3}
    counts = counts_of(watched)
    assert counts["would_refuse key-reused"] == 1
    assert counts["would_refuse malformed-key"] == 3
    assert counts["keyed"] == 5


def test_a_missing_key_of_a_route_that_needs_one_is_counted_and_passes(
    serve: Serve, make_guard: MakeGuard, handler: Handler, told: Ear
) -> None:
    policy = semel.ietf(required=True, enforce="shadow")
    guard = make_guard(policy=policy, on_event=told)
    send = serve(handler, guard=guard)
    assert send(Ask(key=None)).body == b"paid"
    assert told.one("shadow.would_refuse")["code"] == "missing-key"
    assert counts_of(guard)["unkeyed"] == 1
    assert send(Ask(key=None, method="GET")).body == b"paid"
    assert counts_of(guard)["unkeyed"] == 1


def test_a_caller_without_a_name_passes(
    serve: Serve, make_guard: MakeGuard, handler: Handler, told: Ear
) -> None:
    guard = make_guard(tenant=nobody, enforce="shadow", on_event=told)
    assert serve(handler, guard=guard)().body == b"paid"
    assert told.one("shadow.would_refuse")["code"] == "tenant-missing"


def test_a_body_over_the_limit_comes_whole_to_the_handler(
    make_guard: MakeGuard, told: Ear, runner: asyncio.Runner
) -> None:
    got: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        got.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"paid"})

    policy = semel.ietf(enforce="shadow", max_request_body=4)
    guard = make_guard(policy=policy, on_event=told)
    reply = AsgiDriver(guard.asgi(app), runner)(Ask(body=b"[1, 2, 3]"))
    assert (reply.status, got) == (200, [b"[1, 2, 3]"])
    assert told.one("shadow.would_refuse")["code"] == "body-too-large"


def test_a_request_beside_the_first_runs_at_once(
    serve: Serve, watched: semel.Guard, handler: Handler, told: Ear, elsewhere: Any
) -> None:
    """Nobody waits, whatever the policy says of those who would."""
    beside_it: list[Reply] = []
    handler.first = lambda: beside_it.append(beside(lambda: elsewhere(watched, handler)))
    reply = serve(handler, guard=watched)()
    assert reply.body == beside_it[0].body == b"paid"
    assert told.one("shadow.would_conflict")["code"] == "in-flight"


def test_what_a_handler_raises_comes_to_the_server_as_without_a_guard(
    serve: Serve, watched: semel.Guard, effects: Effects
) -> None:
    def raises() -> Said:
        effects.happen("-")
        raise ZeroDivisionError("of the handler")

    send = serve(raises, guard=watched)
    replies = [send(), send()]
    assert {reply.status for reply in replies} <= {0, 500}
    assert [type(error) for error in send.errors] == [ZeroDivisionError] * 2
    assert len(effects.all()) == 2


def test_with_the_store_out_the_handler_runs_and_that_is_told(
    serve: Serve, watched: semel.Guard, handler: Handler, told: Ear, backend: FaultyBackend
) -> None:
    backend.fail(ops.StoreOperation, mishap="refused")
    send = serve(handler, guard=watched)
    assert send().body == send(Ask(key="another-key-of-length")).body == b"paid"
    assert len(handler.effects.all()) == 2
    assert len(told.all("shadow.unrecorded")) == 2
    backend.mend()
    assert counts_of(watched)["unrecorded"] == 2


def test_with_a_subscriber_or_without_the_same_is_counted(
    serve: Serve, make_guard: MakeGuard, handler: Handler
) -> None:
    guard = make_guard(enforce="shadow")
    send = serve(handler, guard=guard)
    for ask in (Ask(), Ask(), Ask(key=None)):
        send(ask)
    assert counts_of(guard) == {"keyed": 2, "unkeyed": 1, "would_replay": 1}


def test_functions_run_each_time(make_guard: MakeGuard, effects: Effects) -> None:
    guard = make_guard(enforce="shadow")
    results = [guard.once(KEY, lambda: effects.happen("-"), name="job") for _ in range(2)]
    assert [result.replayed for result in results] == [False, False]
    assert results[0].value != results[1].value
    assert guard.runtime.shadow is guard.runtime.shadow
    with pytest.raises(ZeroDivisionError):
        guard.once("another-key-of-length", lambda: 1 // 0, name="job")


# ── requests without a key that look alike ────────────────────────────────────────────────────────


@pytest.fixture
def reads(colour: str, runner: asyncio.Runner) -> Callable[[semel.Guard], Driver]:
    """Drives an application that reads the body of its requests."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def plain(environ: Environ, start_response: StartResponse) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        start_response("200 OK", [])
        return [body]

    def drives(guard: semel.Guard) -> Driver:
        if colour == "asgi":
            return AsgiDriver(guard.asgi(app), runner)
        return WsgiDriver(guard.wsgi(plain), strict=False)

    return drives


def test_requests_without_a_key_that_look_alike_are_counted(
    reads: Any, make_guard: MakeGuard, told: Ear
) -> None:
    guard = make_guard(tenant=tenant_of, enforce="shadow", on_event=told)
    send = reads(guard)

    def ask(tenant: str, body: bytes = b'{"a": 1, "b": 2}') -> Ask:
        return Ask(key=None, body=body, headers=(("x-tenant", tenant), JSON))

    for one in (ask("ann"), ask("ann", b'{"b":2,"a":1}'), ask("bob"), ask("ann", OTHER)):
        assert send(one).body == one.body
    counts = counts_of(guard)
    assert (counts["unkeyed"], counts["look_alike"]) == (4, 1)
    assert told.one("shadow.look_alike")["route"] == "*"


JSON = ("content-type", "application/json")


def test_the_first_look_alike_may_have_been_another_processs(
    reads: Any, make_guard: MakeGuard, backend: FaultyBackend
) -> None:
    for number in range(2):
        guard = make_guard(backend, enforce="shadow")
        reads(guard)(Ask(key=None))
        assert counts_of(guard).get("look_alike", 0) == number


def test_what_finds_no_room_is_not_looked_at(
    reads: Any, make_guard: MakeGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "ROOM", 1)
    guard = make_guard(enforce="shadow")
    send = reads(guard)
    for _ in range(3):
        send(Ask(key=None))
    counts = counts_of(guard)
    assert (counts["unkeyed"], counts["not_looked_at"]) == (3, 2)
    assert "look_alike" not in counts


# ── on record ─────────────────────────────────────────────────────────────────────────────────────


def test_processes_add_to_what_others_have_counted(
    serve: Serve, make_guard: MakeGuard, backend: FaultyBackend, handler: Handler
) -> None:
    for number in range(1, 20):  # more than there are slots
        guard = make_guard(backend, enforce="shadow")
        serve(handler, guard=guard)(Ask(key=f"key-number-{number:08}"))
        assert counts_of(guard)["keyed"] == number


def test_counts_are_written_when_a_guard_is_closed_and_kept_while_the_store_is_out(
    serve: Serve, watched: semel.Guard, handler: Handler, backend: FaultyBackend, told: Ear
) -> None:
    serve(handler, guard=watched)()
    backend.fail(ops.ReadRecipe, ops.Register)
    watched.runtime.shadow.run_once()
    assert told.last("round.failed")["loop"] == "shadow"
    backend.mend()
    counts = watched.runtime.shadow
    watched.runtime.close()
    assert not counts._thread.is_alive()
    total = read_counts(backend.inner.blocking(), "", datetime(2000, 1, 1, tzinfo=UTC))
    assert total == {"*": {"keyed": 1}}
    assert read_counts(backend.inner.blocking(), "", datetime(2999, 1, 1, tzinfo=UTC)) == {}


# ── and then it is enforced ───────────────────────────────────────────────────────────────────────


def test_an_answer_given_in_shadow_is_replayed_under_enforcement(
    serve: Serve, watched: semel.Guard, kept_to: semel.Guard, handler: Handler
) -> None:
    first = serve(handler, guard=watched)()
    again = serve(handler, guard=kept_to)()
    assert (again.body, again.replayed) == (first.body, True)
    assert len(handler.effects.all()) == 1
    assert serve(handler, guard=kept_to)(Ask(body=OTHER)).code == "key-reused"


def test_runs_that_answered_the_same_are_replayed(
    serve: Serve, watched: semel.Guard, kept_to: semel.Guard, handler: Handler
) -> None:
    """What names or times one request, and no more, may differ."""
    handler.says = [Said(b"paid", 201, (JSON, ("x-request-id", str(n)))) for n in range(3)]
    send = serve(handler, guard=watched)
    for _ in range(3):
        send()
    again = serve(handler, guard=kept_to)()
    assert (again.status, again.body, again.replayed) == (201, b"paid", True)


@pytest.mark.parametrize(
    "second",
    [
        Said(b"paid twice"),
        Said(b"paid", 201),
        Said(b"paid", headers=(JSON, ("location", "/payments/2"))),
        Said(b"p" * 100_000),
    ],
    ids=["body", "status", "header", "large"],
)
def test_an_answer_that_another_run_contradicts_is_not_promised(
    serve: Serve, watched: semel.Guard, kept_to: semel.Guard, handler: Handler, second: Said
) -> None:
    handler.says = [Said(b"paid", headers=(JSON, ("location", "/payments/1"))), second]
    send = serve(handler, guard=watched)
    for _ in range(2):
        send()
    again = serve(handler, guard=kept_to)()
    assert (again.status, again.code, again.problem["retryable"]) == (409, "ran-again", False)
    assert len(handler.effects.all()) == 2
    assert serve(handler, guard=watched)().status == 200  # and rolled back, it runs


def test_a_large_answer_is_compared_whole(
    serve: Serve, watched: semel.Guard, kept_to: semel.Guard, handler: Handler
) -> None:
    handler.says = [Said(bytes(range(256)) * 400)] * 2 + [Said(bytes(range(256)) * 399)]
    send = serve(handler, guard=watched)
    for _ in range(2):
        send()
    assert serve(handler, guard=kept_to)().replayed
    send()
    assert serve(handler, guard=kept_to)().code == "ran-again"


def test_the_record_stays_the_first_runs_and_the_second_is_on_record_beside_it(
    serve: Serve, watched: semel.Guard, handler: Handler, backend: FaultyBackend
) -> None:
    handler.says = [Said(b"one"), Said(b"two")]
    send = serve(handler, guard=watched)
    send()
    (first,) = cases(backend)
    send()
    by_identity = {case.record.identity: case for case in cases(backend)}
    assert by_identity.pop(first.record.identity) == first
    ((identity, second),) = by_identity.items()
    assert identity == identity_of_second_run(first.record.identity)
    assert second.record.state is State.COMPLETED
    assert second.origin == first.origin
    assert second.record.snapshot is not None
    assert b"two" in second.record.snapshot


def test_a_run_beside_one_that_failed_keeps_its_key_from_running_again(
    serve: Serve, watched: semel.Guard, kept_to: semel.Guard, handler: Handler, elsewhere: Any
) -> None:
    """The first left nothing behind and frees its key; but the one beside it has paid."""
    handler.says = [Said(b"out", 503), Said(b"paid")]
    handler.first = lambda: beside(lambda: elsewhere(watched, handler))
    assert serve(handler, guard=watched)().status == 503
    again = serve(handler, guard=kept_to)()
    assert (again.status, again.code) == (409, "ran-again")
    assert len(handler.effects.all()) == 2


def test_a_run_beside_the_first_that_ended_before_it_is_not_forgotten(
    serve: Serve, watched: semel.Guard, kept_to: semel.Guard, handler: Handler, elsewhere: Any
) -> None:
    handler.says = [Said(b"one"), Said(b"two")]
    handler.first = lambda: beside(lambda: elsewhere(watched, handler))
    assert serve(handler, guard=watched)().body == b"one"
    assert serve(handler, guard=kept_to)().code == "ran-again"


def test_a_key_that_failed_in_shadow_may_run_under_enforcement(
    serve: Serve, watched: semel.Guard, kept_to: semel.Guard, handler: Handler
) -> None:
    handler.says = [Said(b"out", 503), Said(b"out", 503)]
    send = serve(handler, guard=watched)
    for _ in range(2):
        assert send().status == 503
    assert serve(handler, guard=kept_to)().body == b"paid"
    assert serve(handler, guard=kept_to)().replayed
    assert len(handler.effects.all()) == 3


def test_a_key_under_way_in_shadow_is_in_flight_under_enforcement(
    serve: Serve, watched: semel.Guard, kept_to: semel.Guard, handler: Handler, elsewhere: Any
) -> None:
    replies: list[Reply] = []
    handler.first = lambda: replies.append(beside(lambda: elsewhere(kept_to, handler)))
    assert serve(handler, guard=watched)().body == b"paid"
    assert replies[0].code == "in-flight"
    assert serve(handler, guard=kept_to)().replayed
    assert len(handler.effects.all()) == 1


def test_the_memory_of_answers_does_not_repeat_what_was_made_in_shadow(
    serve: Serve, make_guard: MakeGuard, watched: semel.Guard, handler: Handler, backend: Any
) -> None:
    handler.says = [Said(b"one"), Said(b"two")]
    in_shadow = serve(handler, guard=watched)
    in_shadow()
    remembers = make_guard(backend, replay_cache=LONGEST)
    send = serve(handler, guard=remembers)
    assert send().replayed
    in_shadow()  # a process that is still in shadow
    assert send().code == "ran-again"


LONGEST = timedelta(minutes=5)


@pytest.mark.parametrize("mishap", ["lost", "unanswered"])
def test_a_claim_whose_answer_was_lost_has_the_answer_of_its_run(
    serve: Serve,
    watched: semel.Guard,
    kept_to: semel.Guard,
    handler: Handler,
    backend: FaultyBackend,
    mishap: Any,
) -> None:
    """Taken, it is completed under its fence; not taken, it is taken when the run has ended."""
    backend.fail(ops.Claim, mishap=mishap, times=1)
    assert serve(handler, guard=watched)().body == b"paid"
    assert serve(handler, guard=kept_to)().replayed
    assert len(handler.effects.all()) == 1


def test_a_completion_that_fails_is_pursued_while_the_caller_has_the_answer(
    serve: Serve,
    watched: semel.Guard,
    kept_to: semel.Guard,
    handler: Handler,
    told: Ear,
    backend: FaultyBackend,
) -> None:
    backend.fail(ops.Complete, times=1)
    assert serve(handler, guard=watched)().body == b"paid"
    assert told.one("shadow.unrecorded").error is not None
    until(lambda: cases(backend)[0].record.state is State.COMPLETED)
    assert serve(handler, guard=kept_to)().replayed


def test_what_ran_while_the_store_was_out_is_put_on_record_when_it_is_back(
    serve: Serve,
    watched: semel.Guard,
    kept_to: semel.Guard,
    handler: Handler,
    backend: FaultyBackend,
) -> None:
    """One that turns out to have been the only run is replayed; one beside another is a doubt."""
    handler.says = [Said(b"one"), Said(b"two"), Said(b"three")]
    send = serve(handler, guard=watched)
    send(Ask(key="a-key-from-before-it"))
    backend.fail(ops.Claim, ops.Read, ops.Complete, mishap="refused")
    send(Ask(key="a-key-from-before-it"))
    send(Ask(key="a-key-from-within-it"))
    backend.mend()
    until(lambda: not watched.runtime.keeper.write_retries)
    enforced = serve(handler, guard=kept_to)
    assert enforced(Ask(key="a-key-from-before-it")).code == "ran-again"
    assert enforced(Ask(key="a-key-from-within-it")).body == b"three"
    assert len(handler.effects.all()) == 3


# ── what cannot be watched ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["atomic", "resumable", "deferred"])
def test_modes_that_decide_how_a_handler_runs_are_refused_at_the_start(
    mode: Any, make_guard: MakeGuard, tmp_path: Any
) -> None:
    options: dict[str, Any] = {"mode": mode, "required": True, "in_flight": "accept"}
    with pytest.raises(ConfigurationError, match="cannot be watched in shadow"):
        semel.accepted(enforce="shadow", **options)
    guard = make_guard(f"sqlite:///{tmp_path / 'semel.db'}", enforce="shadow")
    with pytest.raises(ConfigurationError, match="or say enforce='full' on it"):
        guard.route(semel.accepted(**options))
    assert guard.bind(semel.accepted(enforce="full", **options)).shadow is False


def test_a_wrong_word_is_refused(make_guard: MakeGuard) -> None:
    with pytest.raises(ConfigurationError, match="enforce='dark' is not one of"):
        make_guard(enforce="dark")
    with pytest.raises(ConfigurationError, match="enforce='dark' is not one of"):
        semel.ietf(enforce="dark")  # type: ignore[arg-type]


def test_one_route_is_watched_and_its_neighbour_enforced(
    serve: Serve, make_guard: MakeGuard, handler: Handler
) -> None:
    routes = [semel.Route("POST", "/watched", semel.ietf(enforce="shadow"))]
    send = serve(handler, guard=make_guard(routes=routes))
    handler.says = [Said(b"%d" % number) for number in range(4)]
    assert [send(Ask(path=b"/watched")).body for _ in range(2)] == [b"0", b"1"]
    assert [send().body for _ in range(2)] == [b"2", b"2"]


def test_a_fingerprint_that_fails_lets_the_request_pass(
    serve: Serve, make_guard: MakeGuard, handler: Handler, told: Ear
) -> None:
    rule = semel.FingerprintRule(by=lambda request, body: 1 // 0)  # type: ignore[arg-type,return-value]
    guard = make_guard(policy=semel.ietf(fingerprint=rule), enforce="shadow", on_event=told)
    assert serve(handler, guard=guard)().body == b"paid"
    assert told.one("shadow.would_refuse")["code"] == "misconfigured"
    assert isinstance(told.one("shadow.unrecorded").error, ZeroDivisionError | StoreUnavailable)
