"""The exchange around a framework's view: after its own authentication, in its own terms.

A framework says how a request is read (`Asked`) and how its responses are taken apart and made
(`Face`). Here is the blocking colour; `views_awaited` has the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from semel.core.admission import Refused, Ticket
from semel.core.answers import Answer
from semel.core.flow import Step, run_on
from semel.core.frozen import frozen
from semel.core.model import Headers, Request, Response
from semel.core.policy import Policy
from semel.core.problems import refuse
from semel.core.runner import (
    Abandoned,
    Drain,
    Drained,
    HandlerOutcome,
    Raised,
    Returned,
    Streaming,
)
from semel.process.current import Run
from semel.web.blocking import BlockingExchange
from semel.web.desk import MARK, Desk, FindTag, Opened, spoken
from semel.web.message import Spool
from semel.web.routing import Place
from semel.web.ruling import ruled_by

if TYPE_CHECKING:
    from semel.guard import Guard

F = TypeVar("F")
"""A framework's response."""
P = TypeVar("P", covariant=True)

STREAMS: Final = (Drain,)
"""A streamed answer is left to the framework, which asks for its pieces when it sends them."""


@frozen
class Asked:
    """A request as a view meets it."""

    request: Request
    """``raw`` is the framework's own request: there ``tenant=`` finds whom it authenticated."""
    place: Place
    marks: MutableMapping[str, Any]
    """The ASGI scope or WSGI environ, where guards leave word for one another."""
    read: Callable[[Policy], Spool | Response]
    """The whole body, which the view must still be able to read; or a refusal."""


@frozen
class Parts(Generic[P]):
    """A framework's response taken apart; ``pieces``: its body, iterated in the view's colour."""

    status: int
    headers: Headers
    pieces: P


class Maker(Protocol[F]):
    """How one framework's responses are made, in either colour."""

    def whole(self, response: Response, made: F | None) -> F:
        """An answer. It may be ``made``, the view's own, where only headers are to be changed."""
        ...

    def close(self, response: F) -> None:
        """The view's own response is not sent, or has been."""
        ...


class Face(Maker[F], Protocol[F]):
    """How one framework's responses are read and made."""

    def apart(self, response: F) -> Parts[Iterable[bytes]]:
        """May raise what making the body raises."""
        ...

    def flowing(self, status: int, headers: Headers, pieces: Stream[F]) -> F:
        """A streamed answer; ``pieces.close`` is to be called when the server is done with it."""
        ...


class Views(Generic[F]):
    """The views of one framework's application, guarded."""

    def __init__(self, guard: Guard, face: Face[F], find_tag: FindTag) -> None:
        self.guard = guard
        self.desk = Desk(guard, None, find_tag)
        self._face = face

    def call(self, asked: Asked, view: Callable[[], F]) -> F:
        """The view's answer, or the one there is instead of it."""
        before = ruled_by.get()
        try:
            return self._call(asked, view)
        finally:
            ruled_by.set(before)

    def _call(self, asked: Asked, view: Callable[[], F]) -> F:
        ticket, label = self.desk.admit(asked.request, asked.place)
        if isinstance(ticket, Refused):
            return self._face.whole(ticket.response, None)
        if ticket is None or self.desk.covers(ticket, asked.marks.get(MARK)):
            return view()
        body = asked.read(ticket.policy)
        if isinstance(body, Response):
            return self._face.whole(self.desk.turned_away(body, ticket, label), None)
        opened = self.desk.open(ticket, asked.place, label, body, asked.marks)
        if isinstance(opened, Answer):
            body.close()
            return self._said(opened, None)
        asked.marks[MARK] = opened.call.identity
        handler = ViewHandler(view, self._face, opened.call.policy, body)
        return self._exchange(ticket, opened, handler)

    def _exchange(self, ticket: Ticket, opened: Opened, handler: ViewHandler[F]) -> F:
        exchange = BlockingExchange(self.guard, ticket, opened.call, handler, opened.started)
        step = Step(opened.flow)
        try:
            reached = run_on(step, exchange.perform, STREAMS)
        except BaseException:
            exchange.end()
            handler.close()
            raise
        if isinstance(reached, Drain):
            stream = Stream(step, exchange, handler, opened)
            return self._face.flowing(handler.status, reached.headers, stream)
        exchange.end()
        made = handler.take()
        handler.close()
        if opened.errand is not None:
            opened.errand.answer = reached
        return self._said(reached, made)

    def _said(self, answer: Answer, made: F | None) -> F:
        return said(self._face, spoken(answer), made)


def said(face: Maker[F], response: Response | None, made: F | None) -> F:
    """The framework's response; the view's own is closed where another is sent."""
    sent = face.whole(refuse("not-executed") if response is None else response, made)
    if made is not None and sent is not made:
        face.close(made)
    return sent


