"""`semel doctor`: is this store fit for use, are the settings, and does anybody look after it?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from semel.cli.output import (
    DONE,
    FAILED,
    MISUSED,
    Painted,
    Piece,
    fail,
    one_sentence,
    open_guard,
    print_json,
    say,
    say_table,
)

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.stores.base import Backend, Capabilities, Finding

_APART: Final = 5.0
"""Seconds between two clocks that are worth a word."""
WRONG: Final = ("refused", "error")
"""With one of these, the exit code is 1."""

_LACKING: Final = {
    "durable": "acknowledged keys can be lost in a crash or a failover",
    "shared": "every process has records of its own",
    "transactions": "no transactions: mode='atomic' and recovery points need another store",
    "outbox": "no outbox: effects need another store",
}


def examine(backend: Backend) -> tuple[Finding, ...]:
    """Ask the store itself, and whatever is known to go wrong with its kind."""
    from semel.errors import SemelError
    from semel.stores.base import Examined, Finding

    findings = _limits(backend.capabilities)
    try:
        if isinstance(backend, Examined):
            findings += backend.examine()
        findings += _reached(backend)
    except SemelError as error:
        findings += (Finding("refused", str(error)),)
    return findings


def fit(findings: tuple[Finding, ...]) -> bool:
    """Whether semel works with it, and keeps what it promises."""
    return all(finding.severity not in WRONG for finding in findings)


def _limits(able: Capabilities) -> tuple[Finding, ...]:
    from semel.stores.base import Finding

    lacking = (text for name, text in _LACKING.items() if not getattr(able, name))
    return tuple(Finding("limit", text) for text in lacking)


def _reached(backend: Backend) -> tuple[Finding, ...]:
    """It answers, its schema is this program's, and its clock is near this machine's."""
    from semel.core.operations.requests import Read
    from semel.core.records import Identity
    from semel.stores.base import Finding

    found = backend.blocking().perform(Read(Identity(bytes(32))))  # which no request has
    apart = time.time() - found.now / 1_000_000
    if abs(apart) < _APART:
        return ()
    text = (
        f"its clock and this machine's are {abs(apart):.0f} s apart; leases go by the store's, but "
        "UUIDv7 keys and logs by this one: synchronise both (NTP)"
    )
    return (Finding("warning", text),)


@click.command()
@click.argument("url", required=False)
@click.option("--guard", help="The application's guard, say shop:guard: its settings count then.")
@click.option("--app", help="The application, for policies on endpoints, say shop:app.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(
    context: click.Context, url: str | None, guard: str | None, app: str | None, as_json: bool
) -> None:
    """Examine a store and the settings it is used with, and say what to do.

    The store is reached, has its schema and the right settings, and its user the rights that semel
    needs; how far its clock is off; what it cannot promise; whether maintenance and workers come
    round; unknown outcomes and dead letters; how long handlers run, beside their leases. Without
    URL and --guard it is the store of the settings: SEMEL_STORE, or semel.toml. Nothing is changed,
    but SQLite makes its file where there is none. The exit code is 1 when something is refused or
    wrong.
    """
    with one_sentence():
        findings, where = _examined(_opened(url, guard), app)
    _tell(where, findings, as_json)
    context.exit(DONE if fit(findings) else FAILED)


def _opened(url: str | None, guard: str | None) -> Guard:
    from semel.config import load

    if guard is None and url is None and load().store is None:
        fail("which store? Give its URL or --guard, or set SEMEL_STORE", MISUSED)
    return open_guard(guard, url)


def _examined(guard: Guard, app: str | None) -> tuple[tuple[Finding, ...], str]:
    from semel.cli.checkup import checkup
    from semel.cli.targets import app_at

    backend = guard.backend
    try:
        findings = examine(backend)
        if fit(findings):
            findings += checkup(guard, None if app is None else app_at(app))
    finally:
        backend.close()
    return findings, backend.url


_COLOURS: Final = {"refused": "bad", "error": "bad", "warning": "doubtful"}


def _tell(where: str, findings: tuple[Finding, ...], as_json: bool) -> None:
    if as_json:
        listed: list[dict[str, Any]] = [
            {"severity": each.severity, "text": each.text} for each in findings
        ]
        print_json({"store": where, "fit": fit(findings), "findings": listed})
        return
    verdict = Painted("fit for use", "good") if fit(findings) else Painted("not fit for use", "bad")
    say(f"{where}: ", verdict)
    if findings:
        rows = [(_severity(each.severity), each.text) for each in findings]
        say_table(None, rows)


def _severity(word: str) -> Piece:
    return Painted(word, _COLOURS[word]) if word in _COLOURS else word
