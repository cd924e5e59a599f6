"""What a handler says of its own operation: how long to keep its answer, and what it made."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

import semel
from semel.stores.memory import MemoryBackend
from semel.web.wsgi import Environ, StartResponse
from tests.web.client import Reply
from tests.web.colours import COLOURS, Said, driver
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, WsgiDriver

START = 1_700_000_000
HOUR = timedelta(hours=1) // timedelta(microseconds=1)


@pytest.fixture
def now() -> list[int]:
    """The store's clock, in microseconds."""
    return [START * 1_000_000]


@pytest.fixture
def memory(now: list[int]) -> MemoryBackend:
    return MemoryBackend(clock=lambda: now[0])


Serve = Callable[..., Callable[[], Reply]]


@pytest.fixture(params=COLOURS)
def serve(
    request: pytest.FixtureRequest,
    make_guard: MakeGuard,
    memory: MemoryBackend,
    runner: asyncio.Runner,
) -> Serve:
    def made(handle: Callable[[], Said], **options: Any) -> Callable[[], Reply]:
        guard = make_guard(memory, **options)
        send = driver(request.param, guard, handle, runner)
        return lambda: send(Ask())

    return made


def kept_for(reply: Reply) -> float:
    said = reply.one("idempotency-expires")
    assert said is not None
    return parsedate_to_datetime(said).timestamp() - START


def test_an_operation_may_ask_for_a_longer_retention(serve: Serve, now: list[int]) -> None:
    def handle() -> Said:
        semel.operation().keep_for(timedelta(days=30))
        return Said(b"made")

    send = serve(handle)
    assert kept_for(send()) == timedelta(days=30).total_seconds()
    now[0] += 29 * 24 * HOUR
    assert send().replayed


def test_what_is_to_be_kept_for_ever_is_kept_for_a_century(serve: Serve) -> None:
    """Later than the year 9999 there is no date: the answer would fail after the handler ran."""

    def handle() -> Said:
        semel.operation().keep_for(timedelta.max)
        return Said(b"made")

    assert kept_for(serve(handle)()) == timedelta(days=36_525).total_seconds()


def test_retention_is_never_made_shorter(serve: Serve) -> None:
    def handle() -> Said:
        semel.operation().keep_for(timedelta(minutes=1))
        return Said(b"made")

    assert kept_for(serve(handle)()) == timedelta(hours=24).total_seconds()


def named() -> Said:
    semel.operation().resource("order:7")
    return Said(b"made")


def test_the_answer_that_made_a_retired_resource_is_not_repeated(
    serve: Serve, make_guard: MakeGuard, memory: MemoryBackend
) -> None:
    send, guard = serve(named), make_guard(memory)
    assert send().status == 200
    assert guard.retire("order:8") == 0
    assert send().replayed
    assert guard.retire("order:7") == 1
    assert send().code == "replay-impossible"
    assert guard.retire("order:7") in (0, 1)


def test_stripe_repeats_it_all_the_same(
    serve: Serve, make_guard: MakeGuard, memory: MemoryBackend
) -> None:
    send = serve(named, policy=semel.stripe())
    send()
    assert make_guard(memory).retire("order:7") == 1
    assert send().replayed


def test_a_resource_is_retired_for_its_own_tenant_only(
    serve: Serve, make_guard: MakeGuard, memory: MemoryBackend
) -> None:
    send = serve(named, tenant=lambda _: "ann")
    send()
    guard = make_guard(memory, tenant=lambda _: "bob")
    assert guard.retire("order:7", tenant="bob") == 0
    assert send().replayed
    with pytest.raises(semel.ConfigurationError, match="tenant="):
        guard.retire("order:7")
    assert guard.retire("order:7", tenant="ann") == 1
    assert send().code == "replay-impossible"


def test_without_a_transaction_there_is_none_to_write_in(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = []

    def handle() -> Said:
        try:
            _ = semel.operation().transaction
        except semel.ConfigurationError as error:
            errors.append(error)
        return Said(b"made")

    assert serve(handle)().status == 200
    assert "mode='atomic'" in str(errors[0])


@pytest.mark.parametrize("colour", COLOURS)
def test_a_duplicate_is_told_where_to_look(
    colour: str, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    """The accepted policy, under a lease: 202 while the first is under way."""
    guard = make_guard(policy=semel.accepted())
    replies: list[Reply] = []

    def inner() -> Said:
        return Said(b"never")

    def duplicate() -> None:
        with asyncio.Runner() as another:
            replies.append(driver(colour, guard, inner, another)())

    def handle() -> Said:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(duplicate).result()
        return Said(b"made", 201)

    first = driver(colour, guard, handle, runner)()
    assert first.status == 201
    (second,) = replies
    assert second.status == 202
    assert second.one("retry-after") == "1"
    where = second.one("location")
    assert where is not None
    send = driver(colour, guard, inner, runner)
    final = send(Ask("GET", where.encode(), None, b""))
    assert (final.status, final.body) == (201, b"made")


@pytest.mark.parametrize("verb", ["phase", "call", "enqueue"])
def test_what_would_block_an_event_loop_is_refused_before_it_does_anything(
    make_guard: MakeGuard, memory: MemoryBackend, runner: asyncio.Runner, verb: str
) -> None:
    done: list[str] = []
    refused: list[str] = []

    async def handle() -> None:
        blocking: Any = getattr(semel.operation(), verb)
        with pytest.raises(semel.ConfigurationError) as error:
            blocking("charge", lambda *_: done.append("charge"))
        refused.append(str(error.value))

    guard = make_guard(memory)
    runner.run(guard.aonce("k-" + "0" * 20, handle, name="charge"))
    assert done == []
    assert f"await semel.async_operation().{verb}(" in refused[0]


def test_a_streamed_answer_is_part_of_its_operation_to_its_last_piece(
    make_guard: MakeGuard,
) -> None:
    """Before its head is kept, and after: the thread is left without an operation."""

    def app(environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        for _ in range(3):
            yield semel.operation().identity.hex().encode() + b"\n"

    guard = make_guard(policy=semel.ietf(response="stream"))
    reply = WsgiDriver(guard.wsgi(app))(Ask())
    assert (reply.status, len(reply.body.split()), len({*reply.body.split()})) == (200, 3, 1)
    with pytest.raises(LookupError):
        semel.operation()
