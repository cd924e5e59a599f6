"""The exchange around a framework's view, in a thread: Flask's and Django's views.

The claim comes after the framework's own authentication. A framework says how a request is read
(`ViewRequest`) and how its responses are taken apart and made (`ResponseAdapter`). `view_async` is
the same in an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from semel.core.exchange.answers import Answer
from semel.core.exchange.problems import refuse
from semel.core.exchange.settle import Flowing
from semel.core.frozen import frozen
from semel.core.operations.handler import Abandoned, HandlerOutcome, Raised, Returned, Streaming
from semel.core.policy import Policy, RoutePlan
from semel.core.records import Headers, Request, Response
from semel.web.body import Body, SpooledBody, Tally, close, unkeepable
from semel.web.exchange_sync import BlockingExchange
from semel.web.pipeline import MARK, FindTag, Pipeline, spoken
from semel.web.routes import Place
from semel.web.tags import ruled_by

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.runtime.runtime import Runtime

F = TypeVar("F")
"""A framework's response."""
P = TypeVar("P", covariant=True)


@frozen
class ViewRequest:
    """A request at the call of its view."""

    request: Request
    """``raw`` is the framework's own request: there ``tenant=`` finds whom it authenticated."""
    place: Place
    marks: MutableMapping[str, Any]
    """The ASGI scope or WSGI environ. A guard notes there which request it runs."""
    read: Callable[[Policy], Body | Response]
    """The whole body, which the view must still be able to read; or a refusal."""


@frozen
class ResponseParts(Generic[P]):
    """A framework's response taken apart; ``pieces`` is its body, sync or async iterable."""

    status: int
    headers: Headers
    pieces: P


class ResponseMaker(Protocol[F]):
    """Makes responses of one framework: the same in threads and in event loops."""

    def make(self, response: Response, made: F | None) -> F:
        """A response of the framework. It may be ``made``, the view's own, with other headers."""
        ...

    def close(self, response: F) -> None:
        """Release the view's own response: it was sent, or will not be."""
        ...


class ResponseAdapter(ResponseMaker[F], Protocol[F]):
    """Reads and makes responses of one framework."""

    def take_apart(self, response: F) -> ResponseParts[Iterable[bytes]]:
        """The parts of a response. Raises what making the body raises."""
        ...

    def make_stream(self, status: int, headers: Headers, pieces: StreamedBody[F]) -> F:
        """A streamed response. The server must call ``pieces.close`` when it is done."""
        ...


class GuardedViews(Generic[F]):
    """The guarded views of one application."""

    def __init__(self, guard: Guard, responses: ResponseAdapter[F], find_tag: FindTag) -> None:
        self.guard = guard
        self.pipeline = Pipeline(guard, None, find_tag)
        self._responses = responses

    def call(self, given: ViewRequest, view: Callable[[], F]) -> F:
        """The view's response, or the one that is sent instead of it."""
        before = ruled_by.get()
        try:
            return self._call(given, view)
        finally:
            ruled_by.set(before)

    def _call(self, given: ViewRequest, view: Callable[[], F]) -> F:
        pipeline, responses, runtime = self.pipeline, self._responses, self.guard.runtime
        plan = pipeline.plan(runtime, given.request, given.place)
        ex = ViewExchange(runtime, plan, given.request, view, responses)
        admitted = pipeline.admit(ex)
        if isinstance(admitted, Response):
            return responses.make(admitted, None)
        if not admitted or pipeline.covers(ex, given.marks.get(MARK)):
            return view()
        body = given.read(plan.policy)
        if isinstance(body, Response):
            return responses.make(pipeline.turned_away(body, ex), None)
        answer = pipeline.open(ex, given.place, body, given.marks)
        if answer is not None:
            close(body)
            return self._response_of(answer, None)
        given.marks[MARK] = ex.identity
        try:
            reached = ex.serve()
        except BaseException:
            ex.end()
            ex.close()
            raise
        if isinstance(reached, Flowing):
            return self._responses.make_stream(
                ex.status, reached.headers, StreamedBody(ex, reached)
            )
        ex.end()
        made = ex.take()
        ex.close()
        return self._response_of(reached, made)

    def _response_of(self, answer: Answer, made: F | None) -> F:
        """The framework's response for an answer; ``made`` is the view's own."""
        return sent_response(self._responses, spoken(answer), made)


def sent_response(responses: ResponseMaker[F], response: Response | None, made: F | None) -> F:
    """The framework's response. The view's own is closed if another one is sent."""
    sent = responses.make(refuse("not-executed") if response is None else response, made)
    if made is not None and sent is not made:
        responses.close(made)
    return sent


class ViewExchange(BlockingExchange, Generic[F]):
    """One keyed request to a view, and what the view answers."""

    __slots__ = (
        *("_begun", "_error", "_responses", "_headers", "_made", "_rest", "_view"),
        "status",
    )

    def __init__(
        self,
        runtime: Runtime,
        plan: RoutePlan,
        request: Request,
        view: Callable[[], F],
        responses: ResponseAdapter[F],
    ) -> None:
        super().__init__(runtime, plan, request)
        self._view = view
        self._responses = responses
        self._begun = SpooledBody()
        self._rest: Iterator[bytes] = iter(())
        self._headers: Headers = ()
        self._error: BaseException | None = None
        self.status = 0
        self._made: F | None = None

    def call(self) -> HandlerOutcome:
        """Call the view and read its answer, until it is whole or too large to keep."""
        run = self.run
        leave = run.enter()
        try:
            self._made = self._view()
            parts = self._responses.take_apart(self._made)
            self.status, self._headers = parts.status, parts.headers
            behind = run.error_behind(self.status)
            self._rest = iter(parts.pieces)
            for piece in self._rest:
                self._begun.write(piece)
                if unkeepable(self.policy, self._begun):
                    return Streaming(self.status, self._headers, behind)
            response = Response(self.status, self._headers, self._begun.whole())
            return Returned(response, behind, run.has_raised(self.status))
        except BaseException as error:
            if self._made is not None:
                run.returned = True
            if not self._begun.size:
                return Raised(error) if isinstance(error, Exception) else Abandoned(error)
            # Begun but not finished: what was begun is the outcome, and it is not whole.
            self._error = error
            return Streaming(self.status, self._headers, error)
        finally:
            leave()

    def pieces(self) -> Iterator[bytes]:
        """The body from its start. Reading the rest is still part of the run."""
        yield from self._begun.pieces()
        if self._error is not None:
            raise self._error
        while True:
            leave = self.run.enter()
            try:
                piece = next(self._rest)
            except StopIteration:
                return
            finally:
                leave()
            yield piece

    def take(self) -> F | None:
        """Hand over the view's own response: the caller sends or closes it."""
        made, self._made = self._made, None
        return made

    def close(self) -> None:
        """Release the response and the request body: neither is used any more."""
        self._begun.close()
        close(self.body)
        made = self.take()
        if made is not None:
            self._responses.close(made)


class StreamedBody(Generic[F]):
    """The body of a streamed answer. Its record is closed when the body ends."""

    def __init__(self, ex: ViewExchange[F], flowing: Flowing) -> None:
        if ex.account is not None:
            ex.account.status = ex.status
        self._ex = ex
        self._flowing = flowing
        self._pieces = ex.pieces()
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
        """The server is done, maybe before the end, because the client has left."""
        if not self._over:
            self._end(whole=False, error=None)

    def _end(self, *, whole: bool, error: BaseException | None) -> None:
        self._over = True
        try:
            self._ex.end_stream(self._flowing, self._tally.drained(whole=whole, error=error))
        finally:
            self._ex.end()
            self._ex.close()
