"""The exchange around a framework's view, in a thread or in an event loop: Flask and Django.

The claim comes after the framework's own authentication. A framework says how a request is read
(`ViewRequest`) and how its responses are taken apart and made (`ResponseAdapter`).

In an event loop the view runs in a task of its own, so that a client that hangs up, or a server
that cancels, ends neither the view nor the write that settles its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
)
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from semel.core import operations as ops
from semel.core.exchange.answers import Answer
from semel.core.exchange.problems import refuse
from semel.core.exchange.settle import Flowing, end_stream
from semel.core.frozen import frozen
from semel.core.policy import Policy, RoutePlan
from semel.core.records import Headers, Request, Response
from semel.log import log
from semel.web.body import Body, SpooledBody, Tally, close, unkeepable
from semel.web.exchange import BlockingExchange, WebExchange, outcome_of
from semel.web.exchange_async import AsyncExchange
from semel.web.pipeline import MARK, FindTag, Pipeline, spoken
from semel.web.routes import Place
from semel.web.shadow import looks
from semel.web.tags import ruled_by

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.runtime.runtime import Runtime

F = TypeVar("F")
"""A framework's response."""
V = TypeVar("V")
"""What a view returns: the response, or an awaitable of it."""
B = TypeVar("B", covariant=True)
P = TypeVar("P", covariant=True)
E = TypeVar("E", bound="_ViewExchange[Any, Any, Any]")


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
class ResponseParts(Generic[B]):
    """A framework's response taken apart; ``pieces`` is its body, sync or async iterable."""

    status: int
    headers: Headers
    pieces: B


Parts: TypeAlias = ResponseParts[Iterable[bytes]]
AsyncParts: TypeAlias = Awaitable[ResponseParts[AsyncIterable[bytes]]]


class ResponseAdapter(Protocol[F, P]):
    """Reads and makes responses of one framework; P is `Parts`, or `AsyncParts` in event loops."""

    def take_apart(self, response: F) -> P:
        """The parts of a response. Raises what making the body raises."""
        ...

    def make(self, response: Response, made: F | None) -> F:
        """A response of the framework. It may be ``made``, the view's own, with other headers."""
        ...

    def make_stream(self, status: int, headers: Headers, pieces: Any) -> F:
        """A streamed response of a `StreamedBody` or `AsyncStreamedBody`.

        The server must call its ``close`` or ``aclose`` when it is done.
        """
        ...

    def close(self, response: F) -> None:
        """Release the view's own response: it was sent, or will not be."""
        ...


class _Views(Generic[F, P]):
    """The guarded views of one application, in either colour."""

    def __init__(self, guard: Guard, responses: ResponseAdapter[F, P], find_tag: FindTag) -> None:
        self.guard = guard
        self.pipeline = Pipeline(guard, None, find_tag)
        self._responses = responses

    def _read_early(self, given: ViewRequest, ex: WebExchange) -> Response | bool | None:
        """Read a body that the key may be in; a refusal where that cannot be done.

        False: it is watched, and passes.
        """
        if not ex.policy.key_in_body or ex.request.method not in ex.policy.methods:
            return None
        body = given.read(ex.policy)
        if isinstance(body, Response):
            return self.pipeline.turned_away(body, ex) or False
        ex.body = body
        return None

    def _body(
        self, given: ViewRequest, ex: WebExchange, admitted: Response | bool
    ) -> Body | Response | None:
        """The body of a request that takes part, or a refusal; None if it takes no part."""
        early: Body | None = getattr(ex, "body", None)
        if isinstance(admitted, Response):
            close(early or b"")
            return admitted
        if not admitted or self.pipeline.covers(ex, given.marks.get(MARK)):
            if not admitted and looks(ex):
                self.pipeline.look(ex, None, given.read(ex.policy) if early is None else early)
            return None
        body = given.read(ex.policy) if early is None else early
        return self.pipeline.turned_away(body, ex) if isinstance(body, Response) else body

    def _spoken(self, answer: Answer) -> Response | None:
        """What is sent. Flask overrides it: it raises what nobody handled."""
        return spoken(answer)

    def _response_of(self, ex: _ViewExchange[F, Any, P], answer: Answer) -> F:
        """The framework's response for an answer. The view's own is sent or closed."""
        try:
            response = self._spoken(answer) or refuse("not-executed")
            made, ex.made = ex.made, None
        finally:
            ex.close()
        sent = self._responses.make(response, made)
        if made is not None and sent is not made:
            self._responses.close(made)
        return sent


