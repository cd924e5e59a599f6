"""What a call may be, what is kept of it, and what becomes of it when things break on this side."""

from __future__ import annotations

import asyncio
import io
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import requests

import semel.client.aiohttp
import semel.client.httpx
import semel.client.requests
from semel.client import (
    Budget,
    BudgetSpent,
    CallJournal,
    CallOutcomeUnknown,
    JournaledCall,
    KeyExpired,
    LogicalCall,
    Unanswered,
)
from semel.errors import ConfigurationError, StoreUnavailable
from tests.client.kinds import KINDS, QUICK, Client
from tests.client.stripelike import StripeLike
from tests.client.wire import Cut, Wire
from tests.servers.ports import bound_somewhere
from tests.waiting import PATIENCE, auntil

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
BOTH_COLOURS = pytest.mark.parametrize("kind", ["httpx", "aiohttp"])
"""For what no library has a part in."""


@pytest.fixture(scope="module")
def stripe() -> Iterator[StripeLike]:
    with StripeLike() as server:
        yield server


def opened(kind: str, journal: Path | CallJournal | None, **options: Any) -> Any:
    given: dict[str, Any] = {"budget": QUICK, "resume_within": timedelta(hours=23)}
    return KINDS[kind](journal, PATIENCE, **{**given, **options})


def on_disk(journal: Path) -> bytes:
    return b"".join(path.read_bytes() for path in journal.parent.iterdir())


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


def pieces() -> Iterator[bytes]:
    yield b"once"


async def awaited_pieces() -> Any:
    yield b"once"


ONE_SHOT: list[tuple[str, str, Callable[[], Any]]] = [
    ("httpx", "content", pieces),
    ("httpx", "content", lambda: io.BytesIO(b"once")),
    ("awaited httpx", "content", awaited_pieces),
    ("requests", "data", pieces),
    ("requests", "data", lambda: io.BytesIO(b"once")),
    ("aiohttp", "data", awaited_pieces),
    ("aiohttp", "data", lambda: io.BytesIO(b"once")),
]


@pytest.mark.parametrize(("kind", "argument", "body"), ONE_SHOT)
def test_a_body_that_can_be_read_once_only_is_refused(
    kind: str, argument: str, body: Callable[[], Any], stripe: StripeLike, journal: Path
) -> None:
    before = len(stripe.keys)
    with opened(kind, journal) as client:
        with pytest.raises(ConfigurationError, match="give bytes"):
            client.post(stripe.url, **{argument: body()})
        assert client.pending() == []
    assert len(stripe.keys) == before


@EVERY_KIND
def test_a_form_with_a_file_is_the_same_bytes_on_every_try(kind: str, stripe: StripeLike) -> None:
    """Made once: a library would choose another boundary each time."""
    heard: list[bytes] = []

    def refuse(key: str, body: bytes) -> Any:
        heard.append(body)
        return (503, {}, {}) if len(heard) < 3 else (200, {}, {})

    form: dict[str, Any]
    if kind == "aiohttp":
        given = aiohttp.FormData()
        given.add_field("file", b"abc", filename="a.txt")
        form = {"data": given}
    else:
        form = {"files": {"file": ("a.txt", b"abc")}}
    answer, stripe.answer = stripe.answer, refuse  # type: ignore[method-assign]
    try:
        with opened(kind, None) as client:
            client.post(stripe.url, **form)
    finally:
        stripe.answer = answer  # type: ignore[method-assign]
    assert len(heard) == 3
    assert len(set(heard)) == 1
    assert b"a.txt" in heard[0]


@BOTH_COLOURS
def test_a_body_that_is_too_large_is_refused(kind: str, stripe: StripeLike, journal: Path) -> None:
    refused = pytest.raises(ConfigurationError, match="max_body")
    with opened(kind, journal, max_body=10) as client, refused:
        client.post(stripe.url, json={"order": "more than ten bytes"})


# ── what a call may be ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("http://ann:hush@127.0.0.1/", {}),
        ("http://127.0.0.1/", {"key": "two words"}),
        ("http://127.0.0.1/", {"key": "k" * 20, "headers": {"idempotency-key": "l" * 20}}),
        ("http://127.0.0.1/", {"name": "\ud800"}),
    ],
)
def test_what_cannot_be_kept_or_sent_is_refused(
    url: str, arguments: dict[str, Any], journal: Path
) -> None:
    with opened("httpx", journal) as client:
        with pytest.raises(ConfigurationError) as raised:
            client.post(url, json={}, **arguments)
        assert client.pending() == []
    assert "hush" not in str(raised.value)


def test_a_method_that_changes_nothing_needs_no_such_client(journal: Path) -> None:
    with (
        httpx.Client() as http,
        semel.client.httpx.HttpxClient(http, journal=journal) as client,
        pytest.raises(ConfigurationError, match="changes nothing"),
    ):
        client.request("get", "http://127.0.0.1/")


