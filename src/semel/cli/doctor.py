"""``semel doctor``: whether a store and its settings are fit for use, and maintenance runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from semel.cli.output import (
    DONE,
    FAILED,
    MISUSED,
    Coloured,
    as_json,
    errors_as_sentences,
    fail,
    print_json,
    say,
    say_table,
)
from semel.cli.targets import Target, app_at

if TYPE_CHECKING:
    from semel.stores.base import Backend, Finding

_APART: Final = 5.0
"""Seconds that two clocks may differ without a warning."""
WRONG: Final = ("refused", "error")
"""With one of these, the exit code is 1."""

_LACKING: Final = {
    "durable": "acknowledged keys can be lost in a crash or a failover",
    "shared": "every process has records of its own",
    "transactions": "no transactions: mode='atomic' and recovery points need another store",
    "outbox": "no outbox: effects need another store",
}


def examine(backend: Backend) -> tuple[Finding, ...]:
    """Examine the store: what it cannot promise, its settings, and whether it answers."""
    from semel.errors import SemelError
    from semel.stores.base import Examined, Finding

    able = backend.capabilities
    lacking = [text for name, text in _LACKING.items() if not getattr(able, name)]
    findings = tuple([Finding("limit", text) for text in lacking])
    try:
        if isinstance(backend, Examined):
            findings += backend.examine()
        findings += _reached(backend)
    except SemelError as error:
        findings += (Finding("refused", str(error)),)
    return findings


def fit(findings: tuple[Finding, ...]) -> bool:
    """Whether semel works with the store, and keeps what it promises."""
    return all(finding.severity not in WRONG for finding in findings)


def _reached(backend: Backend) -> tuple[Finding, ...]:
    """Ask the store for a record that does not exist, and compare its clock with this machine's."""
    from semel.core.operations.requests import Read
    from semel.core.records import Identity
    from semel.stores.base import Finding

    found = backend.blocking().perform(Read(Identity(bytes(32))))
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
@as_json
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
    from semel.config import load

    with errors_as_sentences():
        if guard is None and url is None and load().store is None:
            fail("which store? Give its URL or --guard, or set SEMEL_STORE", MISUSED)
        findings, where = _examine_all(Target(guard, url, app))
    if as_json:
        listed = [{"severity": each.severity, "text": each.text} for each in findings]
        print_json({"store": where, "fit": fit(findings), "findings": listed})
    else:
        say(f"{where}: ", Coloured(*_FIT if fit(findings) else _NOT_FIT))
        if findings:
            rows = [(_COLOURED.get(each.severity, each.severity), each.text) for each in findings]
            say_table(None, rows)
    context.exit(DONE if fit(findings) else FAILED)


def _examine_all(target: Target) -> tuple[tuple[Finding, ...], str]:
    """The findings about the store and, if it is fit, about its records; and its URL."""
    from semel.cli.checkup import checkup

    guard = target.open_guard()
    backend = guard.backend
    try:
        findings = examine(backend)
        if fit(findings):
            findings += checkup(guard, None if target.app is None else app_at(target.app))
    finally:
        backend.close()
    return findings, backend.url


_FIT: Final = ("fit for use", "good")
_NOT_FIT: Final = ("not fit for use", "bad")
_COLOURED: Final = {
    "refused": Coloured("refused", "bad"),
    "error": Coloured("error", "bad"),
    "warning": Coloured("warning", "doubtful"),
}
