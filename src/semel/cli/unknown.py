"""``semel unknown``: records whose outcome nobody knows; look, ask, settle, give up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from semel.cli.output import (
    FAILED,
    MISUSED,
    ago,
    fail,
    moment,
    on_a_guard,
    one_sentence,
    print_json,
    say,
    say_table,
    signed,
)
from semel.cli.targets import SHORT, found, operator

if TYPE_CHECKING:
    from semel.core.records import Case, Micros
    from semel.core.unknown.evidence import Evidence
    from semel.core.unknown.probe import Inspection


@click.group()
def unknown() -> None:
    """Records whose outcome nobody knows."""


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


@unknown.command("list")
@on_a_guard
@click.option("--dead", is_flag=True, help="Only those that nobody will ask about again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(guard: str | None, store: str | None, app: str | None, dead: bool, as_json: bool) -> None:
    """List the records in doubt, lapsed ones included."""
    with one_sentence():
        listed = list(operator(guard, store, app).list_unknown(dead=dead))
    if as_json:
        return print_json([told(case) for case, _ in listed])
    if not listed:
        return say("nothing is unknown")
    head = ("IDENTITY", "STATE", "AGE", "TRIES", "NEXT", "TENANT", "WHERE", "KEY", "REASON")
    say_table(head, (_row(case, now) for case, now in listed))
    return None


def _row(case: Case, now: Micros) -> tuple[str, ...]:
    from semel.core.request.keys import mask

    record, origin = case.record, case.origin
    coming = "dead" if case.due_at is None else f"in {ago(now, case.due_at)}"
    return (
        record.identity.hex()[:SHORT],
        record.state.value,
        ago(record.created_at, now),
        str(case.tries),
        coming,
        origin.tenant,
        f"{origin.method} {origin.path}",
        mask(origin.key),
        record.reason or "",
    )


def told(case: Case) -> dict[str, Any]:
    """A case for programs. The key is masked: whoever has it could send requests with it."""
    from semel.cli.keys_shown import whose
    from semel.core.request.keys import mask
    from semel.core.unknown.settlement import in_doubt

    record, origin = case.record, case.origin
    return {
        "identity": record.identity.hex(),
        "state": record.state.value,
        **whose(case),
        "tenant": origin.tenant,
        "method": origin.method,
        "path": origin.path,
        "key": mask(origin.key),
        "in_doubt": in_doubt(case),
        "reason": record.reason,
        "created_at": moment(record.created_at),
        "leased_until": moment(record.leased_until),
        "tries": case.tries,
        "next_probe_at": moment(case.due_at),
    }


@unknown.command()
@click.argument("identity")
@on_a_guard
@click.option("--call", help="Print the downstream key of this call, say charge.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    identity: str,
    guard: str | None,
    store: str | None,
    app: str | None,
    call: str | None,
    as_json: bool,
) -> None:
    """Show one record: where its key was used, how far it came, what is in doubt.

    IDENTITY is what the list shows, or the whole of it.
    """
    with one_sentence():
        case = found(operator(guard, store, app), identity).case
        document = told(case) | _history(case, call)
    if as_json:
        return print_json(document)
    for name, value in document.items():
        say(f"{name.replace('_', ' ')}: {_line(value)}")
    return None


def _history(case: Case, call: str | None) -> dict[str, Any]:
    from semel.core.recovery import journal
    from semel.core.unknown.evidence import inquiry_about
    from semel.core.unknown.settlement import in_doubt

    points = journal.decode(case.journal).points
    history = [f"{p.kind} {p.name}{'' if p.done else ': begun'}" for p in points]
    name = call or in_doubt(case)
    key = None if name is None else inquiry_about(case, name).downstream_key()
    return {"points": history, "downstream_key": key}


def _line(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"  # pyright: ignore[reportUnknownArgumentType]
    return "-" if value is None else str(value)


# ── asking ────────────────────────────────────────────────────────────────────────────────────────


@unknown.command()
@click.argument("identity")
@on_a_guard
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def probe(
    identity: str, guard: str | None, store: str | None, app: str | None, as_json: bool
) -> None:
    """Ask the record's probe now, and settle it by the answer.

    Exit code 1 when it is unknown still.
    """
    from semel.core.unknown.settlement import Settled

    with one_sentence():
        asker = operator(guard, store, app)
        came = asker.probe_now(found(asker, identity).case.record.identity)
    if as_json:
        print_json({"settled": isinstance(came, Settled), "said": said(came)})
    else:
        say(said(came))
    if not isinstance(came, Settled):
        raise SystemExit(FAILED)


def said(came: Inspection | None) -> str:
    """What came of it, in a sentence."""
    from semel.core.unknown.probe import GivenUp
    from semel.core.unknown.settlement import Passed, Running, Settled, Undecided, Unusable

    match came:
        case None | Passed(state=None):
            return "there is no such record any more"
        case Settled(state):
            return f"settled: {state.value}"
        case Undecided(reason) | Unusable(reason) | GivenUp(reason):
            return f"not settled: {reason}"
        case Running(state, until):
            return f"not settled: it is {state.value}, leased until {moment(until)}"
        case Passed(state):
            return f"not settled: it is {state} already"


# ── settling ──────────────────────────────────────────────────────────────────────────────────────


@unknown.command()
@click.argument("identity")
@on_a_guard
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
@signed
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def settle(
    identity: str, guard: str | None, store: str | None, app: str | None, **given: Any
) -> None:
    """Settle a record by what you have found out.

    IDENTITY is what the list shows, or the whole of it. A call that was settled wrongly is settled
    anew with --call, while its operation has come to no other point. Exit code 1 when it was not
    settled.
    """
    from semel.core.unknown.settlement import Settled

    _demand_a_verdict(**given)
    with one_sentence():
        settler = operator(guard, store, app)
        case = found(settler, identity).case
        evidence = _evidence(case, **given)
    if not given["yes"]:
        say(_warning(case, evidence, given["call"]), err=True)
        click.confirm("Settle it?", abort=True, err=True)
    with one_sentence():
        said_by = {name: given[name] for name in ("by", "reason", "call")}
        came = settler.settle(case.record.identity, evidence, **said_by)
    if given["as_json"]:
        print_json({"settled": isinstance(came, Settled), "said": said(came)})
    else:
        say(said(came))
    if not isinstance(came, Settled):
        raise SystemExit(FAILED)


def _demand_a_verdict(*, happened: bool, absent: bool, final: bool, **_: Any) -> None:
    if happened == absent:
        fail("say --happened, or --absent --final", MISUSED)
    if absent and not final:
        fail(
            "--absent needs --final: that it is not there now does not prove that it will not "
            "come. Be sure that no process still runs it and nothing is on its way, or void it at "
            "the provider first",
            MISUSED,
        )


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
    from semel.core.records import Response
    from semel.core.unknown.evidence import Absent, Happened
    from semel.core.unknown.settlement import ONCE, call_in_doubt

    if not happened:
        return Absent(final=True)
    call = call or call_in_doubt(case)
    if call is None and case.journal is not None and status is None:
        fail(
            "no call of the operation is in doubt: end it with the answer of --status and --body, "
            "or settle one of its calls anew with --call",
            MISUSED,
        )
    text = None if body is None else _read(body)
    if call is not None and text is None:
        fail(f"the operation goes on with the result of {call!r}: give it with --body", MISUSED)
    if text is not None and (call is not None or case.origin.method == ONCE):
        return Happened(_json(text), provider_id)
    if text is None:
        return Happened(None if status is None else Response(status, (), b""), provider_id)
    headers = ((b"content-type", content_type.encode("latin-1", "replace")),)
    return Happened(Response(status or 200, headers, text), provider_id)


def _read(path: Path) -> bytes:
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        fail(f"--body must be JSON here, the result of a function: {error}", MISUSED)


def _warning(case: Case, evidence: Evidence, call: str | None) -> str:
    """What settling will do, before it is done."""
    from semel.core.unknown.evidence import Happened
    from semel.core.unknown.settlement import call_in_doubt

    where = f"{case.origin.method} {case.origin.path} of {moment(case.record.created_at)}"
    if call is not None and call != call_in_doubt(case):
        return f"{where}: what {call!r} came to is forgotten, and what you say now holds instead."
    if not isinstance(evidence, Happened):
        return f"{where}: did not happen and no longer can. The next retry runs it."
    if call_in_doubt(case) is not None:
        return f"{where}: its call happened. The operation goes on behind it."
    if evidence.result is None:
        return f"{where}: happened. Retries learn that it did, without an answer (409)."
    return f"{where}: happened. Retries get the answer that you give."


@unknown.command()
@click.argument("identity")
@on_a_guard
@click.option("--free", is_flag=True, help="Leave no tombstone: a retry runs it again.")
@signed
@click.option("--yes", is_flag=True, help="Do not ask.")
def bury(
    identity: str,
    guard: str | None,
    store: str | None,
    app: str | None,
    free: bool,
    by: str,
    reason: str,
    yes: bool,
) -> None:
    """Give a record up of which nothing will ever be known: its key is expired from now on."""
    from semel.core.operations.requests import Applied

    with one_sentence():
        burier = operator(guard, store, app)
        case = found(burier, identity).case
    if not yes:
        then = "A retry may then have it happen twice." if free else "Retries are refused (410)."
        say(f"{case.origin.method} {case.origin.path}: given up. {then}", err=True)
        click.confirm("Give it up?", abort=True, err=True)
    with one_sentence():
        written = burier.bury(case.record.identity, by=by, reason=reason, free=free)
    if not isinstance(written, Applied):
        fail("not given up: it is not unknown", FAILED)
    say("given up")
