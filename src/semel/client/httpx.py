"""Clients for httpx, and for httpx2, which has the same interface."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, Unpack

from semel.client.base import ClientOptions, Headers, JournalLike, PreparedRequest, one_shot
from semel.client.clients import AsyncClient, SyncClient
from semel.client.model import CallAnswer, LogicalCall

__all__ = ["AsyncHttpxClient", "HttpxClient"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_UNSET: Any = object()


class _Builds(Protocol):
    @property
    def headers(self) -> Any: ...
    def build_request(self, *args: Any, **kwargs: Any) -> Any: ...


class _Sends(_Builds, Protocol[R_co]):
    """An `httpx.Client` or an `httpx2.Client`."""

    def send(self, *args: Any, **kwargs: Any) -> R_co: ...


class _AsyncSends(_Builds, Protocol[R_co]):
    """An `httpx.AsyncClient` or an `httpx2.AsyncClient`."""

    def send(self, *args: Any, **kwargs: Any) -> Awaitable[R_co]: ...


class HttpxClient(SyncClient[R]):
    """Calls through your own `httpx.Client`, with its authentication, proxies and time-outs."""

    def __init__(
        self, http: _Sends[R], *, journal: JournalLike, **options: Unpack[ClientOptions]
    ) -> None:
        super().__init__(journal=journal, **options)
        self._http = http

    def _prepare(self, method: str, url: str, **arguments: Any) -> PreparedRequest:
        return _prepared(self._http, method, url, **arguments)

    def _exchange(
        self, call: LogicalCall, method: str, url: str, headers: Headers, body: bytes
    ) -> CallAnswer:
        request = _built(self._http, call, method, url, headers, body)
        return _answer(self._http.send(request, follow_redirects=False))

    def _own_headers(self) -> Iterable[str]:
        return list(self._http.headers)


class AsyncHttpxClient(AsyncClient[R]):
    """Calls through your own `httpx.AsyncClient`, with its authentication, proxies, time-outs."""

    def __init__(
        self, http: _AsyncSends[R], *, journal: JournalLike, **options: Unpack[ClientOptions]
    ) -> None:
        super().__init__(journal=journal, **options)
        self._http = http

    async def _prepare(self, method: str, url: str, **arguments: Any) -> PreparedRequest:
        return _prepared(self._http, method, url, **arguments)

    async def _exchange(
        self, call: LogicalCall, method: str, url: str, headers: Headers, body: bytes
    ) -> CallAnswer:
        request = _built(self._http, call, method, url, headers, body)
        return _answer(await self._http.send(request, follow_redirects=False))

    def _own_headers(self) -> Iterable[str]:
        return list(self._http.headers)


def _prepared(
    http: _Builds,
    method: str,
    url: Any,
    *,
    content: Any = None,
    data: Any = None,
    files: Any = None,
    json: Any = None,
    params: Any = None,
    headers: Any = None,
    timeout: Any = _UNSET,
) -> PreparedRequest:
    if content is not None and not isinstance(content, str | bytes):
        raise one_shot(content)
    if data is not None and not isinstance(data, Mapping):
        raise one_shot(data)
    body: dict[str, Any] = {"content": content, "data": data, "files": files, "json": json}
    request = http.build_request(method, url, params=params, headers=headers, **body)
    read: bytes = request.read()
    # The headers of this call alone, and the type of its body: the client adds its own again.
    names = [str(name) for name in type(request.headers)(headers)]
    if "content-type" in request.headers:
        names.append("content-type")
    given = tuple([(name, request.headers[name]) for name in dict.fromkeys(names)])
    options = {} if timeout is _UNSET else {"timeout": timeout}
    return PreparedRequest(method, str(request.url), given, read, options)


def _built(
    http: _Builds, call: LogicalCall, method: str, url: str, headers: Headers, body: bytes
) -> Any:
    request = http.build_request(method, url, content=body or None, headers=headers, **call.options)
    request.url = type(request.url)(url)  # the client's own parameters are in it already
    return request


def _answer(response: Any) -> CallAnswer:
    headers = {name.lower(): text for name, text in response.headers.items()}
    return CallAnswer(response.status_code, headers, response.content, response)
