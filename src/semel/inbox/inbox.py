"""Receives the webhooks of providers: verifies them, takes each in once, settles its record.

An inbox is an ASGI application (`Inbox.asgi`), a WSGI application (`Inbox.wsgi`) and, for any other
framework, a function of headers and body (`Inbox.receive`, `Inbox.areceive`).
"""

from __future__ import annotations

import http
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from semel.core.flow import Flow
from semel.core.frozen import frozen
from semel.core.operations.notables import NotableKind
from semel.core.policy import exempt
from semel.core.records import Case, Header, HeaderView, Response
from semel.core.unknown import provider_events, settle_unknown
from semel.core.unknown.evidence import Evidence
from semel.errors import ConfigurationError, StoreError
from semel.outbox import signatures
from semel.runtime.events import ERROR, INFO, NONE, WARNING
from semel.runtime.flow_runner import FlowRunner
from semel.runtime.leases import new_fence
from semel.web.inventory import KnownRoutes
from semel.web.tags import tag
from semel.worker.reconciler import describe_record, emit_reconcile

if TYPE_CHECKING:
    from semel.guard import Guard

MAX_BODY: Final = 1024 * 1024
KEEP: Final = timedelta(days=7)
"""How long an event is remembered: longer than providers send it again."""

_LONGEST_ID: Final = 255
_RETRY: Final = 5
"""Seconds after which a provider should send again when the store is down."""
_LONGEST_RETRY: Final = 60
_DIGITS: Final = 20
"""The longest Content-Length that is read as a number."""

GivenHeaders: TypeAlias = Mapping[str, str] | Iterable[tuple[Any, Any]]


@frozen
class Stamp:
    """What a signature proves: the event's id, and when it was sent (seconds since 1970)."""

    event: str
    sent_at: float


Verify: TypeAlias = Callable[[HeaderView, bytes], Stamp | None]
"""Verifies a signature of another kind; None, or any exception, refuses the event."""


@frozen
class ProviderEvent:
    """An event whose signature is verified."""

    id: str
    sent_at: float
    headers: HeaderView
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Reading: TypeAlias = tuple[bytes | str, Evidence] | tuple[bytes | str, Evidence, str | None] | None
"""Which record an event is about, by its identity, and what it proves; None: about no record.

Of an operation with several calls also the name of the one that it proves.
"""
Reader: TypeAlias = Callable[[ProviderEvent], Reading | Awaitable[Reading]]
"""Reads an event; plain or a coroutine function."""


