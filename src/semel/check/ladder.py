"""Runs the probes, one operation after the other, and makes the report."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import urlsplit

from semel.check import (
    probes_contract,
    probes_errors,
    probes_keys,
    probes_races,
    probes_replays,
)
from semel.check.contract import declared_promises
from semel.check.noise import noise_of
from semel.check.oracles import Oracle, OracleFailed, RecordingProvider, oracle_at
from semel.check.profiles import CheckProfile, profile
from semel.check.report import CheckReport
from semel.check.run import (
    PROBES,
    CheckedOperation,
    CheckProbe,
    CheckRun,
    CheckVerdict,
    ProbeResult,
    not_observable,
    skipped,
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
)
from semel.errors import ConfigurationError, SemelError

LADDER: Final = [
    each
    for module in (probes_keys, probes_replays, probes_races, probes_errors, probes_contract)
    for each in PROBES.values()
    if each.function.__module__ == module.__name__
]
"""The probes in the order in which they run: from the key itself to what is rare."""

Told = Callable[[ProbeResult], None]


class NotCheckable(SemelError):
    """The operation does not succeed even once, so nothing can be said about its retries."""


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
    """Run the ladder; ``told`` gets every result when it is there."""
    origin = allowed_origin(options.origin, options.allowed)
    if not options.operations:
        raise ConfigurationError("there is no operation to check")
    wanted = options.profile or profile("ietf-07")
    caller = Caller(origin, options.timeout, RequestBudget(options.budget))
    began = time.monotonic()
    results: list[ProbeResult] = []
    facts: dict[str, dict[str, str]] = {}
    with ExitStack() as stack:
        oracle, provider = _oracle(options, stack)
        if oracle is not None:
            oracle.count()  # one that cannot count is told before anything is sent
        for operation in options.operations:
            run = CheckRun(
                operation,
                caller,
                wanted,
                oracle=oracle,
                provider=provider,
                credentials=_credentials(options.token),
                other_credentials=_credentials(options.other_token),
                restart=None if options.restart is None else _restarter(options.restart),
                settle_seconds=options.settle,
                patience=options.patience,
            )
            for result in _climb(run, options.only):
                results.append(result)
                if told is not None:
                    told(result)
            facts[operation.label] = run.facts
    return CheckReport(
        options.origin, wanted, tuple(results), caller.sent, time.monotonic() - began, facts
    )


def check_url(
    url: str, body: object, *, method: str = "POST", headers: Pairs = (), **options: Any
) -> CheckReport:
    """Check one operation: ``body`` is bytes, or anything that JSON has; see `CheckOptions`."""
    parts = urlsplit(url)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    if not isinstance(body, bytes):
        headers = (("Content-Type", "application/json"), *headers)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    request = WireRequest(method, target, headers, sent)
    operation = CheckedOperation(request, label=f"{method} {parts.path or '/'}")
    return check(CheckOptions(f"{parts.scheme}://{parts.netloc}", [operation], **options))


def planned(options: CheckOptions) -> list[CheckProbe]:
    """The probes that a run would make, without sending anything."""
    allowed_origin(options.origin, options.allowed)
    return _chosen(LADDER, options.only)


def _chosen(probes: Iterable[CheckProbe], only: Sequence[str]) -> list[CheckProbe]:
    found = list(probes)
    names = {each.name for each in found}
    if unknown := [each for each in only if "*" not in each and each not in names]:
        raise ConfigurationError(f"there is no probe {unknown[0]!r}; see --dry-run")
    return [p for p in found if not only or any(fnmatchcase(p.name, each) for each in only)]


def _climb(run: CheckRun, only: Sequence[str]) -> Iterator[ProbeResult]:
    _listen_for_noise(run)
    run.promises = declared_promises(run)
    for each in _chosen(LADDER, only):
        yield _tried(each, run)


def _listen_for_noise(run: CheckRun) -> None:
    """Two different keys first: what differs there differs anyway."""
    one, other = (_succeeding(run) for _ in range(2))
    run.noise = noise_of(one, other)
    run.tells_first = run.tells(one)
    run.facts["differs anyway"] = run.noise.words()


def _succeeding(run: CheckRun) -> WireAnswer:
    answer = run.send(run.new_key())
    if answer.succeeded:
        return answer
    said = answer.body[:200].decode("utf-8", "replace")
    hint = "; give a token with --as" if answer.status in (401, 403) else ""
    raise NotCheckable(
        f"{run.operation.label} must succeed to be checked, and got {answer.status}{hint}: {said}"
    )


def _tried(each: CheckProbe, run: CheckRun) -> ProbeResult:
    began, first = time.monotonic(), len(run.caller.log)
    try:
        result = each.function(run)
    except BudgetUsedUp as error:
        result = skipped(f"{error}: raise it with --budget")
    except NoReply as error:
        result = ProbeResult(CheckVerdict.BROKEN, f"no answer: {error}")
    except OracleFailed as error:
        result = not_observable(str(error))
    return replace(
        result,
        name=each.name,
        operation=run.operation.label,
        evidence=tuple(run.caller.log[first:]),
        seconds=time.monotonic() - began,
    )


def _oracle(
    options: CheckOptions, stack: ExitStack
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
    headers = dict(_credentials(options.token))
    return oracle_at(options.effects, options.timeout, headers), provider


def _credentials(token: str | None) -> Pairs:
    """``Name: value`` is that header; anything else is a bearer token."""
    if token is None:
        return ()
    name, colon, text = token.partition(":")
    if colon and name.replace("-", "").isalnum() and text.startswith(" "):
        return ((name, text.strip()),)
    return (("Authorization", f"Bearer {token}"),)


def _restarter(command: str) -> Callable[[], None]:
    def restart() -> None:
        try:
            subprocess.run(command, shell=True, check=True, timeout=120)  # noqa: S602 - the user's
        except subprocess.SubprocessError as error:
            raise OracleFailed(f"--restart failed: {error}") from error

    return restart
