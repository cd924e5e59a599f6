"""Runs the probes, one operation after the other, and makes the report."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from semel.check import (
    probes_contract,
    probes_errors,
    probes_keys,
    probes_races,
    probes_replays,
)
from semel.check.contract import declared_promises
from semel.check.effects import EffectCounter
from semel.check.noise import noise_of
from semel.check.oracles import Oracle, OracleFailed, RecordingProvider, oracle_at
from semel.check.profiles import CheckProfile, profile
from semel.check.report import INTERRUPTED, CheckReport
from semel.check.run import (
    PROBES,
    CheckedOperation,
    CheckProbe,
    CheckRun,
    CheckVerdict,
    NotAnswered,
    ProbeResult,
    broken,
    not_observable,
)
from semel.check.safety import allowed_origin
from semel.check.wire import (
    BudgetUsedUp,
    Caller,
    NoReply,
    Pairs,
    RequestBudget,
    WireAnswer,
    WireRequest,
    target_of,
)
from semel.errors import ConfigurationError, SemelError

LADDER: Final = [
    each
    for module in (probes_contract, probes_keys, probes_replays, probes_races, probes_errors)
    for each in PROBES.values()
    if each.function.__module__ == module.__name__
]
"""The probes in the order in which they run: what is declared, then from the key itself to what is
rare."""
SAMPLES: Final = 4
"""Requests with different keys that are sent first: what each of them has for itself is no time in
whole seconds, and hardly a throw of dice."""
_NOT_FOUND_OUT: Final = {
    "mismatch": "not tried: give --other-data",
    "scope": "not tried: give --other",
    "in flight": "not seen: give --provider",
    "4xx": "not tried: give --refused-data",
    "5xx": "not tried: give --failing-header",
}
RESTART_TIMEOUT: Final = 120.0

Told = Callable[[ProbeResult], None]


class NotCheckable(SemelError):
    """The operation does not succeed even once, so nothing can be said about its retries."""


class StoppedAnswering(SemelError):
    """The API is gone in the middle of the run."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is checked, and how. ``origin``: scheme and host of the API."""

    origin: str
    operations: Sequence[CheckedOperation]
    profile: CheckProfile | None = None
    token: str | None = None
    other_token: str | None = None
    effects: str | None = None
    provider: str | None = None
    provider_answer: bytes = b'{"id": "semel-check", "status": "succeeded"}'
    restart: str | None = None
    only: Sequence[str] = ()
    allowed: Sequence[str] = ()
    budget: int = 400
    timeout: float = 10.0
    patience: float = 30.0
    settle: float = 0.0


def check(options: CheckOptions, told: Told | None = None) -> CheckReport:
    """Run the ladder; ``told`` gets every result when it is there. A run that ends early, also by
    Ctrl-C, has a report that says so."""
    origin = allowed_origin(options.origin, options.allowed)
    if not options.operations:
        raise ConfigurationError("there is no operation to check")
    if options.token is not None and options.token == options.other_token:
        raise ConfigurationError("--as and --other are one caller: give tokens of two")
    probes = _chosen(LADDER, options.only)
    wanted = options.profile or profile("ietf-07")
    caller = Caller(origin, options.timeout, RequestBudget(options.budget))
    began = time.monotonic()
    results: list[ProbeResult] = []
    facts: dict[str, dict[str, str]] = {}
    unchecked: dict[str, str] = {}
    ended = ""
    with ExitStack() as stack:
        oracle, provider = _oracle(options, origin, stack)
        if oracle is not None:
            oracle.count()  # one that cannot count is told before anything is sent
        try:
            for operation in options.operations:
                run = _run(options, operation, caller, wanted, oracle, provider)
                facts[operation.label] = run.facts
                try:
                    for result in _climb(run, probes):
                        results.append(result)
                        if told is not None:
                            told(result)
                except (NotCheckable, NotAnswered, NoReply) as error:
                    unchecked[operation.label] = str(error)
                else:
                    run.facts.update({**_NOT_FOUND_OUT, **run.facts})
        except KeyboardInterrupt:
            ended = INTERRUPTED
        except (BudgetUsedUp, StoppedAnswering) as error:
            ended = str(error)
    return CheckReport(
        options.origin,
        wanted,
        tuple(results),
        caller.sent,
        time.monotonic() - began,
        facts,
        unchecked=unchecked,
        ended=ended,
        secrets=secrets_of(options),
    )


def _run(
    options: CheckOptions,
    operation: CheckedOperation,
    caller: Caller,
    wanted: CheckProfile,
    oracle: Oracle | None,
    provider: RecordingProvider | None,
) -> CheckRun:
    restart = options.restart
    return CheckRun(
        operation,
        caller,
        wanted,
        counter=EffectCounter(oracle, options.settle, options.patience),
        provider=provider,
        credentials=credentials_of(options.token),
        other_credentials=credentials_of(options.other_token),
        restart=None if restart is None else lambda: _restart(restart),
        patience=options.patience,
    )


def check_url(
    url: str, body: object, *, method: str = "POST", headers: Pairs = (), **options: Any
) -> CheckReport:
    """Check one operation: ``body`` is bytes, or anything that JSON has; see `CheckOptions`."""
    parts = urlsplit(url)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    if not isinstance(body, bytes):
        headers = (("Content-Type", "application/json"), *headers)
    request = WireRequest(method, target_of(parts), headers, sent)
    operation = CheckedOperation(request, label=f"{method} {parts.path or '/'}")
    return check(CheckOptions(f"{parts.scheme}://{parts.netloc}", [operation], **options))


