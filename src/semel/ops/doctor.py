"""`semel doctor`: is this store fit for use, and what can it not promise?"""

from __future__ import annotations

import time
from typing import Final

import click

from semel.core.contract import Read
from semel.core.frozen import frozen
from semel.core.model import Identity
from semel.errors import SemelError
from semel.ops.telling import FAILED, MISUSED, fail, one_sentence, print_json, table
from semel.stores.base import Backend, Capabilities, Examined, Finding

NOBODY: Final = Identity(bytes(32))
"""No request has this identity."""
_APART: Final = 5.0
"""Seconds between two clocks that are worth a word."""

_LACKING: Final = {
    "durable": "acknowledged keys can be lost in a crash or a failover",
    "shared": "every process has records of its own",
    "transactions": "no transactions: mode='atomic' and recovery points need another store",
    "outbox": "no outbox: effects need another store",
}


@frozen
class Diagnosis:
    """What was found out; ``fit``: semel works with it."""

    store: str
    fit: bool
    findings: tuple[Finding, ...]


def examine(backend: Backend) -> Diagnosis:
    """Ask the store itself, and whatever is known to go wrong with its kind."""
    findings = _limits(backend.capabilities)
    try:
        if isinstance(backend, Examined):
            findings += backend.examine()
        findings += _reached(backend)
    except SemelError as error:
        findings += (Finding("refused", str(error)),)
    fit = all(finding.severity != "refused" for finding in findings)
    return Diagnosis(backend.url, fit, findings)


def _limits(able: Capabilities) -> tuple[Finding, ...]:
    lacking = (text for name, text in _LACKING.items() if not getattr(able, name))
    return tuple(Finding("limit", text) for text in lacking)


def _reached(backend: Backend) -> tuple[Finding, ...]:
    """It answers, its schema is this program's, and its clock is near this machine's."""
    found = backend.blocking().perform(Read(NOBODY))
    apart = time.time() - found.now / 1_000_000
    if abs(apart) < _APART:
        return ()
    text = f"its clock and this machine's are {abs(apart):.0f} s apart; leases go by the store's"
    return (Finding("warning", text),)


@click.command()
@click.argument("url", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(context: click.Context, url: str | None, as_json: bool) -> None:
    """Examine the store at URL: reached, schema, settings, and what it cannot promise.

    Without URL it is the store of the settings: SEMEL_STORE, or semel.toml. Nothing is changed, but
    SQLite makes its file where there is none. The exit code is 1 when semel would not work with it.
    """
    from semel.config import load
    from semel.stores import open_backend

    with one_sentence():
        store = url or load().store
        if store is None:
            fail("which store? Give its URL, or set SEMEL_STORE", MISUSED)
        backend = open_backend(store)
        try:
            diagnosis = examine(backend)
        finally:
            backend.close()
    _tell(diagnosis, as_json)
    context.exit(0 if diagnosis.fit else FAILED)


def _tell(diagnosis: Diagnosis, as_json: bool) -> None:
    found = [(each.severity, each.text) for each in diagnosis.findings]
    if as_json:
        listed = [{"severity": severity, "text": text} for severity, text in found]
        print_json({"store": diagnosis.store, "fit": diagnosis.fit, "findings": listed})
        return
    verdict = "fit for use" if diagnosis.fit else "not fit for use"
    click.echo(f"{diagnosis.store}: {verdict}")
    if found:
        click.echo(table(("", ""), found).strip("\n"))
