"""Clients for httpx, and for httpx2, which has the same interface."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from semel.client.clients import AsyncClient, HasHeaders, PreparedRequest, SyncClient, one_shot
from semel.client.model import CallAnswer

__all__ = ["AsyncHttpxClient", "HttpxClient"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_UNSET: Any = object()


class _Sends(HasHeaders, Protocol[R_co]):
    """A client of httpx or httpx2; ``send`` returns a response, or an awaitable of it."""

    def build_request(self, *args: Any, **kwargs: Any) -> Any: ...

    def send(self, *args: Any, **kwargs: Any) -> R_co: ...


class HttpxClient(SyncClient[_Sends[R], R], Generic[R]):
    """Calls through your own `httpx.Client`, with its authentication, proxies and time-outs."""

    def _prepare(self, method: str, url: Any, **arguments: Any) -> PreparedRequest:
        return _prepared(self._http, method, url, **arguments)

    def _exchange(self, request: PreparedRequest) -> CallAnswer:
        return _answer(self._http.send(_built(self._http, request), follow_redirects=False))


class AsyncHttpxClient(AsyncClient[_Sends[Awaitable[R]], R], Generic[R]):
    """Calls through your own `httpx.AsyncClient`, with its authentication, proxies, time-outs."""

    async def _prepare(self, method: str, url: Any, **arguments: Any) -> PreparedRequest:
        return _prepared(self._http, method, url, **arguments)

    async def _exchange(self, request: PreparedRequest) -> CallAnswer:
        return _answer(await self._http.send(_built(self._http, request), follow_redirects=False))


def _prepared(
    http: _Sends[Any],
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


def _built(http: _Sends[Any], given: PreparedRequest) -> Any:
    built = http.build_request(
        given.method,
        given.url,
        content=given.body or None,
        headers=dict(given.headers),
        **given.options,
    )
    built.url = type(built.url)(given.url)  # the client's own parameters are in it already
    return built


def _answer(response: Any) -> CallAnswer:
    headers = {name.lower(): text for name, text in response.headers.items()}
    return CallAnswer(response.status_code, headers, response.content, response)
