"""``semel doctor``: whether a store and its settings are fit for use, and maintenance runs."""

from __future__ import annotations

from typing import Final

import click

from semel.cli import output
from semel.cli.targets import Target, app_at
from semel.stores.base import Finding

_COLOURS: Final = {"refused": "bad", "error": "bad", "warning": "doubtful"}


@click.command()
@click.argument("url", required=False)
@click.option("--guard", help="The application's guard, say shop:guard: its settings count then.")
@click.option("--app", help="The application, for policies on endpoints, say shop:app.")
@output.as_json
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
    from semel.operators.doctor import checkup, examine, fit

    if guard is None and url is None and load().store is None:
        said = "which store? Give its URL or --guard, or set SEMEL_STORE"
        output.fail(said, output.MISUSED)
    opened = Target(guard, url, app).open_guard()
    backend = opened.backend
    try:
        findings = examine(backend)
        if fit(findings):
            findings += checkup(opened, None if app is None else app_at(app))
    finally:
        backend.close()
    if as_json:
        listed = [{"severity": each.severity, "text": each.text} for each in findings]
        output.print_json({"store": backend.url, "fit": fit(findings), "findings": listed})
    else:
        verdict = ("fit for use", "good") if fit(findings) else ("not fit for use", "bad")
        output.say(f"{backend.url}: ", output.Coloured(*verdict))
        output.say_table(None, map(_row, findings))
    context.exit(output.DONE if fit(findings) else output.FAILED)


def _row(finding: Finding) -> tuple[output.Piece, str]:
    colour = _COLOURS.get(finding.severity)
    severity = finding.severity
    return (severity if colour is None else output.Coloured(severity, colour), finding.text)
