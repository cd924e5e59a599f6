"""Django's requests as semel reads them, with bodies that views can still read; its responses,
taken apart and made."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes, urlsplit

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from semel.core.exchange.problems import refuse
from semel.core.frozen import replace
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.records import Headers, Request, Response
from semel.frameworks.django.routes import one_path
from semel.guard import Guard
from semel.log import log
from semel.web import asgi, wsgi
from semel.web.body import Body, SpooledBody
from semel.web.routes import Place, place
from semel.web.views import AsyncStreamedBody, ResponseParts, StreamedBody, ViewRequest

_Pieces: TypeAlias = StreamedBody[HttpResponseBase] | AsyncStreamedBody[HttpResponseBase]

_PIECE: Final = 64 * 1024
SEEN: Final = "_semel_match"
"""On a request: what the URL resolver said of it when its policy was looked for."""
_KEPT: Final = "_semel_body"
"""On a request: its body, kept before anybody could use it up."""
_STREAM: Final = "_semel_stream"
"""On a request: what its body is read from, once it has been read."""


def plain(request: Any) -> HttpRequest:
    """Django's own request, below that of Django REST framework."""
    inner: HttpRequest = getattr(request, "_request", request)
    return inner


def takes_no_part(request: HttpRequest, guard: Guard) -> bool:
    """A safe method without a key: most requests, and nothing to look up for them."""
    return request.method in SAFE_METHODS and guard.environ_names.isdisjoint(request.META)


def view_request(request: Any) -> ViewRequest:
    """A request as semel reads it.

    ``request`` is Django's, or the one of Django REST framework, which knows the user.
    """
    inner: Any = plain(request)
    read, where = read_head(inner)
    match = getattr(inner, SEEN, None) or inner.resolver_match
    below = inner.path_info if match is None else one_path(inner, match)
    if below != inner.path_info:
        where = place(unquote_to_bytes(where.root), below.encode("utf-8", "surrogatepass"))
    if below.startswith("//"):  # to Django it is another path
        read = replace(read, escaped=where.root + quote(below, errors="surrogatepass"))
    marks = inner.scope if hasattr(inner, "scope") else inner.META
    return ViewRequest(
        replace(read, raw=request, path=where.path), where, marks, partial(read_body, inner)
    )


def read_head(request: Any) -> tuple[Request, Place]:
    """All but the body, by the ASGI scope or the WSGI environ."""
    if not hasattr(request, "scope"):
        where = _place(request.META)
        return wsgi.request_of(request.META, where.path), where
    where, read = asgi.asked(request.scope)
    query: Any = read.query
    if isinstance(query, str):  # Django's own test client sends it so
        read = replace(read, query=query.encode())
    return read, where


def _place(environ: dict[str, Any]) -> Place:
    """Where a WSGI request goes.

    Django has decoded the path, and percent-encoded again what was no UTF-8. So a percent sign may
    be the client's or Django's: then the server's own copy of the address is read.
    """
    root: str = environ["SCRIPT_NAME"]
    below: str = environ["PATH_INFO"]
    noted: str | None = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if "%" in root + below and noted:
        path: str = noted.partition("?")[0]
        path = path if path.startswith("/") else urlsplit(path).path
        octets, prefix = unquote_to_bytes(path), root.encode()
        if (octets + b"/").startswith(prefix.rstrip(b"/") + b"/"):
            return place(prefix, octets[len(prefix) :])
    return place(root.encode(), below.encode())


def read_body(request: Any, policy: Policy) -> Body | Response:
    """The whole body. The view can still read it from the request."""
    kept = getattr(request, _KEPT, None)
    body = _spooled(request, policy) if kept is None else kept
    return body if isinstance(body, Response) else body.small()


def keep_body(request: Any, policy: Policy) -> Response | None:
    """Keep the body before a parser uses it up; a refusal if it cannot be kept."""
    body = _spooled(request, policy)
    if isinstance(body, Response):
        return body
    setattr(request, _KEPT, body)
    return None


def _spooled(request: Any, policy: Policy) -> SpooledBody | Response:
    body, limit = SpooledBody(), policy.body_limit
    stated = str(request.META.get("CONTENT_LENGTH") or "")
    chunked = "HTTP_TRANSFER_ENCODING" in request.META and not hasattr(request, "scope")
    if chunked and not stated:  # under WSGI, Django takes it for an empty body
        return refuse("length-required")
    if hasattr(request, "_body"):
        body.write(request._body)
    elif request._read_started:
        level = logging.DEBUG if policy.shadow else logging.ERROR
        log.log(
            level,
            "semel: the body of %s was read before its key could be claimed: put semel."
            "frameworks.django.SemelMiddleware into MIDDLEWARE, above whatever reads bodies",
            request.path,
        )
        return refuse("misconfigured")
    else:
        while body.size <= limit and (piece := request._stream.read(_PIECE)):
            body.write(piece)
        request._stream.close()  # as Django does when it has read one
        request._stream = body.reader()
        setattr(request, _STREAM, request._stream)
    if body.size > limit:
        return refuse("body-too-large")
    cut = stated.isdecimal() and body.size < int(stated[:20])  # the client left
    return refuse("malformed-body") if cut else body


def rewind(request: Any) -> None:
    """Go back to the start of a kept body: comparing it has read it through."""
    inner: Any = plain(request)
    stream = getattr(inner, _STREAM, None)
    if stream is not None and inner._stream is stream and not inner._read_started:
        stream.seek(0)


# ── responses ─────────────────────────────────────────────────────────────────────────────────────


class _DjangoResponseMaker:
    """Makes responses: the same in threads and in event loops."""

    def make(self, response: Response, made: HttpResponseBase | None) -> HttpResponseBase:
        same = made is not None and not made.streaming and made.status_code == response.status
        if made is not None and same and getattr(made, "content", b"") == response.body:
            return _with_headers(made, response.headers)
        return _with_headers(HttpResponse(response.body, status=response.status), response.headers)

    def make_stream(self, status: int, headers: Headers, pieces: _Pieces) -> HttpResponseBase:
        return _with_headers(StreamingHttpResponse(pieces, status=status), headers)

    def close(self, response: HttpResponseBase) -> None:
        """Release what the response holds, without Django's signal that the request is over."""
        theirs: Any = response
        closers: list[Any] = theirs._resource_closers
        while closers:
            closers.pop(0)()


class DjangoResponses(_DjangoResponseMaker):
    """For threads."""

    def take_apart(self, response: Any) -> ResponseParts[Iterable[bytes]]:
        pieces: Iterable[bytes] = response if response.streaming else (response.content,)
        return ResponseParts(response.status_code, _headers(response), pieces)


class AsyncDjangoResponses(_DjangoResponseMaker):
    """For event loops."""

    async def take_apart(self, response: HttpResponseBase) -> ResponseParts[AsyncIterable[bytes]]:
        return ResponseParts(response.status_code, _headers(response), _awaited_pieces(response))


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
