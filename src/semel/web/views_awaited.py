"""The exchange around a framework's view, awaited: see `views`.

The view runs in a task of its own, so that a client that hangs up, or a server that cancels, ends
neither the view nor the write that settles its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from semel.core.admission import Refused, Ticket
from semel.core.answers import Answer
from semel.core.flow import Step
from semel.core.model import Headers, Response
from semel.core.policy import Policy
from semel.core.prints import LARGE
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
from semel.web.awaited import AwaitedExchange
from semel.web.desk import MARK, Desk, FindTag, Opened, spoken
from semel.web.handler import Promise, start_task
from semel.web.message import Spool
from semel.web.ruling import ruled_by
from semel.web.views import STREAMS, Asked, Maker, Parts, Tally, said, unkeepable

if TYPE_CHECKING:
    from semel.guard import Guard

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
        self.desk = Desk(guard, None, find_tag)
        self._face = face

    async def admit(self, asked: Asked) -> tuple[Ticket | Refused | None, str]:
        """Whether a request takes part; for frameworks whose user may only be asked in a thread."""
        keyed = "idempotency-key" in asked.request.headers
        said = await self.desk.ask(asked.request) if self.desk.awaits and keyed else None
        return self.desk.admit(asked.request, asked.place, said)

    async def call(self, asked: Asked, view: Callable[[], Awaitable[F]]) -> F:
        """The view's answer, or the one there is instead of it."""
        before = ruled_by.get()
        try:
            return await self._call_view(asked, view)
        finally:
            ruled_by.set(before)

    async def _call_view(self, asked: Asked, view: Callable[[], Awaitable[F]]) -> F:
        ticket, label = await self.admit(asked)
        if isinstance(ticket, Refused):
            return self._face.whole(ticket.response, None)
        if ticket is None or self.desk.covers(ticket, asked.marks.get(MARK)):
            return await view()
        body = asked.read(ticket.policy)
        if isinstance(body, Response):
            return self._face.whole(self.desk.turned_away(body, ticket, label), None)
        opened = await self._open(ticket, label, body, asked)
        if isinstance(opened, Answer):
            body.close()
            return self._said(opened, None)
        asked.marks[MARK] = opened.call.identity
        handler = AwaitedViewHandler(view, self._face, opened.call.policy, body)
        return await self._exchange(ticket, opened, handler)

    async def _open(self, ticket: Ticket, label: str, body: Spool, asked: Asked) -> Opened | Answer:
        given = (ticket, asked.place, label, body, asked.marks)
        if body.size < LARGE:  # else it takes long to fingerprint
            return self.desk.open(*given)
        return await asyncio.to_thread(self.desk.open, *given)

    async def _exchange(self, ticket: Ticket, opened: Opened, handler: AwaitedViewHandler[F]) -> F:
        exchange = AwaitedExchange(self.guard, ticket, opened.call, handler, opened.started)
        step = Step(opened.flow)
        reached: Drain | Answer = await exchange.drive(step, STREAMS)
        if isinstance(reached, Drain):
            stream = AwaitedStream(step, exchange, handler, opened)
            return self._face.flowing(handler.status, reached.headers, stream)
        exchange.end()
        made = handler.take()
        handler.close()
        if opened.errand is not None:
            opened.errand.answer = reached
        return self._said(reached, made)

    def _said(self, answer: Answer, made: F | None) -> F:
        return said(self._face, spoken(answer), made)


