"""The commands of `semel`: tables and sentences for people, ``--json`` for programs.

What loads asyncio or a driver (operators, workers) is imported by a command when it runs: a shell
runs `semel` at every press of the tab key. How commands print and end is in `output`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

import semel as library
from semel.cli import output, targets
from semel.cli.check import check
from semel.cli.console import console, users
from semel.cli.doctor import doctor
from semel.cli.keys import keys
from semel.cli.ledger import ledger
from semel.cli.notables import notables
from semel.cli.outbox import dlq, outbox
from semel.cli.routes import routes
from semel.cli.shadow import shadow
from semel.cli.sql import sql
from semel.cli.stats import stats
from semel.cli.targets import EntryList
from semel.cli.unknown import unknown
from semel.cli.views import audit_document
from semel.core.operations.acts import Verb
from semel.core.operations.audit import AuditEntry
from semel.runtime.events import short
from semel.stores import open_backend

_TEN_YEARS: Final = 10 * 365 * 24 * 3600


class _Seconds(click.FloatRange):
    """A duration; refuses "nan", which click accepts in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        return self.fail("nan is no duration", param, ctx) if seconds != seconds else seconds


SECONDS: Final = _Seconds(0, _TEN_YEARS, min_open=True)

_DEMO_NEEDS = {"starlette", "uvicorn", "jinja2", "markupsafe"}
_CLONE: Final = Path(library.__file__).parents[2]
"""The clone of the repository, where semel is run from one; the demo is there."""


@click.group(cls=output.Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(library.__version__, prog_name="semel", message="%(prog)s %(version)s")
@click.pass_context
def semel(context: click.Context) -> None:
    """Make state-changing requests take effect once."""
    if os.environ.get("NO_COLOR"):
        context.color = False


@semel.command()
@click.argument("url", required=False)
@output.as_json
def migrate(url: str | None, as_json: bool) -> None:
    """Bring the schema of the store at URL up to date.

    Without URL it is the store of the settings: SEMEL_STORE, or semel.toml. Safe to run from many
    nodes at once, and when there is nothing to do.
    """
    from semel.config import load

    store = url or load().store
    if store is None:
        output.fail("which store? Give its URL, or set SEMEL_STORE", output.MISUSED)
    backend = open_backend(store)
    with output.waiting_for(f"migrating {backend.url}"):
        version = backend.migrate()
    said = f"schema version {version}" if version else "keeps no schema, nothing to do"
    document = {"store": backend.url, "version": version}
    output.print_result(as_json, document, f"{backend.url}: {said}")


@semel.command()
@click.option("--exit", "leave", is_flag=True, help="End after the scenes, on a terminal too.")
@click.option("--unguarded", is_flag=True, help="Play the same scenes without semel.")
@click.option("--roll-out", is_flag=True, help="Play a roll-out: in shadow, then enforced.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep store, ledger and logs in this new or empty folder.",
)
@click.pass_context
def demo(
    context: click.Context, leave: bool, unguarded: bool, roll_out: bool, folder: Path | None
) -> None:
    """See it work: a payments API, a pretend provider, and bad days.

    Six scenes: a lost response, twenty clients at once, a changed payload, two tenants, a server
    killed in the middle of a charge, a provider that times out. Then a verdict, charges made
    against charges meant; the exit code is 1 when one was doubled or lost. On a terminal the API
    stays up to be tried, with the console beside it, unless --exit is given. It is played from a
    clone of the repository.

    --roll-out plays other scenes with the same API: keys are watched in shadow, semel shadow report
    says what they would have done, and they are enforced while a payment is under way.
    """
    if unguarded and roll_out:
        output.fail("--roll-out needs a guard: leave --unguarded out", output.MISUSED)
    if folder is not None and folder.exists() and any(folder.iterdir()):
        output.fail(f"--dir {folder}: the folder must be new or empty", output.MISUSED)
    if not (_CLONE / "examples" / "demo" / "play.py").is_file():
        said = "the demo is part of the repository: clone it, and run `make demo` there"
        output.fail(said, output.FAILED)
    sys.path.insert(0, str(_CLONE))
    try:
        run = import_module("examples.demo.play").run
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _DEMO_NEEDS:
            raise
        said = f"the demo needs {missing.name}; install: pip install 'semel[demo]'"
        output.fail(said, output.FAILED)
    leave = leave or not sys.stdin.isatty()
    how = {"guarded": not unguarded, "roll_out": roll_out}
    context.exit(run(leave=leave, folder=folder, **how))


@semel.command()
@click.argument("guard", envvar="SEMEL_GUARD")
@click.option(
    "--app",
    envvar="SEMEL_APP",
    help="The application whose stored requests are run, say shop:app.",
)
@click.option("--only", help="Only these, with commas: deliver, run, reconcile, maintain.")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Deliveries at once.",
)
@click.option("--once", is_flag=True, help="Do what is due, then end.")
@click.option("--drain", type=SECONDS, default=30, show_default=True, help="Seconds to finish in.")
@click.option(
    "--poll", type=SECONDS, default=5, show_default=True, help="Seconds between looks, unwoken."
)
@click.option(
    "--lease",
    type=SECONDS,
    default=60,
    show_default=True,
    help="Seconds an effect is this worker's.",
)
@click.option("--listen-url", help="PostgreSQL without a pooler in between, to be woken by.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.pass_context
def worker(context: click.Context, /, **given: Any) -> None:
    """Deliver effects, run stored requests, settle unknown outcomes, tidy up.

    GUARD is where the guard is found: module:name, say shop:guard. As many workers as wanted may
    run at once, on as many machines. SIGTERM and SIGINT let it finish what is under way; a second
    one ends it at once.
    """
    from semel.cli.worker import WorkerOptions, run

    context.exit(run(WorkerOptions(**given)))


@semel.group()
def audit() -> None:
    """What was done beside the way of requests, by whom, and why."""


@audit.command("list")
@output.listed
@targets.entries
@click.option("--verb", type=click.Choice([verb.value for verb in Verb]), help="Only this.")
@click.option("--by", help="Only by those whose name has this in it.")
@output.as_json
def list_acts(asked: EntryList, as_json: bool, **filters: Any) -> None:
    """List acts, newest first. They are kept for good: maintenance does not touch them."""
    entries, place = asked.page(asked.operator.audit(**asked.about, **filters))
    if as_json:
        documents = [audit_document(entry) for entry in entries]
        return output.print_json({"acts": documents, "after": place})
    head = ("AT", "VERB", "WHAT", "BEFORE", "AFTER", "BY", "REASON")
    output.say_table(head, map(_act, entries), "nothing was done")
    return output.say_more("", place)


def _act(entry: AuditEntry) -> tuple[str, ...]:
    what = entry.subject or (short(entry.identity) if entry.identity else "-")
    after = entry.after or ("gone" if entry.identity and entry.before else "-")
    at, before = output.moment(entry.at) or "-", entry.before or "-"
    return (at, entry.verb, what, before, after, entry.by, entry.reason)


for each in (
    *(check, console, users, doctor, routes, keys, unknown, dlq, outbox, ledger, shadow),
    *(notables, sql, stats),
):
    semel.add_command(each)
