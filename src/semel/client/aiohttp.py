"""A client for aiohttp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from semel.client.clients import AsyncClient, PreparedRequest, one_shot
from semel.client.model import CallAnswer
from semel.errors import ConfigurationError

try:
    import aiohttp
    from aiohttp.abc import AbstractStreamWriter
    from yarl import URL
except ImportError as missing:
    raise ConfigurationError(
        "semel.client.aiohttp needs aiohttp: pip install 'semel[aiohttp]'"
    ) from missing

__all__ = ["AiohttpClient"]


class AiohttpClient(AsyncClient[aiohttp.ClientSession, aiohttp.ClientResponse]):
    """Calls through your own `aiohttp.ClientSession`; an answer is read whole before you get it."""

    async def _prepare(
        self,
        method: str,
        url: Any,
        *,
        params: Any = None,
        data: Any = None,
        json: Any = None,
        headers: Any = None,
        **options: Any,
    ) -> PreparedRequest:
        if set(options) - {"timeout"}:
            raise TypeError(f"unknown arguments: {', '.join(sorted(options))}")
        whole = self._http._build_url(url)
        if params:
            whole = whole.extend_query(params)
        if json is not None and data is not None:
            raise ConfigurationError("give json= or data=, not both")
        media: str | None
        if json is not None:
            body, media = self._http.json_serialize(json).encode(), "application/json"
        else:
            body, media = await _body(data)
        merged = {str(name): str(text) for name, text in dict(headers or {}).items()}
        if media and "content-type" not in {name.lower() for name in merged}:
            merged["Content-Type"] = media
        return PreparedRequest(method, str(whole), tuple(merged.items()), body, options)

    async def _exchange(self, request: PreparedRequest) -> CallAnswer:
        response = await self._http.request(
            request.method,
            URL(request.url, encoded=True),
            data=request.body or None,
            headers=dict(request.headers),
            allow_redirects=False,
            raise_for_status=False,
            **request.options,
        )
        # Read to its end the connection is free again; released, it could not be read once more.
        read = await response.read()
        lowered = {name.lower(): text for name, text in response.headers.items()}
        return CallAnswer(response.status, lowered, read, response)


async def _body(data: Any) -> tuple[bytes, str | None]:
    """The bytes of a body, and their type."""
    if data is None or isinstance(data, bytes):
        return data or b"", None
    if isinstance(data, str):
        return data.encode(), "text/plain; charset=utf-8"
    if isinstance(data, Mapping | list | tuple):
        data = aiohttp.FormData(cast(Any, data))
    if not isinstance(data, aiohttp.FormData):
        raise one_shot(data)
    payload, collected = data(), _Collected()
    await payload.write(collected)
    return bytes(collected.octets), payload.headers["Content-Type"]


class _Collected(AbstractStreamWriter):
    """Collects the bytes that would be sent."""

    def __init__(self) -> None:
        self.octets = bytearray()

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.octets += chunk

    async def write_eof(self, chunk: bytes = b"") -> None:
        self.octets += chunk

    async def drain(self) -> None:
        """Do nothing: memory is never full."""

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        raise NotImplementedError

    def enable_chunking(self) -> None:
        raise NotImplementedError

    async def write_headers(self, status_line: str, headers: Any) -> None:
        raise NotImplementedError
