"""``semel keys``: the records of keys; list, show, evict, rotate, erase."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from semel.cli.output import (
    FAILED,
    MISUSED,
    Coloured,
    Piece,
    ago,
    as_json,
    counted,
    errors_as_sentences,
    fail,
    print_json,
    progress,
    say,
    say_table,
    waiting_for,
    yes,
)
from semel.cli.targets import SHORT, Target, age, find_record, identity_of, on_a_guard, signed

if TYPE_CHECKING:
    from semel.core.maintenance import Erasure
    from semel.core.operations.requests import Recalled, Written
    from semel.core.records import Glimpse, Identity, Micros, State
    from semel.operators.lists import Page
    from semel.operators.operator import Operator
    from semel.operators.rotation import Rotation

STATES: Final = ("pending", "in_progress", "completed", "failed_retryable", "unknown", "expired")
LOOK: Final = 20_000


@click.group()
def keys() -> None:
    """The records of keys: list them, look at one, evict some; erase a tenant's, encrypt anew."""


# ── list ──────────────────────────────────────────────────────────────────────────────────────────


@keys.command("list")
@on_a_guard
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only these; repeatable."
)
@click.option("--tenant", help="Only this tenant's.")
@click.option("--method", help="Only of this method.")
@click.option("--path", help="Only of this path; /pay* is all that begin so.")
@click.option("--older", type=age, help="Only such of this age or more, say 30m or 7d.")
@click.option("--younger", type=age, help="Only such of less than this age.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", help="Go on behind this identity, as the page before said.")
@click.option(
    "--look",
    type=click.IntRange(1),
    default=LOOK,
    show_default=True,
    help="Records to look at, at most.",
)
@as_json
def list_(
    target: Target,
    states: tuple[str, ...],
    method: str | None,
    limit: int,
    after: str | None,
    look: int,
    as_json: bool,
    **filters: Any,
) -> None:
    """List records, a page at a time, in the order of their identities.

    Unsettled ones are found at once, however many others there are. Any other list looks at --look
    records and says where to go on.
    """
    from semel.cli.views import glimpse_document
    from semel.core.records import State
    from semel.operators.lists import RecordFilter, page

    with errors_as_sentences():
        opened = target.operator()
        behind = None if after is None else identity_of(opened, after)
        asked = tuple(map(State, states)) or tuple(State)
        wanted = RecordFilter(asked, method=None if method is None else method.upper(), **filters)
        found = page(opened._guard.backend, wanted, limit, behind, look)
    if not as_json:
        return _print(found)
    return print_json(
        {
            "records": [glimpse_document(each) for each in found.glimpses],
            "looked_at": found.looked,
            "after": None if found.after is None else found.after.hex(),
        }
    )


def _print(page: Page) -> None:
    if page.glimpses:
        head = ("IDENTITY", "STATE", "AGE", "NEXT", "TENANT", "WHERE", "KEY", "BYTES", "REASON")
        say_table(head, (_row(each, page.now) for each in page.glimpses))
    elif page.after is None:
        say("there are no such records")
    if page.after is not None:
        # On standard error: a pipe gets rows and nothing else.
        note = f"looked at {page.looked} records; go on with --after {page.after.hex()}"
        say(note, err=True)


def _row(seen: Glimpse, now: Micros) -> tuple[Piece, ...]:
    from semel.core.request.keys import mask

    origin = seen.origin
    return (
        seen.identity.hex()[:SHORT],
        _state(seen, now),
        ago(seen.created_at, now),
        _next(seen.due_at, now),
        origin.tenant,
        f"{origin.method} {origin.path}",
        mask(origin.key),
        "-" if seen.size is None else str(seen.size),
        seen.reason or "",
    )


def _next(due_at: Micros | None, now: Micros) -> str:
    if due_at is None:
        return "dead"
    return f"in {ago(now, due_at)}" if due_at > now else "due"


def _state(seen: Glimpse, now: Micros) -> Piece:
    lapsed = seen.state == "in_progress" and seen.leased_until is not None
    doubtful = seen.state == "unknown" or (lapsed and (seen.leased_until or 0) <= now)
    return Coloured(seen.state.value, "doubtful") if doubtful else seen.state.value


