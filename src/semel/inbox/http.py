"""An inbox under ASGI and WSGI servers: bodies of a bounded size in, a small answer out."""

from __future__ import annotations

import http
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from semel.core.records import Response
from semel.inbox.inbox import too_large, wrong_method

if TYPE_CHECKING:
    from semel.inbox.inbox import Inbox

_DIGITS: Final = 20
"""Of a Content-Length that are looked at."""


async def serve_asgi(inbox: Inbox, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise RuntimeError(f"an inbox takes HTTP requests, not {scope['type']}")
    if scope["method"] != "POST":
        answer = wrong_method()
    else:
        body = await _read_asgi(inbox.max_body, receive)
        if body is None:
            return  # the provider hung up, and will send it again
        answer = await inbox.areceive(scope["headers"], body)
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _read_asgi(limit: int, receive: Any) -> bytes | None:
    """The body, one byte more than allowed where it is longer, or None."""
    body = b""
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body[: limit + 1]


def serve_wsgi(inbox: Inbox, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    answer = _answer_wsgi(inbox, environ)
    phrase = http.HTTPStatus(answer.status).phrase
    headers = [(name.decode(), text.decode()) for name, text in answer.headers]
    headers.append(("content-length", str(len(answer.body))))
    start_response(f"{answer.status} {phrase}", headers)
    return [answer.body]


def _answer_wsgi(inbox: Inbox, environ: dict[str, Any]) -> Response:
    if environ["REQUEST_METHOD"] != "POST":
        return wrong_method()
    body = _read_wsgi(inbox.max_body, environ)
    if body is None:
        return too_large()
    headers = {
        name.removeprefix("HTTP_").replace("_", "-"): text
        for name, text in environ.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    }
    return inbox.receive(headers, body)


def _read_wsgi(limit: int, environ: dict[str, Any]) -> bytes | None:
    said = environ.get("CONTENT_LENGTH") or ""
    stream = environ["wsgi.input"]
    if said.isascii() and said.isdecimal() and len(said) <= _DIGITS:
        return stream.read(int(said)) if int(said) <= limit else None
    if not environ.get("wsgi.input_terminated"):
        return b""  # no length, and a stream that may never end
    body: bytes = stream.read(limit + 1)
    return body
