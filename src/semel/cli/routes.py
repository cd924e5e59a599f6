"""``semel routes``: every route of an application that changes something, and its word on keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from semel.cli.output import (
    FAILED,
    MISUSED,
    Painted,
    Piece,
    fail,
    one_sentence,
    print_json,
    say,
    say_table,
)
from semel.core.frozen import frozen

if TYPE_CHECKING:
    from semel.core.policy import Policy
    from semel.guard import Guard
    from semel.web.inventory import RouteMethod

Keys = Literal["enforces", "accepts", "exempt", "default", "ignores"]
_COLOURS: Final = {
    "enforces": "good",
    "accepts": "good",
    "exempt": "good",
    "default": "doubtful",
    "ignores": "bad",
}


@frozen
class Audited:
    """One method of one route.

    enforces: a request without a key is refused. accepts: keys are honoured, and somebody said so
    for this route. exempt: somebody said that it needs none. default: keys are honoured only
    because the guard's default is so. ignores: a retry runs again.
    """

    method: str
    path: str
    keys: Keys
    said: str
    policy: Policy | None
    waived: bool
    """Known to need no key: named by --ignore."""
    late: tuple[str, ...] = ()
    """FastAPI's dependencies that commit after the answer was kept."""

    def covered(self, allow_default: bool) -> bool:
        fine = ("enforces", "accepts", "exempt")
        return self.waived or self.keys in fine or (allow_default and self.keys == "default")


@click.command()
@click.argument("app")
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    with one_sentence():
        found = audit(*_opened(app, guard, factory), waived)
    if as_json:
        _print_json(found, allow_default)
    else:
        _print(found, allow_default)
    for method, path in waived:
        if not any(_fits(each.method, each.path, (method, path)) for each in found):
            say(f"semel: --ignore {method}:{path} fits no route", err=True)
    if not all(each.covered(allow_default) for each in found):
        raise SystemExit(FAILED)


def _waiver(text: str) -> tuple[str, str]:
    method, colon, path = text.partition(":")
    if not colon or not method or not path.startswith(("/", "*")):
        fail(f"--ignore {text} must be written METHOD:/path, such as PUT:/users/*", MISUSED)
    return method.upper(), path


def _opened(app: str, guard: str | None, factory: bool) -> tuple[Any, Guard | None]:
    from semel.cli.targets import app_at, guard_at
    from semel.errors import ConfigurationError

    named = None if guard is None else guard_at(guard)
    found = app_at(app)
    if not factory:
        return found, named
    try:
        return found(), named
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{app}() did not make an application: {said}") from error


# ── what is found ─────────────────────────────────────────────────────────────────────────────────


def audit(app: Any, guard: Guard | None, waived: Sequence[tuple[str, str]] = ()) -> list[Audited]:
    """Every route of ``app`` that changes something, in the order of its router."""
    from semel.core.policy import SAFE_METHODS
    from semel.web.inventory import inventory

    every = inventory(app, guard) or _without_a_router(app, guard)
    return [_audited(each, waived) for each in every if each.method not in SAFE_METHODS]


def _audited(each: RouteMethod, waived: Sequence[tuple[str, str]]) -> Audited:
    dropped = any(_fits(each.method, each.path, waiver) for waiver in waived)
    keys = _keys(each)
    late = () if keys in ("exempt", "ignores") else each.late
    return Audited(each.method, each.path, keys, each.said, each.policy, dropped, late)


def _fits(method: str, path: str, waiver: tuple[str, str]) -> bool:
    return waiver[0] in ("*", method) and fnmatchcase(path, waiver[1])


def _keys(each: RouteMethod) -> Keys:
    policy = each.policy
    # What takes any method is as good as its POST: that is what a client would send a key with.
    method = "POST" if each.method == "*" else each.method
    if policy is not None and not policy.methods:
        return "exempt"
    if policy is None or method not in policy.methods:
        return "ignores"
    if policy.required:
        return "enforces"
    return "default" if each.said == "default" else "accepts"


def _without_a_router(app: Any, guard: Guard | None) -> list[RouteMethod]:
    """What is known of a bare application: what its guard lists, and the default for the rest."""
    from semel.errors import ConfigurationError
    from semel.web.inventory import RouteMethod

    guard = guard or _guard_around(app)
    if guard is None:
        raise ConfigurationError(
            "neither routes nor a guard were found in it: name the application that has routes, or "
            "its guard with --guard"
        )
    listed = [RouteMethod(each.method, each.path, each.policy, "listed") for each in guard.routes]
    return [*listed, RouteMethod("*", "/{path:path}", guard.policy, "default")]


def _guard_around(app: Any) -> Guard | None:
    from semel.guard import Guard
    from semel.web.tags import layers

    guards = (getattr(layer, "guard", None) for layer in layers(app))
    return next((guard for guard in guards if isinstance(guard, Guard)), None)


# ── what is told ──────────────────────────────────────────────────────────────────────────────────


def _print(found: Sequence[Audited], allow_default: bool) -> None:
    if not found:
        say("no route changes anything")
        return
    say_table(("METHOD", "PATH", "KEYS", "SAID", "POLICY"), map(_row, found))
    counts = Counter("waived" if each.waived else each.keys for each in found)
    words = ", ".join(f"{count} {_WORDS[keys]}" for keys, count in counts.items())
    open_ = [each for each in found if not each.covered(allow_default)]
    say(f"{len(found)} routes change something: {words}")
    if open_:
        say(f"not covered: {', '.join(f'{each.method} {each.path}' for each in open_)}")
    from semel.web.inventory import COMMITS_LATE

    for each in found:
        for name in each.late:
            say(f"{each.method} {each.path}: {COMMITS_LATE.format(name)}")


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


def _row(each: Audited) -> tuple[Piece, ...]:
    keys = "needs none" if each.waived else Painted(each.keys, _COLOURS[each.keys])
    policy = "-" if each.policy is None else each.policy.name
    return (each.method, each.path, keys, _SAID.get(each.said, each.said), policy)


def _print_json(found: Sequence[Audited], allow_default: bool) -> None:
    print_json(
        {
            "covered": all(each.covered(allow_default) for each in found),
            "routes": [_told(each, allow_default) for each in found],
        }
    )


def _told(each: Audited, allow_default: bool) -> dict[str, Any]:
    policy = each.policy
    return {
        "method": each.method,
        "path": each.path,
        "keys": each.keys,
        "said": each.said,
        "policy": None if policy is None else policy.name,
        "retention": None if policy is None else policy.retention.total_seconds(),
        "waived": each.waived,
        "covered": each.covered(allow_default),
        "late_commits": list(each.late),
    }
