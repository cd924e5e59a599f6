"""What a command works on: the guard, application and records that its arguments name.

Guards and applications are named ``module:name``, as servers take them. A record is named by the
first digits of its identity.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from semel.cli.output import FAILED, MISUSED, confirm, fail, say
from semel.core.frozen import frozen
from semel.core.operations.requests import Recalled
from semel.core.records import Case, Identity, Micros
from semel.errors import ConfigurationError
from semel.guard import Guard
from semel.operators import lists
from semel.stores import scheme

if TYPE_CHECKING:
    from semel.operators.operator import Operator

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

SHORT: Final = 16
"""Digits of an identity that tables show."""
LEAST: Final = 8
"""Digits of an identity that are enough for a command, if no other record begins so."""
NO_RECORD: Final = "there is no such record"


# ── options ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class Target:
    """Whose records a command works on: the values of --guard, --store and --app."""

    guard: str | None
    store: str | None
    app: str | None

    def open_guard(self) -> Guard:
        """The guard named; else one from the settings, on the store named or theirs."""
        from semel.config import load

        if self.guard is not None and self.store is not None:
            raise ConfigurationError("give --guard or --store, not both")
        if self.guard is not None:
            return guard_at(self.guard)
        url = load().store if self.store is None else self.store
        if url is None:
            raise ConfigurationError("whose records? Give --guard or --store, or set SEMEL_STORE")
        if scheme(url) == "sqlite":
            from semel.stores.sqlite.backend import parse

            path, _ = parse(url)
            if not path.exists():  # opening would make it, and hide a misspelt name
                raise ConfigurationError(
                    f"there is no file {path}; `semel migrate {url}` would make it"
                )
        return Guard.from_settings(tenant=None, store=url)

    def operator(self) -> Operator:
        from semel.operators.operator import Operator

        return Operator(self.open_guard(), None if self.app is None else app_at(self.app))


def on_a_guard(command: F) -> F:
    """Add --guard, --store and --app; the command gets them as its first argument, a `Target`."""

    @click.option("--guard", envvar="SEMEL_GUARD", help="The application's guard, say shop:guard.")
    @click.option("--store", help="The store's URL, instead of a guard.")
    @click.option(
        "--app",
        envvar="SEMEL_APP",
        help="The application, for policies on endpoints, say shop:app.",
    )
    @wraps(command)
    def with_target(
        *, guard: str | None, store: str | None, app: str | None, **given: Any
    ) -> object:
        told = click.get_current_context().get_parameter_source("guard")
        if store is not None and told is ParameterSource.ENVIRONMENT:
            guard = None  # what is typed comes before what is set
        return command(Target(guard, store, app), **given)

    return cast("F", with_target)


def signed(command: F) -> F:
    """Add --by and --reason: every act of an operator is put on record with them."""
    reason = click.option("--reason", required=True, help="Why, and how it is known.")
    by = click.option(
        "--by", default=current_user, help="Who does it; the user logged in if not said."
    )
    return by(reason(command))


def paged(things: str) -> Callable[[F], F]:
    """Add --limit, --after and --look to a list that is read a page at a time."""
    limit = click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
    after = click.option("--after", help="Go on behind this place, as the page before said.")
    look = click.option(
        "--look",
        type=click.IntRange(1),
        default=lists.LOOK,
        show_default=True,
        help=f"{things} to look at, at most.",
    )
    return lambda command: limit(after(look(command)))


def paged_by_time(limit: int) -> Callable[[F], F]:
    """Add --limit and --after to a list that is short enough to be sorted, newest first."""
    at_most = click.option(
        "--limit", type=click.IntRange(1), default=limit, show_default=True, help="At most."
    )
    after = click.option("--after", help="Go on behind this place, as the page before said.")
    return lambda command: at_most(after(command))


def page_by_time(
    things: Iterable[T], named: Callable[[T], tuple[Micros, str]], limit: int, after: str | None
) -> tuple[list[T], str | None]:
    """The newest ``limit`` behind a place, and the place to go on from.

    ``named`` gives a thing's time and its name. A place is made of both, so it holds even if what
    stood there was settled or retried in the meantime.
    """
    places: dict[tuple[Micros, str], T] = {}
    for each in things:
        at, name = named(each)
        places[-at, name] = each
    behind = None if after is None else _place(after)
    listed = [place for place in sorted(places) if behind is None or place > behind]
    shown = listed[:limit]
    ends = len(listed) == len(shown)
    at, name = (0, "") if ends else shown[-1]
    return [places[place] for place in shown], None if ends else f"{-at}-{name}"


def _place(text: str) -> tuple[Micros, str]:
    """Where a page goes on; the newest comes first, so times are turned round."""
    at, _, name = text.partition("-")
    if not (at.isascii() and at.isdecimal() and name and len(at) < 20):
        fail("--after is the place that the page before ended with, as it was printed", MISUSED)
    return -int(at), name


def age(text: str) -> int:
    """Read a duration as settings write it; in microseconds."""
    from semel.stores.options import duration

    try:
        return int(duration("", text).total_seconds() * 1_000_000)
    except ConfigurationError:
        raise click.BadParameter(f"{text!r} is no duration such as 90s, 30m or 7d") from None


class _Since(click.ParamType[Any]):
    """From when on: an age, or a time. The same in every command that has ``--since``."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, Since):
            return value
        with suppress(click.BadParameter):
            return Since(back=age(value))
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            said = f"{value!r} is neither an age such as 12h nor a time such as 2026-11-18T12:00"
            return self.fail(said, param, ctx)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return Since(at=int(at.timestamp() * 1_000_000))