# ── show ──────────────────────────────────────────────────────────────────────────────────────────


@keys.command()
@click.argument("identity", required=False)
@on_a_guard
@click.option("--key", help="Instead of IDENTITY: the client's key, and where it was used.")
@click.option("--method", default="POST", show_default=True, help="With --key.")
@click.option("--path", help="With --key.")
@click.option("--tenant", default="", help="With --key; none if not said.")
@click.option("--body", is_flag=True, help="Print the kept answer too: headers and body.")
@as_json
def show(target: Target, identity: str | None, body: bool, as_json: bool, **address: Any) -> None:
    """Show one record: its state and times, its answer, its points and effects.

    IDENTITY is what the list shows, or the whole of it; eight digits or more are enough. Neither
    the key nor the answer's body is printed, unless --body asks for the latter.
    """
    from semel.cli.views import print_document, record_document

    with errors_as_sentences():
        opened = target.operator()
        recalled = _named(opened, identity, **address)
        document = record_document(opened, recalled, body=body)
    print_document(document, as_json)


def _named(
    opened: Operator,
    identity: str | None,
    key: str | None,
    method: str,
    path: str | None,
    tenant: str,
) -> Recalled:
    """The record with that identity, or of that key at that place."""

    if (identity is None) == (key is None):
        fail("which record? Give IDENTITY, or --key and --path", MISUSED)
    if identity is not None:
        return find_record(opened, identity)
    if path is None or not path.startswith("/"):
        fail("--key needs the --path that it was used at, which begins with '/'", MISUSED)
    from semel.operators.operator import KeyAddress

    recalled = opened.find(KeyAddress(tenant, method, path, key or ""))
    return recalled if recalled is not None else fail("there is no such record", FAILED)


# ── evict ─────────────────────────────────────────────────────────────────────────────────────────


@keys.command()
@click.argument("identities", nargs=-1, required=True, metavar="IDENTITY...")
@on_a_guard
@signed
@click.option("--force", is_flag=True, help="Unknown ones too: their keys are expired from now on.")
@click.option("--free", is_flag=True, help="With --force: a retry runs again. It may run twice.")
@yes
@as_json
def evict(
    target: Target, identities: tuple[str, ...], yes: bool, as_json: bool, **how: Any
) -> None:
    """Remove settled records: the next request with such a key runs again.

    IDENTITY is as for show; - reads them from standard input, one in a line. Exit code 1 when one
    of them was not evicted. What is in progress or pending is left alone.
    """
    if how["free"] and not how["force"]:
        fail("--free is for unknown records: it needs --force", MISUSED)
    if "-" in identities and not yes:
        fail("with identities on standard input nobody can be asked: say --yes", MISUSED)
    with errors_as_sentences():
        opened = target.operator()
        chosen = [identity_of(opened, text) for text in _texts(identities)]
    if not yes:
        _confirm(chosen, how)
    results = [_evicted(opened, each, as_json, **how) for each in counted("evicting", chosen)]
    with errors_as_sentences(), waiting_for("waiting until no process repeats their answers"):
        opened.wait_out()
    if as_json:
        print_json(results)
    if not all(each["evicted"] for each in results):
        raise SystemExit(FAILED)


def _texts(identities: tuple[str, ...]) -> Iterator[str]:
    for text in identities:
        if text == "-":
            yield from filter(None, map(str.strip, sys.stdin))
        else:
            yield text


def _confirm(chosen: list[Identity], how: dict[str, Any]) -> None:
    many = "one record" if len(chosen) == 1 else f"{len(chosen)} records"
    then = "Requests with such keys run again."
    if how["force"] and not how["free"]:
        then = "Requests with such keys run again; those of unknown outcome are refused (410)."
    say(f"{many}: {', '.join(each.hex()[:SHORT] for each in chosen[:5])}. {then}", err=True)
    click.confirm("Evict?", abort=True, err=True)


def _evicted(
    opened: Operator, identity: Identity, as_json: bool, force: bool, **how: Any
) -> dict[str, Any]:
    with errors_as_sentences():
        evicted, said = _evict(opened, identity, force, **how)
    if not as_json:
        say(f"{identity.hex()[:SHORT]}: {said}", err=not evicted)
    return {"identity": identity.hex(), "evicted": evicted, "said": said}


