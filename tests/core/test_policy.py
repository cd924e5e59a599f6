"""Policies refuse nonsense at start-up, in one sentence that says what to do."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import socket
import threading
import urllib.request
from datetime import timedelta
from typing import Any

import httpx
import pytest

import semel
from semel.core.exchange.settle import is_ambiguous
from semel.core.policy import OPTION_NAMES, Policy, PolicyOptions
from semel.core.recovery.was_sent import says_not_executed

ZERO = timedelta(0)


async def waiting(*_: object) -> bool:
    """Its coroutine would pass for True."""
    return False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retension": timedelta(days=1)}, "did you mean 'retention'"),
        ({"nonsense": 1}, "no option 'nonsense'"),
        ({"lease": 60}, "lease=60 must be a timedelta"),
        ({"lease": ZERO}, "above zero"),
        ({"retention": -timedelta(1)}, "above zero"),
        ({"retention": timedelta.max}, "a century"),
        ({"lease": timedelta.max, "max_run": timedelta.max}, "a century"),
        ({"tombstone": timedelta(days=4_000_000)}, "a century"),
        ({"tombstone": -timedelta(1)}, "tombstone"),
        ({"tombstone": 5}, "tombstone"),
        ({"max_run": timedelta(seconds=1)}, "max_run must not be shorter than lease"),
        ({"in_flight": timedelta(1)}, "in_flight=datetime.timedelta(days=1) is not one of"),
        ({"in_flight": "wait", "wait": ZERO}, "wait="),
        ({"after_lapse": "resume"}, "mode='resumable'"),
        ({"mode": "resumable", "after_lapse": "resume"}, "leave after_lapse= out"),
        ({"key": "guid"}, "key='guid'"),
        ({"key": 7}, "key=7"),
        ({"methods": {"GET"}}, "safe methods"),
        ({"methods": "POST"}, "collection"),
        ({"scope": "planet"}, "scope='planet'"),
        ({"after_error": "ignore"}, "after_error='ignore'"),
        ({"after_lapse": "release"}, "effects="),
        ({"mode": "resumable", "response": "stream"}, "does not go with it"),
        ({"mismatch_status": 500}, "4xx"),
        ({"keep": "all"}, "keep="),
        ({"probe": 5}, "probe="),
        ({"on_replay": 5}, "on_replay="),
        ({"max_request_body": -1}, "max_request_body"),
        ({"max_response_body": "1MB"}, "max_response_body"),
        ({"replay_header": "bad header"}, "replay_header"),
        ({"response": "sse"}, "response='sse'"),
        ({"fingerprint": print}, "fingerprint="),
        ({"keep": waiting}, "keep= must be a plain function"),
        ({"key": waiting}, "key= must be a plain function"),
        ({"session": waiting}, "session= must be a plain function"),
    ],
)
def test_a_wrong_option_is_refused_in_a_readable_sentence(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(semel.ConfigurationError) as refused:
        semel.ietf(**options)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_payments_demands_a_word_about_the_probe() -> None:
    with pytest.raises(semel.ConfigurationError, match="probe="):
        semel.payments()
    assert semel.payments(probe=None).probe is None


def test_every_factory_takes_every_option() -> None:
    assert set(PolicyOptions.__annotations__) == set(OPTION_NAMES)
    assert set(OPTION_NAMES) == set(inspect.signature(Policy).parameters) - {"name"}


def test_policies_are_frozen_and_hashable() -> None:
    policy = semel.ietf()
    with pytest.raises(AttributeError):
        policy.required = True  # type: ignore[misc]
    assert hash(policy) == hash(semel.ietf())
    assert hash(semel.ietf(keep=[200])) == hash(semel.ietf(keep={200}))
    assert semel.FingerprintRule(exclude=["a"]) == semel.FingerprintRule(exclude=("a",))  # type: ignore[arg-type]


def test_the_recipe_changes_with_what_decides_identity_and_meaning() -> None:
    recipes = {
        semel.ietf().recipe(),
        semel.ietf(scope="tenant").recipe(),
        semel.ietf(session=lambda request: None).recipe(),
        semel.ietf(key="uuid").recipe(),
        semel.ietf(fingerprint=semel.FingerprintRule(exclude=("sent_at",))).recipe(),
    }
    assert len(recipes) == 5
    assert semel.ietf(retention=timedelta(days=2)).recipe() == semel.ietf().recipe()


def chained(outer: BaseException, *, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


def in_context(outer: BaseException, *, context: BaseException) -> BaseException:
    outer.__context__ = context
    return outer


@pytest.mark.parametrize(
    ("error", "ambiguous", "not_executed"),
    [
        (None, False, False),
        (ValueError(), False, False),
        (semel.NotExecuted(), False, True),
        (semel.OutcomeUnknown(), True, False),
        (TimeoutError(), True, False),
        (BrokenPipeError(), True, False),
        (ConnectionAbortedError(), True, False),
        (asyncio.IncompleteReadError(b"", 1), True, False),
        (http.client.IncompleteRead(b""), True, False),
        (httpx.ReadError(""), True, False),
        (httpx.ConnectError(""), True, False),  # without a trace: who knows what was tried before
        (GeneratorExit(), True, False),
        (chained(ValueError(), cause=TimeoutError()), True, False),
        (in_context(ValueError(), context=TimeoutError()), True, False),
        (chained(semel.NotExecuted(), cause=TimeoutError()), False, True),
        (chained(semel.OutcomeUnknown(), cause=semel.NotExecuted()), True, False),
        (chained(ValueError(), cause=semel.NotExecuted()), False, True),
        # That one call was refused proves nothing about the calls made before it.
        (ConnectionRefusedError(), False, False),
        (in_context(ValueError(), context=semel.NotExecuted()), False, False),
    ],
)
def test_only_the_handlers_own_word_says_that_nothing_happened(
    error: BaseException | None, ambiguous: bool, not_executed: bool
) -> None:
    assert is_ambiguous(error) is ambiguous
    assert (says_not_executed(error) and not is_ambiguous(error)) is not_executed


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npaid"])
@pytest.mark.parametrize("client", ["httpx", "awaited httpx", "urllib"])
def test_a_provider_that_hangs_up_after_the_request_leaves_a_doubt(
    client: str, said: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/charge"

        def hang_up() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(said)

        provider = threading.Thread(target=hang_up)
        provider.start()
        with pytest.raises(Exception) as raised:
            charge(client, url)
        provider.join()
    assert is_ambiguous(raised.value)


def charge(client: str, url: str) -> None:
    async def awaited() -> None:
        async with httpx.AsyncClient(trust_env=False) as asking:
            await asking.post(url)

    match client:
        case "httpx":
            httpx.post(url, trust_env=False)
        case "urllib":
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            direct.open(url, data=b"").read()
        case _:
            asyncio.run(awaited())


def test_a_circle_of_causes_ends() -> None:
    a, b = ValueError(), ValueError()
    a.__cause__, b.__cause__ = b, a
    assert not is_ambiguous(a)
    assert not says_not_executed(a)
