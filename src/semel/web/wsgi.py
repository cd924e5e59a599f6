"""The WSGI adapter: the same exchange, blocking, in the server's own thread."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from semel.core.admission import Call, Refused, Ticket
from semel.core.answers import Answer
from semel.core.contract import Operation, StoreOperation
from semel.core.flow import run
from semel.core.model import Headers, HeaderView, Request, Response
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.problems import refuse
from semel.core.runner import (
    Abandoned,
    Await,
    Discard,
    Drain,
    Drained,
    HandlerOutcome,
    Invoke,
    Pause,
    Pursue,
    Raised,
    Render,
    Returned,
    Streaming,
)
from semel.log import log
from semel.process.current import Run
from semel.process.jitter import pause_before
from semel.process.transact import Transact
from semel.web.desk import MARK, Desk, Performer, report, too_late
from semel.web.errands import find_errand
from semel.web.message import Spool
from semel.web.routing import Place, place
from semel.web.tags import find_flask_tag

if TYPE_CHECKING:
    from semel.guard import Guard

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
WsgiApp: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

R = TypeVar("R")

_PIECE: Final = 64 * 1024
_LONGEST_LENGTH: Final = 20
"""Digits of a Content-Length that are looked at."""


class WsgiMiddleware:
    """Guards a WSGI application."""

    def __init__(self, app: WsgiApp, guard: Guard) -> None:
        self.app = app
        self.guard = guard
        self._desk = Desk(guard, app, find_flask_tag)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in SAFE_METHODS:
            answer = self._status(environ)
            if answer is not None:
                return _send(answer, start_response)
            if "HTTP_IDEMPOTENCY_KEY" not in environ:
                return self.app(environ, start_response)
        where = place(_octets(environ, "SCRIPT_NAME"), _octets(environ, "PATH_INFO"))
        ticket, label = self._desk.admit(_request(environ, where.path), where)
        if isinstance(ticket, Ticket) and not self._desk.covers(ticket, environ.get(MARK)):
            return self._guarded(ticket, where, label, environ, start_response)
        if isinstance(ticket, Refused):
            return _send(ticket.response, start_response)
        return self.app(environ, start_response)

    def _status(self, environ: Environ) -> Response | None:
        """What the status resource says; None where the address is not one of it."""
        if self.guard.status not in environ.get("PATH_INFO", ""):
            return None
        where = place(_octets(environ, "SCRIPT_NAME"), _octets(environ, "PATH_INFO"))
        flow = self._desk.status(_request(environ, where.path), where)
        if flow is None:
            return None
        return run(flow, Transact(self.guard.backend).perform)

    def _guarded(
        self,
        ticket: Ticket,
        where: Place,
        label: str,
        environ: Environ,
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        body = _read_body(ticket.policy, environ)
        if isinstance(body, Response):
            return _send(body, start_response)
        call = self._desk.call(ticket, where, body)
        if isinstance(call, Answer):
            body.close()
            return self._answer(call, start_response)
        errand = find_errand(environ)
        if errand is not None:
            adopted = self._desk.adopt(call, errand)
            if adopted is None:
                body.close()
                return _send(refuse("no-such-operation"), start_response)
            call = adopted
        elif (answer := self._desk.recollect(call)) is not None:
            body.close()
            return self._answer(answer, start_response)
        environ = {
            **environ,
            "wsgi.input": body.reader(),
            "CONTENT_LENGTH": str(body.size),
            MARK: call.identity,
        }
        handler = _Handler(self.app, environ, start_response, call.policy)
        started = None if errand is None else errand.started
        exchange = BlockingExchange(self.guard, ticket, call, handler, started)
        flow = self._desk.serve(call, label) if errand is None else self._desk.resume(call)
        try:
            answer = run(flow, exchange.perform)
            if errand is not None:
                errand.answer = answer
            return _Body(self._answer(answer, start_response), handler.close)
        except BaseException:
            handler.close()
            raise
        finally:
            handler.leave()
            exchange.end()

    def _answer(self, answer: Answer, start_response: StartResponse) -> Iterable[bytes]:
        report(answer)
        error = answer.error
        if error is not None and answer.reraise:
            if answer.response is None or not isinstance(error, Exception):
                raise error
            log.error("semel: a handler raised", exc_info=error)
        return () if answer.response is None else _send(answer.response, start_response)


class BlockingHandler(Protocol):
    """What runs under the lease: a WSGI application, or a function."""

    def outcome(self, run: Run) -> HandlerOutcome: ...
    def drain(self, headers: Headers) -> Drained: ...
    def close(self) -> None: ...


class BlockingExchange(Performer):
    """Performs the operations of one keyed request, blocking."""

    __slots__ = ("_handler", "_store", "_transact")

    def __init__(
        self,
        guard: Guard,
        ticket: Ticket,
        call: Call,
        handler: BlockingHandler,
        started: float | None = None,
    ) -> None:
        super().__init__(guard, ticket, call, started)
        self._handler = handler
        self._store = guard.backend.blocking()
        self._transact: Transact | None = None
        if call.policy.mode == "atomic":
            left = guard.attendant.settled
            self._transact = Transact(guard.backend, left, self._lease.max_run)

    def perform(self, op: Operation[R]) -> R:
        if isinstance(op, StoreOperation):
            self._before(op)
            reply: R = (self._transact or self._store).perform(op)
            if self._transact is None or self._transact.transaction is None:
                self._tell(op, reply)  # within a transaction nothing has changed yet
            return reply
        answer: R = self._attend(op)
        return answer

    def _attend(self, op: Operation[Any]) -> Any:
        match op:
            case Invoke():
                run = self._begin(op)
                if run is None:
                    return too_late()
                if self._transact is not None:
                    run.transaction = self._transact.transaction
                return self._handler.outcome(run)
            case Drain(headers):
                return self._handler.drain(headers)
            case Discard():
                return self._handler.close()
            case Await(identity, fence, patience):
                room = self._guard.max_waiters
                return self._guard.attendant.waiters.wait(identity, fence, patience, room)
            case Pause(attempt=attempt):
                time.sleep(pause_before(attempt))
                return self._held()
            case Pursue(write, claim):
                return self._guard.attendant.pursue(write, claim)
            case Render(response):
                on_replay = self.call.policy.on_replay
                return response if on_replay is None else on_replay(self._request, response)
            case _ if self._transact is not None:
                self._before(op)
                return self._transact.perform(op)
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    def end(self) -> None:
        """The answer is there, or nothing is: nothing stays open or leased."""
        if self._transact is not None:
            self._transact.end()
        self.let_go()


class _Handler:
    """One run of the application for one keyed request."""

    def __init__(
        self, app: WsgiApp, environ: Environ, start_response: StartResponse, policy: Policy
    ) -> None:
        self._app = app
        self._environ = environ
        self._input = environ["wsgi.input"]
        self._start_response = start_response
        self._policy = policy
        self._status_line = ""
        self._headers: Headers = ()
        self._body = Spool()
        self._iterable: Iterable[bytes] = ()
        self._rest: Iterator[bytes] = iter(())
        self._error: BaseException | None = None
        self._behind: BaseException | None = None
        self._outcome: HandlerOutcome | None = None

    @property
    def _status(self) -> int:
        return int(self._status_line[:3]) if self._status_line else 0

    def outcome(self, run: Run) -> HandlerOutcome:
        """Run the handler; asked again, it is the same run."""
        if self._outcome is None:
            self._run = run
            self._leave = run.enter()
            try:
                self._outcome = self._call_app()
            except Exception as error:
                self._outcome = self._failed(error, Raised(error))
            except BaseException as error:
                self._outcome = self._failed(error, Abandoned(error))
        return self._outcome

    def _call_app(self) -> HandlerOutcome:
        self._iterable = self._app(self._environ, self._start)
        self._rest = iter(self._iterable)
        for piece in self._rest:
            self._body.write(piece)
            if self._too_large() or self._policy.response == "stream":
                return Streaming(self._status, self._headers, self._behind)
        if not self._status_line:
            raise RuntimeError("the application returned without an answer")
        response = Response(self._status, self._headers, self._body.whole())
        return Returned(response, self._run.error_behind(self._status) or self._behind)

    def _too_large(self) -> bool:
        policy = self._policy
        return self._body.size > policy.max_response_body and policy.mode != "atomic"

    def _failed(self, error: BaseException, nothing_begun: HandlerOutcome) -> HandlerOutcome:
        """Begun but not finished: what was begun is the outcome, and it is not whole.

        An answer begins with its first byte: before that a server takes the head back (PEP 3333).
        """
        if not self._body.size:
            return nothing_begun
        self._error = error
        return Streaming(self._status, self._headers, error)

    def leave(self) -> None:
        """The thread goes on to other requests, which must not meet this operation."""
        if self._outcome is not None:
            self._leave()

    def _start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        if self._status_line and exc_info is None:
            raise RuntimeError("the application started its answer twice")
        if exc_info and self._body.size:
            raise exc_info[1]  # too late for another head, as PEP 3333 has it
        self._status_line = status
        self._headers = tuple([(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers])
        error = exc_info[1] if exc_info else None
        self._behind = error or self._run.error_behind(self._status)
        return self._body.write

    def drain(self, headers: Headers) -> Drained:
        """Push the started answer, and the rest as it comes, straight to the server."""
        digest, size = hashlib.sha256(), 0
        write = self._start_response(self._status_line, _as_text(headers))
        try:
            for piece in self._flowing():
                digest.update(piece)
                size += len(piece)
                write(piece)
        except BaseException as error:
            self._error = error
        return Drained(size, digest.digest(), self._error is None, self._error)

    def _flowing(self) -> Iterator[bytes]:
        yield from self._body.pieces()
        if self._error is None:
            yield from self._rest

    def close(self) -> None:
        """What the server would do at the end of the answer; frameworks run their clean-up here."""
        self._body.close()
        self._input.close()
        close, self._iterable = getattr(self._iterable, "close", None), ()
        if close is not None:
            close()


class _Body:
    """An answer that runs the application's own clean-up once the server is done with it."""

    def __init__(self, pieces: Iterable[bytes], close: Callable[[], None]) -> None:
        self._pieces = pieces
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