def test_wrong_options_are_refused() -> None:
    with httpx.Client() as http:
        wrong: tuple[dict[str, Any], ...] = (
            {"keep_headers": "X-Order"},
            {"resume_within": timedelta(minutes=1)},
            {"key_in": "/meta/key"},
            {"key_in": ("X-Key", "Y-Key")},
        )
        for options in wrong:
            with pytest.raises(ConfigurationError):
                semel.client.httpx.HttpxClient(http, journal=None, **options)
        with pytest.raises(ConfigurationError, match="journal="):
            semel.client.httpx.HttpxClient(http, journal=None).pending()


@EVERY_KIND
def test_a_key_given_as_a_header_is_the_calls_key(
    kind: str, stripe: StripeLike, order: str
) -> None:
    with opened(kind, None) as client:
        client.post(stripe.url, json={"order": order}, headers={"idempotency-key": f"own-{order}"})
    assert stripe.keys.count(f"own-{order}") == 1


@EVERY_KIND
def test_redirects_are_answers(kind: str, stripe: StripeLike) -> None:
    """Followed, the request and its key would go to where nobody asked them to."""
    heard: list[str] = []

    def redirect(key: str, body: bytes) -> Any:
        heard.append(key)
        return 307, {}, {"Location": "/elsewhere"}

    answer, stripe.answer = stripe.answer, redirect  # type: ignore[method-assign]
    try:
        with opened(kind, None) as client:
            assert client.post(stripe.url, json={}).status == 307
    finally:
        stripe.answer = answer  # type: ignore[method-assign]
    assert len(heard) == 1


def test_a_clients_own_parameters_are_added_once(order: str, stripe: StripeLike) -> None:
    base, sale = stripe.url.removesuffix("charges"), {"order": order, "how": "try again"}
    with (
        httpx.Client(base_url=base, params={"v": "2"}, trust_env=False, timeout=PATIENCE) as http,
        semel.client.httpx.HttpxClient(http, journal=None, budget=QUICK) as client,
    ):
        client.post("charges", params={"of": order}, json=sale)
    assert stripe.paths[-3:] == [f"/v1/charges?v=2&of={order}"] * 3


def test_a_sessions_own_parameters_are_added_once(order: str, stripe: StripeLike) -> None:
    with requests.Session() as session:
        session.params, session.trust_env = {"v": "2"}, False
        with semel.client.requests.RequestsClient(session, journal=None, budget=QUICK) as client:
            client.post(stripe.url, params={"of": order}, json={"order": order, "how": "try again"})
    assert [sorted(path.partition("?")[2].split("&")) for path in stripe.paths[-3:]] == [
        [f"of={order}", "v=2"]
    ] * 3


async def test_a_base_address_is_the_sessions(order: str, stripe: StripeLike) -> None:
    base = stripe.url.removesuffix("charges")
    async with (
        aiohttp.ClientSession(base) as session,
        semel.client.aiohttp.AiohttpClient(session, journal=None, budget=QUICK) as client,
    ):
        await client.post("charges", params={"of": order}, json={"order": order})
    assert stripe.paths[-1] == f"/v1/charges?of={order}"


# ── credentials ───────────────────────────────────────────────────────────────────────────────────


@EVERY_KIND
def test_credentials_are_asked_for_on_every_try_and_never_written(
    kind: str, order: str, journal: Path, stripe: StripeLike
) -> None:
    given: list[str] = []

    def credentials(call: semel.client.LogicalCall) -> dict[str, str]:
        given.append(f"hush-{len(given)}")
        return {"Authorization": given[-1]}

    with opened(kind, journal, credentials=credentials) as client:
        client.post(
            stripe.url,
            json={"order": order, "how": "try again"},
            headers={"X-Secret": "hush too"},
            name=order,
        )
        assert b"hush" not in on_disk(journal)
        assert order.encode() in on_disk(journal)
    assert len(given) == 3


@pytest.mark.parametrize("kind", ["awaited httpx", "aiohttp"])
def test_credentials_may_be_awaited(kind: str, order: str, stripe: StripeLike) -> None:
    async def credentials(call: semel.client.LogicalCall) -> dict[str, str]:
        return {"Idempotency-Key": "not by this way", "X-Token": call.name}

    with opened(kind, None, credentials=credentials) as client:
        assert client.post(stripe.url, json={"order": order}, key=f"own-{order}").status == 200
    assert f"own-{order}" in stripe.keys


def lost(client: Client, order: str, **arguments: Any) -> None:
    """A call that nobody answers: it stays pending."""
    with bound_somewhere() as nobody:
        port = nobody.getsockname()[1]
        with pytest.raises(BudgetSpent):
            client.post(f"http://127.0.0.1:{port}/", json={"order": order}, **arguments)