class Inbox:
    """An endpoint for the webhooks of ``source``.

    ``secrets``: one, or several while they are exchanged, for signatures as Standard Webhooks has
    them; or None, and ``verify`` checks signatures of another kind. ``reader`` is a function of a
    `ProviderEvent`. ``app`` is for finding the ``render=`` of policies on endpoints.
    """

    def __init__(
        self,
        guard: Guard,
        source: str,
        secrets: str | bytes | Iterable[str | bytes] | None,
        reader: Reader,
        *,
        verify: Verify | None = None,
        tolerance: timedelta = signatures.TOLERANCE,
        keep: timedelta = KEEP,
        max_body: int = MAX_BODY,
        app: Any = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if (secrets is None) == (verify is None):
            said = "an inbox needs secrets, or verify= for another kind of signature"
            raise ConfigurationError(said)
        if not source or not source.isprintable() or not callable(reader):
            raise ConfigurationError("an inbox needs a source such as 'bank', and a reader")
        self._guard = guard
        self._source = source
        self._reader = reader
        self._verify = verify or _standard(signatures.secrets(secrets or ()), tolerance, clock)
        self._tolerance = tolerance.total_seconds()
        self._keep = keep // timedelta(microseconds=1)
        self.max_body = max_body
        self._routes = KnownRoutes(guard, app)
        self._clock = clock
        self._runner = FlowRunner(guard)

    def receive(self, headers: GivenHeaders, body: bytes) -> Response:
        """Take in one event; returns the answer to the provider."""
        return self._runner.run(self._receive(headers, body))

    async def areceive(self, headers: GivenHeaders, body: bytes) -> Response:
        """`receive`, awaited."""
        return await self._runner.arun(self._receive(headers, body))

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application: ``Mount("/webhooks/bank", inbox.asgi)``."""
        if scope["type"] != "http":
            raise RuntimeError(f"an inbox takes HTTP requests, not {scope['type']}")
        if scope["method"] != "POST":
            answer = _response(405, "send events with POST")
        else:
            body = await _read_asgi(self.max_body, receive)
            if body is None:
                return  # the provider hung up, and will send it again
            answer = await self.areceive(scope["headers"], body)
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def wsgi(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """The WSGI application."""
        if environ["REQUEST_METHOD"] != "POST":
            answer = _response(405, "send events with POST")
        elif (body := _read_wsgi(self.max_body, environ)) is None:
            answer = _response(413, "too large")
        else:
            headers = {
                name.removeprefix("HTTP_").replace("_", "-"): text
                for name, text in environ.items()
                if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
            }
            answer = self.receive(headers, body)
        lines = [(name.decode(), text.decode()) for name, text in answer.headers]
        lines.append(("content-length", str(len(answer.body))))
        start_response(f"{answer.status} {http.HTTPStatus(answer.status).phrase}", lines)
        return [answer.body]

    def _receive(self, headers: GivenHeaders, body: bytes) -> Flow[Response]:
        """Verify the event and take it in. A refusal does not tell a forger what was wrong."""
        view = _view(headers)
        if len(body) > self.max_body:
            return _response(413, "too large")
        try:
            stamp = self._verify(view, body)
        except Exception as error:  # verify= meets whatever strangers send
            why = str(error) if isinstance(error, ValueError) else type(error).__name__
            return self._respond(401, "refused", WARNING, why)
        if (
            stamp is None
            or not 0 < len(stamp.event) <= _LONGEST_ID
            or not abs(self._clock() - stamp.sent_at) <= self._tolerance  # so for a NaN too
            or not stamp.event.isprintable()
        ):
            return self._respond(401, "refused", WARNING, "forged, or old")
        event = ProviderEvent(stamp.event, stamp.sent_at, view, body)
        # Two applications may get the same event; the name of a source has no line break in it.
        source = f"{self._guard.name}\n{self._source}" if self._guard.name else self._source
        notice = provider_events.Notice(source, event.id, self._keep)
        read = partial(self._reader, event)
        try:
            came = yield from provider_events.take_in(
                notice, read, self._render_of, self._guard.name, new_fence()
            )
        except StoreError as error:
            self._guard.events.emit("store.error", error=error, during="inbox", operation="take_in")
            return self._respond(503, "store unavailable", NONE, retry_after=_RETRY)
        response = self._answer(came)
        self._note(event.id, came, json.loads(response.body)["status"])
        return response

    def _note(self, event: str, came: provider_events.Reception, status: str) -> None:
        """Have it remembered for operators what was said of a record, and what came of that."""
        notables = self._guard.runtime.notables
        if notables is None or isinstance(came, provider_events.AlreadyTaken):
            return
        detail: dict[str, object] = {"source": self._source, "event": event, "came": status}
        where: dict[str, Any] = {}
        match came:
            case provider_events.Taken(case, evidence, settled):
                detail |= provider_events.summary(evidence)
                detail["applied"] = isinstance(settled, settle_unknown.Settled)
                where = {"identity": case.record.identity, "tenant": case.origin.tenant}
                where["route"] = "" if case.terms is None else case.terms.route
            case provider_events.Ignored(reason, identity, evidence):
                detail |= {} if evidence is None else provider_events.summary(evidence)
                detail |= {"applied": False, "why": reason}
                where = {"identity": identity}
            case provider_events.Unread(error):
                detail |= {"applied": False, "why": type(error).__name__}
        notables.note(NotableKind.WEBHOOK, **where, detail=detail)

    def _answer(self, came: provider_events.Reception) -> Response:
        match came:
            case provider_events.AlreadyTaken():
                return self._respond(200, "known", NONE)
            case provider_events.Ignored(reason=reason):
                return self._respond(200, "ignored", INFO, reason)
            case provider_events.Unread(cause):
                return self._respond(500, "not read", ERROR, "it was not read", error=cause)
            case provider_events.Taken():
                return self._taken(came)
            case _:
                assert_never(came)

    def _render_of(self, case: Case) -> settle_unknown.Render | None:
        policy = self._routes.policy(case.terms)
        return None if policy is None else policy.render

    def _taken(self, came: provider_events.Taken) -> Response:
        which = describe_record(came.case)
        match came.settlement:
            case settle_unknown.Settled(state):
                emit_reconcile(self._guard, came.case, "settled", INFO, by="webhook", state=state)
                return self._respond(200, "settled", NONE)
            case settle_unknown.Passed(state):
                if settle_unknown.contradicts(came.evidence, state):
                    why = f"{which} is {state}, and the event says otherwise: compare the ledgers"
                    return self._respond(200, "settled before", ERROR, why)
                return self._respond(200, "settled before", NONE)
            case settle_unknown.Undecided(reason):
                return self._respond(200, "noted", INFO, f"{which} stays unknown: {reason}")
            case settle_unknown.Unusable(reason, error):
                why = f"{which} stays unknown: {reason}"
                return self._respond(500, "not usable", ERROR, why, error=error)
            case settle_unknown.Running(_, until, now):
                # Whoever holds the lease will say more than the event can: a whole answer. Should
                # it die instead, the event is wanted, so it must not be taken for delivered.
                seconds = min(_LONGEST_RETRY, max(1, -(-(until - now) // 1_000_000)))
                return self._respond(503, "still running", NONE, retry_after=seconds)
            case _:
                assert_never(came.settlement)

    def _respond(
        self,
        status: int,
        came: str,
        level: int,
        reason: str | None = None,
        *,
        error: BaseException | None = None,
        retry_after: int | None = None,
    ) -> Response:
        self._guard.events.emit(
            "inbox", level=level, error=error, source=self._source, came=came, reason=reason
        )
        return _response(status, came, retry_after=retry_after)


_EXEMPT: Final = exempt()
for _way in (Inbox.asgi, Inbox.wsgi):
    tag(_EXEMPT)(_way)  # providers send no keys: no guard around it may ask for one


def _standard(secrets: tuple[bytes, ...], tolerance: timedelta, clock: Any) -> Verify:
    """Standard Webhooks: ``webhook-id``, ``webhook-timestamp``, ``webhook-signature``."""

    def verify(headers: HeaderView, body: bytes) -> Stamp:
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        message, timestamp, signature = (headers.get(name, "") for name in names)
        why_not = signatures.verify(
            secrets, message, timestamp, signature, body, now=clock(), tolerance=tolerance
        )
        if why_not is not None:
            raise ValueError(why_not)
        return Stamp(message, float(timestamp))

    return verify


def _view(headers: GivenHeaders) -> HeaderView:
    if isinstance(headers, HeaderView):
        return headers
    pairs: Any = headers
    given: Any = pairs.items() if isinstance(headers, Mapping) else pairs
    return HeaderView((_octets(name), _octets(text)) for name, text in given)


def _octets(given: str | bytes) -> bytes:
    return given if isinstance(given, bytes) else given.encode("latin-1", "replace")


def _response(status: int, word: str, *, retry_after: int | None = None) -> Response:
    headers: tuple[Header, ...] = ((b"content-type", b"application/json"),)
    if retry_after is not None:
        headers += ((b"retry-after", b"%d" % retry_after),)
    return Response(status, headers, json.dumps({"status": word}).encode())


async def _read_asgi(limit: int, receive: Any) -> bytes | None:
    """The body, cut after one byte too many; None when the provider hung up."""
    body = b""
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body[: limit + 1]


def _read_wsgi(limit: int, environ: dict[str, Any]) -> bytes | None:
    """The body, cut after one byte too many; None when its length is said to be too large."""
    length = environ.get("CONTENT_LENGTH") or ""
    stream = environ["wsgi.input"]
    if length.isascii() and length.isdecimal() and len(length) <= _DIGITS:
        return stream.read(int(length)) if int(length) <= limit else None
    if not environ.get("wsgi.input_terminated"):
        return b""  # no length, and a stream that may never end
    body: bytes = stream.read(limit + 1)
    return body
