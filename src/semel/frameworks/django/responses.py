"""Django's responses, taken apart and made."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from semel.core.records import Headers, Response
from semel.web.views import AsyncStreamedBody, ResponseParts, StreamedBody


class _DjangoResponseMaker:
    """Makes responses: the same in threads and in event loops."""

    def make(self, response: Response, made: HttpResponseBase | None) -> HttpResponseBase:
        same = made is not None and not made.streaming and made.status_code == response.status
        if made is not None and same and getattr(made, "content", b"") == response.body:
            return _with_headers(made, response.headers)
        return _with_headers(HttpResponse(response.body, status=response.status), response.headers)

    def make_stream(self, status: int, headers: Headers, pieces: Any) -> HttpResponseBase:
        return _with_headers(StreamingHttpResponse(pieces, status=status), headers)

    def close(self, response: HttpResponseBase) -> None:
        """Release what the response holds, without Django's signal that the request is over."""
        theirs: Any = response
        closers: list[Any] = theirs._resource_closers
        while closers:
            closers.pop(0)()


class DjangoResponses(_DjangoResponseMaker):
    """In threads."""

    def take_apart(self, response: Any) -> ResponseParts[Iterable[bytes]]:
        pieces: Iterable[bytes] = response if response.streaming else (response.content,)
        return ResponseParts(response.status_code, _headers(response), pieces)

    def make_stream(
        self, status: int, headers: Headers, pieces: StreamedBody[HttpResponseBase]
    ) -> HttpResponseBase:
        return super().make_stream(status, headers, pieces)


class AsyncDjangoResponses(_DjangoResponseMaker):
    """In event loops."""

    async def take_apart(self, response: HttpResponseBase) -> ResponseParts[AsyncIterable[bytes]]:
        return ResponseParts(response.status_code, _headers(response), _awaited_pieces(response))

    def make_stream(
        self, status: int, headers: Headers, pieces: AsyncStreamedBody[HttpResponseBase]
    ) -> HttpResponseBase:
        return super().make_stream(status, headers, pieces)


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
    both: tuple[tuple[str, str | bytes], ...] = (*lines, *cookies)
    return tuple(
        (name.encode("ascii"), value if isinstance(value, bytes) else value.encode("latin-1"))
        for name, value in both
    )


def _with_headers(response: HttpResponseBase, headers: Headers) -> HttpResponseBase:
    """The response with these headers and no others: Django would add a Content-Type."""
    wanted: dict[str, str] = {}
    for line, value in headers:
        name, text = line.decode("latin-1").lower(), value.decode("latin-1")
        if name == "set-cookie":
            response.cookies.load(text)
        else:
            wanted[name] = f"{wanted[name]}, {text}" if name in wanted else text
    for name in [name for name, _ in response.items() if name.lower() not in wanted]:
        del response[name]
    for name, text in wanted.items():
        response["-".join(part.capitalize() for part in name.split("-"))] = text
    return response