@BOTH_COLOURS
def test_a_call_is_not_resumed_without_a_header_that_it_had(
    kind: str, order: str, journal: Path
) -> None:
    headers = {"X-Account": "7", "Authorization": "Bearer hush"}
    with opened(kind, journal) as client:
        lost(client, order, headers=headers)
        (done,) = client.resume()
        assert isinstance(done.error, ConfigurationError)
        assert "x-account" in str(done.error)
        assert [entry.held for entry in client.pending()] == [False]
    with opened(kind, journal, credentials=lambda call: {"X-Account": "7"}) as client:
        (done,) = client.resume()
        assert isinstance(done.error, Unanswered)


# ── resuming ──────────────────────────────────────────────────────────────────────────────────────


@BOTH_COLOURS
def test_a_call_that_is_too_old_is_told_of_and_not_sent(
    kind: str, order: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then a server may have forgotten the key, and would take it for a new one."""
    with opened(kind, journal) as client:
        lost(client, order, key=f"own-{order}")
        tomorrow = time.time() + 86_400
        monkeypatch.setattr(time, "time", lambda: tomorrow)
        (done,) = client.resume()
        assert isinstance(done.error, KeyExpired)
        assert done.error.response is None
        assert len(client.pending()) == 1
        (entry,) = client.pending()
        with pytest.raises(KeyExpired, match="nothing was sent"):
            client.post(entry.call.url, json={"order": order}, key=f"own-{order}")


@BOTH_COLOURS
def test_a_call_of_the_future_is_told_of_and_not_sent(
    kind: str, order: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made before the clock was set back: it may be older than it looks."""
    with opened(kind, journal) as client:
        lost(client, order)
        yesterday = time.time() - 86_400
        monkeypatch.setattr(time, "time", lambda: yesterday)
        (done,) = client.resume()
        assert isinstance(done.error, KeyExpired)
        assert done.error.response is None
        assert len(client.pending()) == 1


@BOTH_COLOURS
def test_where_nobody_answers_the_others_are_not_tried(
    kind: str, order: str, journal: Path, stripe: StripeLike
) -> None:
    """But calls to another server are."""
    with opened(kind, journal) as client, bound_somewhere() as nobody:
        port = nobody.getsockname()[1]
        for number in range(3):
            with pytest.raises(BudgetSpent):
                client.post(f"http://127.0.0.1:{port}/{number}", json={})
        with Wire(int(stripe.url.split(":")[2].split("/")[0])) as wire:
            wire.cuts.extend([Cut(request=0)] * QUICK.tries)
            with pytest.raises(Unanswered):
                client.post(f"{wire.url}/v1/charges", json={"order": order})
            done = client.resume()
        assert [type(each.error).__name__ for each in done] == ["Unanswered", "NoneType"]
        assert len(client.pending()) == 3
    assert stripe.charges.count(order) == 1


# ── when this side breaks ─────────────────────────────────────────────────────────────────────────


def fail_on(response: Any, **_: Any) -> None:
    response.close()
    raise KeyError("a bug in a hook")


@contextmanager
def hooked_httpx(journal: Path) -> Generator[Any]:
    with (
        httpx.Client(trust_env=False, event_hooks={"response": [fail_on]}, timeout=None) as http,
        semel.client.httpx.HttpxClient(http, journal=journal, budget=QUICK) as client,
    ):
        yield client


@contextmanager
def hooked_requests(journal: Path) -> Generator[Any]:
    with requests.Session() as session:
        session.hooks["response"].append(fail_on)
        with semel.client.requests.RequestsClient(session, journal=journal, budget=QUICK) as client:
            yield client


@pytest.mark.parametrize("hooked", [hooked_httpx, hooked_requests])
def test_a_hook_that_fails_after_the_answer_leaves_the_call_pending(
    hooked: Callable[[Path], AbstractContextManager[Any]],
    order: str,
    journal: Path,
    stripe: StripeLike,
) -> None:
    """It was sent, and executed: to take it back would have it paid twice."""
    with hooked(journal) as client:
        with pytest.raises(CallOutcomeUnknown) as raised:
            client.post(stripe.url, json={"order": order})
        assert isinstance(raised.value.__cause__, KeyError)
        assert [entry.held for entry in client.pending()] == [False]
    with opened("httpx", journal) as client:
        (done,) = client.resume()
    assert done.response.status_code == 200
    assert stripe.charges.count(order) == 1


@BOTH_COLOURS
def test_what_cannot_be_journaled_is_not_sent(kind: str, journal: Path, stripe: StripeLike) -> None:
    opened_journal = CallJournal(journal, timeout=0.05)
    opened_journal.pending()
    other = sqlite3.connect(journal, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    before = len(stripe.keys)
    refused = pytest.raises(StoreUnavailable)
    with opened_journal, opened(kind, opened_journal) as client, refused:
        client.post(stripe.url, json={"order": "never"})
    other.close()
    assert len(stripe.keys) == before


@BOTH_COLOURS
def test_an_answer_that_cannot_be_journaled_is_still_an_answer(
    kind: str, journal: Path, stripe: StripeLike, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(CallJournal):
        def record_answer(self, *_: object) -> None:
            raise StoreUnavailable("no space left")

    with Full(journal) as full, opened(kind, full) as client:
        assert client.post(stripe.url, json={"order": order}, key=f"own-{order}").status == 200
        assert len(client.pending()) == 1
    assert "no space left" in caplog.text
    assert order not in caplog.text


@BOTH_COLOURS
def test_a_bug_in_ones_own_function_takes_the_call_back(
    kind: str, journal: Path, stripe: StripeLike
) -> None:
    def credentials(call: semel.client.LogicalCall) -> dict[str, str]:
        raise LookupError("no token")

    with opened(kind, journal, credentials=credentials) as client:
        with pytest.raises(LookupError, match="no token"):
            client.post(stripe.url, json={"order": "never"})
        assert client.pending() == []


def test_a_bug_after_a_try_leaves_the_call_pending(
    journal: Path, stripe: StripeLike, order: str
) -> None:
    tokens = ["the only one"]

    def credentials(call: semel.client.LogicalCall) -> dict[str, str]:
        return {"Authorization": tokens.pop()}

    with opened("requests", journal, credentials=credentials) as client:
        with pytest.raises(CallOutcomeUnknown) as raised:
            client.post(stripe.url, json={"order": order, "how": "broken"})
        assert type(raised.value.__cause__) is IndexError
        assert [entry.held for entry in client.pending()] == [False]


async def test_a_cancelled_call_stays_pending(
    stripe: StripeLike, order: str, journal: Path
) -> None:
    stripe.busy.clear()
    async with (
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http,
        semel.client.httpx.AsyncHttpxClient(
            http, journal=journal, budget=QUICK, resume_within=timedelta(hours=23)
        ) as client,
    ):
        sale = {"order": order, "how": "slow"}
        task = asyncio.create_task(client.post(stripe.url, json=sale, name=order))
        await auntil(lambda: order in stripe.charges)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [entry.held for entry in await client.pending()] == [False]
        stripe.busy.set()
        (done,) = await client.resume()
    assert done.response is not None
    assert done.response.status_code == 200
    assert stripe.charges.count(order) == 1


async def test_many_calls_at_once_each_have_their_own_key(
    stripe: StripeLike, order: str, journal: Path
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        semel.client.aiohttp.AiohttpClient(session, journal=journal, budget=QUICK) as client,
    ):
        orders = [f"{order}-{number}" for number in range(20)]
        before = len(set(stripe.keys))
        await asyncio.gather(*(client.post(stripe.url, json={"order": each}) for each in orders))
        assert await client.pending() == []
        assert len(client.journal.finished()) == 20
    assert len(set(stripe.keys)) == before + 20
    assert all(stripe.charges.count(each) == 1 for each in orders)


def test_a_journal_of_ones_own_is_left_open(journal: Path) -> None:
    with requests.Session() as session, CallJournal(journal) as shared:
        with semel.client.requests.RequestsClient(
            session, journal=shared, budget=Budget()
        ) as client:
            client.pending()
        connection = shared._open().connection
        assert connection.execute("SELECT 1").fetchone()[0] == 1


def test_a_call_cancelled_while_it_is_written_down_is_free_to_be_resumed(
    journal: Path, stripe: StripeLike
) -> None:
    """The thread that writes goes on without its task."""
    writing, go_on = threading.Event(), threading.Event()

    class Slow(CallJournal):
        def begin(self, call: LogicalCall) -> LogicalCall | JournaledCall:
            writing.set()
            assert go_on.wait(PATIENCE)
            return super().begin(call)

        def release(self, call: LogicalCall) -> None:
            super().release(call)
            free.set()

    async def cancelled() -> None:
        async with aiohttp.ClientSession() as session:
            client = semel.client.aiohttp.AiohttpClient(session, journal=slow, budget=QUICK)
            call = asyncio.create_task(client.post(stripe.url, json={"order": "cancelled"}))
            assert await asyncio.to_thread(writing.wait, PATIENCE)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            go_on.set()
            await asyncio.wait_for(free.wait(), PATIENCE)

    free = asyncio.Event()
    with Slow(journal) as slow:
        asyncio.run(cancelled())
        assert [entry.held for entry in slow.pending()] == [False]
