"""``semel keys``: the records of keys; list, show, evict, rotate, erase."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from semel.cli import output, targets
from semel.cli.targets import Since, Target
from semel.cli.views import glimpse_document, print_document, record_document
from semel.core.maintenance import Erasure
from semel.core.operations.requests import Applied, Lapse, Lost, Recalled
from semel.core.records import Duty, Glimpse, Identity, Micros, OnLapse, State
from semel.core.request.keys import mask
from semel.operators.lists import RecordFilter, RecordPage, page
from semel.runtime.events import short

if TYPE_CHECKING:
    from semel.operators.operator import Operator
    from semel.operators.rotation import Rotation


@click.group()
def keys() -> None:
    """The records of keys: list them, look at one, evict some; erase a tenant's, encrypt anew."""


# ── list ──────────────────────────────────────────────────────────────────────────────────────────


@keys.command("list")
@output.listed
@targets.on_a_guard
@click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in State]),
    multiple=True,
    help="Only these; repeatable.",
)
@click.option("--tenant", help="Only this tenant's.")
@click.option("--method", help="Only of this method.")
@click.option("--path", help="Only of this path; /pay* is all that begin so.")
@click.option("--older", type=targets.age, help="Only such of this age or more, say 30m or 7d.")
@targets.since
@click.option("--application", help="Only of this application.")
@click.option("--route", help="Only of this route, as semel routes names it.")
@click.option("--status", help="Only with a kept answer of this status: 402, or 4xx for a class.")
@click.option("--reason", help="Only with this in the reason.")
@click.option("--resource", help="Only the one that made this resource.")
@targets.paged("Records")
@output.as_json
def list_(
    target: Target,
    states: tuple[str, ...],
    method: str | None,
    limit: int,
    after: str | None,
    look: int,
    since: Since | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """List records, a page at a time, newest first.

    Filters have no index: a list looks at --look records, and says where to go on.
    """
    opened = target.operator()
    asked = tuple(map(State, states)) or tuple(State)
    filters["since"] = None if since is None else since.moment(opened.now())
    wanted = RecordFilter(asked, method=None if method is None else method.upper(), **filters)
    found = page(opened.guard.backend, wanted, limit, after, look)
    output.print_page(
        as_json,
        "records",
        map(glimpse_document, found.glimpses),
        ("IDENTITY", "STATE", "AGE", "NEXT", "TENANT", "WHERE", "KEY", "BYTES", "REASON"),
        (_row(each, found.now) for each in found.glimpses),
        found.looked,
        found.after,
    )
    if not as_json:
        _say_how(found)


def _say_how(found: RecordPage) -> None:
    """What a list could not do, on standard error."""
    if found.by_due:
        duties = " and ".join(_LISTED_BY_DUE[each] for each in found.by_due)
        output.say(f"too many to be sorted: {duties}", err=True)
    if found.unread:
        output.say(f"{found.unread} answers are encrypted: their status is not known", err=True)


_LISTED_BY_DUE: Final = {
    Duty.LEASE: "records in progress stand by the end of their lease",
    Duty.RESUME: "resumable ones in progress stand by the end of their lease",
    Duty.RUN: "pending ones stand by when they may be run",
    Duty.ASK: "unknown ones stand by when a probe may be asked",
}


def _row(seen: Glimpse, now: Micros) -> tuple[output.Piece, ...]:
    origin, state = seen.origin, seen.state.value
    past = seen.leased_until is not None and seen.leased_until <= now
    doubtful = seen.state is State.UNKNOWN or (seen.state is State.IN_PROGRESS and past)
    coming = "dead"
    if seen.due_at is not None:
        coming = f"in {output.ago(now, seen.due_at)}" if seen.due_at > now else "due"
    return (
        short(seen.identity),
        output.Coloured(state, "doubtful") if doubtful else state,
        output.ago(seen.created_at, now),
        coming,
        origin.tenant,
        f"{origin.method} {origin.path}",
        mask(origin.key),
        "-" if seen.size is None else str(seen.size),
        seen.reason or "",
    )


# ── show ──────────────────────────────────────────────────────────────────────────────────────────


@keys.command()
@click.argument("identity", required=False)
@targets.on_a_guard
@click.option("--key", help="Instead of IDENTITY: the client's key, and where it was used.")
@click.option("--method", default="POST", show_default=True, help="With --key.")
@click.option("--path", help="With --key.")
@click.option("--tenant", default="", help="With --key; none if not said.")
@click.option("--body", is_flag=True, help="Print the kept answer too: headers and body.")
@output.as_json
def show(target: Target, identity: str | None, body: bool, as_json: bool, **address: Any) -> None:
    """Show one record: its state and times, its answer, its points and effects.

    IDENTITY is what the list shows, or the whole of it; eight digits or more are enough. Neither
    the key nor the answer's body is printed, unless --body asks for the latter.
    """
    opened = target.operator()
    recalled = _named(opened, identity, **address)
    print_document(record_document(opened, recalled, body=body), as_json)


def _named(
    opened: Operator,
    identity: str | None,
    key: str | None,
    method: str,
    path: str | None,
    tenant: str,
) -> Recalled:
    """The record with that identity, or of that key at that place."""
    from semel.operators.operator import KeyAddress

    if (identity is None) == (key is None):
        output.fail("which record? Give IDENTITY, or --key and --path", output.MISUSED)
    if identity is not None:
        return targets.find_record(opened, identity)
    if path is None or not path.startswith("/"):
        said = "--key needs the --path that it was used at, which begins with '/'"
        output.fail(said, output.MISUSED)
    recalled = opened.find(KeyAddress(tenant, method, path, key or ""))
    return recalled if recalled is not None else output.fail(targets.NO_RECORD, output.FAILED)


# ── evict ─────────────────────────────────────────────────────────────────────────────────────────


@keys.command()
@click.argument("identities", nargs=-1, required=True, metavar="IDENTITY...")
@targets.on_a_guard
@targets.signed
@click.option("--force", is_flag=True, help="Unknown ones too: their keys are expired from now on.")
@click.option("--free", is_flag=True, help="With --force: a retry runs again. It may run twice.")
@output.yes
@output.as_json
def evict(
    target: Target, identities: tuple[str, ...], yes: bool, as_json: bool, **how: Any
) -> None:
    """Remove settled records: the next request with such a key runs again.

    IDENTITY is as for show; - reads them from standard input, one in a line. Exit code 1 when one
    of them was not evicted. What is in progress or pending is left alone.
    """
    if how["free"] and not how["force"]:
        output.fail("--free is for unknown records: it needs --force", output.MISUSED)
    if "-" in identities and not yes:
        said = "with identities on standard input nobody can be asked: say --yes"
        output.fail(said, output.MISUSED)
    opened = target.operator()
    chosen: list[Identity] = []
    for text in identities:
        texts = filter(None, map(str.strip, sys.stdin)) if text == "-" else (text,)
        chosen += [targets.identity_of(opened, each) for each in texts]
    if not yes:
        many = "one record" if len(chosen) == 1 else f"{len(chosen)} records"
        then = "Requests with such keys run again."
        if how["force"] and not how["free"]:
            then = "Requests with such keys run again; those of unknown outcome are refused (410)."
        first = ", ".join(short(each) for each in chosen[:5])
        output.confirm("Evict?", f"{many}: {first}. {then}")
    results: list[dict[str, Any]] = []
    for identity in output.counted("evicting", chosen):
        evicted, said = _evict(opened, identity, **how)
        results.append({"identity": identity.hex(), "evicted": evicted, "said": said})
        if not as_json:
            output.say(f"{short(identity)}: {said}", err=not evicted)
    with output.waiting_for("waiting until no process repeats their answers"):
        opened.wait_out()
    output.print_result(as_json, results, fine=all(each["evicted"] for each in results))


def _evict(
    opened: Operator, identity: Identity, force: bool, free: bool, by: str, reason: str
) -> tuple[bool, str]:
    """Evict one record, or give it up; whether it is gone, and what is said of it."""
    recalled = opened.find(identity)
    if recalled is None:
        return True, "there is no such record (any more)"
    record = recalled.case.record
    lapsed, doubtful = record.lapsed(recalled.now), record.state is State.UNKNOWN
    if (lapsed or doubtful) and not force:
        return False, (
            "not evicted: nobody knows whether it happened; semel unknown settle decides it, "
            "--force gives it up"
        )
    if lapsed:
        doubtful = _lapse(opened, recalled) is State.UNKNOWN
    said = "evicted"
    if doubtful:
        written = opened.bury(identity, by=by, reason=reason, free=free)
        said = "evicted" if free else "evicted: its key is expired"
    else:
        written = opened.evict(identity, by=by, reason=reason, wait=False)
    if not isinstance(written, Lost):
        return True, said
    state = "gone" if written.record is None else written.record.state.value
    return False, f"not evicted: it is {state}"


def _lapse(opened: Operator, recalled: Recalled) -> State | None:
    """The state after the lapse, as its next request would make it; a resumable one stays."""
    record = recalled.case.record
    if record.on_lapse is OnLapse.RESUME or recalled.case.terms is None:
        return record.state
    op = Lapse(record.identity, record.fence, recalled.case.terms.retention)
    written = opened._ask(op)
    return written.state if isinstance(written, Applied) else None


# ── rotate and erase ──────────────────────────────────────────────────────────────────────────────


@keys.command()
@targets.on_a_guard
@targets.signed
@output.as_json
def rotate(target: Target, by: str, reason: str, as_json: bool) -> None:
    """Encrypt anew, under the current key, what is stored under others or in clear.

    Safe beside traffic. Ended in the middle, it is simply run again. Exit code 1 when something
    remains that is not under the current key.
    """
    with output.progress() as show_line:

        def report(so_far: Rotation) -> None:
            show_line(f"{so_far.resealed} encrypted anew, {so_far.remaining} left for later")

        done = target.operator().rotate(by=by, reason=reason, progress=report)
    said = f"{done.resealed} values encrypted anew, {done.remaining} remain"
    if done.unreadable:
        said += f"; {done.unreadable} cannot be read, the first of which {done.reason}"
    elif done.remaining:
        said += ": run it again"
    names = ("resealed", "remaining", "unreadable", "reason")
    document = {name: getattr(done, name) for name in names}
    output.print_result(as_json, document, said, fine=not done.remaining)


@keys.command()
@targets.on_a_guard
@click.option("--tenant", required=True, help="Whose records.")
@targets.signed
@output.yes
@output.as_json
def erase(target: Target, tenant: str, by: str, reason: str, yes: bool, as_json: bool) -> None:
    """Erase what is kept of a tenant: answers, requests, journals, keys, paths, digests.

    Retries of what was erased are refused (410) and never run again. What is unsettled is left, and
    the exit code is 1: settle it, then run this again. Reads the whole table, in small steps.
    """
    if not yes:
        output.confirm(f"Erase what is kept of the tenant {tenant!r}?")
    with output.progress() as show_line:

        def report(so_far: Erasure) -> None:
            reached = b"" if so_far.after is None else so_far.after
            share = int.from_bytes(reached[:2].ljust(2, b"\0"), "big") * 100 // 65_536
            show_line(f"{share} %: {so_far.erased} records erased")

        done = target.operator().erase(tenant, by=by, reason=reason, progress=report)
    left = [each.hex() for each in done.left]
    said = f"{done.erased} records erased, {len(left)} unsettled ones left"
    document = {"erased": done.erased, "left": left}
    output.print_result(as_json, document, said, *left, fine=not left)