def _evict(
    opened: Operator, identity: Identity, force: bool, free: bool, by: str, reason: str
) -> tuple[bool, str]:
    from semel.core.records import State

    recalled = opened.find(identity)
    if recalled is None:
        return True, "there is no such record (any more)"
    record = recalled.case.record
    doubtful = record.state is State.UNKNOWN or record.lapsed(recalled.now)
    if doubtful and not force:
        return False, f"not evicted: {_IN_DOUBT}"
    if record.lapsed(recalled.now):
        doubtful = _lapse(opened, recalled) is State.UNKNOWN
    if not doubtful:
        return _eviction(opened.evict(identity, by=by, reason=reason, wait=False), "evicted")
    written = opened.bury(identity, by=by, reason=reason, free=free)
    return _eviction(written, "evicted" if free else "evicted: its key is expired")


def _lapse(opened: Operator, recalled: Recalled) -> State | None:
    """The state after the lapse, as its next request would make it; a resumable one stays."""
    from semel.core.operations.requests import Applied, Lapse
    from semel.core.records import OnLapse

    record = recalled.case.record
    if record.on_lapse is OnLapse.RESUME or recalled.case.terms is None:
        return record.state
    op = Lapse(record.identity, record.fence, recalled.case.terms.retention)
    written = opened._ask(op)
    return written.state if isinstance(written, Applied) else None


_IN_DOUBT: Final = (
    "nobody knows whether it happened; semel unknown settle decides it, --force gives it up"
)


def _eviction(written: Written | None, said: str) -> tuple[bool, str]:
    from semel.core.operations.requests import Lost

    if not isinstance(written, Lost):
        return True, said
    state = "gone" if written.record is None else written.record.state.value
    return False, f"not evicted: it is {state}"


# ── rotate and erase ──────────────────────────────────────────────────────────────────────────────


@keys.command()
@on_a_guard
@signed
@as_json
def rotate(target: Target, by: str, reason: str, as_json: bool) -> None:
    """Encrypt anew, under the current key, what is stored under others or in clear.

    Safe beside traffic. Ended in the middle, it is simply run again. Exit code 1 when something
    remains that is not under the current key.
    """
    with errors_as_sentences(), progress() as show_line:

        def report(so_far: Rotation) -> None:
            show_line(f"{so_far.resealed} encrypted anew, {so_far.remaining} left for later")

        done = target.operator().rotate(by=by, reason=reason, progress=report)
    if as_json:
        names = ("resealed", "remaining", "unreadable", "reason")
        print_json({name: getattr(done, name) for name in names})
    else:
        said = f"{done.resealed} values encrypted anew, {done.remaining} remain"
        if done.unreadable:
            said += f"; {done.unreadable} cannot be read, the first of which {done.reason}"
        elif done.remaining:
            said += ": run it again"
        say(said)
    if done.remaining:
        raise SystemExit(FAILED)


@keys.command()
@on_a_guard
@click.option("--tenant", required=True, help="Whose records.")
@signed
@yes
@as_json
def erase(target: Target, tenant: str, by: str, reason: str, yes: bool, as_json: bool) -> None:
    """Erase what is kept of a tenant: answers, requests, journals, keys, paths, digests.

    Retries of what was erased are refused (410) and never run again. What is unsettled is left, and
    the exit code is 1: settle it, then run this again. Reads the whole table, in small steps.
    """
    if not yes:
        click.confirm(f"Erase what is kept of the tenant {tenant!r}?", abort=True, err=True)
    with errors_as_sentences(), progress() as show_line:

        def report(so_far: Erasure) -> None:
            reached = b"" if so_far.after is None else so_far.after
            share = int.from_bytes(reached[:2].ljust(2, b"\0"), "big") * 100 // 65_536
            show_line(f"{share} %: {so_far.erased} records erased")

        done = target.operator().erase(tenant, by=by, reason=reason, progress=report)
    if as_json:
        print_json({"erased": done.erased, "left": [each.hex() for each in done.left]})
    else:
        say(f"{done.erased} records erased, {len(done.left)} unsettled ones left")
        for each in done.left:
            say(each.hex())
    if done.left:
        raise SystemExit(FAILED)
