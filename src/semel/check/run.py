"""One run: the operation under test, and what the probes share."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from semel.check.effects import EffectCounter
from semel.check.json_values import NO_JSON, is_array, is_object, json_of
from semel.check.noise import LAYOUT, OF_THE_RESOURCE, Noise, moved_paths, text_at
from semel.check.oracles import RecordingProvider
from semel.check.profiles import CheckProfile
from semel.check.wire import (
    Caller,
    NoReply,
    Pairs,
    WireAnswer,
    WireExchange,
    WireRequest,
)
from semel.errors import SemelError

LONGEST_PAUSE: Final = 5.0
"""Seconds that a probe waits before it asks again, whatever ``Retry-After`` says."""
WAITS: Final = frozenset({202, 409, 425, 429, 503})
"""Statuses after which a client sends the same request again."""
MOST_TRIED: Final = 4
"""Bodies that are tried until the API takes one."""
DEEPEST: Final = 8


class NotAnswered(SemelError):
    """The answers are about the caller, not about the request: its rate, its credentials."""


class CheckVerdict(StrEnum):
    """What a probe found."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_OBSERVABLE = "not observable"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The verdict of one probe, the reason in a sentence, and the exchanges that show it."""

    verdict: CheckVerdict
    reason: str
    evidence: tuple[WireExchange, ...] = ()
    name: str = ""
    operation: str = ""
    seconds: float = 0.0
    counted: bool = False
    """Whether the verdict rests on a count of effects."""


def holds(reason: str) -> ProbeResult:
    return ProbeResult(CheckVerdict.HOLDS, reason)


def broken(reason: str) -> ProbeResult:
    return ProbeResult(CheckVerdict.BROKEN, reason)


def broken_by_count(reason: str) -> ProbeResult:
    """Broken, if the oracle is right."""
    return ProbeResult(CheckVerdict.BROKEN, reason, counted=True)


def not_observable(reason: str) -> ProbeResult:
    return ProbeResult(CheckVerdict.NOT_OBSERVABLE, reason)


def skipped(reason: str) -> ProbeResult:
    return ProbeResult(CheckVerdict.SKIPPED, reason)


def either(statuses: Iterable[int]) -> str:
    return " or ".join(map(str, statuses))


@dataclass(frozen=True, slots=True)
class CheckProbe:
    """One rung of the ladder."""

    name: str
    title: str
    why: str
    function: Callable[[CheckRun], ProbeResult]


PROBES: Final[dict[str, CheckProbe]] = {}
"""All probes by name."""


def probe(
    name: str, title: str, why: str
) -> Callable[[Callable[[CheckRun], ProbeResult]], Callable[[CheckRun], ProbeResult]]:
    """Put a function on the ladder. ``why``: what goes wrong in the world where it is broken."""

    def register(function: Callable[[CheckRun], ProbeResult]) -> Callable[..., ProbeResult]:
        PROBES[name] = CheckProbe(name, title, why, function)
        return function

    return register


@dataclass(frozen=True, slots=True)
class CheckedOperation:
    """The operation under test, and requests for it that are known to differ."""

    request: WireRequest
    other_body: bytes | None = None
    """A valid body with another meaning."""
    refused_body: bytes | None = None
    """A body that the API refuses with a 4xx."""
    failing: Pairs = ()
    """Headers that make the API fail with a 5xx."""
    other_target: str | None = None
    """Path and query of another operation that takes the same body."""
    label: str = ""
    promises: Mapping[str, Any] | None = None
    """What its OpenAPI document declares."""


