"""The clients: `SyncClient` blocks, `AsyncClient` is for an asyncio event loop.

`BaseClient` has the options, and everything that is done without waiting. Both clients drive the
same flows (`call.complete`, `BaseClient._resume`). The asyncio client writes the journal in
threads, so that no other task waits for a disk. A class for an HTTP library has two methods,
`_prepare` and `_exchange`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from inspect import isawaitable
from os import PathLike
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from semel.backoff import between
from semel.client import model
from semel.client.call import Budget, complete
from semel.client.contract import FRESH, ServerContract, read_contract, terms_of
from semel.client.errors import (
    BudgetSpent,
    CallOutcomeUnknown,
    ContractError,
    KeyExpired,
    KeyReused,
)
from semel.client.journal import CallJournal, JournaledCall
from semel.client.key_in_body import put_key, read_key
from semel.client.keys import checked, header_value, new_key
from semel.client.model import CallAnswer, KeyTerms, LogicalCall, NoAnswer, TryResult, origin
from semel.core.flow import Flow, arun, ask, run
from semel.core.frozen import frozen, replace
from semel.core.operations.requests import FlowOperation
from semel.core.recovery.was_sent import WasSent, classify
from semel.core.request.key_places import DEFAULT_HEADER, BodyField, key_places
from semel.core.request.path_pattern import CONTRACT_ADDRESS
from semel.errors import ConfigurationError, SemelError, StoreError

KEPT_HEADERS: Final = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "prefer", "user-agent"),
        *("content-encoding", "content-language", "content-type"),
        *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since"),
    }
)
"""Headers that are safe to keep; of others the journal has only the names."""
ADDED_BY_LIBRARY: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers that an HTTP library adds when it sends, from its `auth` and its cookies."""
CLOCK_CORRECTION: Final = 60.0
"""Seconds that a clock may be set back before the age of a call is unknown."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})


class HasHeaders(Protocol):
    """An HTTP library's own client, with the headers that it adds to every request."""

    @property
    def headers(self) -> Any: ...


H = TypeVar("H", bound=HasHeaders)
R = TypeVar("R")
Returned = TypeVar("Returned")
"""What the method of a verb returns: a response, or a coroutine of it."""
T = TypeVar("T")


@frozen
class PreparedRequest:
    """A request whose body is bytes, with the headers that were given for it alone.

    ``options`` are those of the HTTP library, such as a time-out.
    """

    method: str
    url: str
    headers: model.Pairs
    body: bytes
    options: Mapping[str, Any]


@frozen
class Resumed(Generic[R]):
    """The result of a call that was sent again: a response, or an error."""

    call: LogicalCall
    response: R | None
    error: SemelError | None


