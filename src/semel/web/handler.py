"""The run of one ASGI handler: its answer is caught, and let out when its record is secured.

The application believes it talks to the server. Its answer is buffered until it is whole (or is
declared, or found, too large to keep); its last ``send`` returns only after the answer has left,
so whatever the application does afterwards (background tasks) happens after completion.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from semel.core.model import Headers, Response
from semel.core.policy import Policy
from semel.core.runner import Abandoned, Drained, HandlerOutcome, Raised, Returned, Streaming
from semel.log import log
from semel.process.current import Run
from semel.web.message import Spool
from semel.web.tags import ROUTERS_OWN, router_answered

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")

_UNKEEPABLE: Final = frozenset(
    {
        "http.response.pathsend",
        "http.response.zerocopysend",
        "http.response.push",
        "http.response.trailers",
        "http.response.early_hint",
    }
)
"""Server extensions that send something past the body messages; not offered to a keyed request."""


def start_task(work: Coroutine[Any, Any, T], running: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """A task that goes on without its caller: ``running`` holds it until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return task


class Promise(Generic[T]):
    """A value that will be there; whoever stops waiting for it takes nothing from the others.

    A plain future is cancelled with the one who awaits it, and shielding one costs two more.
    """

    __slots__ = ("_value", "_waiting", "kept")

    def __init__(self) -> None:
        self.kept = False
        self._waiting: list[asyncio.Future[T]] = []

    def keep(self, value: T) -> None:
        """The first value counts."""
        if self.kept:
            return
        self.kept, self._value = True, value
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(value)

    def wait(self) -> asyncio.Future[T]:
        """A future of the caller's own, for the value."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.kept:
            waiter.set_result(self._value)
        else:
            self._waiting.append(waiter)
        return waiter


class Handler:
    """One run of the application for one keyed request."""

    __slots__ = (
        *("_app", "_scope", "_root", "_receive", "_send", "_request_body", "_incoming", "_policy"),
        *("_run", "_task", "_error", "_status", "_headers", "_body", "_size", "_whole", "_digest"),
        *("_draining", "_discarded", "_broken", "_flowing", "_sent"),
        *("_outcome", "_released", "_over", "_freed", "_drained"),
    )

    def __init__(
        self,
        app: AsgiApp,
        scope: Scope,
        receive: Receive,
        send: Send,
        request_body: Spool,
        policy: Policy,
    ) -> None:
        self._app = app
        self._scope = scope
        self._root = scope.get("root_path", "")
        self._receive = receive
        self._send = send
        self._request_body = request_body
        self._policy = policy
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        return self._task is not None

    def _begin(self) -> None:
        """From here on it may be run; a replay never comes so far."""
        self._error: BaseException | None = None
        self._status = 0
        self._headers: Headers = ()
        self._body: Spool | None = None
        """What has come of an answer that comes in pieces; most come whole."""
        self._size, self._whole = 0, False
        self._draining = self._discarded = self._broken = self._flowing = self._sent = False
        self._outcome: Promise[HandlerOutcome] = Promise()
        self._released: Promise[None] = Promise()
        self._over: Promise[None] = Promise()
        self._freed: Promise[None] | None = None

    # ── asked by the exchange ─────────────────────────────────────────────────────────────────────

    async def outcome(self, run: Run, running: set[asyncio.Task[Any]]) -> HandlerOutcome:
        """Start the handler and wait for its outcome; asked again, it is the same run."""
        if self._task is None:
            self._begin()
            self._run = run
            self._incoming = body_messages(self._request_body)
            self._task = start_task(self._call_app(), running)
        return await self._outcome.wait()

    async def drain(self, headers: Headers) -> Drained:
        """Send the head and what has been buffered, then let the rest flow."""
        if not self._flowing:
            if not self._draining:
                self._draining = True
                self._digest = hashlib.sha256()
                self._drained: Promise[Drained] = Promise()
                await self._send_begun(headers)
            self._flowing = True
            self._free()
            if self._over.kept:
                self._end_stream(self._error)
        return await self._drained.wait()

    async def _send_begun(self, headers: Headers) -> None:
        try:
            await self._send(
                {"type": "http.response.start", "status": self._status, "headers": list(headers)}
            )
            for piece in () if self._body is None else self._body.pieces():
                await self._forward(piece, more=True)
        except Exception as error:
            # The client is gone and the server says so by raising (ASGI 2.4); the handler hears of
            # it when it sends on, and its record is settled all the same.
            log.info("semel: a client left before its answer began: %s", error)
            self._broken = True

    async def discard(self) -> None:
        """Stop the handler; nothing of its answer is sent."""
        if self._task is not None:
            self._discarded = True
            self._task.cancel()
            await self._over.wait()

    def release(self) -> None:
        """The answer has left, or nobody waits for it: let the application go on."""
        if self._task is not None:
            self._sent = True
            self._free()
            self._released.keep(None)

    async def returned(self) -> None:
        """Wait for the application to return, or to raise."""
        if self._task is not None:
            await self._over.wait()

    def raise_again(self) -> None:
        """Raise what the application raised."""
        if self._task is not None and self._error is not None and not self._discarded:
            raise self._error

    def close(self) -> None:
        self._request_body.close()
        if self._task is not None and self._body is not None:
            self._body.close()

    # ── the run ───────────────────────────────────────────────────────────────────────────────────

    def _enter(self) -> None:
        """The context of the application's task is its own."""
        self._run.occupy()

    async def _call_app(self) -> None:
        self._enter()
        scope = self._scope = keepable(self._scope)  # in which routers leave their notes
        try:
            await self._app(scope, self._app_receive, self._app_send)
        except BaseException as error:  # raised again where the server waits: see raise_again
            self._error = error
        self._stopped(self._error)
        self._over.keep(None)

    def _stopped(self, error: BaseException | None) -> None:
        """The application has returned or raised; if it never answered, that is the outcome."""
        if self._outcome.kept:
            self._end_stream(error)
        elif self._status:
            # Begun but not finished: what was begun is the outcome, and it is not whole.
            self._outcome.keep(Streaming(self._status, self._headers, error))
        elif error is None:
            silent = RuntimeError("the application returned without an answer")
            self._outcome.keep(Raised(silent))
        elif isinstance(error, Exception):
            self._outcome.keep(Raised(error))
        else:
            self._outcome.keep(Abandoned(error))

    async def _app_receive(self) -> Message:
        message = next(self._incoming, None)
        if message is not None:
            return message
        if self._policy.response == "buffer":
            # The handler finishes whether or not the client is still there, so it is not told;
            # frameworks stop a handler in the middle of its effect when a client hangs up.
            await self._until_freed()
            if not self._flowing:
                return {"type": "http.disconnect"}
        return await self._receive()

    async def _app_send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._take_head(message)
            if self._policy.response == "stream":
                await self._turn_to_stream()
        elif kind == "http.response.body":
            piece, more = message.get("body", b""), message.get("more_body", False)
            if not self._status or self._sent:
                raise RuntimeError("the application sent a body before or after its answer")
            if self._flowing:
                await self._flow(piece, more)
            elif more:
                await self._buffer(piece)
            else:
                self._finish(piece)
                await self._released.wait()

    def _take_head(self, message: Message) -> None:
        if self._status:
            raise RuntimeError("the application started its answer twice")
        # Last of all the status, which says that it has begun: a head that no server would take
        # is none, and what it raises is the outcome.
        try:
            self._headers = tuple([(bytes(k), bytes(v)) for k, v in message.get("headers", ())])
            self._status = message["status"]
        except Exception:
            self._run.course.returned = True
            raise

    async def _buffer(self, piece: bytes) -> None:
        if self._body is None:
            self._body = Spool()
        self._body.write(piece)
        if self._body.size > self._policy.max_response_body and self._policy.mode != "atomic":
            await self._turn_to_stream()

    def _finish(self, last: bytes) -> None:
        if self._body is not None or type(last) is not bytes:
            self._body = self._body or Spool()
            self._body.write(last)
            last = self._body.whole()
        run, response = self._run, Response(self._status, self._headers, last)
        raised = run.has_raised(self._status)
        error, by_router = run.error_behind(self._status), False
        if self._status in ROUTERS_OWN:
            by_router = router_answered(self._scope, self._root)
        self._outcome.keep(Returned(response, error, raised, by_router))

    async def _turn_to_stream(self) -> None:
        error = self._run.error_behind(self._status)
        self._outcome.keep(Streaming(self._status, self._headers, error))
        await self._until_freed()

    async def _until_freed(self) -> None:
        """Until the answer has left, or has begun to flow: then the application may go on."""
        if not (self._flowing or self._sent):
            self._freed = self._freed or Promise()
            await self._freed.wait()

    def _free(self) -> None:
        if self._freed is not None:
            self._freed.keep(None)

    async def _flow(self, piece: bytes, more: bool) -> None:
        await self._forward(piece, more)
        if not more:
            self._whole = not self._broken
            self._end_stream(None)
            await self._released.wait()

    async def _forward(self, piece: bytes, more: bool) -> None:
        self._size += len(piece)
        self._digest.update(piece)
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    def _end_stream(self, error: BaseException | None) -> None:
        if self._flowing:
            self._drained.keep(Drained(self._size, self._digest.digest(), self._whole, error))


class UnseenHandler(Handler):
    """A run whose endpoint may have returned without anybody hearing of it."""

    __slots__ = ()

    async def outcome(self, run: Run, running: set[asyncio.Task[Any]]) -> HandlerOutcome:
        run.course.returned = True
        return await super().outcome(run, running)


def body_messages(body: Spool, taken: int = 0) -> Iterator[Message]:
    """The request's body as the server would deliver it, the end marked on the last piece.

    ``taken``: how much of it was delivered before.
    """
    held: bytes | None = None
    for piece in body.pieces():
        if held is not None:
            yield {"type": "http.request", "body": held, "more_body": True}
        held, taken = piece[taken:] or None, max(0, taken - len(piece))
    yield {"type": "http.request", "body": held or b"", "more_body": False}


def keepable(scope: Scope) -> Scope:
    extensions = scope.get("extensions")
    if not extensions or _UNKEEPABLE.isdisjoint(extensions):
        return scope
    offered = {name: value for name, value in extensions.items() if name not in _UNKEEPABLE}
    return {**scope, "extensions": offered}
