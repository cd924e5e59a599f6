"""The WSGI adapter: an exchange that blocks in the server's own thread."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from semel.core import operations as ops
from semel.core.exchange.problems import refuse
from semel.core.exchange.settle import Flowing
from semel.core.flow import run
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.records import Headers, HeaderView, Request, Response
from semel.runtime.transactions import Transact
from semel.web import routes
from semel.web.body import Body, SpooledBody, Tally, close, size_of, unkeepable
from semel.web.body import reader as reader_of
from semel.web.contract import told
from semel.web.exchange import BlockingExchange, outcome_of
from semel.web.pipeline import MARK, Pipeline, demand_application, refuse_awaiting, spoken
from semel.web.shadow import looks
from semel.web.tags import ruled_by

if TYPE_CHECKING:
    from semel.guard import Guard

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
WsgiApp: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

_PIECE: Final = 64 * 1024
_LONGEST_LENGTH: Final = 20
"""The longest Content-Length that is read, in digits."""
_TELL_A_CUT: Final = frozenset(("cheroot", "gevent", "gunicorn", "werkzeug"))
"""Servers that raise when a body without a Content-Length is cut off.

Others, such as Granian, may take what came for the whole body: half a request would be executed.
"""


class WsgiMiddleware:
    """Guards a WSGI application."""

    def __init__(self, app: WsgiApp, guard: Guard) -> None:
        demand_application(app, "wsgi")
        self.app = app
        self.guard = guard
        self._pipeline = Pipeline(guard, app, routes.find_flask_tag)
        refuse_awaiting(guard)
        guard.stand_around(app)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in SAFE_METHODS:
            if self.guard.status in environ.get("PATH_INFO", ""):
                where = place_of(environ)
                flow = self._pipeline.status(request_of(environ, where.path), where)
                if flow is not None:
                    answer = run(flow, Transact(self.guard.backend).perform)
                    return send_body(answer, start_response)
            path = environ.get("PATH_INFO", "")
            if self.guard.contract_at == path and not environ.get("SCRIPT_NAME"):
                return send_body(
                    told(self.guard, self.app, environ["REQUEST_METHOD"]), start_response
                )
            if self.guard.environ_names.isdisjoint(environ):
                return self.app(environ, start_response)
        before = ruled_by.get()
        try:
            return self._serve(environ, start_response)
        finally:
            ruled_by.set(before)

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        where = place_of(environ)
        if where.below.endswith("/") and routes.flask_ignores_slash(self.app, environ):
            where = routes.without_slash(where)
        request = request_of(environ, where.path)
        runtime = self.guard.runtime
        plan = self._pipeline.plan(runtime, request, where)
        ex = WsgiExchange(runtime, plan, request)
        early: Body | None = None
        if plan.policy.key_in_body and request.method in plan.policy.methods:
            read = read_body(plan.policy, environ)
            if isinstance(read, Response):
                refused = self._pipeline.turned_away(read, ex)
                if refused is None:
                    return self.app(environ, start_response)
                return send_body(refused, start_response)
            early = ex.body = read
        admitted = self._pipeline.admit(ex)
        if isinstance(admitted, Response):
            close(early or b"")
            return send_body(admitted, start_response)
        if not admitted or self._pipeline.covers(ex, environ.get(MARK)):
            if early is not None:
                if not admitted and looks(ex):
                    self._pipeline.look(ex, None, early)
                return self._call_with(early, environ, start_response)
            if not admitted and looks(ex):
                body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                environ = {**environ, "wsgi.input": io.BytesIO(body)}
                self._pipeline.look(ex, None, body)
            return self.app(environ, start_response)
        body = read_body(plan.policy, environ) if early is None else early
        if isinstance(body, Response):
            refused = self._pipeline.turned_away(body, ex)
            if refused is None:
                return self.app(environ, start_response)
            return send_body(refused, start_response)
        answer = self._pipeline.open(ex, where, body, environ)
        if answer is not None:
            close(body)
            return send_body(spoken(answer), start_response)
        return ex.respond(self.app, environ, start_response)

    def _call_with(
        self, body: Body, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Call the application as without a guard, with a body that was read to find a key."""
        stream = reader_of(body)
        environ = {**environ, "wsgi.input": stream, "CONTENT_LENGTH": str(size_of(body))}
        answer = self.app(environ, start_response)

        def done() -> None:
            getattr(answer, "close", lambda: None)()
            stream.close()
            close(body)

        return _Body(answer, done)