class BaseClient(Generic[H, R, Returned]):
    """Sends requests that change something, each with one key; resumes them after a crash.

    All methods take what the HTTP library's own take for headers, parameters and bodies. ``key``:
    your own key; ``name``: your name for the call, to find it in the journal.
    """

    def __init__(
        self,
        http: H,
        *,
        journal: CallJournal | str | PathLike[str] | None,
        budget: Budget = Budget(),  # noqa: B008 - frozen
        credentials: Callable[[LogicalCall], Any] | None = None,
        keep_headers: Iterable[str] = (),
        contract: bool = False,
        resume_within: timedelta | None = None,
        key_in: str | BodyField | None = None,
        quoted: bool | None = None,
        max_body: int = 16 * 1024 * 1024,
    ) -> None:
        if resume_within is not None and resume_within <= budget.within:
            raise ConfigurationError("resume_within must be longer than the budget's within")
        if isinstance(keep_headers, str):
            raise ConfigurationError("keep_headers= takes several names, not one text")
        if journal is None or isinstance(journal, CallJournal):
            self._journal, self._owns_journal = journal, False
        else:
            self._journal, self._owns_journal = CallJournal(journal), True
        self._http, self._budget, self._credentials = http, budget, credentials
        self._kept = KEPT_HEADERS | {name.lower() for name in keep_headers}
        self._resume_within = resume_within
        if not isinstance(key_in, str | BodyField | None):
            raise ConfigurationError("key_in= takes the name of a header, or semel.body(...)")
        key_places(key_in or DEFAULT_HEADER)  # or an error
        self._key_in, self._quoted, self._max_body = key_in, quoted, max_body
        self._reads_contract = contract
        self._contracts: dict[str, ServerContract] = {}

    @property
    def journal(self) -> CallJournal:
        """The journal; an error if there is none."""
        if self._journal is None:
            raise ConfigurationError("this client has no journal: give it one with journal=")
        return self._journal

    def request(
        self, method: str, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> Returned:
        """Make one logical call, and return its answer."""
        raise NotImplementedError

    def post(
        self, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> Returned:
        return self.request("POST", url, key=key, name=name, **arguments)

    def patch(
        self, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> Returned:
        return self.request("PATCH", url, key=key, name=name, **arguments)

    def put(
        self, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> Returned:
        return self.request("PUT", url, key=key, name=name, **arguments)

    def delete(
        self, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> Returned:
        return self.request("DELETE", url, key=key, name=name, **arguments)

    def _close_journal(self) -> None:
        if self._owns_journal and self._journal is not None:
            self._journal.close()

    # ── one call ──────────────────────────────────────────────────────────────────────────────────

    def _terms(self, method: str, url: str, options: Mapping[str, Any]) -> Flow[KeyTerms]:
        """Where the key goes, and how long it counts: by the server's contract, or as given."""
        if not self._reads_contract:
            return KeyTerms(self._key_in or DEFAULT_HEADER, self._quoted or False)
        server, now = origin(url), time.monotonic()
        contract = self._contracts.get(server)
        if contract is None or now - contract.read_at > FRESH:
            self._contracts.pop(server, None)
            parts = urlsplit(url)
            address = f"{parts.scheme}://{parts.netloc}{CONTRACT_ADDRESS}"
            asking = LogicalCall("", "", "GET", address, (), b"", time.time(), options=options)
            contract = yield from read_contract(asking, self._budget, now)
            self._contracts[server] = contract
        return terms_of(contract.promises(method, url), self._key_in, self._quoted, self._budget)

    def _new_call(self, prepared: PreparedRequest, key: str | None, name: str) -> Flow[LogicalCall]:
        """The call, checked: from here on neither its key nor its bytes change."""
        _check(prepared, self._max_body)
        terms = yield from self._terms(prepared.method, prepared.url, prepared.options)
        place = terms.key_in
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ConfigurationError("the name of a call must be text that can be stored") from None
        keys, others = _own_keys(prepared, place)
        keys += [] if key is None else [key]
        if len(set(keys)) > 1 or (len(keys) > 1 and isinstance(place, str)):
            where = place if isinstance(place, str) else "put it into the body"
            raise ConfigurationError(f"a call has one key: give key= or {where}, once")
        private = [pair for pair in others if pair[0].lower() not in self._kept]
        quotable = terms.quoted or isinstance(place, BodyField)
        chosen = checked(keys[0], quoted=quotable) if keys else new_key()
        body = prepared.body
        if isinstance(place, BodyField) and len(keys) == (key is not None):
            body = put_key(prepared.headers, body, place, chosen)
        return LogicalCall(
            key=chosen,
            name=name,
            method=prepared.method,
            url=prepared.url,
            headers=tuple([pair for pair in others if pair not in private]),
            body=body,
            created_at=time.time(),
            omitted=tuple(sorted({pair[0].lower() for pair in private})),
            private=tuple(private),
            options=prepared.options,
            terms=terms,
        )

    def _begin(self, call: LogicalCall) -> LogicalCall:
        """Journal the call. A caller's own key, used before, continues the call from its row."""
        begun = call if self._journal is None else self._journal.begin(call)
        if isinstance(begun, LogicalCall):
            return begun
        if begun.is_other:
            said = "the journal has this key for another request; nothing was sent"
            raise KeyReused(said, call, None, "key-reused")
        known = begun.call
        self._check_lifetime(known, call.terms, pending=begun.answer is None)
        if begun.answer is not None:  # the row has no request any more; this one means the same
            known = replace(known, body=call.body, headers=call.headers)
        return replace(known, private=call.private, options=call.options, resumed=True)

    def _check_lifetime(self, call: LogicalCall, now: KeyTerms, *, pending: bool) -> None:
        """Refuse a call whose key the server may not know: it would be a new operation.

        ``now``: the terms on which it would be sent today.
        """
        age, said = time.time() - call.created_at, ""
        longest = self._longest_age(call.terms.lifetime, now.lifetime)
        if call.terms.place != now.place:
            said = f"its key went to the {call.terms.place}, and now goes to the {now.place}"
        elif longest is None:
            said = (
                "nobody has told how long the server knows its key: give resume_within=, or "
                "contract=True from the first try on"
            )
        if said and pending:
            raise CallOutcomeUnknown(f"{said}; nothing was sent", call)
        if age < -CLOCK_CORRECTION:
            said = "by the clock it is not made yet: nobody knows how old it is"
        elif longest is not None and age > longest:
            said = "it is older than the server is known to remember its key"
        if said:
            raise KeyExpired(f"{said}; nothing was sent", call, None, "key-expired")

    def _longest_age(self, told: float | None, now: float | None) -> float | None:
        """How old a call may be when it is sent again, in seconds; None if nobody has told.

        What the server told counts if it told it when the call was made: it may have changed
        since. It must last for the whole budget, and a clock may have been set back.
        """
        limits = [] if self._resume_within is None else [self._resume_within.total_seconds()]
        if told is not None:
            lifetime = told if now is None else min(told, now)
            within = self._budget.within.total_seconds()
            limits.append(lifetime - within - CLOCK_CORRECTION)
        return min(limits, default=None)

    def _request(
        self, call: LogicalCall, status_url: str | None, credentials: Mapping[str, str]
    ) -> PreparedRequest:
        """The request of a try; without a key if it asks for the status.

        The headers are without the library's own; of one name the last counts.
        """
        given = tuple(credentials.items())
        if status_url is not None:
            return PreparedRequest("GET", status_url, given, b"", call.options)
        pairs = (*call.headers, *call.private, *given)
        terms = call.terms
        if isinstance(terms.key_in, str):
            pairs = (*pairs, (terms.key_in, header_value(call.key, quoted=terms.quoted)))
        headers = tuple({pair[0].lower(): pair for pair in pairs}.values())
        return PreparedRequest(call.method, call.url, headers, call.body, call.options)

    def _write_journal(self, op: FlowOperation[Any]) -> Any:
        """Perform an operation on the journal.

        A call that has begun does not fail because of it: the worst is that it stays pending, and
        is resumed with its key.
        """
        journal = self._journal
        if journal is None:
            return
        try:
            match op:
                case model.ExtendHold(call, seconds):
                    journal.extend_hold(call, seconds)
                case model.RecordStatusUrl(call, url):
                    journal.record_status_url(call, url)
                case model.RecordAnswer(call, answer):
                    journal.record_answer(call, answer)
                case model.ReleaseCall(call):
                    journal.release(call)
                case model.ForgetCall(call):
                    journal.forget(call)
                case _:
                    raise TypeError(f"nobody performs {type(op).__name__}")
        except StoreError as error:
            import logging  # most processes never need it here

            logging.getLogger("semel").warning("the journal was not written: %s", error)

    # ── calls of the journal ──────────────────────────────────────────────────────────────────────

    def _take(self, entries: Iterator[JournaledCall], done: list[Resumed[R]]) -> LogicalCall | None:
        """Take the next pending call that no process holds.

        When the budget of one was spent, or a server's contract cannot be read, others to the same
        server would fail too: they are left for another time.
        """
        spent = {
            each.call.origin
            for each in done
            if isinstance(each.error, BudgetSpent)
            or (isinstance(each.error, ContractError) and each.error.unreadable)
        }
        for entry in entries:
            free = not entry.held and entry.call.origin not in spent
            if free and (call := self.journal.take(entry)):
                return call
        return None

    def _resume(self, call: LogicalCall) -> Flow[Resumed[R]]:
        """Complete a call that was taken. It must have all the headers it had, from somewhere."""
        try:
            now = yield from self._terms(call.method, call.url, call.options)
            self._check_lifetime(call, now, pending=True)
            given = [*(yield from ask(model.FreshCredentials(call))), *self._http.headers]
            there = {name.lower() for name in given} | ADDED_BY_LIBRARY
            missing = [name for name in call.omitted if name not in there]
            if missing:
                raise ConfigurationError(
                    f"the journal does not keep the header {', '.join(missing)}, and neither "
                    "credentials= nor the HTTP client gives it; nothing was sent"
                )
            answer = yield from complete(call, self._budget, time.monotonic())
            return Resumed(call, answer.native, None)
        except SemelError as error:
            return Resumed(call, None, error)
        finally:
            self.journal.release(call)


class SyncClient(BaseClient[H, R, R]):
    """The client that blocks."""

    def _prepare(self, *request: Any, **arguments: Any) -> PreparedRequest:
        """The request with its body made bytes, once; takes what the library's own takes."""
        raise NotImplementedError

    def _exchange(self, request: PreparedRequest) -> CallAnswer:
        """One request and its whole answer; redirects are answers too."""
        raise NotImplementedError

    def request(
        self, method: str, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        prepared = self._prepare(method.upper(), url, **arguments)
        call = self._begin(run(self._new_call(prepared, key, name), self._perform))
        native: R = run(complete(call, self._budget, time.monotonic()), self._perform).native
        return native

    def pending(self) -> list[JournaledCall]:
        """The calls without an answer, oldest first; ``held``: a process works on it now."""
        return self.journal.pending()

    def resume(self) -> list[Resumed[R]]:
        """Send the pending calls that no process holds again, with their keys, one by one."""
        done: list[Resumed[R]] = []
        entries = iter(self.pending())
        while (call := self._take(entries, done)) is not None:
            done.append(run(self._resume(call), self._perform))
        return done

    def close(self) -> None:
        """Close the journal, if this client opened it; your own HTTP client stays open."""
        self._close_journal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _perform(self, op: FlowOperation[Any]) -> Any:
        match op:
            case model.SendRequest(call):
                return self._try(call, None)
            case model.AskStatus(call, url):
                return self._try(call, url)
            case model.FreshCredentials(call):
                return {} if self._credentials is None else self._credentials(call)
            case model.Sleep(least, most):
                return time.sleep(between(least, most))
            case _:
                return self._write_journal(op)

    # Twin of AsyncClient._try, by tools.twins
    def _try(self, call: LogicalCall, status_url: str | None) -> TryResult:
        credentials = self._perform(model.FreshCredentials(call))
        request = self._request(call, status_url, credentials)
        result: CallAnswer | NoAnswer
        try:
            result = self._exchange(request)
        except Exception as error:
            result = _no_answer(error)
        return TryResult(result, time.monotonic(), time.time())


class AsyncClient(BaseClient[H, R, Coroutine[Any, Any, R]]):
    """The client for an asyncio event loop; it writes the journal in threads."""

    async def _prepare(self, *request: Any, **arguments: Any) -> PreparedRequest:
        """The request with its body made bytes, once; takes what the library's own takes."""
        raise NotImplementedError

    async def _exchange(self, request: PreparedRequest) -> CallAnswer:
        """One request and its whole answer; redirects are answers too."""
        raise NotImplementedError

    async def request(
        self, method: str, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        prepared = await self._prepare(method.upper(), url, **arguments)
        call = await self._abegin(await self._run(self._new_call(prepared, key, name)))
        native: R = (await self._run(complete(call, self._budget, time.monotonic()))).native
        return native

    async def pending(self) -> list[JournaledCall]:
        """The calls without an answer, oldest first; ``held``: a process works on it now."""
        return await asyncio.to_thread(self.journal.pending)

    async def resume(self) -> list[Resumed[R]]:
        """Send the pending calls that no process holds again, with their keys, one by one."""
        done: list[Resumed[R]] = []
        entries = iter(await self.pending())
        while (call := await asyncio.to_thread(self._take, entries, done)) is not None:
            done.append(await self._run(self._resume(call)))
        return done

    async def aclose(self) -> None:
        """Close the journal, if this client opened it; your own HTTP client stays open."""
        await asyncio.to_thread(self._close_journal)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _abegin(self, call: LogicalCall) -> LogicalCall:
        """Journal the call in a thread.

        The thread goes on when its task is cancelled, and holds what it wrote: then release it.
        """
        writing = asyncio.ensure_future(asyncio.to_thread(self._begin, call))

        def release(written: asyncio.Future[LogicalCall]) -> None:
            if not written.cancelled() and written.exception() is None:
                self._write_journal(model.ReleaseCall(written.result()))

        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(release)
            raise

    async def _run(self, flow: Flow[T]) -> T:
        """Drive a flow. Cancelled, it may have sent something: it releases its call."""

        def end(rest: Flow[T]) -> None:
            # Not in a thread: nobody may wait for one now. What the flow ends with must not hide
            # the cancellation.
            with suppress(Exception):
                run(rest, self._write_journal)

        return await arun(flow, self._perform, end)

    async def _perform(self, op: FlowOperation[Any]) -> Any:
        match op:
            case model.SendRequest(call):
                return await self._try(call, None)
            case model.AskStatus(call, url):
                return await self._try(call, url)
            case model.FreshCredentials(call):
                given: Any = {} if self._credentials is None else self._credentials(call)
                return (await given) if isawaitable(given) else given
            case model.Sleep(least, most):
                return await asyncio.sleep(between(least, most))
            case _:
                return await asyncio.to_thread(self._write_journal, op)

    async def _try(self, call: LogicalCall, status_url: str | None) -> TryResult:
        credentials = await self._perform(model.FreshCredentials(call))
        request = self._request(call, status_url, credentials)
        result: CallAnswer | NoAnswer
        try:
            result = await self._exchange(request)
        except Exception as error:
            result = _no_answer(error)
        return TryResult(result, time.monotonic(), time.time())


def _check(request: PreparedRequest, max_body: int) -> None:
    """Refuse what must not be journaled or sent."""
    if request.method in SAFE_METHODS:
        raise ConfigurationError(f"{request.method} changes nothing: send it without this client")
    parts = urlsplit(request.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("the address must be a whole one, with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("the journal keeps addresses: give credentials another way")
    if len(request.body) > max_body:
        raise ConfigurationError(f"the body is larger than max_body, {max_body} bytes")


def _own_keys(
    prepared: PreparedRequest, place: str | BodyField
) -> tuple[list[str], list[tuple[str, str]]]:
    """The keys that the caller has put into the request, and its other headers."""
    if isinstance(place, BodyField):
        found = read_key(prepared.headers, prepared.body, place)
        return [] if found is None else [found], list(prepared.headers)
    is_key = place.lower().__eq__
    keys = [text for each, text in prepared.headers if is_key(each.lower())]
    return keys, [pair for pair in prepared.headers if not is_key(pair[0].lower())]


def _no_answer(error: Exception) -> NoAnswer:
    """A try that failed. What a hook of the caller made of an answer is raised: it was answered."""
    sent = classify(error)
    if sent is WasSent.ANSWERED:
        raise error
    return NoAnswer(error, sent=sent is not WasSent.NOT_SENT, is_bug=sent is None)


def one_shot(body: object) -> ConfigurationError:
    """The error for a body that cannot be sent twice."""
    return ConfigurationError(
        f"a body of type {type(body).__name__} can be read once only, but a call may be sent "
        "several times: give bytes"
    )