class _ViewExchange(WebExchange, Generic[F, V, P]):
    """One keyed request to a view, and what has come of the view's answer."""

    def __init__(
        self,
        runtime: Runtime,
        plan: RoutePlan,
        request: Request,
        view: Callable[[], V],
        responses: ResponseAdapter[F, P],
    ) -> None:
        super().__init__(runtime, plan, request)
        self._view = view
        self._responses = responses
        self._buffered = SpooledBody()
        self._headers: Headers = ()
        self._error: BaseException | None = None
        self.status = 0
        self.made: F | None = None
        """The view's own response, until it is handed over to be sent."""

    def _whole(self, behind: BaseException | None) -> ops.HandlerOutcome:
        response = Response(self.status, self._headers, self._buffered.whole())
        return ops.Returned(response, behind, self.run.has_raised(self.status))

    def _failed(self, error: BaseException) -> ops.HandlerOutcome:
        """The outcome where the view, or making its body, has raised."""
        self._error = error
        if self.made is not None:
            self.run.returned = True
        if not self._buffered.size:
            return outcome_of(error)
        # Begun but not finished: what was begun is the outcome, and it is not whole.
        return ops.Streaming(self.status, self._headers, error)

    def close(self) -> None:
        """Release the response and the request body: neither is used any more."""
        self._buffered.close()
        close(self.body)
        made, self.made = self.made, None
        if made is not None:
            self._responses.close(made)


class _StreamedBody(Generic[E]):
    """The body of a streamed answer. Its record is closed when the body ends."""

    def __init__(self, ex: E, flowing: Flowing) -> None:
        if ex.account is not None:
            ex.account.status = ex.status
        self._ex = ex
        self._flowing = flowing
        self._tally = Tally()
        self._over = False


# ── in a thread ───────────────────────────────────────────────────────────────────────────────────


class GuardedViews(_Views[F, Parts]):
    """The guarded views of one application."""

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
        early = self._read_early(given, ex)
        body = self._body(given, ex, pipeline.admit(ex) if early is None else early)
        if body is None:
            return view()
        if isinstance(body, Response):
            return responses.make(body, None)
        answer = pipeline.open(ex, given.place, body, given.marks)
        if answer is not None:
            return self._response_of(ex, answer)
        given.marks[MARK] = ex.identity
        try:
            reached = ex.serve()
        except BaseException:
            ex.end()
            ex.close()
            raise
        if isinstance(reached, Flowing):
            return responses.make_stream(ex.status, reached.headers, StreamedBody(ex, reached))
        ex.end()
        return self._response_of(ex, reached)


class ViewExchange(_ViewExchange[F, F, Parts], BlockingExchange):
    """One keyed request to a view in a thread."""

    _rest: Iterator[bytes] = iter(())

    def call(self) -> ops.HandlerOutcome:
        """Call the view and read its answer, until it is whole or too large to keep."""
        leave = self.run.enter()
        try:
            self.made = self._view()
            parts = self._responses.take_apart(self.made)
            self.status, self._headers = parts.status, parts.headers
            behind = self.run.error_behind(self.status)
            self._rest = iter(parts.pieces)
            for piece in self._rest:
                self._buffered.write(piece)
                if unkeepable(self.policy, self._buffered):
                    return ops.Streaming(self.status, self._headers, behind)
            return self._whole(behind)
        except BaseException as error:
            return self._failed(error)
        finally:
            leave()

    def pieces(self) -> Iterator[bytes]:
        """The body from its start. Reading the rest is still part of the run."""
        yield from self._buffered.pieces()
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


class StreamedBody(_StreamedBody[ViewExchange[F]]):
    """Read by a server in a thread."""

    def __init__(self, ex: ViewExchange[F], flowing: Flowing) -> None:
        super().__init__(ex, flowing)
        self._pieces = ex.pieces()

    def __iter__(self) -> Iterator[bytes]:
        return self

    # Twin of AsyncStreamedBody.__anext__, by tools.twins
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

    # Twin of AsyncStreamedBody.aclose, by tools.twins
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


# ── in an event loop ──────────────────────────────────────────────────────────────────────────────


