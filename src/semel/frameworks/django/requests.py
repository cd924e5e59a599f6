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
from semel.web.views import ViewRequest

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


def view_request(request: Any) -> ViewRequest:
    """A request as semel reads it.

    ``request`` is Django's, or the one of Django REST framework, which knows the user.
    """
    inner: Any = plain(request)
    read, where = _read_head(inner)
    match = getattr(inner, SEEN, None) or inner.resolver_match
    below = inner.path_info if match is None else one_path(inner, match)
    if below != inner.path_info:
        where = place(unquote_to_bytes(where.root), below.encode("utf-8", "surrogatepass"))
    if below.startswith("//"):  # to Django it is another path
        read = replace(read, escaped=where.root + quote(below, errors="surrogatepass"))
    marks = inner.scope if hasattr(inner, "scope") else inner.META
    return ViewRequest(
        replace(read, raw=request, path=where.path), where, marks, RequestBody(inner).read
    )


def _read_head(request: Any) -> tuple[Request, Place]:
    """All but the body, by the ASGI scope or the WSGI environ."""
    if hasattr(request, "scope"):
        from semel.web import asgi

        where, read = asgi.asked(request.scope)
        query: Any = read.query
        if isinstance(query, str):  # Django's own test client sends it so
            read = replace(read, query=query.encode())
        return read, where
    from semel.web.wsgi import request_of

    where = _place(request.META)
    return request_of(request.META, where.path), where


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


class RequestBody:
    """The body of one request."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def read(self, policy: Policy) -> Body | Response:
        """The whole body. The view can still read it from the request."""
        kept = getattr(self._request, _KEPT, None)
        body = self._read(policy.max_request_body) if kept is None else kept
        return body if isinstance(body, Response) else body.small()

    def keep(self, policy: Policy) -> Response | None:
        """Keep the body before a parser uses it up; a refusal if it cannot be kept."""
        body = self._read(policy.max_request_body)
        if isinstance(body, Response):
            return body
        setattr(self._request, _KEPT, body)
        return None

    def _read(self, limit: int) -> SpooledBody | Response:
        request, body = self._request, SpooledBody()
        stated = str(request.META.get("CONTENT_LENGTH") or "")
        chunked = "HTTP_TRANSFER_ENCODING" in request.META and not hasattr(request, "scope")
        if chunked and not stated:  # under WSGI, Django takes it for an empty body
            return refuse("length-required")
        if hasattr(request, "_body"):
            body.write(request._body)
        elif request._read_started:
            log.error(
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
