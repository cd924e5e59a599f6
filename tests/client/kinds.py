"""The clients, each by its own library, with one face for the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import aiohttp
import httpx
import httpx2
import requests

import semel.client.aiohttp
import semel.client.httpx
import semel.client.requests
from semel.client import JournaledCall, Resumed
from tests.client.quick import QUICK as QUICK


@dataclass(frozen=True)
class Reply:
    """What the tests look at of a library's response."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    native: Any


class Client(Protocol):
    def post(self, url: str, **arguments: Any) -> Reply: ...
    def resume(self) -> list[Resumed[Any]]: ...
    def pending(self) -> list[JournaledCall]: ...


class Blocking:
    def __init__(self, client: Any) -> None:
        self._client = client

    def post(self, url: str, **arguments: Any) -> Reply:
        native = self._client.post(url, **arguments)
        return Reply(native.status_code, native.headers, native.content, native)

    def resume(self) -> list[Resumed[Any]]:
        done: list[Resumed[Any]] = self._client.resume()
        return done

    def pending(self) -> list[JournaledCall]:
        found: list[JournaledCall] = self._client.pending()
        return found


class Awaiting:
    def __init__(self, client: Any, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._client, self._run = client, run

    def post(self, url: str, **arguments: Any) -> Reply:
        return self._run(self._post(url, arguments))  # type: ignore[no-any-return]

    async def _post(self, url: str, arguments: dict[str, Any]) -> Reply:
        native = await self._client.post(url, **arguments)
        if isinstance(native, aiohttp.ClientResponse):
            return Reply(native.status, native.headers, await native.read(), native)
        return Reply(native.status_code, native.headers, native.content, native)

    def resume(self) -> list[Resumed[Any]]:
        return self._run(self._client.resume())  # type: ignore[no-any-return]

    def pending(self) -> list[JournaledCall]:
        return self._run(self._client.pending())  # type: ignore[no-any-return]


Opened = Iterator[Client]


@contextmanager
def by_httpx(journal: Any, patience: float, library: Any = httpx, **options: Any) -> Opened:
    with (
        library.Client(trust_env=False, timeout=patience) as http,
        semel.client.httpx.HttpxClient(http, journal=journal, **options) as client,
    ):
        yield Blocking(client)


@contextmanager
def by_requests(journal: Any, patience: float, **options: Any) -> Opened:
    class Patient(Blocking):
        def post(self, url: str, **arguments: Any) -> Reply:
            return super().post(url, **{"timeout": patience, **arguments})

    with requests.Session() as session:
        session.trust_env = False
        with semel.client.requests.RequestsClient(session, journal=journal, **options) as client:
            yield Patient(client)


@contextmanager
def by_awaited_httpx(journal: Any, patience: float, **options: Any) -> Opened:
    with asyncio.Runner() as runner:
        http = httpx.AsyncClient(trust_env=False, timeout=patience)
        client = semel.client.httpx.AsyncHttpxClient(http, journal=journal, **options)
        try:
            yield Awaiting(client, runner.run)
        finally:
            runner.run(client.aclose())
            runner.run(http.aclose())


@contextmanager
def by_aiohttp(journal: Any, patience: float, **options: Any) -> Opened:
    async def opened() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience))

    with asyncio.Runner() as runner:
        session = runner.run(opened())
        client = semel.client.aiohttp.AiohttpClient(session, journal=journal, **options)
        try:
            yield Awaiting(client, runner.run)
        finally:
            runner.run(client.aclose())
            runner.run(session.close())


KINDS: dict[str, Callable[..., Any]] = {
    "httpx": by_httpx,
    "httpx2": partial(by_httpx, library=httpx2),
    "requests": by_requests,
    "awaited httpx": by_awaited_httpx,
    "aiohttp": by_aiohttp,
}
