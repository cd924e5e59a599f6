"""How commands speak: one sentence for an error, tables for people, JSON for programs.

Exit codes, of every command:

0   done, and what was looked at is as it should be
1   it failed, or what was looked at is not as it should be; a failure is one sentence on standard
    error
2   the command line or a setting is wrong: nothing was done

Tenants, paths, reasons and answers were written by others. A terminal obeys what it is shown: an
escape sequence moves the cursor, a line break forges a row, a mark of direction turns text around.
So all commands print through `say`, `say_table` and `print_json`, which show such characters
instead of sending them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar

import click

from semel.errors import ConfigurationError, SchemaError, SemelError

if TYPE_CHECKING:
    from semel.core.records import Micros
    from semel.guard import Guard

DONE, FAILED, MISUSED = 0, 1, 2

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


# ── what is printed ───────────────────────────────────────────────────────────────────────────────

COLOURS: Final = {"good": "green", "bad": "red", "doubtful": "yellow"}


class Painted(NamedTuple):
    """Text with a colour, which it gets when it is printed and only on a terminal."""

    text: str
    how: str


Piece: TypeAlias = str | Painted


def say(*pieces: Piece, err: bool = False) -> None:
    """Print one line for people."""
    click.echo("".join(map(_styled, pieces)), err=err)


def say_table(head: Sequence[str] | None, rows: Iterable[Sequence[Piece]]) -> None:
    """Print columns as wide as what is in them."""
    lines: list[Sequence[Piece]] = [*([] if head is None else [head]), *rows]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        padded = [_styled(cell) + " " * (width - _width(cell)) for cell, width in cells]
        click.echo("  ".join(padded).rstrip())


def print_json(document: object, indent: int | None = 2) -> None:
    """Print ``document`` for programs, in printable ASCII."""
    # DEL is the one control character that JSON takes as it is. It can only be inside a string.
    click.echo(json.dumps(document, indent=indent).replace("\x7f", "\\u007f"))


def visible(text: str) -> str:
    """``text`` with every character that a terminal would not simply show as its escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return repr(character)[1:-1]


def _styled(piece: Piece) -> str:
    if isinstance(piece, Painted):
        return click.style(visible(piece.text), fg=COLOURS[piece.how])
    return visible(piece)


def _width(piece: Piece) -> int:
    return len(visible(piece.text if isinstance(piece, Painted) else piece))


def show_errors_visibly() -> None:
    """Escape what Python itself prints: tracebacks, and log lines that no handler takes."""
    sys.excepthook = _print_traceback
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleLines())


def _print_traceback(*error: Any) -> None:
    for line in "".join(traceback.format_exception(*error)).rstrip("\n").split("\n"):
        say(line, err=True)


class _VisibleLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible, super().format(record).split("\n")))


def fail(sentence: str, code: int) -> NoReturn:
    say(f"semel: {sentence}", err=True)
    raise SystemExit(code)


@contextmanager
def one_sentence() -> Generator[None, None, None]:
    """Semel's own errors are told, not traced."""
    try:
        yield
    except SchemaError as error:
        fail(str(error), FAILED)
    except ConfigurationError as error:
        fail(str(error), MISUSED)
    except SemelError as error:
        fail(str(error), FAILED)


# ── what a command is about ───────────────────────────────────────────────────────────────────────


def on_a_guard(command: F) -> F:
    """The options that say whose records a command is about."""
    options = (
        click.option("--guard", help="The application's guard, say shop:guard."),
        click.option("--store", help="The store's URL, instead of a guard."),
        click.option("--app", help="The application, for policies on endpoints, say shop:app."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def open_guard(guard: str | None, store: str | None) -> Guard:
    """The guard named, or one that is as the settings say, on the store named or theirs."""
    from semel.cli.targets import guard_at
    from semel.config import load
    from semel.guard import Guard

    if guard is not None and store is not None:
        raise ConfigurationError("give --guard or --store, not both")
    if guard is not None:
        return guard_at(guard)
    url = load().store if store is None else store
    if url is None:
        raise ConfigurationError("whose records? Give --guard or --store, or set SEMEL_STORE")
    _demand_file(url)
    return Guard.from_settings(tenant=None, store=url)


def _demand_file(url: str) -> None:
    """A SQLite file is made when it is opened: a misspelt one would look as if all were well."""
    from semel.stores import scheme

    if scheme(url) != "sqlite":
        return
    from semel.stores.sqlite.backend import parse

    path, _ = parse(url)
    if not path.exists():
        raise ConfigurationError(f"there is no file {path}; `semel migrate {url}` would make it")


def signed(command: F) -> F:
    """The options that say who does something, and why: every such act is put on record."""
    options = (
        click.option("--by", default=whoever, help="Who does it; the user logged in if not said."),
        click.option("--reason", required=True, help="Why, and how it is known."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def whoever() -> str:
    """Who is at the keyboard, as the operating system knows."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return f"uid {os.getuid()}"


# ── for people ────────────────────────────────────────────────────────────────────────────────────


def moment(at: Micros | None) -> str | None:
    """A time of the store's, for programs and for people."""
    if at is None:
        return None
    return datetime.fromtimestamp(at // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(at: Micros, now: Micros) -> str:
    """An age in one unit: 40s, 12m, 5h, 3d."""
    seconds = max(0, (now - at) // 1_000_000)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


@contextmanager
def progress() -> Generator[Callable[[str], None], None, None]:
    """One line of standard error that is written over, and wiped in the end.

    Only on a terminal: what is written to a file or a pipe has no use for it.
    """
    shown, widest = sys.stderr.isatty(), 0

    def tell(line: str) -> None:
        nonlocal widest
        widest = max(widest, len(visible(line)))
        if shown:
            click.echo(f"\r{visible(line)}", nl=False, err=True)

    try:
        yield tell
    finally:
        if shown:
            click.echo(f"\r{' ' * widest}\r", nl=False, err=True)


def counted(what: str, things: Iterable[T], every: int = 1) -> Iterator[T]:
    """Tell how far it has come."""
    with progress() as tell:
        for number, thing in enumerate(things, start=1):
            if number % every == 0:
                tell(f"{what}: {number}")
            yield thing


@contextmanager
def patience(what: str) -> Generator[None, None, None]:
    """Say what is being waited for, until it is there."""
    with progress() as tell:
        tell(f"{what} ...")
        yield