class WsgiExchange(BlockingExchange):
    """One keyed request to a WSGI application, and what the application answers."""

    __slots__ = (
        *("_app", "_environ", "_start_response"),
        *("_buffered", "_behind", "_by_router", "_error", "_headers", "_iterable"),
        *("_raised", "_reader", "_rest", "_status", "_status_line"),
    )

    def respond(
        self, app: WsgiApp, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Claim, call, settle. The body that is returned cleans up in its ``close``."""
        self._app = app
        self._environ = environ
        self._start_response = start_response
        self._status, self._status_line = 0, ""
        self._headers: Headers = ()
        self._buffered = SpooledBody()
        self._iterable: Iterable[bytes] = ()
        self._rest: Iterator[bytes] = iter(())
        self._error: BaseException | None = None
        self._behind: BaseException | None = None
        self._raised = self._by_router = False
        self._reader: IO[bytes] | None = None
        try:
            reached = self.serve()
            if isinstance(reached, Flowing):
                reached = self.end_stream(reached, self._drain(reached.headers))
            return _Body(send_body(spoken(reached), self._start_response), self.close)
        except BaseException:
            self.close()
            raise
        finally:
            self.end()

    def call(self) -> ops.HandlerOutcome:
        """Call the application with what was read of the request."""
        reader = self._reader = reader_of(self.body)
        own = {"wsgi.input": reader, "CONTENT_LENGTH": str(size_of(self.body)), MARK: self.identity}
        self._environ = {**self._environ, **own}
        leave = self.run.enter()
        try:
            self._iterable = self._app(self._environ, self._start)
            self._rest = iter(self._iterable)
            for piece in self._rest:
                self._buffered.write(piece)
                if unkeepable(self.policy, self._buffered):
                    return ops.Streaming(self._status, self._headers, self._behind)
            if not self._status_line:
                raise RuntimeError("the application returned without an answer")
            response = Response(self._status, self._headers, self._buffered.whole())
            behind = self.run.error_behind(self._status) or self._behind
            raised = self._raised or self.run.has_raised(self._status)
            return ops.Returned(response, behind, raised, self._by_router)
        except BaseException as error:
            # An answer begins with its first byte: before it, a server takes the head back
            # (PEP 3333).
            if not self._buffered.size:
                return outcome_of(error)
            # Begun but not finished: what was begun is the outcome, and it is not whole.
            self._error = error
            return ops.Streaming(self._status, self._headers, error)
        finally:
            leave()  # the thread goes on to other requests, which must not meet this run

    def _start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        """The ``start_response`` that the application calls."""
        if self._status_line and exc_info is None:
            raise RuntimeError("the application started its answer twice")
        if exc_info and self._buffered.size:
            raise exc_info[1]  # too late for another head, as PEP 3333 has it
        self._status_line = status
        try:
            self._headers = tuple([(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers])
        except Exception:
            self.run.returned = True
            raise
        self._status = int(status[:3])
        error = exc_info[1] if exc_info else None
        self._behind = error or self.run.error_behind(self._status)
        self._raised = error is not None or self.run.has_raised(self._status)
        # Now, while Flask's request is at hand.
        own = self._status in routes.ROUTERS_OWN
        self._by_router = own and routes.flask_router_answered(self._environ)
        return self._buffered.write

    def _drain(self, headers: Headers) -> ops.Drained:
        """Push the started answer, and the rest as it comes, straight to the server."""
        if self.account is not None:
            self.account.status = self._status
        tally = Tally()
        write = self._start_response(self._status_line, _as_text(headers))
        leave = self.run.enter()  # reading the rest is still part of the run
        try:
            for piece in chain(self._buffered.pieces(), self._rest if self._error is None else ()):
                tally.add(piece)
                write(piece)
        except BaseException as error:
            self._error = error
        finally:
            leave()
        return tally.drained(whole=self._error is None, error=self._error)

    def close(self) -> None:
        """Release bodies, and close the application's answer: frameworks clean up there."""
        self._buffered.close()
        close(self.body)
        if self._reader is not None:
            self._reader.close()
        clean_up, self._iterable = getattr(self._iterable, "close", None), ()
        if clean_up is not None:
            clean_up()


class _Body:
    """A WSGI body that cleans up when the server closes it."""

    def __init__(self, pieces: Iterable[bytes], close: Callable[[], None]) -> None:
        self._pieces = pieces
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


def _octets(environ: Environ, name: str) -> bytes:
    """A value of the environ as the bytes that the client sent."""
    value: str = environ.get(name, "")
    return value.encode("latin-1")


def place_of(environ: Environ) -> routes.Place:
    return routes.place(_octets(environ, "SCRIPT_NAME"), _octets(environ, "PATH_INFO"))


def request_of(environ: Environ, path: str) -> Request:
    return Request(
        method=environ["REQUEST_METHOD"].upper(),  # frameworks route "post" as "POST"
        path=path,
        query=_octets(environ, "QUERY_STRING"),
        headers=HeaderView(tuple(_headers(environ))),
        raw=environ,
    )


_OWN_NAMES: Final = ("CONTENT_TYPE", "CONTENT_LENGTH")


def _headers(environ: Environ) -> Iterator[tuple[bytes, bytes]]:
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            name = name[5:]
            if name in _OWN_NAMES:
                continue  # "Content_Type" of a client that hopes to be read in its place
        elif name not in _OWN_NAMES:
            continue
        yield name.replace("_", "-").lower().encode("latin-1"), value.encode("latin-1")


def read_body(
    policy: Policy, environ: Environ, begun: SpooledBody | None = None
) -> Body | Response:
    """The whole body, or a refusal: it is too large, or may be cut off.

    ``begun`` is what was read of it already.
    """
    length = content_length(environ)
    if isinstance(length, Response):
        return length
    if length is not None and length > policy.body_limit:
        return refuse("body-too-large")
    body, stream = begun or SpooledBody(), environ["wsgi.input"]
    while length is None or body.size < length:
        piece = stream.read(_PIECE if length is None else min(_PIECE, length - body.size))
        if not piece:
            break
        body.write(piece)
        if body.size > policy.body_limit:
            body.close()
            return refuse("body-too-large")
    if length is not None and body.size < length:
        body.close()
        return refuse("malformed-body")
    return body.small()


def content_length(environ: Environ) -> int | Response | None:
    """How much to read. None: to the end of the stream, on servers that report a cut.

    In HTTP/1 a request has a body only if one of two headers says so (RFC 9112, 6.3); in later
    versions any request may have one.
    """
    stated: str = environ.get("CONTENT_LENGTH") or ""
    if stated.isdecimal():
        # Cut, because int() raises on thousands of digits; what is left is too large all the same.
        return int(stated[:_LONGEST_LENGTH])
    if stated:
        return refuse("malformed-body", detail="The Content-Length is not a number.")
    server = str(environ.get("SERVER_SOFTWARE", "")).partition("/")[0].lower()
    if environ.get("wsgi.input_terminated") and server in _TELL_A_CUT:
        return None
    in_http_1 = str(environ.get("SERVER_PROTOCOL")).startswith("HTTP/1.")
    return 0 if in_http_1 and "HTTP_TRANSFER_ENCODING" not in environ else refuse("length-required")


def _as_text(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def send_body(response: Response | None, start_response: StartResponse) -> Iterable[bytes]:
    """The body of an answer whose head is sent; of no answer, nothing."""
    if response is None:
        return ()
    from http import HTTPStatus

    headers = _as_text(response.headers)
    if response.body and not any(name.lower() == "content-length" for name, _ in headers):
        headers.append(("Content-Length", str(len(response.body))))
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = "Unknown"
    start_response(f"{response.status} {phrase}", headers)
    return (response.body,) if response.body else ()