@dataclass(slots=True)
class CheckRun:
    """What the probes of one operation share."""

    operation: CheckedOperation
    caller: Caller
    profile: CheckProfile
    counter: EffectCounter = field(default_factory=lambda: EffectCounter(None))
    provider: RecordingProvider | None = None
    calls_of_one: int = 1
    """How often one request calls the recording provider."""
    credentials: Pairs = ()
    other_credentials: Pairs = ()
    restart: Callable[[], None] | None = None
    patience: float = 30.0
    noise: Noise = field(default_factory=Noise)
    promises: Mapping[str, Any] | None = None
    """What the API declares; None: it publishes no contract."""
    deferred: bool = False
    """Whether the API accepts requests with a 202 and runs them later."""
    accepts: bool = False
    """Whether a 202 is the operation's own answer, and no other one comes."""
    tells_first: bool = False
    """Whether a first answer has the marker too, with a value that says no."""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    """What was found out about the contract, for ``--discover``."""
    _other_body: bytes | None = None
    _looked_for_other_body: bool = False

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def new_key(self) -> str:
        return str(uuid.uuid4())

    def request(self, key: str | None, **changes: Any) -> WireRequest:
        """The operation's request with a key; ``credentials`` replaces the caller's own."""
        credentials = changes.pop("credentials", self.credentials)
        base = replace(self.operation.request, **changes)
        named = () if key is None else ((self.profile.header, key),)
        return base.plus(*credentials, *named)

    def send(self, key: str | None, **changes: Any) -> WireAnswer:
        """The answer; where the API accepts and runs later, the one that is there in the end."""
        request = self.request(key, **changes)
        answer = self.ask(request)
        if answer.status != 202 or retry_after(answer) is None or self.accepts:
            return answer
        final = self.final(request)
        self.accepts, self.deferred = final is None, final is not None
        return final or answer

    def twice(self) -> tuple[WireAnswer, WireAnswer]:
        """The answers to one request that is sent twice, with one new key."""
        key = self.new_key()
        return self.send(key), self.send(key)

    def ask(self, request: WireRequest) -> WireAnswer:
        """One answer about the request itself: what a limit of the rate refused is sent again, and
        credentials that ended are told."""
        deadline = time.monotonic() + self.patience
        while True:
            answer = self.caller.send(request)
            said = retry_after(answer)
            pause = min(LONGEST_PAUSE, 1.0 if said is None else max(0.1, said))
            own = all(each in request.headers for each in self.credentials)
            if answer.status == 401 and own:
                raise NotAnswered("the API asks who is calling (401): give a token with --as")
            if answer.status != 429:
                return answer
            if time.monotonic() + pause > deadline:
                raise NotAnswered("the API limits the rate of requests: 429")
            time.sleep(pause)

    def final(self, request: WireRequest) -> WireAnswer | None:
        """The answer that a patient client ends with; None when it never comes."""
        deadline = time.monotonic() + self.patience
        pause = 0.1
        while True:
            try:
                answer = self.caller.send(request)
            except NoReply:
                answer = None
            own = self.accepts and answer is not None and answer.status == 202  # of the operation
            if answer is not None and (own or answer.status not in WAITS):
                return answer
            pause = min(2 * pause, 2.0)
            wait = min(LONGEST_PAUSE, max(pause, retry_after(answer) or 0.0))
            if time.monotonic() + wait > deadline:
                return None
            time.sleep(wait)

    def other_body(self) -> bytes | None:
        """A body with another meaning that the API takes: the one that was given, or this one with
        a value changed. It is tried once, with keys of its own."""
        if not self._looked_for_other_body:
            self._looked_for_other_body = True
            given = self.operation.other_body
            tries = other_bodies(self.operation.request.body) if given is None else [given]
            self._other_body = next(
                (each for each in tries if self.send(self.new_key(), body=each).succeeded), None
            )
        return self._other_body

    # ── answers ───────────────────────────────────────────────────────────────────────────────────

    def marked(self, answer: WireAnswer) -> bool:
        """Whether the answer says of itself that it is a replay."""
        return any(
            text.strip().lower() in ("true", "?1", "1", "hit", "yes")
            for name in self.profile.markers
            for text in answer.values(name)
        )

    def tells(self, answer: WireAnswer) -> bool:
        """Whether the answer has the marker, whatever it says."""
        return any(answer.values(name) for name in self.profile.markers)

    def kept(self, first: WireAnswer, again: WireAnswer) -> bool | None:
        """Whether ``again`` is the kept answer ``first``; None where nobody could tell, which
        `untold` explains."""
        if first.status != again.status:
            return False
        headers = self.noise.telling_headers
        if any(n in headers and first.values(n) != again.values(n) for n in OF_THE_RESOURCE):
            return False
        moved = set(moved_paths(first, again))
        if moved <= {LAYOUT}:
            same = any(first.values(name) == again.values(name) for name in headers)
            return True if self.noise.telling or self.marked(again) or same else None
        return None if self.noise.telling - moved and moved <= self.noise.paths else False

    def untold(self, first: WireAnswer, again: WireAnswer) -> str:
        """Why nobody can tell whether ``again`` is the kept answer ``first``."""
        moved = moved_paths(first, again)
        if set(moved) <= {LAYOUT}:
            return "all answers of this operation are equal: a kept one looks like a new one"
        stayed = ", ".join(sorted(self.noise.telling - set(moved)))
        return f"{stayed} stayed, and {', '.join(moved)} moved: it is kept in part, or run again"

    def same_answer(self, first: WireAnswer, other: WireAnswer) -> bool | None:
        """Whether ``other`` has what only ``first`` had; None where nobody could tell."""
        for path in self.noise.telling:
            if (value := text_at(first, path)) is not None and value == text_at(other, path):
                return True
        if (first.status, first.body) == (other.status, other.body):
            return True if self.noise.telling or self.marked(other) else None
        return False

    def difference(self, first: WireAnswer, again: WireAnswer) -> str:
        if first.status != again.status:
            return f"status {first.status}, then {again.status}"
        moved = moved_paths(first, again) or [
            name for name in OF_THE_RESOURCE if first.values(name) != again.values(name)
        ]
        return f"moved: {', '.join(moved)}"