@frozen
class Since:
    """How long ago, or when."""

    back: Micros | None = None
    at: Micros | None = None

    def moment(self, now: Micros) -> Micros:
        """As a time; ``now`` is that of whoever wrote the times it is compared with."""
        return self.at if self.at is not None else now - (self.back or 0)

    def time(self) -> datetime:
        """As a time, by this machine's clock."""
        now = int(datetime.now(UTC).timestamp() * 1_000_000)
        return datetime.fromtimestamp(self.moment(now) / 1_000_000, UTC)


since: Final = click.option(
    "--since",
    type=_Since(),
    help="Only what began after that: an age, say 12h, or a time, say 2026-11-18T12:00 (UTC).",
)


@frozen
class EntryList:
    """What a list of acts or of notables was asked for, by all the options that both have."""

    operator: Operator
    about: dict[str, Any]
    """``identity``, ``since`` and ``before``, as the operator's lists take them."""
    limit: int

    def page(self, found: Iterator[Any]) -> tuple[list[Any], str | None]:
        """The entries of a page, and the place to go on from; None: there are no more."""
        entries = list(islice(found, self.limit))
        return entries, None if next(found, None) is None else entries[-1].place


def entries(command: F) -> F:
    """Add the options of a list of what happened to records; it gets them as an `EntryList`."""

    @on_a_guard
    @click.option("--identity", help="Only about this record; the whole identity, if it is gone.")
    @since
    @paged_by_time(100)
    @wraps(command)
    def with_entries(
        target: Target,
        identity: str | None,
        since: Since | None,
        limit: int,
        after: str | None,
        **given: Any,
    ) -> object:
        opened = target.operator()
        which = None if identity is None else identity_of(opened, identity)
        then = None if since is None else since.moment(opened.now())  # by the entries' clock
        about = {"identity": which, "since": then, "before": after}
        return command(EntryList(opened, about, limit), **given)

    return with_entries  # type: ignore[return-value]


def in_doubt(command: F) -> F:
    """Add the filters of records whose outcome is unknown; the command gets them as ``chosen``."""

    @click.option("--dead", is_flag=True, help="Only those that nobody will ask about again.")
    @click.option("--tenant", help="Only this tenant's.")
    @click.option("--method", help="Only of this method.")
    @click.option("--path", help="Only of this path; /pay* is all that begin so.")
    @click.option("--older", type=age, help="Only such of this age or more, say 30m or 7d.")
    @since
    @wraps(command)
    def with_filters(*given: Any, **named: Any) -> object:
        fields = ("dead", "tenant", "method", "path", "older", "since")
        return command(*given, chosen={field: named.pop(field) for field in fields}, **named)

    return with_filters  # type: ignore[return-value]


