"""One run: the operation under test, and what the probes share."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from semel.check.json_values import is_array, is_object
from semel.check.noise import Noise, moved_paths
from semel.check.oracles import Oracle, RecordingProvider
from semel.check.profiles import CheckProfile
from semel.check.wire import NO_JSON, Caller, NoReply, WireAnswer, WireExchange, WireRequest

LONGEST_PAUSE: Final = 5.0
"""Seconds that a probe waits before it asks again, whatever ``Retry-After`` says."""
WAITS: Final = frozenset({202, 409, 425, 429, 503})
"""Statuses after which a client sends the same request again."""
_OTHER: Final[dict[type, Callable[[Any], Any]]] = {
    int: lambda number: number + 1,
    float: lambda number: number + 1,
    str: lambda text: f"{text}x",
}
"""Makes another value; another number is more often valid than another text."""


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


def holds(reason: str) -> ProbeResult:
    return ProbeResult(CheckVerdict.HOLDS, reason)


def broken(reason: str) -> ProbeResult:
    return ProbeResult(CheckVerdict.BROKEN, reason)


def not_observable(reason: str) -> ProbeResult:
    return ProbeResult(CheckVerdict.NOT_OBSERVABLE, reason)


def skipped(reason: str) -> ProbeResult:
    return ProbeResult(CheckVerdict.SKIPPED, reason)


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
    failing: tuple[tuple[str, str], ...] = ()
    """Headers that make the API fail with a 5xx."""
    label: str = ""
    promises: Mapping[str, Any] | None = None
    """What its OpenAPI document declares."""


@dataclass(slots=True)
class CheckRun:
    """What the probes of one operation share."""

    operation: CheckedOperation
    caller: Caller
    profile: CheckProfile
    oracle: Oracle | None = None
    provider: RecordingProvider | None = None
    credentials: tuple[tuple[str, str], ...] = ()
    other_credentials: tuple[tuple[str, str], ...] = ()
    restart: Callable[[], None] | None = None
    settle_seconds: float = 0.0
    patience: float = 30.0
    noise: Noise = field(default_factory=Noise)
    promises: Mapping[str, Any] | None = None
    """What the API declares; None: it publishes no contract."""
    deferred: bool = False
    """Whether the API accepts requests with a 202 and runs them later."""
    tells_first: bool = False
    """Whether a first answer has the marker too, with a value that says no."""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    """What was found out about the contract, for ``--discover``."""

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
        answer = self.caller.send(request)
        if answer.status != 202 or retry_after(answer) is None:
            return answer
        self.deferred = True
        return self.final(request) or answer

    def final(self, request: WireRequest) -> WireAnswer | None:
        """The answer that a patient client ends with; None when it never comes."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                answer = self.caller.send(request)
            except NoReply:
                answer = None
            if answer is not None and answer.status not in WAITS:
                return answer
            pause = min(LONGEST_PAUSE, retry_after(answer) or 0.2)
            if time.monotonic() + pause > deadline:
                return answer if answer is not None and self._is_final(answer) else None
            time.sleep(pause)

    def _is_final(self, answer: WireAnswer) -> bool:
        """A 202 may be the operation's own answer, and a 409 a refusal for good."""
        return answer.status == 202 and retry_after(answer) is None

    @property
    def json_body(self) -> Any:
        try:
            return json.loads(self.operation.request.body)
        except ValueError:
            return NO_JSON

    @property
    def other_body(self) -> bytes | None:
        """A body with another meaning: the one that was given, or one value of it changed."""
        if self.operation.other_body is not None:
            return self.operation.other_body
        document = self.json_body
        made = next((m for kind in _OTHER if (m := _changed(document, kind))), None)
        return None if made is None else json.dumps(made).encode()

    # ── effects ───────────────────────────────────────────────────────────────────────────────────

    def effects(self) -> int | None:
        """The count of effects so far; None without an oracle."""
        if self.oracle is None:
            return None
        if self.settle_seconds:
            time.sleep(self.settle_seconds)
        return self.oracle.count()

    def effects_since(self, before: int | None, expected: int = 1) -> int | None:
        """How many effects there were since; waits for the expected ones, which may come later."""
        if before is None or self.oracle is None:
            return None
        deadline = time.monotonic() + min(self.patience, 5.0)
        while True:
            since = (self.effects() or 0) - before
            if since >= expected or time.monotonic() > deadline:
                return since
            time.sleep(0.05)

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
        """Whether ``again`` is the kept answer ``first``; None where nobody could tell."""
        if first.status != again.status or first.body != again.body:
            return False
        return True if self.noise.paths or self.marked(again) else None

    def difference(self, first: WireAnswer, again: WireAnswer) -> str:
        if first.status != again.status:
            return f"status {first.status}, then {again.status}"
        return f"moved: {', '.join(moved_paths(first, again))}"


def retry_after(answer: WireAnswer | None) -> float | None:
    """What ``Retry-After`` says, in seconds; None where it says no number."""
    text = None if answer is None else answer.value("Retry-After")
    return float(text) if text is not None and text.strip().isdecimal() else None


def _changed(value: Any, kind: type) -> Any:
    """A copy with one value of ``kind`` changed; None where there is none."""
    if is_object(value):
        for name, each in value.items():
            if (made := _changed(each, kind)) is not None:
                return {**value, name: made}
    if is_array(value):
        for place, each in enumerate(value):
            if (made := _changed(each, kind)) is not None:
                return [*value[:place], made, *value[place + 1 :]]
    return _OTHER[kind](value) if type(value) is kind else None
