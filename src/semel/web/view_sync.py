"""The exchange around a framework's view: after its own authentication, in its own terms.

A framework says how a request is read (`Asked`) and how its responses are taken apart and made
(`Face`). Here is the blocking colour; `views_awaited` has the other.
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
from semel.web.policy_in_force import ruled_by
from semel.web.routes import Place

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.runtime.runtime import Runtime

F = TypeVar("F")
"""A framework's response."""
P = TypeVar("P", covariant=True)


@frozen
class Asked:
    """A request as a view meets it."""

    request: Request
    """``raw`` is the framework's own request: there ``tenant=`` finds whom it authenticated."""
    place: Place
    marks: MutableMapping[str, Any]
    """The ASGI scope or WSGI environ, where guards leave word for one another."""
    read: Callable[[Policy], Body | Response]
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
        self.pipeline = Pipeline(guard, None, find_tag)
        self._face = face

    def call(self, asked: Asked, view: Callable[[], F]) -> F:
        """The view's answer, or the one there is instead of it."""
        before = ruled_by.get()
        try:
            return self._call(asked, view)
        finally:
            ruled_by.set(before)

    def _call(self, asked: Asked, view: Callable[[], F]) -> F:
        pipeline, face, runtime = self.pipeline, self._face, self.guard.runtime
        plan = pipeline.plan(runtime, asked.request, asked.place)
        ex = ViewExchange(runtime, plan, asked.request, view, face)
        admitted = pipeline.admit(ex)
        if isinstance(admitted, Response):
            return face.whole(admitted, None)
        if not admitted or pipeline.covers(ex, asked.marks.get(MARK)):
            return view()
        body = asked.read(plan.policy)
        if isinstance(body, Response):
            return face.whole(pipeline.turned_away(body, ex), None)
        answer = pipeline.open(ex, asked.place, body, asked.marks)
        if answer is not None:
            close(body)
            return self._said(answer, None)
        asked.marks[MARK] = ex.identity
        return self._exchange(ex)

    def _exchange(self, ex: ViewExchange[F]) -> F:
        try:
            reached = ex.serve()
        except BaseException:
            ex.end()
            ex.close()
            raise
        if isinstance(reached, Flowing):
            return self._face.flowing(ex.status, reached.headers, Stream(ex, reached))
        ex.end()
        made = ex.take()
        ex.close()
        return self._said(reached, made)

    def _said(self, answer: Answer, made: F | None) -> F:
        return said(self._face, spoken(answer), made)


def said(face: Maker[F], response: Response | None, made: F | None) -> F:
    """The framework's response; the view's own is closed where another is sent."""
    sent = face.whole(refuse("not-executed") if response is None else response, made)
    if made is not None and sent is not made:
        face.close(made)
    return sent


class ViewExchange(BlockingExchange, Generic[F]):
    """One keyed request to a view, and what the view answers."""

    __slots__ = (
        *("_begun", "_error", "_face", "_headers", "_made", "_rest", "_view"),
        "status",
    )

    def __init__(
        self,
        runtime: Runtime,
        plan: RoutePlan,
        request: Request,
        view: Callable[[], F],
        face: Face[F],
    ) -> None:
        super().__init__(runtime, plan, request)
        self._view = view
        self._face = face
        self._begun = SpooledBody()
        self._rest: Iterator[bytes] = iter(())
        self._headers: Headers = ()
        self._error: BaseException | None = None
        self.status = 0
        self._made: F | None = None

    def call(self) -> HandlerOutcome:
        """Call the view, and read its answer."""
        leave = self.run.enter()
        try:
            return self._answered()
        except Exception as error:
            return self._failed(error, Raised(error))
        except BaseException as error:
            return self._failed(error, Abandoned(error))
        finally:
            leave()

    def _answered(self) -> HandlerOutcome:
        self._made = self._view()
        parts = self._face.apart(self._made)
        self.status, self._headers = parts.status, parts.headers
        behind = self.run.error_behind(self.status)
        self._rest = iter(parts.pieces)
        for piece in self._rest:
            self._begun.write(piece)
            if unkeepable(self.policy, self._begun):
                return Streaming(self.status, self._headers, behind)
        response = Response(self.status, self._headers, self._begun.whole())
        return Returned(response, behind, self.run.has_raised(self.status))

    def _failed(self, error: BaseException, nothing_begun: HandlerOutcome) -> HandlerOutcome:
        """Begun but not finished: what was begun is the outcome, and it is not whole."""
        if self._made is not None:
            self.run.returned = True
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
            leave = self.run.enter()
            try:
                piece = next(self._rest)
            except StopIteration:
                return
            finally:
                leave()
            yield piece

    def take(self) -> F | None:
        """The view's own response, which is now the caller's to send or to close."""
        made, self._made = self._made, None
        return made

    def close(self) -> None:
        """Nothing of the answer is sent any more, and nothing of the request read."""
        self._begun.close()
        close(self.body)
        made = self.take()
        if made is not None:
            self._face.close(made)


class Stream(Generic[F]):
    """A streamed answer on its way out; when it has ended its record is closed."""

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
        """The server is done with it; before its end when the client has left."""
        if not self._over:
            self._end(whole=False, error=None)

    def _end(self, *, whole: bool, error: BaseException | None) -> None:
        self._over = True
        try:
            self._ex.end_stream(self._flowing, self._tally.drained(whole=whole, error=error))
        finally:
            self._ex.end()
            self._ex.close()