def _octets(environ: Environ, name: str) -> bytes:
    value: str = environ.get(name, "")
    return value.encode("latin-1")


def _request(environ: Environ, path: str) -> Request:
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


def _read_body(policy: Policy, environ: Environ) -> Spool | Response:
    """The whole body, or a refusal: too large, or the client left before its end."""
    length = _content_length(environ)
    if length is not None and length < 0:
        return refuse("malformed-body", detail="The Content-Length is not a number.")
    if length is not None and length > policy.max_request_body:
        return refuse("body-too-large")
    body, stream = Spool(), environ["wsgi.input"]
    while length is None or body.size < length:
        piece = stream.read(_PIECE if length is None else min(_PIECE, length - body.size))
        if not piece:
            break
        body.write(piece)
        if body.size > policy.max_request_body:
            body.close()
            return refuse("body-too-large")
    if length is not None and body.size < length:
        body.close()
        return refuse("malformed-body")
    return body


def _content_length(environ: Environ) -> int | None:
    """How much to read; None means to the end of the stream, where the server promises one."""
    stated: str = environ.get("CONTENT_LENGTH") or ""
    if stated:
        # Cut, because int() raises on thousands of digits; what is left is too large all the same.
        return int(stated[:_LONGEST_LENGTH]) if stated.isdecimal() else -1
    return None if environ.get("wsgi.input_terminated") else 0


def _as_text(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _send(response: Response, start_response: StartResponse) -> Iterable[bytes]:
    headers = _as_text(response.headers)
    if response.body and not any(name.lower() == "content-length" for name, _ in headers):
        headers.append(("Content-Length", str(len(response.body))))
    start_response(_status_line(response.status), headers)
    return (response.body,) if response.body else ()


def _status_line(status: int) -> str:
    from http import HTTPStatus

    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"
