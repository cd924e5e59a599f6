"""What the clients of every HTTP library share, in either colour: options, and what a call is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from os import PathLike
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar
from urllib.parse import urlsplit

from semel.backoff import between
from semel.client.errors import KeyExpired, KeyReused
from semel.client.journal import Journal
from semel.client.journal_rows import Entry
from semel.client.keys import checked, header_value, new_key
from semel.client.model import (
    Answer,
    Call,
    Conclude,
    Failed,
    Hold,
    LetGo,
    Pairs,
    Point,
    Rest,
    Tried,
    Withdraw,
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
BY_THE_LIBRARY: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers that a library adds while sending, by its `auth` and its cookies."""
CLOCK_CORRECTION: Final = 60.0
"""Seconds that a clock may be set back without making the age of a call a guess."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})

Headers: TypeAlias = Mapping[str, str]
JournalLike: TypeAlias = Journal | str | PathLike[str] | None


class Options(TypedDict, total=False):
    """What every client can be told beside its journal; see `Caller`."""

    budget: Budget
    credentials: Callable[[Call], Any]
    keep_headers: Iterable[str]
    resume_within: timedelta
    header: str
    quoted: bool
    max_body: int


@frozen
class Prepared:
    """A request whose body is bytes, with the headers that were given for it alone."""

    method: str
    url: str
    headers: Pairs
    body: bytes
    options: Mapping[str, Any]


@frozen
class Resumed(Generic[R]):
    """What became of a call that was taken up again: a response, or an error."""

    call: Call
    response: R | None
    error: SemelError | None


class Caller(Generic[R]):
    """The options of a client, and what it does without waiting for anybody."""

    def __init__(
        self,
        *,
        journal: JournalLike,
        budget: Budget = Budget(),  # noqa: B008 - frozen
        credentials: Callable[[Call], Any] | None = None,
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
        self._owns_journal = not isinstance(journal, Journal)
        self._journal = _opened(journal)
        self._budget, self._credentials = budget, credentials
        self._kept = KEPT_HEADERS | {name.lower() for name in keep_headers}
        self._resume_within = resume_within.total_seconds()
        self._header, self._quoted, self._max_body = header, quoted, max_body

    @property
    def journal(self) -> Journal:
        """The journal; an error where there is none."""
        if self._journal is None:
            raise ConfigurationError("this client has no journal: give it one with journal=")
        return self._journal

    def _close_journal(self) -> None:
        if self._owns_journal and self._journal is not None:
            self._journal.close()

    # ── one call ──────────────────────────────────────────────────────────────────────────────────

    def _call(self, prepared: Prepared, key: str | None, name: str) -> Call:
        """The call, checked: from here on neither its key nor its bytes change."""
        _check(prepared, self._max_body)
        is_key = self._header.lower().__eq__
        theirs = [pair for pair in prepared.headers if not is_key(pair[0].lower())]
        private = [pair for pair in theirs if pair[0].lower() not in self._kept]
        given = [text for name, text in prepared.headers if is_key(name.lower())]
        return Call(
            key=self._key(given if key is None else [key, *given]),
            name=_storable(name),
            method=prepared.method,
            url=prepared.url,
            headers=tuple([pair for pair in theirs if pair not in private]),
            body=prepared.body,
            created_at=time.time(),
            omitted=tuple(sorted({pair[0].lower() for pair in private})),
            private=tuple(private),
            options=prepared.options,
        )

    def _key(self, given: list[str]) -> str:
        if len(given) > 1:
            raise ConfigurationError(f"a call has one key: give key= or {self._header}, once")
        return checked(given[0], quoted=self._quoted) if given else new_key()

    def _begun(self, call: Call) -> Call:
        """The call as it goes on: written down, or what its key stands for already."""
        begun = call if self._journal is None else self._journal.begin(call)
        if isinstance(begun, Call):
            return begun
        return self._continued(call, begun)

    def _continued(self, call: Call, entry: Entry) -> Call:
        """A key of the caller's own, a second time: the same call, so it goes on from its row."""
        known = entry.call
        if entry.is_other:
            said = "the journal has this key for another request; nothing was sent"
            raise KeyReused(said, call, None, "key-reused")
        self._check_age(known)
        if entry.answer is not None:  # its bytes are forgotten, and these mean the same
            known = replace(known, body=call.body, headers=call.headers)
        return replace(known, private=call.private, options=call.options, resumed=True)

    def _check_age(self, call: Call) -> None:
        age = time.time() - call.created_at
        if age > self._resume_within:
            said = "it is older than servers are trusted to remember keys; nothing was sent"
            raise KeyExpired(said, call, None, "key-expired")
        if age < -CLOCK_CORRECTION:
            said = "by the clock it is not made yet: nobody knows how old it is; nothing was sent"
            raise KeyExpired(said, call, None, "key-expired")

    def _check_headers(self, call: Call, given: Iterable[str]) -> None:
        """A resumed call must have all the headers it had, from somewhere."""
        there = {name.lower() for name in given} | BY_THE_LIBRARY
        missing = [name for name in call.omitted if name not in there]
        if missing:
            raise ConfigurationError(
                f"the journal does not keep the header {', '.join(missing)}, and neither "
                "credentials= nor the HTTP client gives it; nothing was sent"
            )

    def _headers(self, call: Call, more: Headers) -> dict[str, str]:
        """The headers of a try, but for the library's own; of one name the last counts."""
        merged: dict[str, tuple[str, str]] = {}
        for name, text in (*call.headers, *call.private, *more.items()):
            merged[name.lower()] = (name, text)
        merged[self._header.lower()] = (self._header, header_value(call.key, quoted=self._quoted))
        return dict(merged.values())

    def _journaled(self, op: FlowOperation[Any]) -> None:
        """Note something in the journal.

        A call, once begun, does not fail over a note: the worst is that it stays pending, and is
        resumed with its key.
        """
        if self._journal is None:
            return
        try:
            _note(self._journal, op)
        except StoreError as error:
            import logging  # most processes never need it here

            logging.getLogger("semel").warning("the journal was not written: %s", error)