def chosen_cases(opened: Operator, chosen: dict[str, Any]) -> list[tuple[Case, Micros]]:
    """The records in doubt that fit, newest first, each with the store's time."""
    named = dict(chosen)
    dead, began, method = named.pop("dead"), named.pop("since"), named.pop("method")
    named["method"] = None if method is None else method.upper()
    named["since"] = None if began is None else began.moment(opened.now())
    wanted = lists.RecordFilter(**named)
    found = [
        (case, now)
        for case, now in opened.list_unknown(dead=dead)
        if wanted.fits(case.origin, case.record.created_at, now)
    ]
    return sorted(found, key=lambda each: -each[0].record.created_at)


def act_on(
    what: str, items: Sequence[T], names: Callable[[T], str], *, dry_run: bool, yes: bool
) -> bool:
    """Show what a command is about to do, and ask; False: nothing is done.

    From here on the list is fixed: what comes to fit later is not part of it.
    """
    if dry_run or not items:
        for item in items:
            say(names(item))
        say(f"{len(items)} would be {what}" if items else "nothing fits", err=True)
        return False
    if not yes:
        first = ", ".join(map(names, items[:5])) + (", ..." if len(items) > 5 else "")
        confirm(f"{len(items)} will be {what}: {first}. Go on?")
    return True


dry_run: Final = click.option("--dry-run", is_flag=True, help="Only list what would be done.")


def current_user() -> str:
    """The user's name, as the operating system knows it."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return f"uid {os.getuid()}"


# ── module:name ───────────────────────────────────────────────────────────────────────────────────


def guard_at(target: str) -> Guard:
    """The guard of an application, say ``shop:guard``."""
    found = _at(target)
    if not isinstance(found, Guard):
        raise ConfigurationError(f"{target} is no semel.Guard, but of type {type(found).__name__}")
    return found


def app_at(target: str) -> Any:
    """An ASGI or WSGI application, say ``shop:app``."""
    found = _at(target)
    if not callable(found):
        raise ConfigurationError(f"{target} is no application, but of type {type(found).__name__}")
    return found


def _at(target: str) -> Any:
    """The object at ``module:name``; modules of the working folder come first."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigurationError(f"{target!r} must be written module:name, such as shop:guard")
    found: Any = _import(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module} has no {name!r}")
        found = getattr(found, part)
    return found


def _import(module: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        if "DJANGO_SETTINGS_MODULE" in os.environ:
            import django

            django.setup()  # a project's modules cannot be imported before this
        return importlib.import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            said = f"there is no module {module!r} in {here} or among what is installed"
        else:
            *_, last = extract_tb(error.__traceback__)
            text = " ".join(str(error).split())
            said = (
                f"{module} cannot be imported: {type(error).__name__}: {text} "
                f"({last.filename}:{last.lineno})"
            )
        raise ConfigurationError(said) from error


# ── records ───────────────────────────────────────────────────────────────────────────────────────


def find_record(operator: Operator, text: str) -> Recalled:
    """The record whose identity is, or begins with, ``text``."""
    recalled = operator.find(identity_of(operator, text))
    return recalled if recalled is not None else fail(NO_RECORD, FAILED)


def identity_of(operator: Operator, text: str) -> Identity:
    """The whole identity, or the only one that begins so."""
    digits = text.lower()
    if not digits or set(digits) - set("0123456789abcdef") or len(digits) > 64:
        fail(
            "IDENTITY is written in hexadecimal, as `semel keys list` shows it. Of a client's key, "
            "`semel keys show --key KEY --path PATH` says the identity",
            MISUSED,
        )
    if len(digits) == 64:
        return Identity(bytes.fromhex(digits))
    if len(digits) < LEAST:
        fail(f"IDENTITY needs {LEAST} digits or more", MISUSED)
    identities = lists.find_by_prefix(operator.guard.backend, digits)
    if len(identities) != 1:
        fail("several records begin so: give more digits" if identities else NO_RECORD, FAILED)
    return identities[0]
