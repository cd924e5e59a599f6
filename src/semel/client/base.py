"""What all clients share, blocking or not: options, checks, and how a call begins and is noted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from os import PathLike
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar
from urllib.parse import urlsplit

from semel.client.errors import KeyExpired, KeyReused
from semel.client.journal import CallJournal
from semel.client.keys import checked, header_value, new_key
from semel.client.model import (
    CallAnswer,
    ExtendHold,
    ForgetCall,
    LogicalCall,
    NoAnswer,
    Pairs,
    RecordAnswer,
    RecordStatusUrl,
    ReleaseCall,
    TryResult,
)
from semel.client.retry_budget import Budget
from semel.core.frozen import frozen, replace
from semel.core.operations.requests import FlowOperation
from semel.core.recovery.was_sent import WasSent, classify
from semel.errors import ConfigurationError, SemelError, StoreError

R = TypeVar("R")

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

Headers: TypeAlias = Mapping[str, str]
JournalLike: TypeAlias = CallJournal | str | PathLike[str] | None


class ClientOptions(TypedDict, total=False):
    """The options of every client beside its journal; see `BaseClient`."""

    budget: Budget
    credentials: Callable[[LogicalCall], Any]
    keep_headers: Iterable[str]
    resume_within: timedelta
    header: str
    quoted: bool
    max_body: int


@frozen
class PreparedRequest:
    """A request whose body is bytes, with the headers that were given for it alone."""

    method: str
    url: str
    headers: Pairs
    body: bytes
    options: Mapping[str, Any]

    def check(self, max_body: int) -> None:
        """Refuse what must not be journaled or sent."""
        if self.method in SAFE_METHODS:
            raise ConfigurationError(f"{self.method} changes nothing: send it without this client")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("the address must be a whole one, with http:// or https://")
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError("the journal keeps addresses: give credentials another way")
        if len(self.body) > max_body:
            raise ConfigurationError(f"the body is larger than max_body, {max_body} bytes")


@frozen
class Resumed(Generic[R]):
    """The result of a call that was sent again: a response, or an error."""

    call: LogicalCall
    response: R | None
    error: SemelError | None


class BaseClient(Generic[R]):
    """The options of a client, and all that it does without waiting."""

    def __init__(
        self,
        *,
        journal: JournalLike,
        budget: Budget = Budget(),  # noqa: B008 - frozen
        credentials: Callable[[LogicalCall], Any] | None = None,
        keep_headers: Iterable[str] = (),
        resume_within: timedelta = timedelta(hours=23),
        header: str = "Idempotency-Key",
        quoted: bool = False,
        max_body: int = 16 * 1024 * 1024,
    ) -> None:
        if resume_within <= budget.within:
            raise ConfigurationError("resume_within must be longer than the budget's within")
        if isinstance(keep_headers, str):
            raise ConfigurationError("keep_headers= takes several names, not one text")
        if journal is None or isinstance(journal, CallJournal):
            self._journal, self._owns_journal = journal, False
        else:
            self._journal, self._owns_journal = CallJournal(journal), True
        self._budget, self._credentials = budget, credentials
        self._kept = KEPT_HEADERS | {name.lower() for name in keep_headers}
        self._resume_within = resume_within.total_seconds()
        self._header, self._quoted, self._max_body = header, quoted, max_body

    def _own_headers(self) -> Iterable[str]:
        """Names of the headers that the HTTP client adds to every request."""
        raise NotImplementedError

    @property
    def journal(self) -> CallJournal:
        """The journal; an error if there is none."""
        if self._journal is None:
            raise ConfigurationError("this client has no journal: give it one with journal=")
        return self._journal

    def _close_journal(self) -> None:
        if self._owns_journal and self._journal is not None:
            self._journal.close()

    # ── one call ──────────────────────────────────────────────────────────────────────────────────

    def _call(self, prepared: PreparedRequest, key: str | None, name: str) -> LogicalCall:
        """The call, checked: from here on neither its key nor its bytes change."""
        prepared.check(self._max_body)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ConfigurationError("the name of a call must be text that can be stored") from None
        is_key = self._header.lower().__eq__
        given = [text for each, text in prepared.headers if is_key(each.lower())]
        keys = given if key is None else [key, *given]
        if len(keys) > 1:
            raise ConfigurationError(f"a call has one key: give key= or {self._header}, once")
        others = [pair for pair in prepared.headers if not is_key(pair[0].lower())]
        private = [pair for pair in others if pair[0].lower() not in self._kept]
        return LogicalCall(
            key=checked(keys[0], quoted=self._quoted) if keys else new_key(),
            name=name,
            method=prepared.method,
            url=prepared.url,
            headers=tuple([pair for pair in others if pair not in private]),
            body=prepared.body,
            created_at=time.time(),
            omitted=tuple(sorted({pair[0].lower() for pair in private})),
            private=tuple(private),
            options=prepared.options,
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
        self._check_age(known)
        if begun.answer is not None:  # the row has no request any more; this one means the same
            known = replace(known, body=call.body, headers=call.headers)
        return replace(known, private=call.private, options=call.options, resumed=True)

    def _check_age(self, call: LogicalCall) -> None:
        """Refuse a call whose key the server may have forgotten: it would be a new operation."""
        age = time.time() - call.created_at
        said = None
        if age > self._resume_within:
            said = "it is older than servers are trusted to remember keys; nothing was sent"
        elif age < -CLOCK_CORRECTION:
            said = "by the clock it is not made yet: nobody knows how old it is; nothing was sent"
        if said is not None:
            raise KeyExpired(said, call, None, "key-expired")

    def _check_headers(self, call: LogicalCall, given: Iterable[str]) -> None:
        """A resumed call must have all the headers it had, from somewhere."""
        there = {name.lower() for name in given} | ADDED_BY_LIBRARY
        missing = [name for name in call.omitted if name not in there]
        if missing:
            raise ConfigurationError(
                f"the journal does not keep the header {', '.join(missing)}, and neither "
                "credentials= nor the HTTP client gives it; nothing was sent"
            )

    def _request(
        self, call: LogicalCall, status_url: str | None, credentials: Headers
    ) -> tuple[str, str, Headers, bytes]:
        """Method, address, headers and body of a try; without a key if it asks for the status.

        The headers are without the library's own; of one name the last counts.
        """
        if status_url is not None:
            return "GET", status_url, credentials, b""
        merged: dict[str, tuple[str, str]] = {}
        for name, text in (*call.headers, *call.private, *credentials.items()):
            merged[name.lower()] = (name, text)
        merged[self._header.lower()] = (self._header, header_value(call.key, quoted=self._quoted))
        return call.method, call.url, dict(merged.values()), call.body

    def _write_journal(self, op: FlowOperation[Any]) -> None:
        """Perform an operation on the journal.

        A call that has begun does not fail because of it: the worst is that it stays pending, and
        is resumed with its key.
        """
        journal = self._journal
        if journal is None:
            return
        try:
            match op:
                case ExtendHold(call, seconds):
                    journal.extend_hold(call, seconds)
                case RecordStatusUrl(call, url):
                    journal.record_status_url(call, url)
                case RecordAnswer(call, answer):
                    journal.record_answer(call, answer)
                case ReleaseCall(call):
                    journal.release(call)
                case ForgetCall(call):
                    journal.forget(call)
                case _:
                    raise TypeError(f"nobody performs {type(op).__name__}")
        except StoreError as error:
            import logging  # most processes never need it here

            logging.getLogger("semel").warning("the journal was not written: %s", error)


def one_shot(body: object) -> ConfigurationError:
    """The error for a body that cannot be sent twice."""
    return ConfigurationError(
        f"a body of type {type(body).__name__} can be read once only, but a call may be sent "
        "several times: give bytes"
    )


def try_result(result: CallAnswer | Exception) -> TryResult:
    """The result of a try, with its time.

    An exception that a hook of the caller made from an answer is raised: it was answered.
    """
    found: CallAnswer | NoAnswer
    if isinstance(result, Exception):
        sent = classify(result)
        if sent is WasSent.ANSWERED:
            raise result
        found = NoAnswer(result, sent=sent is not WasSent.NOT_SENT, is_bug=sent is None)
    else:
        found = result
    return TryResult(found, time.monotonic(), time.time())