def retry_after(answer: WireAnswer | None) -> float | None:
    """What ``Retry-After`` says, in seconds from now; None where it says nothing."""
    text = "" if answer is None else (answer.value("Retry-After") or "").strip()
    if text.isdecimal():
        return float(text)
    until = moment(text)
    return None if until is None else max(0.0, (until - datetime.now(UTC)).total_seconds())


def moment(text: str) -> datetime | None:
    """A date as HTTP or ISO 8601 has it; None for anything else."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            made = read(text.strip('"'))
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return made if made.tzinfo else made.replace(tzinfo=UTC)
    return None


def other_bodies(body: bytes) -> list[bytes]:
    """Bodies that mean something else: one value changed, of JSON or of a form."""
    document = json_of(body)
    if document is NO_JSON:
        return _other_forms(body)
    numbers, texts = (list(_changed(document, kind, DEEPEST)) for kind in (int | float, str))
    made = [*numbers, *texts]  # another number is more often valid than another text
    return [json.dumps(each).encode() for each in made[:MOST_TRIED]]


def _other_forms(body: bytes) -> list[bytes]:
    fields = parse_qsl(body.decode("utf-8", "replace"))
    numbers = [place for place, (_, text) in enumerate(fields) if text.isdecimal()]
    made = [
        [(n, str(int(v) + 1) if place == at else v) for place, (n, v) in enumerate(fields)]
        for at in numbers[:MOST_TRIED]
    ]
    return [urlencode(each).encode() for each in made]


def _changed(value: Any, kind: Any, depth: int) -> Iterator[Any]:
    """Copies with one value of ``kind`` changed."""
    if isinstance(value, kind) and not isinstance(value, bool):
        yield f"{value}x" if isinstance(value, str) else value + 1
    if is_object(value) and depth:
        for name, each in value.items():
            for made in _changed(each, kind, depth - 1):
                yield {**value, name: made}
    if is_array(value) and depth:
        for place, each in enumerate(value):
            for made in _changed(each, kind, depth - 1):
                yield [*value[:place], made, *value[place + 1 :]]