def planned(options: CheckOptions) -> list[CheckProbe]:
    """The probes that a run would make, without sending anything."""
    allowed_origin(options.origin, options.allowed)
    return _chosen(LADDER, options.only)


def _chosen(probes: Iterable[CheckProbe], only: Sequence[str]) -> list[CheckProbe]:
    found = list(probes)
    for each in only:
        if not any(fnmatchcase(probe.name, each) for probe in found):
            raise ConfigurationError(f"there is no probe {each!r}; see --dry-run")
    return [p for p in found if not only or any(fnmatchcase(p.name, each) for each in only)]


def _climb(run: CheckRun, probes: Sequence[CheckProbe]) -> Iterator[ProbeResult]:
    """Run the probes. Different keys first: they show what differs anyway, and what one request
    counts."""
    calls = 0 if run.provider is None else run.provider.count()
    answers = run.counter.learn([lambda: _succeeding(run)] * SAMPLES)
    if run.provider is not None:
        run.calls_of_one = max(1, (run.provider.count() - calls) // SAMPLES)
    run.noise = noise_of(answers)
    run.tells_first = run.tells(answers[0])
    run.facts["differs anyway"] = run.noise.words()
    run.promises = declared_promises(run)
    for each in probes:
        yield _tried(each, run)


def _succeeding(run: CheckRun) -> WireAnswer:
    try:
        answer = run.send(run.new_key())
    except NotAnswered as error:
        raise NotCheckable(f"{run.operation.label} cannot be checked: {error}") from error
    if answer.succeeded:
        return answer
    said = answer.body[:200].decode("utf-8", "replace")
    got = f"{answer.status}, with an error inside" if answer.error_inside else str(answer.status)
    hints = {403: "; give a token with --as"}
    if 300 <= answer.status < 400:
        hints[answer.status] = f"; it leads to {answer.value('Location')}, give that URL"
    raise NotCheckable(
        f"{run.operation.label} must succeed to be checked, and got {got}"
        f"{hints.get(answer.status, '')}: {said}"
    )


def _tried(each: CheckProbe, run: CheckRun) -> ProbeResult:
    began, first = time.monotonic(), len(run.caller.log)
    try:
        result = _verdict(each, run)
        seconds = time.monotonic() - began
        doubtful = result.verdict is CheckVerdict.BROKEN and result.counted
        if doubtful and run.counter.moves_by_itself(min(3.0, max(1.0, seconds))):
            result = not_observable(f"the count changes by itself, or late: {result.reason}")
    except (NotAnswered, OracleFailed) as error:
        result = not_observable(str(error))
    return replace(
        result,
        name=each.name,
        operation=run.operation.label,
        evidence=tuple(run.caller.log[first:]),
        seconds=time.monotonic() - began,
    )


def _verdict(each: CheckProbe, run: CheckRun) -> ProbeResult:
    """A connection may be lost by chance: a probe without an answer is tried once more, if the API
    still answers at all."""
    try:
        return each.function(run)
    except NoReply:
        try:
            run.caller.send(run.request(run.new_key()))
        except NoReply as error:
            raise StoppedAnswering(f"the API stopped answering at {each.name}: {error}") from error
    try:
        return each.function(run)
    except NoReply as error:
        return broken(f"no answer, twice: {error}")


def _oracle(
    options: CheckOptions, origin: SplitResult, stack: ExitStack
) -> tuple[Oracle | None, RecordingProvider | None]:
    provider = None
    if options.provider is not None:
        host, _, port = options.provider.rpartition(":")
        if not port.isdecimal():
            raise ConfigurationError(f"--provider {options.provider!r}: write :PORT or HOST:PORT")
        made = RecordingProvider(host or "127.0.0.1", int(port), options.provider_answer)
        provider = stack.enter_context(closing(made))
    if options.effects is None:
        return provider, provider
    headers: Pairs = ()
    with suppress(ValueError):  # the host of the API gets the token, and no other
        if urlsplit(options.effects).hostname == origin.hostname:
            headers = credentials_of(options.token)
    return oracle_at(options.effects, options.timeout, headers, options.allowed), provider


def credentials_of(token: str | None) -> Pairs:
    """``Name: value`` is that header; anything else is a bearer token."""
    if token is None:
        return ()
    name, colon, text = token.partition(":")
    if colon and name.replace("-", "").isalnum() and text.startswith(" "):
        return ((name, text.strip()),)
    return (("Authorization", f"Bearer {token}"),)


def secrets_of(options: CheckOptions) -> frozenset[str]:
    """What was given as a secret: it is in no report, however short it is."""
    given = (*credentials_of(options.token), *credentials_of(options.other_token))
    return frozenset(text.removeprefix("Bearer ") for _, text in given)


def _restart(command: str) -> None:
    """What it starts goes on running, so that nothing waits for its output."""
    try:
        subprocess.run(  # noqa: S602 - the user's own command
            command,
            shell=True,
            check=True,
            timeout=RESTART_TIMEOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    except subprocess.SubprocessError as error:
        code = getattr(error, "returncode", "none in time")
        raise OracleFailed(f"the command of --restart failed: exit code {code}") from error
