"""A store that fails: nothing runs without a record, nothing is sent before it is durable."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import semel
from semel.core import operations as ops
from semel.core.records import Fence, Record, State
from semel.core.stored.snapshot import Snapshot, encode
from semel.runtime.leases import Lease
from semel.stores.memory import MemoryBackend
from tests.waiting import PATIENCE, auntil, until
from tests.web.client import Reply
from tests.web.colours import Handle, Said, asgi, driver, once
from tests.web.conftest import MakeGuard, Serve
from tests.web.drive import AsgiDriver, Ask, Driver, Wire, scope_of
from tests.web.effects import Effects
from tests.web.faults import FaultyBackend, Mishap
from tests.web.hurry import no_pauses

MINUTE = 60_000_000


@pytest.fixture
def store() -> FaultyBackend:
    return FaultyBackend()


def settle(send: Driver) -> Reply:
    """Send again while told to come later."""

    def look() -> Reply | None:
        reply = send()
        return reply if reply.final else None

    found = until(look)
    assert found is not None
    return found


# ── before the handler ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mishap", ["refused", "unanswered", "lost"])
def test_without_an_answered_claim_nothing_runs_and_the_claim_is_taken_back(
    mishap: Mishap, serve: Serve, store: FaultyBackend, effects: Effects
) -> None:
    send = serve(store=store)
    store.fail(ops.Claim, mishap=mishap, times=1)
    reply = send()
    assert (reply.status, reply.code) == (503, "store-unavailable")
    assert reply.one("retry-after") == "1"
    assert effects.all() == []
    assert settle(send).status == 200
    assert len(effects.all()) == 1
    until(lambda: mishap == "refused" or store.count(ops.Release))
    assert mishap != "refused" or store.count(ops.Release) == 0


def test_a_store_that_is_down_from_the_start_fails_closed_and_recovers(
    serve: Serve, store: FaultyBackend, effects: Effects
) -> None:
    send = serve(store=store)
    store.fail(ops.StoreOperation)
    assert {send().code for _ in range(3)} == {"store-unavailable"}
    assert store.count(ops.Register) == 3
    assert effects.all() == []
    store.mend()
    assert settle(send).status == 200
    assert len(effects.all()) == 1


def test_requests_without_a_key_do_not_need_the_store(serve: Serve, store: FaultyBackend) -> None:
    send = serve(store=store)
    store.fail(ops.StoreOperation)
    assert send(Ask(key=None)).status == 200
    assert store.seen == []


@pytest.mark.parametrize("op", [ops.Register, ops.Claim])
def test_a_store_that_breaks_its_contract_runs_nothing(
    op: type[ops.StoreOperation[object]], serve: Serve, store: FaultyBackend, effects: Effects
) -> None:
    send = serve(store=store)
    store.fail(op, mishap=ZeroDivisionError("a bug in the store"), times=1)
    assert send().status in (0, 500, 503)
    assert effects.all() == []


# ── after the handler ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody rests between two tries: how long is looked at elsewhere."""
    no_pauses(monkeypatch)


@pytest.mark.usefixtures("no_rest")
@pytest.mark.parametrize("mishap", ["refused", "unanswered", "lost"])
def test_a_completion_is_asked_again_until_it_is_durable(
    mishap: Mishap, serve: Serve, store: FaultyBackend, effects: Effects
) -> None:
    send = serve(store=store)
    store.fail(ops.Complete, mishap=mishap, times=2)
    first = send()
    assert (first.status, store.count(ops.Complete)) == (200, 3)
    assert send().body == first.body == effects.all()[0].nonce.encode()
    assert len(effects.all()) == 1


