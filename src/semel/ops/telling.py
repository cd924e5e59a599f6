"""How commands speak: one sentence for an error, tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from semel.errors import ConfigurationError, SchemaError, SemelError

if TYPE_CHECKING:
    from semel.core.model import Micros
    from semel.guard import Guard

FAILED, MISUSED = 1, 2

F = TypeVar("F", bound=Callable[..., Any])


def fail(sentence: str, code: int) -> NoReturn:
    click.echo(f"semel: {sentence}", err=True)
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
    from semel.config import load
    from semel.guard import Guard
    from semel.ops.targets import guard_at

    if guard is not None and store is not None:
        raise ConfigurationError("give --guard or --store, not both")
    if guard is not None:
        return guard_at(guard)
    if store is None and load().store is None:
        raise ConfigurationError("whose records? Give --guard or --store, or set SEMEL_STORE")
    options: dict[str, Any] = {} if store is None else {"store": store}
    return Guard.from_settings(tenant=None, **options)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as what is in them."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2))


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
