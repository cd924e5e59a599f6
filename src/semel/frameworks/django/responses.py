"""Django's responses taken apart and made."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from semel.core.records import Headers, Response
from semel.web.view_async import AwaitedStream
from semel.web.view_sync import Parts, Stream


class _Making:
    """The same in both colours."""

    def whole(self, response: Response, made: HttpResponseBase | None) -> HttpResponseBase:
        if made is not None and _is(made, response):
            return _with_headers(made, response.headers)
        return _with_headers(HttpResponse(response.body, status=response.status), response.headers)

    def flowing(self, status: int, headers: Headers, pieces: Any) -> HttpResponseBase:
        return _with_headers(StreamingHttpResponse(pieces, status=status), headers)

    def close(self, response: HttpResponseBase) -> None:
        """What it would do itself, but for telling the world that the request is over."""
        theirs: Any = response
        closers: list[Any] = theirs._resource_closers
        while closers:
            closers.pop(0)()


class DjangoFace(_Making):
    """In threads."""

    def apart(self, response: HttpResponseBase) -> Parts[Iterable[bytes]]:
        pieces: Any = response
        return Parts(response.status_code, _headers(response), _pieces(pieces))

    def flowing(
        self, status: int, headers: Headers, pieces: Stream[HttpResponseBase]
    ) -> HttpResponseBase:
        return super().flowing(status, headers, pieces)


class AwaitedDjangoFace(_Making):
    """In event loops."""

    async def apart(self, response: HttpResponseBase) -> Parts[AsyncIterable[bytes]]:
        return Parts(response.status_code, _headers(response), _awaited_pieces(response))

    def flowing(
        self, status: int, headers: Headers, pieces: AwaitedStream[HttpResponseBase]
    ) -> HttpResponseBase:
        return super().flowing(status, headers, pieces)


def _pieces(response: Any) -> Iterable[bytes]:
    return response if response.streaming else (response.content,)


async def _awaited_pieces(response: Any) -> AsyncIterator[bytes]:
    if not response.streaming:
        yield response.content
    elif response.is_async:
        async for piece in response:
            yield piece
    else:
        rest: Any = iter(response)
        while (piece := await sync_to_async(lambda: next(rest, None))()) is not None:
            yield piece


def _headers(response: HttpResponseBase) -> Headers:
    lines = [(name.lower(), value) for name, value in response.items()]
    cookies = (("set-cookie", cookie.OutputString()) for cookie in response.cookies.values())
    return tuple((name.encode("ascii"), _encoded(value)) for name, value in (*lines, *cookies))


def _encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


def _is(made: HttpResponseBase, response: Response) -> bool:
    if made.streaming or made.status_code != response.status:
        return False
    content: bytes = getattr(made, "content", b"")
    return content == response.body


def _with_headers(response: HttpResponseBase, headers: Headers) -> HttpResponseBase:
    """These and no others: Django would add a Content-Type."""
    told: dict[str, str] = {}
    for line, value in headers:
        name, text = line.decode("latin-1").lower(), value.decode("latin-1")
        if name == "set-cookie":
            response.cookies.load(text)
        else:
            told[name] = f"{told[name]}, {text}" if name in told else text
    for name in [name for name, _ in response.items() if name.lower() not in told]:
        del response[name]
    for name, text in told.items():
        response[_shown(name)] = text
    return response


def _shown(name: str) -> str:
    """As Django's own headers are written."""
    return "-".join(part.capitalize() for part in name.split("-"))
