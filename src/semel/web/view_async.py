"""The exchange around a framework's view, awaited: see `views`.

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
from semel.web.body import Body, SpooledBody, Tally, close, unkeepable
from semel.web.exchange import WebExchange, too_late
from semel.web.exchange_async import AsyncExchange
from semel.web.pipeline import MARK, FindTag, Pipeline, spoken
from semel.web.policy_in_force import ruled_by
from semel.web.view_sync import Asked, Maker, Parts, said

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.runtime.runtime import Runtime

F = TypeVar("F")


class AwaitedFace(Maker[F], Protocol[F]):
    """How one framework's responses are read and made, in an event loop."""

    async def apart(self, response: F) -> Parts[AsyncIterable[bytes]]:
        """May raise what making the body raises."""
        ...

    def flowing(self, status: int, headers: Headers, pieces: AwaitedStream[F]) -> F:
        """A streamed answer; ``pieces.aclose`` is to be called when the server is done with it."""
        ...


class AwaitedViews(Generic[F]):
    """The views of one framework's application, guarded."""

    def __init__(self, guard: Guard, face: AwaitedFace[F], find_tag: FindTag) -> None:
        self.guard = guard
        self.pipeline = Pipeline(guard, None, find_tag)
        self._face = face

    async def admit(self, ex: WebExchange) -> Response | bool:
        """Whether a request takes part; for frameworks whose user may only be asked in a thread."""
        pipeline = self.pipeline
        keyed = "idempotency-key" in ex.request.headers
        said = await pipeline.ask(ex.request) if pipeline.awaits and keyed else None
        return pipeline.admit(ex, said)

    async def call(self, asked: Asked, view: Callable[[], Awaitable[F]]) -> F:
        """The view's answer, or the one there is instead of it."""
        before = ruled_by.get()
        try:
            return await self._call_view(asked, view)
        finally:
            ruled_by.set(before)

    async def _call_view(self, asked: Asked, view: Callable[[], Awaitable[F]]) -> F:
        pipeline, face, runtime = self.pipeline, self._face, self.guard.runtime
        plan = pipeline.plan(runtime, asked.request, asked.place)
        ex = AwaitedViewExchange(runtime, plan, asked.request, view, face)
        admitted = await self.admit(ex)
        if isinstance(admitted, Response):
            return face.whole(admitted, None)
        if not admitted or pipeline.covers(ex, asked.marks.get(MARK)):
            return await view()
        body = asked.read(plan.policy)
        if isinstance(body, Response):
            return face.whole(pipeline.turned_away(body, ex), None)
        answer = await self._open(ex, body, asked)
        if answer is not None:
            close(body)
            return self._said(answer, None)
        asked.marks[MARK] = ex.identity
        return await self._exchange(ex)

    async def _open(self, ex: AwaitedViewExchange[F], body: Body, asked: Asked) -> Answer | None:
        given = (ex, asked.place, body, asked.marks)
        if isinstance(body, bytes):  # else it takes long to fingerprint
            return self.pipeline.open(*given)
        return await asyncio.to_thread(self.pipeline.open, *given)

    async def _exchange(self, ex: AwaitedViewExchange[F]) -> F:
        reached = await ex.serve()
        if isinstance(reached, Flowing):
            return self._face.flowing(ex.status, reached.headers, AwaitedStream(ex, reached))
        made = ex.take()
        ex.close()
        return self._said(reached, made)

    def _said(self, answer: Answer, made: F | None) -> F:
        return said(self._face, spoken(answer), made)


class AwaitedViewExchange(AsyncExchange, Generic[F]):
    """One keyed request to a view in an event loop, and what the view answers."""

    __slots__ = (
        *("_begun", "_error", "_face", "_headers", "_made", "_rest", "_view"),
        "status",
    )

    def __init__(
        self,
        runtime: Runtime,
        plan: RoutePlan,
        request: Request,
        view: Callable[[], Awaitable[F]],
        face: AwaitedFace[F],
    ) -> None:
        super().__init__(runtime, plan, request)
        self._view = view
        self._face = face
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
        """Nobody is there to send it to."""
        if task.cancelled() or task.exception() is not None:
            return
        reached = task.result()
        if isinstance(reached, Flowing):
            self.spawn(AwaitedStream(self, reached).run_out())
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
        self.run.occupy()
        try:
            return await self._answered()
        except BaseException as error:
            self._error = error
            return self._failed(error)

    async def _answered(self) -> HandlerOutcome:
        run = self.run
        self._made = await self._view()
        parts = await self._face.apart(self._made)
        self.status, self._headers = parts.status, parts.headers
        behind = run.error_behind(self.status)
        self._rest = aiter(parts.pieces)
        async for piece in self._rest:
            self._begun.write(piece)
            if unkeepable(self.policy, self._begun):
                return Streaming(self.status, self._headers, behind)
        response = Response(self.status, self._headers, self._begun.whole())
        return Returned(response, behind, run.has_raised(self.status))

    def _failed(self, error: BaseException) -> HandlerOutcome:
        """Begun but not finished: what was begun is the outcome, and it is not whole."""
        if self._made is not None:
            self.run.returned = True
        if self._begun.size:
            return Streaming(self.status, self._headers, error)
        return Raised(error) if isinstance(error, Exception) else Abandoned(error)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer from its start, as it comes; the rest of it is still part of the run."""
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


class AwaitedStream(Generic[F]):
    """A streamed answer on its way out; when it has ended its record is closed."""

    def __init__(self, ex: AwaitedViewExchange[F], flowing: Flowing) -> None:
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
        """Nobody is left to send it to: let the view run out."""
        with suppress(Exception):
            async for _ in self:
                pass

    async def aclose(self) -> None:
        """The server is done with it; before its end when the client has left."""
        if not self._over:
            await self._end(whole=False, error=None)

    def close(self) -> None:
        """The same from any thread, for who cannot wait for it."""
        if not self._over:
            with suppress(RuntimeError):  # a loop that is closed: the open receipt lapses
                self._loop.call_soon_threadsafe(self._break_off)

    def _break_off(self) -> None:
        if not self._over:
            self._start_end(whole=False, error=None)

    def __del__(self) -> None:
        if not self._over:
            self._ex.let_go()  # dropped by its server: the open receipt lapses

    async def _end(self, *, whole: bool, error: BaseException | None) -> None:
        await asyncio.shield(self._start_end(whole=whole, error=error))

    def _start_end(self, *, whole: bool, error: BaseException | None) -> asyncio.Task[None]:
        """In a task, since whoever asked may be cancelled already."""
        self._over = True
        return self._ex.spawn(self._conclude(self._tally.drained(whole=whole, error=error)))

    async def _conclude(self, drained: Drained) -> None:
        try:
            self._ex.tell(await self._ex.drive(self._ex.ending(self._flowing, drained)))
        finally:
            await self._ex.end()
            self._ex.close()
