"""How commands print: one sentence for an error, tables for people, JSON for programs.

Exit codes, of every command:

0   done, and what was looked at is as it should be
1   it failed, or what was looked at is not as it should be; a failure is one sentence on standard
    error
2   the command line or a setting is wrong: nothing was done

Tenants, paths, reasons and answers come from outside. A terminal obeys what it is sent: an escape
sequence moves the cursor, a line break forges a row, a direction mark turns text around. So all
commands print through `say`, `say_table` and `print_json`, which escape such characters.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

import click

from semel.errors import ConfigurationError, SchemaError, SemelError

if TYPE_CHECKING:
    from semel.core.records import Micros
    from semel.operators.bulk import ItemResult

DONE, FAILED, MISUSED = 0, 1, 2

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


# ── what is printed ───────────────────────────────────────────────────────────────────────────────

COLOURS: Final = {"good": "green", "bad": "red", "doubtful": "yellow"}


class Coloured(NamedTuple):
    """Text that is printed in a colour, on a terminal only; ``colour`` is a key of `COLOURS`."""

    text: str
    colour: str


Piece: TypeAlias = str | Coloured


def say(*pieces: Piece, err: bool = False) -> None:
    """Print one line for people."""
    click.echo("".join(map(_styled, pieces)), err=err)


def say_table(
    head: Sequence[str] | None, rows: Iterable[Sequence[Piece]], empty: str | None = None
) -> None:
    """Print columns as wide as what is in them; without rows only ``empty``."""
    lines = list(rows)
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_CSV):
        return _print_csv(head, lines)
    if not lines:
        return None if empty is None else say(empty)
    lines = lines if head is None else [head, *lines]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        padded = [_styled(cell) + " " * (width - _width(cell)) for cell, width in cells]
        click.echo("  ".join(padded).rstrip())
    return None


_CSV: Final = "semel.csv"
_FORMULA: Final = ("=", "+", "-", "@")


def _print_csv(head: Sequence[str] | None, lines: Iterable[Sequence[Piece]]) -> None:
    """Rows for spreadsheets. What one would take for a formula gets an apostrophe before it."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    if head is not None:
        writer.writerow(head)
    for line in lines:
        texts = [visible(each.text if isinstance(each, Coloured) else each) for each in line]
        writer.writerow(["'" + it if it.startswith(_FORMULA) and it != "-" else it for it in texts])
    click.echo(written.getvalue(), nl=False)


def print_page(
    as_json: bool,
    things: str,
    documents: Iterable[object],
    head: Sequence[str],
    rows: Iterable[Sequence[Piece]],
    looked: int,
    after: str | None,
) -> None:
    """Print a part of a long list of ``things``, and where to go on."""
    if as_json:
        return print_json({things: list(documents), "looked_at": looked, "after": after})
    say_table(head, rows, None if after is not None else f"there are no such {things}")
    if after is not None:
        say_more(f"looked at {looked} {things}; ", after)
    return None


def say_more(before: str, after: str | None) -> None:
    """Say where a list goes on; on standard error, as a pipe gets rows and nothing else."""
    if after is not None:
        say(f"{before}go on with --after {after}", err=True)


def print_json(document: object, indent: int | None = 2) -> None:
    """Print ``document`` for programs, in printable ASCII."""
    # DEL is the one control character that JSON takes as it is. It can only be inside a string.
    click.echo(json.dumps(document, indent=indent).replace("\x7f", "\\u007f"))


def print_result(as_json: bool, document: object, *lines: str, fine: bool = True) -> None:
    """Print what came of a command: JSON or lines. Exit code 1 unless it is ``fine``."""
    if as_json:
        print_json(document)
    else:
        for line in lines:
            say(line)
    if not fine:
        raise SystemExit(FAILED)


def print_each(
    as_json: bool, name: str, done: str, results: Iterable[ItemResult], digits: int | None = None
) -> None:
    """Print what came of an act on many things, as it comes. Exit code 1 unless all were done.

    ``name`` and ``done``: what JSON calls the thing, and its being done.
    """
    documents: list[dict[str, Any]] = []
    for each in results:
        documents.append({name: each.name, done: each.done, "said": each.said})
        if not as_json:
            say(f"{each.name[:digits]}: {each.said}", err=not each.done)
    print_result(as_json, documents, fine=all(each[done] for each in documents))


def visible(text: str) -> str:
    """``text`` with the escape of every character that a terminal would not simply show."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _styled(piece: Piece) -> str:
    if isinstance(piece, Coloured):
        return click.style(visible(piece.text), fg=COLOURS[piece.colour])
    return visible(piece)


def _width(piece: Piece) -> int:
    return len(visible(piece.text if isinstance(piece, Coloured) else piece))


def show_errors_visibly() -> None:
    """Escape what Python itself prints: tracebacks, and log lines that no handler takes."""

    def print_traceback(*error: Any) -> None:
        for line in "".join(traceback.format_exception(*error)).rstrip("\n").split("\n"):
            say(line, err=True)

    sys.excepthook = print_traceback
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleLines())


class _VisibleLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible, super().format(record).split("\n")))


def fail(sentence: str, code: int) -> NoReturn:
    """End the command with a sentence on standard error."""
    say(f"semel: {sentence}", err=True)
    raise SystemExit(code)


class Commands(click.Group):
    """The group of all commands: semel's own errors end them with a sentence, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SemelError as error:
            misused = isinstance(error, ConfigurationError) and not isinstance(error, SchemaError)
            fail(str(error), MISUSED if misused else FAILED)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def listed(command: F) -> F:
    """Add --csv and --watch to a command that prints a table."""

    def note(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        context.meta[_CSV] = wanted

    @click.option(
        "--csv", is_flag=True, expose_value=False, callback=note, help="Print rows with commas."
    )
    @click.option(
        "--watch",
        type=click.FloatRange(0.1, 86_400),
        help="Print it again every so many seconds, until it is interrupted.",
    )
    @wraps(command)
    def again_and_again(*given: Any, watch: float | None, **named: Any) -> None:
        while True:
            if watch is not None and sys.stdout.isatty():
                click.clear()
            command(*given, **named)
            if watch is None:
                return
            sys.stdout.flush()
            try:
                time.sleep(watch)
            except KeyboardInterrupt:
                return

    return cast("F", again_and_again)


yes = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, warning: str | None = None) -> None:
    """Ask before something is done; without a yes the command ends."""
    if warning is not None:
        say(warning, err=True)
    click.confirm(question, abort=True, err=True)


# ── for people ────────────────────────────────────────────────────────────────────────────────────


def moment(at: Micros | None) -> str | None:
    """A time of the store, in ISO 8601 and UTC."""
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
    """Show one line on standard error that is overwritten, and wiped in the end.

    Only on a terminal: a file or a pipe gets nothing.
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
    """The things, with a count on the progress line."""
    with progress() as tell:
        for number, thing in enumerate(things, start=1):
            if number % every == 0:
                tell(f"{what}: {number}")
            yield thing


@contextmanager
def waiting_for(what: str) -> Generator[None, None, None]:
    """Show what the command waits for, while it waits."""
    with progress() as tell:
        tell(f"{what} ...")
        yield