@pytest.mark.usefixtures("no_rest")
def test_a_completion_that_never_becomes_durable_is_no_success_and_is_pursued(
    serve: Serve, store: FaultyBackend, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Lease.held

    def shrinking(lease: Lease, now: float) -> bool:
        """Each try takes a third of the lease, on the clock by which this process counts it."""
        return held(lease, now + store.count(ops.Complete) * lease.duration / 3)

    monkeypatch.setattr(Lease, "held", shrinking)
    send = serve(store=store)
    store.fail(ops.Complete, ops.Renew)
    first = send()
    assert (first.status, first.code) == (503, "completion-not-durable")
    assert first.one("retry-after") == "1"
    assert store.count(ops.Complete) > 1
    store.mend()
    until(lambda: send().status == 200)
    again = send()
    assert (again.replayed, again.body) == (True, effects.all()[0].nonce.encode())
    assert len(effects.all()) == 1


def test_a_release_that_fails_is_pursued_and_the_retry_runs(
    serve: Serve, store: FaultyBackend, effects: Effects
) -> None:
    statuses = iter((500, 200))
    send = serve(lambda: Said(effects.happen("-").encode(), next(statuses)), store=store)
    store.fail(ops.Release, times=1)
    assert send().status == 500
    assert settle(send).status == 200
    assert len(effects.all()) == 2


def test_a_suspension_that_fails_is_pursued_and_nothing_runs_again(
    serve: Serve, store: FaultyBackend, effects: Effects
) -> None:
    policy = semel.payments(probe=None, in_flight="wait", wait=timedelta(milliseconds=1))
    send = serve(lambda: Said(once(effects)().body, 502), store=store, policy=policy)
    store.fail(ops.Suspend, times=1)
    assert send().status == 502
    assert settle(send).code == "outcome-unknown"
    assert len(effects.all()) == 1


def test_a_bug_in_the_store_at_completion_leaves_no_handler_and_no_lease_behind(
    store: FaultyBackend, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    guard = make_guard(store)
    app = guard.asgi(asgi(once(effects)))
    send = AsgiDriver(app, runner)
    store.fail(ops.Complete, mishap=ZeroDivisionError("a bug in the store"), times=1)
    assert send().status == 0
    assert isinstance(send.errors[0], ZeroDivisionError)
    assert len(guard.runtime.keeper.leases) == 0
    runner.run(app.drain())
    assert send().code == "in-flight"
    assert len(effects.all()) == 1


# ── the first byte ────────────────────────────────────────────────────────────────────────────────


KEPT_BY = pytest.mark.parametrize(
    ("policy", "op"), [(semel.ietf(), ops.Complete), (semel.ietf(response="stream"), ops.Open)]
)


@KEPT_BY
async def test_not_a_byte_is_sent_before_the_record_is_durable(
    policy: semel.Policy,
    op: type[ops.StoreOperation[object]],
    store: FaultyBackend,
    make_guard: MakeGuard,
    effects: Effects,
) -> None:
    app = make_guard(store, policy=policy).asgi(asgi(once(effects)))
    gate, wire = store.hold(op), Wire(Ask())
    request = asyncio.create_task(app(scope_of(Ask()), wire.receive, wire.send))
    await auntil(gate.reached.is_set)
    assert wire.sent == []
    gate.opened.set()
    await request
    assert wire.reply().body == effects.all()[0].nonce.encode()


@KEPT_BY
def test_not_a_byte_is_sent_before_the_record_is_durable_in_a_thread(
    policy: semel.Policy,
    op: type[ops.StoreOperation[object]],
    store: FaultyBackend,
    make_guard: MakeGuard,
    effects: Effects,
    runner: asyncio.Runner,
) -> None:
    send = driver("wsgi", make_guard(store, policy=policy), once(effects), runner)
    gate = store.hold(op)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(send)
        assert gate.reached.wait(PATIENCE)
        assert not request.done()
        gate.opened.set()
        assert request.result().body == effects.all()[0].nonce.encode()


# ── zombies ───────────────────────────────────────────────────────────────────────────────────────


class Clock:
    """The store's clock, moved by hand; leases in this process run on the real one."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def only(memory: MemoryBackend) -> Record:
    (case,) = memory.perform(ops.Browse(tuple(State), 2)).cases
    return case.record


def lapse(memory: MemoryBackend, clock: Clock) -> Fence:
    """The lease of the one record runs out and a passer-by notices."""
    record = only(memory)
    clock.now += 10 * MINUTE
    memory.perform(ops.Lapse(record.identity, record.fence, MINUTE))
    return record.fence


SETTLED = encode(Snapshot(200, ((b"content-type", b"text/plain"),), b"settled", 7))


def settled(memory: MemoryBackend, seen: Fence, kept: bytes | None) -> None:
    """An operator decides: it happened, with this answer, or it did not."""
    identity = only(memory).identity
    fence = Fence(b"operator" * 2)
    if kept is not None:
        memory.perform(
            ops.SettleHappened(identity, seen, fence, kept, MINUTE, MINUTE, ops.Act("ann", "seen"))
        )
    else:
        memory.perform(ops.SettleAbsent(identity, seen, fence, MINUTE, ops.Act("ann", "not there")))


def interrupted(effects: Effects, deed: Callable[[], object], status: int = 200) -> Handle:
    """A handler under which something happens, the first time."""

    def handle() -> Said:
        name = effects.happen("-")
        if len(effects.all()) == 1:
            deed()
        return Said(name.encode(), status)

    return handle


def test_a_late_holder_completes_an_unknown_record_with_its_evidence(
    serve: Serve, clock: Clock, effects: Effects
) -> None:
    memory = MemoryBackend(clock=clock)
    send = serve(interrupted(effects, lambda: lapse(memory, clock)), store=memory)
    first = send()
    assert first.status == 200
    assert (send().body, len(effects.all())) == (first.body, 1)


def test_a_zombie_answers_from_the_record_that_was_settled_without_it(
    serve: Serve, clock: Clock, effects: Effects
) -> None:
    memory = MemoryBackend(clock=clock)
    handle = interrupted(effects, lambda: settled(memory, lapse(memory, clock), SETTLED))
    send = serve(handle, store=memory)
    first, again = send(), send()
    assert first.body == again.body == b"settled"
    assert first.replayed
    assert len(effects.all()) == 1


def test_a_damaged_record_is_not_replayed_and_not_run_again(
    serve: Serve, clock: Clock, effects: Effects
) -> None:
    memory, damaged = MemoryBackend(clock=clock), SETTLED[:-1] + b"D"
    handle = interrupted(effects, lambda: settled(memory, lapse(memory, clock), damaged))
    send = serve(handle, store=memory)
    assert (send().code, send().code) == ("store-unavailable", "store-unavailable")
    assert len(effects.all()) == 1


@pytest.mark.parametrize("status", [200, 500])
def test_a_zombie_whose_record_was_freed_tells_nobody_to_retry(
    status: int, serve: Serve, clock: Clock, effects: Effects
) -> None:
    memory = MemoryBackend(clock=clock)
    handle = interrupted(effects, lambda: settled(memory, lapse(memory, clock), None), status)
    first = serve(handle, store=memory)()
    assert (first.code, first.problem["retryable"]) == ("outcome-unknown", False)
    assert only(memory).state is State.FAILED_RETRYABLE


def elsewhere(colour: str, guard: semel.Guard, handle: Handle) -> Reply:
    """The answer to a request that is sent by another thread, and waited for."""

    def ask() -> Reply:
        with asyncio.Runner() as other:
            return driver(colour, guard, handle, other)()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(ask).result()


def test_a_zombie_changes_nothing_for_the_one_who_holds_the_record_now(
    serve: Serve, colour: str, clock: Clock, make_guard: MakeGuard, effects: Effects
) -> None:
    """A lease lapses under its handler, an operator frees the key: the retry's run counts."""
    memory = MemoryBackend(clock=clock)
    guard = make_guard(memory)
    retried: list[Reply] = []

    def freed_and_retried() -> None:
        settled(memory, lapse(memory, clock), None)
        retried.append(elsewhere(colour, guard, handle))

    handle = interrupted(effects, freed_and_retried)
    first = serve(handle, guard=guard)()
    assert retried[0].body == effects.all()[1].nonce.encode()
    assert (first.body, first.replayed) == (retried[0].body, True)


def test_a_zombie_does_not_settle_what_became_unknown_under_another(
    serve: Serve, colour: str, clock: Clock, make_guard: MakeGuard, effects: Effects
) -> None:
    """Its result is evidence for its own run only."""
    memory = MemoryBackend(clock=clock)
    guard = make_guard(memory)

    def doubtful() -> Said:
        effects.happen("-")
        raise semel.OutcomeUnknown

    def freed_and_retried() -> None:
        settled(memory, lapse(memory, clock), None)
        elsewhere(colour, guard, doubtful)

    send = serve(interrupted(effects, freed_and_retried), guard=guard)
    assert (send().code, send().code) == ("outcome-unknown", "outcome-unknown")
    assert len(effects.all()) == 2


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL"):
        yield
