"""The exchange of one ASGI request: its answer is caught, and let out when its record is secured.

The application believes it talks to the server. Its answer is buffered until it is whole (or is
declared, or found, too large to keep); with its last ``send`` the second half of the exchange runs,
and that ``send`` returns only after the answer has left. So whatever the application does
afterwards (background tasks) happens after completion.

One task holds the application and the write that settles its record. The server's own task waits
for it, and may be cancelled: that ends neither. Where the application itself cancels what it sends
from, the write is carried through in a task of its own.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from semel.core.exchange.answers import Answer
from semel.core.exchange.problems import refuse
from semel.core.exchange.settle import Flowing, end_stream, settle
from semel.core.flow import Flow
from semel.core.operations.handler import HandlerOutcome, Raised, Returned, Streaming
from semel.core.policy import RoutePlan
from semel.core.records import Headers, Request, Response
from semel.core.request.comparison import LARGE
from semel.log import log
from semel.web.body import Body, SpooledBody, Tally, close, unkeepable
from semel.web.exchange import outcome_of, too_late
from semel.web.exchange_async import AsyncExchange, Promise
from semel.web.routes import ROUTERS_OWN, router_answered

if TYPE_CHECKING:
    from semel.runtime.runtime import Runtime

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_UNKEEPABLE: Final = frozenset(
    {
        "http.response.pathsend",
        "http.response.zerocopysend",
        "http.response.push",
        "http.response.trailers",
        "http.response.early_hint",
        "http.response.debug",
    }
)
"""Server extensions that send something past the body messages; not offered to a keyed request."""


class AsgiExchange(AsyncExchange):
    """One keyed request to an ASGI application, and what the application answers."""

    __slots__ = (
        *("_app", "_root", "_receive", "_send", "scope", "sees_returns"),
        *("_buffered", "_error", "_headers", "_incoming", "_status", "_stream", "_tally"),
        *("_broken", "_decided", "_discarded", "_sent", "_whole"),
        *("_carried", "_done", "_freed", "_task"),
    )

    def __init__(
        self,
        runtime: Runtime,
        plan: RoutePlan,
        request: Request,
        app: AsgiApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(runtime, plan, request)
        self._app = app
        self.scope = scope
        self._root = scope.get("root_path", "")
        self._receive = receive
        self._send = send
        self.sees_returns = True
        """Whether it would be heard if the endpoint returned and no answer was made of that."""

    # ── the server's side ─────────────────────────────────────────────────────────────────────────

    async def read_body(self) -> Body | Response | None:
        """The whole body, a refusal when it is too large, or None when the client left."""
        message = await self._receive()
        body, limit = message.get("body", b""), self.policy.body_limit
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        if whole and type(body) is bytes and len(body) < LARGE and len(body) <= limit:
            return bytes(body)
        return await self._read_rest(SpooledBody(), message)

    async def _read_rest(
        self, body: SpooledBody, message: Message | None = None
    ) -> Body | Response | None:
        """The same for a body of which something has come already."""
        while True:
            message = await self._receive() if message is None else message
            if message["type"] == "http.disconnect":
                body.close()
                return None
            body.write(message.get("body", b""))
            if body.size > self.policy.body_limit:
                body.close()
                return refuse("body-too-large")
            if not message.get("more_body", False):
                return body.small()
            message = None

    def turn_away(self, response: Response | None) -> Awaitable[None]:
        """Send an answer before anything was claimed. None: the client has left."""
        return send_response(response, self._send)

    def overhear(self, heard: Callable[[bytes], None], before: bytes = b"") -> None:
        """Tell ``heard`` the body when the application has read it; it begins with ``before``."""
        receive, pieces = self._receive, [before]

        async def overheard() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                pieces.append(message.get("body", b""))
                if not message.get("more_body", False):
                    heard(b"".join(pieces))
            return message

        self._receive = overheard

    async def take_no_part(self) -> None:
        """Call the application as without a guard, with a body that was read to find a key."""
        receive, body = self._receive, getattr(self, "body", None)
        if body is None:
            return await self._app(self.scope, receive, self._send)
        try:
            await self._app(self.scope, _receive_again(body, receive), self._send)
        finally:
            close(body)

    async def respond(self) -> None:
        """Both halves, with the application between them.

        While the application runs, a cancellation ends only the wait here. The application, and
        the write that settles its record, go on.
        """
        entry = await self.claim()
        if isinstance(entry, Answer):
            self.tell(entry)
            if not isinstance(self.body, bytes):
                self.body.close()
            await send_response(entry.response, self._send)
            return
        self.prepare()
        in_time = self.start_run(entry)
        self.run.returned = not self.sees_returns
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._call_app() if in_time else self.call_ended(too_late()))
        # No circle of exchange and task, which only the garbage collector could end.
        self._task = weakref.ref(task)
        try:
            await self._done
        except BaseException:
            running = self.runtime.running
            running.add(task)
            task.add_done_callback(running.discard)
            raise
        if self._error is not None:
            self.raise_again()

    def prepare(self) -> None:
        """From here on the application may be called; a replay never comes so far."""
        self._error: BaseException | None = None
        self._status = 0
        self._headers: Headers = ()
        self._buffered: SpooledBody | None = None
        """What has come of an answer that comes in pieces; most come whole."""
        self._stream: Flowing | None = None
        self._broken = self._decided = self._discarded = self._sent = self._whole = False
        self._freed: Promise[None] | None = None
        self._carried: asyncio.Task[None] | None = None
        self._incoming: Iterator[Message] | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ── the application's task ────────────────────────────────────────────────────────────────────

    def enter(self) -> None:
        """The context of the application's task is its own."""
        self.run.occupy()

    async def _call_app(self) -> None:
        self.enter()
        scope = self.scope
        extensions = scope.get("extensions")
        if extensions and not _UNKEEPABLE.isdisjoint(extensions):
            offered = {name: value for name, value in extensions.items() if name not in _UNKEEPABLE}
            scope = self.scope = {**scope, "extensions": offered}  # routers leave their notes in it
        try:
            await self._app(scope, self.app_receive, self.app_send)
        except BaseException as error:  # raised again where the server waits
            self._error = error
        await self.call_ended(None)

    async def call_ended(self, outcome: HandlerOutcome | None) -> None:
        """The application has returned or raised, or was not called; see to its record's end."""
        if not self._sent or self._stream is not None:
            try:
                await self._see_to_its_end(outcome)
            except BaseException as error:
                self._fail(error)
        if not isinstance(self.body, bytes):
            self.body.close()
        if self._buffered is not None:
            self._buffered.close()
        self.over()

    def over(self) -> None:
        """The application has ended: whoever waits for it goes on."""
        if not self._done.done():
            self._done.set_result(None)
        elif self._error is not None and not self._discarded:
            log.error("semel: a handler failed after its client had left", exc_info=self._error)

    def raise_again(self) -> None:
        """Raise what the application raised."""
        if self._error is not None and not self._discarded:
            raise self._error

    async def _see_to_its_end(self, outcome: HandlerOutcome | None) -> None:
        try:
            if not self._decided:
                try:
                    await self._settle(outcome or self._unanswered())
                except asyncio.CancelledError:
                    if self._carried is None:  # else it is waited for all the same
                        raise
                self._discarded = self._status > 0 and self._stream is None
            if self._carried is not None:
                await asyncio.wait({self._carried})
            if self._stream is not None and not self._sent:
                await self._end_stream(self._error)
        finally:
            if self._carried is None or self._carried.done():
                await self.end()  # else whoever carries it through does so

    def _fail(self, error: BaseException) -> None:
        """Whoever waits learns of it at once; the application goes on."""
        if self._done.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self._done.cancel()
        else:
            self._done.set_exception(error)

    def _unanswered(self) -> HandlerOutcome:
        """The outcome of an application that has ended before its answer was whole."""
        error = self._error
        if self._status:
            # Begun but not finished: what was begun is the outcome, and it is not whole.
            return Streaming(self._status, self._headers, error)
        if error is None:
            return Raised(RuntimeError("the application returned without an answer"))
        return outcome_of(error)

    # ── the second half ───────────────────────────────────────────────────────────────────────────

    async def _settle(self, outcome: HandlerOutcome) -> None:
        """Afterwards the answer has left, or it flows."""
        self._decided = True
        if self.account is not None:
            self.ended()
        reached = await self.follow(settle(self, outcome, self.run), self._carry_through)
        if isinstance(reached, Answer):
            await self._answered(reached)
        else:
            await self._start_stream(reached)

    def _carry_through(self, rest: Flow[Answer] | Flow[Answer | Flowing]) -> None:
        """What the application sent from was cancelled: the record is settled without that."""
        self._carried = self.spawn(self._carry(rest))

    async def _carry(self, rest: Flow[Answer] | Flow[Answer | Flowing]) -> None:
        try:
            reached = await self.drive(rest)
        except BaseException:
            await self.end()
            raise
        if isinstance(reached, Flowing):
            await self._start_stream(reached)
            return
        await self.end()
        if self._stream is None:
            await self._answered(reached)
        else:
            self.tell(reached)

    async def _answered(self, answer: Answer) -> None:
        """The record is settled: send the answer, and let the application go on."""
        self.runtime.keeper.let_go(self.lease)
        self.tell(answer)
        try:
            await send_response(answer.response, self._send)
        except Exception as error:  # the client is gone, and the server says so by raising
            self._fail(error)
        finally:
            self._sent = True
            if self._freed is not None:
                self._freed.keep(None)

    # ── a streamed answer ─────────────────────────────────────────────────────────────────────────

    async def _start_stream(self, stream: Flowing) -> None:
        """Send the head and what has been buffered, then let the rest flow."""
        self._stream, self._tally = stream, Tally()
        if self.account is not None:
            self.account.status = stream.head.status
        head = {"type": "http.response.start", "status": self._status}
        try:
            await self._send({**head, "headers": list(stream.headers)})
            for piece in () if self._buffered is None else self._buffered.pieces():
                await self._forward(piece, more=True)
        except Exception as error:
            # The client is gone and the server says so by raising (ASGI 2.4); the application
            # hears of it when it sends on, and its record is settled all the same.
            log.info("semel: a client left before its answer began: %s", error)
            self._broken = True
        if self._freed is not None:
            self._freed.keep(None)

    async def _forward(self, piece: bytes, more: bool) -> None:
        self._tally.add(piece)
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _end_stream(self, error: BaseException | None) -> None:
        if self._stream is None:
            raise AssertionError("no stream has begun")
        self._sent = True
        drained = self._tally.drained(whole=self._whole, error=error)
        ending = end_stream(self, self._stream, drained, self.run)
        answer = await self.follow(ending, self._carry_through)
        self.let_go()
        self.tell(answer)

    # ── what the application meets ────────────────────────────────────────────────────────────────

    async def app_receive(self) -> Message:
        if self._incoming is None:
            body, self._incoming = self.body, iter(())
            if isinstance(body, bytes):
                return {"type": "http.request", "body": body, "more_body": False}
            self._incoming = body_messages(body)
        message = next(self._incoming, None)
        if message is not None:
            return message
        if self.policy.response == "buffer":
            # The handler finishes whether or not the client is still there, so it is not told;
            # frameworks stop a handler in the middle of its effect when a client hangs up.
            if self._stream is None and not self._sent:
                self._freed = self._freed or Promise()
                await self._freed.wait()
            if self._stream is None:
                return {"type": "http.disconnect"}
        return await self._receive()

    async def app_send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._take_head(message)
            if self.policy.response == "stream":
                await self._turn_to_stream()
        elif kind == "http.response.body":
            piece, more = message.get("body", b""), message.get("more_body", False)
            over = self._sent or (self._decided and self._stream is None)
            if not self._status or over:
                raise RuntimeError("the application sent a body before or after its answer")
            if self._stream is not None:
                await self._forward(piece, more)
                if not more:
                    self._whole = not self._broken
                    await self._end_stream(None)
            elif not more:
                await self._settle(self._whole_answer(piece))
            else:
                self._buffered = self._buffered or SpooledBody()
                self._buffered.write(piece)
                if unkeepable(self.policy, self._buffered):
                    await self._turn_to_stream()

    def _take_head(self, message: Message) -> None:
        if self._status:
            raise RuntimeError("the application started its answer twice")
        # Last of all the status, which says that it has begun: a head that no server would take
        # is none, and what it raises is the outcome.
        try:
            headers = message.get("headers", ())
            self._headers = tuple([(bytes(name), bytes(value)) for name, value in headers])
            self._status = message["status"]
        except Exception:
            self.run.returned = True
            raise

    def _whole_answer(self, last: bytes) -> HandlerOutcome:
        if self._buffered is not None or type(last) is not bytes:
            self._buffered = self._buffered or SpooledBody()
            self._buffered.write(last)
            last = self._buffered.whole()
        run, status = self.run, self._status
        response = Response(status, self._headers, last)
        if status < 300 and not run.doubts:
            return Returned(response)  # nothing stands behind it
        by_router = status in ROUTERS_OWN and router_answered(self.scope, self._root)
        return Returned(response, run.error_behind(status), run.has_raised(status), by_router)

    async def _turn_to_stream(self) -> None:
        error = self.run.error_behind(self._status)
        await self._settle(Streaming(self._status, self._headers, error))
        if self._stream is not None:
            return
        # The record could not be secured, so nothing of the answer may be sent.
        self._discarded = True
        task = self._task()
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        raise asyncio.CancelledError("its record could not be secured: the answer is not sent")


def body_messages(body: Body, taken: int = 0) -> Iterator[Message]:
    """The request's body as the server would deliver it, the end marked on the last piece.

    ``taken``: how much of it was delivered before.
    """
    held: bytes | None = None
    for piece in (body,) if isinstance(body, bytes) else body.pieces():
        if held is not None:
            yield {"type": "http.request", "body": held, "more_body": True}
        held, taken = piece[taken:] or None, max(0, taken - len(piece))
    yield {"type": "http.request", "body": held or b"", "more_body": False}


def _receive_again(body: Body, receive: Receive) -> Receive:
    """``receive`` of a request whose body was read: first the body, then what the server says."""
    messages = body_messages(body)

    async def again() -> Message:
        message = next(messages, None)
        return await receive() if message is None else message

    return again


async def send_response(response: Response | None, send: Send) -> None:
    if response is None:
        return
    headers = list(response.headers)
    if response.body:
        for name, _ in headers:
            if name.lower() == b"content-length":
                break
        else:
            headers.append((b"content-length", b"%d" % len(response.body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})