class AsyncGuardedViews(_Views[F, AsyncParts]):
    """The guarded views of one application."""

    async def admit(self, ex: WebExchange) -> Response | bool:
        """Whether a request takes part. Django overrides it: it asks for the user in a thread."""
        pipeline = self.pipeline
        asks = pipeline.awaits and ex.may_have_key()
        tenant = await pipeline.ask(ex.request) if asks else None
        return pipeline.admit(ex, tenant)

    async def call(self, given: ViewRequest, view: Callable[[], Awaitable[F]]) -> F:
        """The view's response, or the one that is sent instead of it."""
        before = ruled_by.get()
        try:
            return await self._call(given, view)
        finally:
            ruled_by.set(before)

    async def _call(self, given: ViewRequest, view: Callable[[], Awaitable[F]]) -> F:
        pipeline, responses, runtime = self.pipeline, self._responses, self.guard.runtime
        plan = pipeline.plan(runtime, given.request, given.place)
        ex = AsyncViewExchange(runtime, plan, given.request, view, responses)
        early = self._read_early(given, ex)
        if early is None and not isinstance(getattr(ex, "body", b""), bytes):
            await asyncio.to_thread(ex.find_key)  # a large body takes long to read
        body = self._body(given, ex, await self.admit(ex) if early is None else early)
        if body is None:
            return await view()
        if isinstance(body, Response):
            return responses.make(body, None)
        opening = (ex, given.place, body, given.marks)
        if isinstance(body, bytes):
            answer = pipeline.open(*opening)
        else:  # a large body takes long to fingerprint
            answer = await asyncio.to_thread(pipeline.open, *opening)
        if answer is not None:
            return self._response_of(ex, answer)
        given.marks[MARK] = ex.identity
        reached = await ex.serve()
        if isinstance(reached, Flowing):
            return responses.make_stream(ex.status, reached.headers, AsyncStreamedBody(ex, reached))
        return self._response_of(ex, reached)


class AsyncViewExchange(_ViewExchange[F, Awaitable[F], AsyncParts], AsyncExchange):
    """One keyed request to a view in an event loop."""

    _rest: AsyncIterator[bytes] | None = None

    def left(self, task: asyncio.Task[Answer | Flowing]) -> None:
        """The client has left before the answer was there."""
        if task.cancelled() or task.exception() is not None:
            return
        reached = task.result()
        if isinstance(reached, Flowing):
            self.spawn(AsyncStreamedBody(self, reached).run_out())
            return
        self.close()
        if isinstance(self._error, Exception):
            log.error("semel: a handler failed after its client had left", exc_info=self._error)

    async def call(self) -> ops.HandlerOutcome:
        """Call the view and read its answer, until it is whole or too large to keep."""
        self.run.occupy()
        try:
            self.made = await self._view()
            parts = await self._responses.take_apart(self.made)
            self.status, self._headers = parts.status, parts.headers
            behind = self.run.error_behind(self.status)
            self._rest = aiter(parts.pieces)
            async for piece in self._rest:
                self._buffered.write(piece)
                if unkeepable(self.policy, self._buffered):
                    return ops.Streaming(self.status, self._headers, behind)
            return self._whole(behind)
        except BaseException as error:
            return self._failed(error)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body from its start. Reading the rest is still part of the run."""
        for piece in self._buffered.pieces():
            yield piece
        if self._error is not None:
            raise self._error
        while self._rest is not None:
            leave = self.run.enter()
            try:
                piece = await anext(self._rest)
            except StopAsyncIteration:
                return
            finally:
                leave()
            yield piece


class AsyncStreamedBody(_StreamedBody[AsyncViewExchange[F]]):
    """Read by a server in an event loop."""

    def __init__(self, ex: AsyncViewExchange[F], flowing: Flowing) -> None:
        super().__init__(ex, flowing)
        self._pieces = ex.pieces()
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        try:
            piece = await anext(self._pieces)
        except StopAsyncIteration:
            await self._end(whole=True, error=None)
            raise
        except BaseException as error:
            await self._end(whole=False, error=error)
            raise
        self._tally.add(piece)
        return piece

    async def run_out(self) -> None:
        """Let the view run to its end: nobody is left to send the body to."""
        with suppress(Exception):
            async for _ in self:
                pass

    async def aclose(self) -> None:
        """The server is done, maybe before the end, because the client has left."""
        if not self._over:
            await self._end(whole=False, error=None)

    def close(self) -> None:
        """`aclose` from any thread, without waiting for it."""

        def break_off() -> None:
            if not self._over:
                self._end(whole=False, error=None)

        if not self._over:
            with suppress(RuntimeError):  # a loop that is closed: the open receipt lapses
                self._loop.call_soon_threadsafe(break_off)

    def __del__(self) -> None:
        if not self._over:
            self._ex.let_go()  # dropped by its server: the open receipt lapses

    def _end(self, *, whole: bool, error: BaseException | None) -> asyncio.Future[None]:
        """End in a task of its own: the caller may be cancelled already."""
        self._over = True
        drained, ex = self._tally.drained(whole=whole, error=error), self._ex

        async def conclude() -> None:
            try:
                ex.tell(await ex.drive(end_stream(ex, self._flowing, drained, ex.run)))
            finally:
                await ex.end()
                ex.close()

        return asyncio.shield(ex.spawn(conclude()))
