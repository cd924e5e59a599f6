"""``semel unknown``: records whose outcome nobody knows; look, ask, settle, give up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from semel.cli import output, targets
from semel.cli.targets import Target
from semel.cli.views import case_document
from semel.core.operations.requests import Applied
from semel.core.records import Case, Micros
from semel.core.recovery import journal
from semel.core.request.keys import mask
from semel.core.unknown import settle_unknown
from semel.core.unknown.evidence import Absent, Evidence, inquiry_about
from semel.core.unknown.probe import Inspection
from semel.operators import decisions
from semel.operators.bulk import inspection_text, probe_each
from semel.runtime.events import short

if TYPE_CHECKING:
    pass


@click.group()
def unknown() -> None:
    """Records whose outcome nobody knows."""


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


@unknown.command("list")
@output.listed
@targets.on_a_guard
@targets.in_doubt
@targets.paged_by_time(1000)
@output.as_json
def list_(target: Target, as_json: bool, chosen: dict[str, Any], **page: Any) -> None:
    """List the records in doubt, lapsed ones included, newest first."""
    found = targets.chosen_cases(target.operator(), chosen)
    listed, after = targets.page_by_time(found, _named, **page)
    if as_json:
        documents = [case_document(case) for case, _ in listed]
        return output.print_json({"records": documents, "after": after})
    head = ("IDENTITY", "STATE", "AGE", "TRIES", "NEXT", "TENANT", "WHERE", "KEY", "REASON")
    output.say_table(head, (_row(case, now) for case, now in listed), "nothing is unknown")
    return output.say_more("", after)


def _named(listed: tuple[Case, Micros]) -> tuple[Micros, str]:
    record = listed[0].record
    return record.created_at, record.identity.hex()


def _row(case: Case, now: Micros) -> tuple[str, ...]:
    record, origin = case.record, case.origin
    coming = "dead" if case.due_at is None else f"in {output.ago(now, case.due_at)}"
    return (
        short(record.identity),
        record.state.value,
        output.ago(record.created_at, now),
        str(case.tries),
        coming,
        origin.tenant,
        f"{origin.method} {origin.path}",
        mask(origin.key),
        record.reason or "",
    )


@unknown.command()
@click.argument("identity")
@targets.on_a_guard
@click.option("--call", help="Print the downstream key of this call, say charge.")
@output.as_json
def show(target: Target, identity: str, call: str | None, as_json: bool) -> None:
    """Show one record: where its key was used, how far it came, what is in doubt.

    IDENTITY is what the list shows, or the whole of it.
    """
    case = targets.find_record(target.operator(), identity).case
    document = case_document(case)
    points = journal.decode(case.journal).points
    document["points"] = [f"{p.kind} {p.name}{'' if p.done else ': begun'}" for p in points]
    name = call or settle_unknown.in_doubt(case)
    document["downstream_key"] = (
        None if name is None else inquiry_about(case, name).downstream_key()
    )
    if as_json:
        return output.print_json(document)
    for label, value in document.items():
        text = (", ".join(value) or None) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]
        output.say(f"{label.replace('_', ' ')}: {'-' if text is None else text}")
    return None


# ── asking ────────────────────────────────────────────────────────────────────────────────────────


@unknown.command()
@click.argument("identity", required=False)
@targets.on_a_guard
@targets.in_doubt
@click.option("--all", "every", is_flag=True, help="Every record in doubt.")
@targets.dry_run
@output.yes
@output.as_json
def probe(
    target: Target,
    identity: str | None,
    every: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    chosen: dict[str, Any],
) -> None:
    """Ask a record's probe now, and settle it by the answer; or those of all that a filter finds.

    Without IDENTITY, what the filters find is listed, and asked about one after the other once you
    agree. Exit code 1 when one of them is unknown still.
    """
    operator = target.operator()
    filtered = every or any(chosen.values())
    if filtered == (identity is not None):
        said = "which records? Give IDENTITY, or filters, or --all"
        output.fail(said, output.MISUSED)
    if identity is not None:
        found = targets.find_record(operator, identity)
        return _report(
            operator.probe_now(found.case.record.identity, by=targets.current_user()), as_json
        )
    identities = [case.record.identity for case, _ in targets.chosen_cases(operator, chosen)]
    if targets.act_on("asked about", identities, short, dry_run=dry_run, yes=yes):
        asked = output.counted("asking", identities)
        asking = probe_each(operator, asked, by=targets.current_user())
        output.print_each(as_json, "identity", "settled", asking, targets.SHORT)
    return None


def _report(result: Inspection | None, as_json: bool) -> None:
    """Print whether the record was settled; exit code 1 if it was not."""
    settled, said = isinstance(result, settle_unknown.Settled), inspection_text(result)
    output.print_result(as_json, {"settled": settled, "said": said}, said, fine=settled)


# ── settling ──────────────────────────────────────────────────────────────────────────────────────


@unknown.command()
@click.argument("identity")
@targets.on_a_guard
@click.option("--call", help="The call of an operation that it is about; needed to settle it anew.")
@click.option("--happened", is_flag=True, help="It took effect.")
@click.option("--absent", is_flag=True, help="It did not take effect ...")
@click.option("--final", is_flag=True, help="... and no longer can. --absent needs it.")
@click.option("--status", type=click.IntRange(200, 599), help="Of the answer; 200 if not said.")
@click.option(
    "--body",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A file: the answer its client should have got, or the result of its call (JSON).",
)
@click.option("--content-type", default="application/json", show_default=True)
@click.option("--provider-id", help="The provider's name for it.")
@targets.signed
@output.yes
@output.as_json
def settle(target: Target, identity: str, **given: Any) -> None:
    """Settle a record by what you have found out.

    IDENTITY is what the list shows, or the whole of it. A call that was settled wrongly is settled
    anew with --call, while its operation has come to no other point. Exit code 1 when it was not
    settled.
    """
    if given["happened"] == given["absent"]:
        output.fail("say --happened, or --absent --final", output.MISUSED)
    if given["absent"] and not given["final"]:
        output.fail(
            "--absent needs --final: that it is not there now does not prove that it will not "
            "come. Be sure that no process still runs it and nothing is on its way, or void it at "
            "the provider first",
            output.MISUSED,
        )
    operator = target.operator()
    case = targets.find_record(operator, identity).case
    evidence = _evidence(case, **given)
    if not given["yes"]:
        origin, made = case.origin, output.moment(case.record.created_at)
        then = decisions.consequence(case, evidence, given["call"])
        output.confirm("Settle it?", f"{origin.method} {origin.path} of {made}: {then}")
    signature = {name: given[name] for name in ("by", "reason", "call")}
    _report(operator.settle(case.record.identity, evidence, **signature), given["as_json"])


def _evidence(
    case: Case,
    *,
    happened: bool,
    call: str | None,
    status: int | None,
    body: Path | None,
    content_type: str,
    provider_id: str | None,
    **_: Any,
) -> Evidence:
    if not happened:
        return Absent(final=True)
    text = None
    if body is not None:
        text = sys.stdin.buffer.read() if str(body) == "-" else body.read_bytes()
    stated = decisions.StatedAnswer(status, text, content_type, provider_id)
    try:
        return decisions.happened(case, stated, call)
    except decisions.Incomplete as error:
        output.fail(f"{error} (--status, --body, --call)", output.MISUSED)


@unknown.command()
@click.argument("identity")
@targets.on_a_guard
@click.option("--free", is_flag=True, help="Leave no tombstone: a retry runs it again.")
@targets.signed
@output.yes
def bury(target: Target, identity: str, free: bool, by: str, reason: str, yes: bool) -> None:
    """Give a record up of which nothing will ever be known: its key is expired from now on."""
    operator = target.operator()
    case = targets.find_record(operator, identity).case
    if not yes:
        then = "A retry may then have it happen twice." if free else "Retries are refused (410)."
        said = f"{case.origin.method} {case.origin.path}: given up. {then}"
        output.confirm("Give it up?", said)
    written = operator.bury(case.record.identity, by=by, reason=reason, free=free)
    if not isinstance(written, Applied):
        output.fail("not given up: it is not unknown", output.FAILED)
    output.say("given up")