class ViewHandler(Generic[F]):
    """One run of a view for one keyed request."""

    def __init__(
        self, view: Callable[[], F], face: Face[F], policy: Policy, request_body: Spool
    ) -> None:
        self._view = view
        self._face = face
        self._policy = policy
        self._request_body = request_body
        self._begun = Spool()
        self._rest: Iterator[bytes] = iter(())
        self._headers: Headers = ()
        self._behind: BaseException | None = None
        self._error: BaseException | None = None
        self._outcome: HandlerOutcome | None = None
        self._run: Run | None = None
        self.status = 0
        self._made: F | None = None

    def outcome(self, run: Run) -> HandlerOutcome:
        """Call the view; asked again, it is the same run."""
        if self._outcome is None:
            self._run = run
            leave = run.enter()
            try:
                self._outcome = self._call(run)
            except Exception as error:
                self._outcome = self._failed(error, Raised(error))
            except BaseException as error:
                self._outcome = self._failed(error, Abandoned(error))
            finally:
                leave()
        return self._outcome

    def _call(self, run: Run) -> HandlerOutcome:
        self._made = self._view()
        parts = self._face.apart(self._made)
        self.status, self._headers = parts.status, parts.headers
        self._behind = run.error_behind(self.status)
        self._rest = iter(parts.pieces)
        for piece in self._rest:
            self._begun.write(piece)
            if unkeepable(self._policy, self._begun):
                return Streaming(self.status, self._headers, self._behind)
        response = Response(self.status, self._headers, self._begun.whole())
        return Returned(response, self._behind, run.has_raised(self.status))

    def _failed(self, error: BaseException, nothing_begun: HandlerOutcome) -> HandlerOutcome:
        """Begun but not finished: what was begun is the outcome, and it is not whole."""
        if self._run is not None and self._made is not None:
            self._run.course.returned = True
        if not self._begun.size:
            return nothing_begun
        self._error = error
        return Streaming(self.status, self._headers, error)

    def pieces(self) -> Iterator[bytes]:
        """The answer from its start, as it comes; the rest of it is still part of the run."""
        yield from self._begun.pieces()
        if self._error is not None:
            raise self._error
        while True:
            leave = _nothing if self._run is None else self._run.enter()
            try:
                piece = next(self._rest)
            except StopIteration:
                return
            finally:
                leave()
            yield piece

    def drain(self, headers: Headers) -> Drained:
        """Nobody is left to send it to: let the view run out."""
        tally, error = Tally(), None
        try:
            for piece in self.pieces():
                tally.add(piece)
        except Exception as failed:
            error = failed
        return tally.drained(whole=error is None, error=error)

    def take(self) -> F | None:
        """The view's own response, which is now the caller's to send or to close."""
        made, self._made = self._made, None
        return made

    def close(self) -> None:
        """Nothing of the answer is sent any more, and nothing of the request read."""
        self._begun.close()
        self._request_body.close()
        made = self.take()
        if made is not None:
            self._face.close(made)

    discard = close


def _nothing() -> None: ...


def unkeepable(policy: Policy, begun: Spool) -> bool:
    """Whether an answer whose first pieces these are flows past the record."""
    if policy.response == "stream":
        return True
    return begun.size > policy.max_response_body and policy.mode != "atomic"


class Tally:
    """What has flowed past: its size and digest."""

    __slots__ = ("_digest", "_size")

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._size += len(piece)

    def drained(self, *, whole: bool, error: BaseException | None) -> Drained:
        return Drained(self._size, self._digest.digest(), whole, error)


class Stream(Generic[F]):
    """A streamed answer on its way out; when it has ended its record is closed."""

    def __init__(
        self, step: Step, exchange: BlockingExchange, handler: ViewHandler[F], opened: Opened
    ) -> None:
        self._step = step
        self._exchange = exchange
        self._handler = handler
        self._errand = opened.errand
        self._pieces = handler.pieces()
        self._tally = Tally()
        self._over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._over:
            raise StopIteration
        try:
            piece = next(self._pieces)
        except StopIteration:
            self._end(whole=True, error=None)
            raise
        except BaseException as error:
            self._end(whole=False, error=error)
            raise
        self._tally.add(piece)
        return piece

    def close(self) -> None:
        """The server is done with it; before its end when the client has left."""
        if not self._over:
            self._end(whole=False, error=None)

    def _end(self, *, whole: bool, error: BaseException | None) -> None:
        self._over = True
        self._step.reply(self._tally.drained(whole=whole, error=error))
        try:
            answer: Answer = run_on(self._step, self._exchange.perform)
            if self._errand is not None:
                self._errand.answer = answer
        finally:
            self._exchange.end()
            self._handler.close()
