"""``semel ledger``: the provider's list of what it did, compared with our records."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from semel.cli import output, targets
from semel.cli.targets import Since, Target
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.operators.ledger import LedgerReport, OurCall, ProviderEntry


@click.command()
@targets.on_a_guard
@click.option(
    "--provider",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The provider's entries: a .csv file with a head, or JSON, one object per line.",
)
@click.option("--name", required=True, help="The call or effect that they are of, say charge.")
@click.option("--key-field", default="key", show_default=True, help="Where entries have our key.")
@targets.since
@click.option("--until", type=click.DateTime(), help="What we made before then must be there. UTC.")
@output.as_json
def ledger(
    target: Target,
    provider: Path,
    name: str,
    key_field: str,
    since: Since | None,
    until: datetime | None,
    as_json: bool,
) -> None:
    """Compare a provider's entries with our calls and effects; exit code 1 where they differ."""
    from semel.operators.ledger import compare

    report = compare(
        target.open_guard(),
        output.counted("entries", _entries(provider, key_field), every=1000),
        name=name,
        since=None if since is None else since.time(),
        until=None if until is None else until.replace(tzinfo=UTC),
    )
    if as_json:
        output.print_json(_document(report))
    else:
        _print(report)
    if not report.agrees:
        raise SystemExit(output.FAILED)


def _entries(path: Path, key_field: str) -> Iterator[ProviderEntry]:
    """The entries of a file, one at a time.

    A file that cannot be read is a wrong setting, exit code 2: never that of a difference.
    """
    from semel.operators.ledger import ProviderEntry

    try:
        for number, line in enumerate(_lines(path), start=1):
            key = line.pop(key_field, None)
            if not isinstance(key, str) or not key:
                raise ConfigurationError(f"{path}: entry {number} has no {key_field!r}")
            yield ProviderEntry(key, line)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: {error.reason}") from error
    except (csv.Error, RecursionError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
            return
        for number, text in enumerate(file, start=1):
            try:
                line: Any = json.loads(text) if text.strip() else None
            except ValueError as error:
                raise ConfigurationError(f"{path}: line {number} is not JSON: {error}") from error
            if isinstance(line, dict):
                yield line
            elif line is not None:
                raise ConfigurationError(f"{path}: line {number} is no JSON object")


def _document(report: LedgerReport) -> dict[str, Any]:
    return {
        "matched": report.matched,
        "missing_here": [{"key": each.key, **each.fields} for each in report.missing_here],
        "missing_there": [_ours(each) for each in report.missing_there],
        "differing": [{**_ours(each.ours), "what": each.what} for each in report.differing],
    }


def _ours(ours: OurCall) -> dict[str, Any]:
    identity = None if ours.identity is None else ours.identity.hex()
    return {"key": ours.key, "identity": identity, "standing": ours.state.value}


def _print(report: LedgerReport) -> None:
    rows = [
        ("missing here", each.key, ", ".join(f"{name}={it}" for name, it in each.fields.items()))
        for each in report.missing_here
    ]
    rows += [("missing there", each.key, each.state.value) for each in report.missing_there]
    rows += [("differing", each.entry.key, each.what) for each in report.differing]
    output.say_table(("WHAT", "KEY", "DETAIL"), rows)
    output.say(f"{report.matched} agree, {len(rows)} differ")