class AwaitedViewHandler(Generic[F]):
    """One run of a view for one keyed request."""

    def __init__(
        self,
        view: Callable[[], Awaitable[F]],
        face: AwaitedFace[F],
        policy: Policy,
        request_body: Spool,
    ) -> None:
        self._view = view
        self._face = face
        self._policy = policy
        self._request_body = request_body
        self._begun = Spool()
        self._rest: AsyncIterator[bytes] | None = None
        self._headers: Headers = ()
        self._error: BaseException | None = None
        self._outcome: Promise[HandlerOutcome] = Promise()
        self._run: Run | None = None
        self.status = 0
        self._made: F | None = None

    async def outcome(self, run: Run, running: set[asyncio.Task[Any]]) -> HandlerOutcome:
        """Call the view; asked again, it is the same run."""
        if self._run is None:
            self._run = run
            start_task(self._call(run), running)
        return await self._outcome.wait()

    async def _call(self, run: Run) -> None:
        run.occupy()
        try:
            outcome = await self._answered(run)
        except BaseException as error:
            self._error = error
            outcome = self._failed(error)
        self._outcome.keep(outcome)

    async def _answered(self, run: Run) -> HandlerOutcome:
        self._made = await self._view()
        parts = await self._face.apart(self._made)
        self.status, self._headers = parts.status, parts.headers
        behind = run.error_behind(self.status)
        self._rest = aiter(parts.pieces)
        async for piece in self._rest:
            self._begun.write(piece)
            if unkeepable(self._policy, self._begun):
                return Streaming(self.status, self._headers, behind)
        response = Response(self.status, self._headers, self._begun.whole())
        return Returned(response, behind, run.has_raised(self.status))

    def _failed(self, error: BaseException) -> HandlerOutcome:
        """Begun but not finished: what was begun is the outcome, and it is not whole."""
        if self._run is not None and self._made is not None:
            self._run.course.returned = True
        if self._begun.size:
            return Streaming(self.status, self._headers, error)
        return Raised(error) if isinstance(error, Exception) else Abandoned(error)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer from its start, as it comes; the rest of it is still part of the run."""
        for piece in self._begun.pieces():
            yield piece
        if self._error is not None:
            raise self._error
        while self._rest is not None and self._run is not None:
            leave = self._run.enter()
            try:
                piece = await anext(self._rest)
            except StopAsyncIteration:
                return
            finally:
                leave()
            yield piece

    async def drain(self, headers: Headers) -> Drained:
        """Nobody is left to send it to: let the view run out."""
        tally, error = Tally(), None
        try:
            async for piece in self.pieces():
                tally.add(piece)
        except Exception as failed:
            error = failed
        return tally.drained(whole=error is None, error=error)

    def take(self) -> F | None:
        """The view's own response, which is now the caller's to send or to close."""
        made, self._made = self._made, None
        return made

    async def discard(self) -> None:
        self.close()

    def release(self) -> None:
        """The view is done when it has answered."""

    async def returned(self) -> None:
        """The view is done when it has answered."""

    def close(self) -> None:
        """Nothing of the answer is sent any more, and nothing of the request read."""
        self._begun.close()
        self._request_body.close()
        made = self.take()
        if made is not None:
            self._face.close(made)

    def raise_again(self) -> None:
        """Raise what the view raised."""
        if self._error is not None:
            raise self._error


class AwaitedStream(Generic[F]):
    """A streamed answer on its way out; when it has ended its record is closed."""

    def __init__(
        self,
        step: Step,
        exchange: AwaitedExchange,
        handler: AwaitedViewHandler[F],
        opened: Opened,
    ) -> None:
        self._step = step
        self._exchange = exchange
        self._handler = handler
        self._errand = opened.errand
        self._pieces = handler.pieces()
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
            self._exchange.let_go()  # dropped by its server: the open receipt lapses

    async def _end(self, *, whole: bool, error: BaseException | None) -> None:
        await self._start_end(whole=whole, error=error).wait()

    def _start_end(self, *, whole: bool, error: BaseException | None) -> Promise[None]:
        """In a task, since whoever asked may be cancelled already."""
        self._over = True
        ended: Promise[None] = Promise()
        self._exchange.spawn(self._conclude(self._tally.drained(whole=whole, error=error), ended))
        return ended

    async def _conclude(self, drained: Drained, ended: Promise[None]) -> None:
        self._step.reply(drained)
        try:
            answer: Answer = await self._exchange.drive(self._step)
            if self._errand is not None:
                self._errand.answer = answer
        finally:
            self._exchange.end()
            self._handler.close()
            ended.keep(None)