def _opened(journal: JournalLike) -> Journal | None:
    return journal if journal is None or isinstance(journal, Journal) else Journal(journal)


def _note(journal: Journal, op: FlowOperation[Any]) -> None:
    match op:
        case Hold(call, seconds):
            journal.hold(call, seconds)
        case Point(call, url):
            journal.point(call, url)
        case Conclude(call, answer):
            journal.conclude(call, answer)
        case LetGo(call):
            journal.let_go(call)
        case Withdraw(call):
            journal.forget(call)
        case _:
            raise TypeError(f"nobody performs {type(op).__name__}")


# ── what is refused before anything is written or sent ────────────────────────────────────────────


def _check(prepared: Prepared, max_body: int) -> None:
    if prepared.method in SAFE_METHODS:
        raise ConfigurationError(f"{prepared.method} changes nothing: send it without this client")
    parts = urlsplit(prepared.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("the address must be a whole one, with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("the journal keeps addresses: give credentials another way")
    if len(prepared.body) > max_body:
        raise ConfigurationError(f"the body is larger than max_body, {max_body} bytes")


def _storable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigurationError("the name of a call must be text that can be stored") from None
    return name


def one_shot(body: object) -> ConfigurationError:
    """For a body that could not be sent twice."""
    return ConfigurationError(
        f"a body of type {type(body).__name__} can be read once only, but a call may be sent "
        "several times: give bytes"
    )


# ── tries ─────────────────────────────────────────────────────────────────────────────────────────


def failed(error: Exception) -> Failed:
    """The failure of a try; an answer that a hook of the caller's made an error of is raised."""
    found = classify(error)
    if found is WasSent.ANSWERED:
        raise error
    return Failed(error, sent=found is not WasSent.NOT_SENT, is_bug=found is None)


def tried(result: Answer | Failed) -> Tried:
    return Tried(result, time.monotonic(), time.time())


def somewhere_between(op: Rest) -> float:
    return between(op.least, op.most)
