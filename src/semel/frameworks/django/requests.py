"""Django's requests as semel reads them, with bodies that views can still read."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from django.http import HttpRequest

from semel.core.exchange.problems import refuse
from semel.core.frozen import replace
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.records import Request, Response
from semel.frameworks.django.routes import one_path
from semel.log import log
from semel.web.body import Body, SpooledBody
from semel.web.routes import Place, place
from semel.web.view_sync import Asked

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


def takes_no_part(request: HttpRequest) -> bool:
    """A safe method without a key: most requests, and nothing to look up for them."""
    return request.method in SAFE_METHODS and "HTTP_IDEMPOTENCY_KEY" not in request.META


def asked(request: Any) -> Asked:
    """``request``: Django's, or the one of Django REST framework with whom that authenticated."""
    inner: Any = plain(request)
    told, where = _told(inner)
    match = getattr(inner, SEEN, None) or inner.resolver_match
    below = inner.path_info if match is None else one_path(inner, match)
    if below != inner.path_info:
        where = place(unquote_to_bytes(where.root), below.encode("utf-8", "surrogatepass"))
    if below.startswith("//"):  # to Django it is another path
        told = replace(told, escaped=where.root + quote(below, errors="surrogatepass"))
    marks = inner.scope if hasattr(inner, "scope") else inner.META
    return Asked(replace(told, raw=request, path=where.path), where, marks, RequestBody(inner).read)


def _told(request: Any) -> tuple[Request, Place]:
    if hasattr(request, "scope"):
        from semel.web import asgi

        where, told = asgi.asked(request.scope)
        query: Any = told.query
        if isinstance(query, str):  # Django's own test client sends it so
            told = replace(told, query=query.encode())
        return told, where
    from semel.web.wsgi import request_of

    where = _place(request.META)
    return request_of(request.META, where.path), where


def _place(environ: dict[str, Any]) -> Place:
    """Django has decoded the path already, and what was no UTF-8 it has percent-encoded again.

    So a percent sign may be one that was sent or one that Django made: there the server's own note
    of the address tells.
    """
    root: str = environ["SCRIPT_NAME"]
    below: str = environ["PATH_INFO"]
    noted = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if "%" in root + below and noted:
        octets, prefix = unquote_to_bytes(_path_of(noted)), root.encode()
        if (octets + b"/").startswith(prefix.rstrip(b"/") + b"/"):
            return place(prefix, octets[len(prefix) :])
    return place(root.encode(), below.encode())


def _path_of(address: str) -> str:
    path = address.partition("?")[0]
    return path if path.startswith("/") else urlsplit(path).path


class RequestBody:
    """The body of one request."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def read(self, policy: Policy) -> Body | Response:
        """The whole of it; the request is left as if nobody had read of it."""
        kept = getattr(self._request, _KEPT, None)
        body = self._read(policy.max_request_body) if kept is None else kept
        return body if isinstance(body, Response) else body.small()

    def keep(self, policy: Policy) -> Response | None:
        """Before anybody can use it up, as parsers do; a refusal where it is too large."""
        body = self._read(policy.max_request_body)
        if isinstance(body, Response):
            return body
        setattr(self._request, _KEPT, body)
        return None

    def _read(self, limit: int) -> SpooledBody | Response:
        request, body = self._request, SpooledBody()
        if self._is_chunked():
            return refuse("length-required")
        if hasattr(request, "_body"):
            body.write(request._body)
        elif request._read_started:
            log.error(
                "semel: the body of %s was read before its key could be claimed: put "
                "semel.frameworks.django.Middleware into MIDDLEWARE, above whatever reads bodies",
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
        return refuse("malformed-body") if self._is_short(body) else body

    def _is_chunked(self) -> bool:
        """Under WSGI, Django takes a body without a Content-Length for an empty one."""
        environ = self._request.META
        if hasattr(self._request, "scope") or environ.get("CONTENT_LENGTH"):
            return False
        return "HTTP_TRANSFER_ENCODING" in environ

    def _is_short(self, body: SpooledBody) -> bool:
        """The client left before its end."""
        stated = str(self._request.META.get("CONTENT_LENGTH") or "")
        return stated.isdecimal() and body.size < int(stated[:20])


def rewind(request: Any) -> None:
    """To the start of a body that was kept: comparing it has read it through."""
    inner: Any = plain(request)
    stream = getattr(inner, _STREAM, None)
    if stream is not None and inner._stream is stream and not inner._read_started:
        stream.seek(0)
