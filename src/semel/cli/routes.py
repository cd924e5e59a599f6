"""``semel routes``: the routes of an application that change something, and whether keys count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import click

from semel.cli import output
from semel.cli.targets import app_at, guard_at
from semel.errors import ConfigurationError
from semel.operators.coverage import RouteKeys, audit, fits, key_from
from semel.web.inventory import COMMITS_LATE

_COLOURS: Final = {
    **dict.fromkeys(("enforces", "accepts", "exempt"), "good"),
    "default": "doubtful",
    "ignores": "bad",
}
_WORDS: Final = {
    "enforces": "enforce keys",
    "accepts": "accept keys",
    "exempt": "are exempt",
    "default": "accept keys by default only",
    "ignores": "ignore keys",
    "waived": "need none",
}
_SAID: Final = {
    "tag": "on the endpoint",
    "listed": "Guard(routes=)",
    "default": "nobody",
    "none": "nobody",
}


_USUAL: Final = "header idempotency-key"


@click.command()
@click.argument("app", envvar="SEMEL_APP")
@click.option("--guard", help="A guard that APP does not show, say shop:guard.")
@click.option("--factory", is_flag=True, help="APP is a function that makes the application.")
@click.option(
    "--ignore",
    "ignored",
    multiple=True,
    metavar="METHOD:/PATH",
    help="A route that needs no key; * stands for anything. Repeatable.",
)
@click.option("--allow-default", is_flag=True, help="The guard's optional default is enough.")
@output.as_json
def routes(
    app: str,
    guard: str | None,
    factory: bool,
    ignored: tuple[str, ...],
    allow_default: bool,
    as_json: bool,
) -> None:
    """List the routes of APP that change something, and whether each takes keys.

    APP is where the application is found: module:name, say shop:app. Exit code 1 when a route
    ignores keys, or takes them only because of an optional default that nobody said for it.
    """
    waived = [_waiver(text) for text in ignored]
    named = None if guard is None else guard_at(guard)
    served = app_at(app)
    if factory:
        try:
            served = served()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"{app}() did not make an application: {said}") from error
    found = audit(served, named, waived)
    uncovered = [each for each in found if not each.covered(allow_default)]
    if as_json:
        listed = [_document(each, allow_default) for each in found]
        output.print_json({"covered": not uncovered, "routes": listed})
    else:
        _print(found, uncovered)
    for method, path in waived:
        if not any(fits(each.method, each.path, (method, path)) for each in found):
            output.say(f"semel: --ignore {method}:{path} fits no route", err=True)
    if uncovered:
        raise SystemExit(output.FAILED)


def _waiver(text: str) -> tuple[str, str]:
    method, colon, path = text.partition(":")
    if not colon or not method or not path.startswith(("/", "*")):
        said = f"--ignore {text} must be written METHOD:/path, such as PUT:/users/*"
        output.fail(said, output.MISUSED)
    return method.upper(), path


# ── output ────────────────────────────────────────────────────────────────────────────────────────


def _print(found: Sequence[RouteKeys], uncovered: Sequence[RouteKeys]) -> None:
    head = ("METHOD", "PATH", "KEYS", "SAID", "POLICY", "KEY FROM")
    rows = [_row(each) for each in found]
    usual = {row[-1] for row in rows} <= {"-", _USUAL}  # then there is nothing to tell
    shown = len(head) - usual
    output.say_table(head[:shown], [row[:shown] for row in rows], "no route changes anything")
    if not found:
        return
    counts = Counter("waived" if each.waived else each.keys for each in found)
    words = ", ".join(f"{count} {_WORDS[keys]}" for keys, count in counts.items())
    output.say(f"{len(found)} routes change something: {words}")
    if uncovered:
        names = ", ".join(f"{each.method} {each.path}" for each in uncovered)
        output.say(f"not covered: {names}")
    for each in found:
        for name in each.late:
            output.say(f"{each.method} {each.path}: {COMMITS_LATE.format(name)}")


def _row(each: RouteKeys) -> tuple[output.Piece, ...]:
    keys = "needs none" if each.waived else output.Coloured(each.keys, _COLOURS[each.keys])
    policy = "-" if each.policy is None else each.policy.name
    said = _SAID.get(each.said, each.said)
    return (each.method, each.path, keys, said, policy, ", ".join(key_from(each)) or "-")


def _document(each: RouteKeys, allow_default: bool) -> dict[str, Any]:
    policy = each.policy
    return {
        "method": each.method,
        "path": each.path,
        "keys": each.keys,
        "said": each.said,
        "policy": None if policy is None else policy.name,
        "key_from": list(key_from(each)),
        "retention": None if policy is None else policy.retention.total_seconds(),
        "waived": each.waived,
        "covered": each.covered(allow_default),
        "late_commits": list(each.late),
    }
