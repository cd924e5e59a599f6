"""The exchange around a framework's view, in an event loop: see `view_sync`.

The view runs in a task of its own, so that a client that hangs up, or a server that cancels, ends
neither the view nor the write that settles its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from semel.core.exchange.answers import Answer
from semel.core.exchange.settle import Flowing
from semel.core.operations.handler import (
    Abandoned,
    Drained,
    HandlerOutcome,
    Raised,
    Returned,
    Streaming,
)
from semel.core.policy import RoutePlan
from semel.core.records import Headers, Request, Response
from semel.log import log
from semel.web.body import SpooledBody, Tally, close, unkeepable
from semel.web.exchange import WebExchange, too_late
from semel.web.exchange_async import AsyncExchange
from semel.web.pipeline import MARK, FindTag, Pipeline, spoken
from semel.web.tags import ruled_by
from semel.web.view_sync import ResponseMaker, ResponseParts, ViewRequest, sent_response

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.runtime.runtime import Runtime

F = TypeVar("F")


class AsyncResponseAdapter(ResponseMaker[F], Protocol[F]):
    """Reads and makes responses of one framework, in an event loop."""

    async def take_apart(self, response: F) -> ResponseParts[AsyncIterable[bytes]]:
        """The parts of a response. Raises what making the body raises."""
        ...

    def make_stream(self, status: int, headers: Headers, pieces: AsyncStreamedBody[F]) -> F:
        """A streamed response. The server must call ``pieces.aclose`` when it is done."""
        ...


class AsyncGuardedViews(Generic[F]):
    """The guarded views of one application."""

    def __init__(self, guard: Guard, responses: AsyncResponseAdapter[F], find_tag: FindTag) -> None:
        self.guard = guard
        self.pipeline = Pipeline(guard, None, find_tag)
        self._responses = responses

    async def admit(self, ex: WebExchange) -> Response | bool:
        """Whether a request takes part. Django overrides it: it asks for the user in a thread."""
        pipeline = self.pipeline
        keyed = "idempotency-key" in ex.request.headers
        tenant = await pipeline.ask(ex.request) if pipeline.awaits and keyed else None
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
        admitted = await self.admit(ex)
        if isinstance(admitted, Response):
            return responses.make(admitted, None)
        if not admitted or pipeline.covers(ex, given.marks.get(MARK)):
            return await view()
        body = given.read(plan.policy)
        if isinstance(body, Response):
            return responses.make(pipeline.turned_away(body, ex), None)
        opening = (ex, given.place, body, given.marks)
        if isinstance(body, bytes):
            answer = pipeline.open(*opening)
        else:  # a large body takes long to fingerprint
            answer = await asyncio.to_thread(pipeline.open, *opening)
        if answer is not None:
            close(body)
            return self._response_of(answer, None)
        given.marks[MARK] = ex.identity
        reached = await ex.serve()
        if isinstance(reached, Flowing):
            return self._responses.make_stream(
                ex.status, reached.headers, AsyncStreamedBody(ex, reached)
            )
        made = ex.take()
        ex.close()
        return self._response_of(reached, made)

    def _response_of(self, answer: Answer, made: F | None) -> F:
        """The framework's response for an answer; ``made`` is the view's own."""
        return sent_response(self._responses, spoken(answer), made)


class AsyncViewExchange(AsyncExchange, Generic[F]):
    """One keyed request to a view in an event loop, and what the view answers."""

    __slots__ = (
        *("_begun", "_error", "_responses", "_headers", "_made", "_rest", "_view"),
        "status",
    )

    def __init__(
        self,
        runtime: Runtime,
        plan: RoutePlan,
        request: Request,
        view: Callable[[], Awaitable[F]],
        responses: AsyncResponseAdapter[F],
    ) -> None:
        super().__init__(runtime, plan, request)
        self._view = view
        self._responses = responses
        self._begun = SpooledBody()
        self._rest: AsyncIterator[bytes] | None = None
        self._headers: Headers = ()
        self._error: BaseException | None = None
        self.status = 0
        self._made: F | None = None

    async def serve(self) -> Answer | Flowing:
        """Both halves. The view and the write that settles its record are one task."""
        entry = await self.claim()
        if isinstance(entry, Answer):
            self.tell(entry)
            return entry
        in_time = self.began(entry)
        task = self.spawn(self._run(in_time))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._left)
            raise

    def _left(self, task: asyncio.Task[Answer | Flowing]) -> None:
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

    async def _run(self, in_time: bool) -> Answer | Flowing:
        outcome = await self._outcome() if in_time else too_late()
        flowing = False
        try:
            reached = await self.drive(self.settling(outcome))
            if isinstance(reached, Answer):
                self.tell(reached)
            flowing = isinstance(reached, Flowing)
            return reached
        finally:
            if not flowing:
                await self.end()

    async def _outcome(self) -> HandlerOutcome:
        """Call the view and read its answer, until it is whole or too large to keep."""
        run = self.run
        run.occupy()
        try:
            self._made = await self._view()
            parts = await self._responses.take_apart(self._made)
            self.status, self._headers = parts.status, parts.headers
            behind = run.error_behind(self.status)
            self._rest = aiter(parts.pieces)
            async for piece in self._rest:
                self._begun.write(piece)
                if unkeepable(self.policy, self._begun):
                    return Streaming(self.status, self._headers, behind)
            response = Response(self.status, self._headers, self._begun.whole())
            return Returned(response, behind, run.has_raised(self.status))
        except BaseException as error:
            self._error = error
            if self._made is not None:
                run.returned = True
            if not self._begun.size:
                return Raised(error) if isinstance(error, Exception) else Abandoned(error)
            # Begun but not finished: what was begun is the outcome, and it is not whole.
            return Streaming(self.status, self._headers, error)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body from its start. Reading the rest is still part of the run."""
        for piece in self._begun.pieces():
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


class AsyncStreamedBody(Generic[F]):
    """The body of a streamed answer. Its record is closed when the body ends."""

    def __init__(self, ex: AsyncViewExchange[F], flowing: Flowing) -> None:
        if ex.account is not None:
            ex.account.status = ex.status
        self._ex = ex
        self._flowing = flowing
        self._pieces = ex.pieces()
        self._tally = Tally()
        self._over = False
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
                self._start_end(whole=False, error=None)

        if not self._over:
            with suppress(RuntimeError):  # a loop that is closed: the open receipt lapses
                self._loop.call_soon_threadsafe(break_off)

    def __del__(self) -> None:
        if not self._over:
            self._ex.let_go()  # dropped by its server: the open receipt lapses

    async def _end(self, *, whole: bool, error: BaseException | None) -> None:
        await asyncio.shield(self._start_end(whole=whole, error=error))

    def _start_end(self, *, whole: bool, error: BaseException | None) -> asyncio.Task[None]:
        """End in a task of its own: the caller may be cancelled already."""
        self._over = True
        return self._ex.spawn(self._conclude(self._tally.drained(whole=whole, error=error)))

    async def _conclude(self, drained: Drained) -> None:
        try:
            self._ex.tell(await self._ex.drive(self._ex.ending(self._flowing, drained)))
        finally:
            await self._ex.end()
            self._ex.close()
