"""``semel keys``: the records of keys; list, show, evict."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from semel.cli.output import (
    FAILED,
    MISUSED,
    Painted,
    Piece,
    ago,
    counted,
    fail,
    moment,
    on_a_guard,
    one_sentence,
    patience,
    print_json,
    say,
    say_table,
    signed,
)
from semel.cli.targets import SHORT, found, identity_of, operator

if TYPE_CHECKING:
    from semel.core.operations.requests import Recalled, Written
    from semel.core.records import Glimpse, Identity, Micros, State
    from semel.operators.operator import Operator
    from semel.operators.records import Page, RecordFilter

STATES: Final = (
    *("pending", "in_progress", "completed", "failed_retryable", "unknown", "expired"),
)
LOOK: Final = 20_000


def age(text: str) -> int:
    """A duration as settings write it; microseconds."""
    from semel.errors import ConfigurationError
    from semel.stores.options import duration

    try:
        return int(duration("", text).total_seconds() * 1_000_000)
    except ConfigurationError:
        raise click.BadParameter(f"{text!r} is no duration such as 90s, 30m or 7d") from None


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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(
    guard: str | None,
    store: str | None,
    app: str | None,
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
    from semel.operators.records import page

    with one_sentence():
        opened = operator(guard, store, app)
        behind = None if after is None else identity_of(opened, after)
        came = page(opened._guard.backend, _wanted(**filters), limit, behind, look)
    if as_json:
        return print_json(
            {
                "records": [told(each) for each in came.glimpses],
                "looked_at": came.looked,
                "after": None if came.after is None else came.after.hex(),
            }
        )
    return _print(came)


def _wanted(states: tuple[str, ...], method: str | None, **others: Any) -> RecordFilter:
    from semel.core.records import State
    from semel.operators.records import RecordFilter

    asked = tuple(map(State, states)) or tuple(State)
    return RecordFilter(asked, method=None if method is None else method.upper(), **others)


def _print(came: Page) -> None:
    if came.glimpses:
        head = ("IDENTITY", "STATE", "AGE", "NEXT", "TENANT", "WHERE", "KEY", "BYTES", "REASON")
        say_table(head, (_row(each, came.now) for each in came.glimpses))
    elif came.after is None:
        say("there are no such records")
    if came.after is not None:
        # On standard error: a pipe gets rows and nothing else.
        note = f"looked at {came.looked} records; go on with --after {came.after.hex()}"
        say(note, err=True)


def _row(seen: Glimpse, now: Micros) -> tuple[Piece, ...]:
    from semel.core.request.keys import mask

    origin = seen.origin
    return (
        seen.identity.hex()[:SHORT],
        _coloured(seen, now),
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


def _coloured(seen: Glimpse, now: Micros) -> Piece:
    lapsed = seen.state == "in_progress" and seen.leased_until is not None
    doubtful = seen.state == "unknown" or (lapsed and (seen.leased_until or 0) <= now)
    return Painted(seen.state.value, "doubtful") if doubtful else seen.state.value


def told(seen: Glimpse) -> dict[str, Any]:
    """A record of a list, for programs. The key is masked: who has it could send requests."""
    from semel.core.request.keys import mask

    origin = seen.origin
    return {
        "identity": seen.identity.hex(),
        "state": seen.state.value,
        "tenant": origin.tenant,
        "method": origin.method,
        "path": origin.path,
        "key": mask(origin.key),
        "created_at": moment(seen.created_at),
        "leased_until": moment(seen.leased_until),
        "expires_at": moment(seen.expires_at),
        "forget_at": moment(seen.forget_at),
        "next_at": moment(seen.due_at),
        "tries": seen.tries,
        "reason": seen.reason,
        "stored_bytes": seen.size,
    }


# ── show ──────────────────────────────────────────────────────────────────────────────────────────


@keys.command()
@click.argument("identity", required=False)
@on_a_guard
@click.option("--key", help="Instead of IDENTITY: the client's key, and where it was used.")
@click.option("--method", default="POST", show_default=True, help="With --key.")
@click.option("--path", help="With --key.")
@click.option("--tenant", default="", help="With --key; none if not said.")
@click.option("--body", is_flag=True, help="Print the kept answer too: headers and body.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    identity: str | None,
    guard: str | None,
    store: str | None,
    app: str | None,
    body: bool,
    as_json: bool,
    **address: Any,
) -> None:
    """Show one record: its state and times, its answer, its points and effects.

    IDENTITY is what the list shows, or the whole of it; eight digits or more are enough. Neither
    the key nor the answer's body is printed, unless --body asks for the latter.
    """
    from semel.cli.keys_shown import document, lines

    with one_sentence():
        opened = operator(guard, store, app)
        recalled = _named(opened, identity, **address)
        shown = document(opened, recalled, body=body)
    if as_json:
        print_json(shown)
    else:
        for line in lines(shown):
            say(line)


def _named(
    opened: Operator,
    identity: str | None,
    key: str | None,
    method: str,
    path: str | None,
    tenant: str,
) -> Recalled:
    from semel.operators.operator import KeyAddress

    if (identity is None) == (key is None):
        fail("which record? Give IDENTITY, or --key and --path", MISUSED)
    if identity is not None:
        return found(opened, identity)
    if path is None or not path.startswith("/"):
        fail("--key needs the --path that it was used at, which begins with '/'", MISUSED)
    recalled = opened.find(KeyAddress(tenant, method, path, key or ""))
    return recalled if recalled is not None else fail("there is no such record", FAILED)


# ── evict ─────────────────────────────────────────────────────────────────────────────────────────


@keys.command()
@click.argument("identities", nargs=-1, required=True, metavar="IDENTITY...")
@on_a_guard
@signed
@click.option("--force", is_flag=True, help="Unknown ones too: their keys are expired from now on.")
@click.option("--free", is_flag=True, help="With --force: a retry runs again. It may run twice.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evict(
    identities: tuple[str, ...],
    guard: str | None,
    store: str | None,
    app: str | None,
    yes: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Remove settled records: the next request with such a key runs again.

    IDENTITY is as for show; - reads them from standard input, one in a line. Exit code 1 when one
    of them was not evicted. What is in progress or pending is left alone.
    """
    if how["free"] and not how["force"]:
        fail("--free is for unknown records: it needs --force", MISUSED)
    if "-" in identities and not yes:
        fail("with identities on standard input nobody can be asked: say --yes", MISUSED)
    with one_sentence():
        opened = operator(guard, store, app)
        chosen = [identity_of(opened, text) for text in _texts(identities)]
    if not yes:
        _confirm(chosen, how)
    came = [_evicted(opened, each, as_json, **how) for each in counted("evicting", chosen)]
    with one_sentence(), patience("waiting until no process repeats their answers"):
        opened.wait_out()
    if as_json:
        print_json(came)
    if not all(each["evicted"] for each in came):
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
    with one_sentence():
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
        doubtful = _lapsed(opened, recalled) is State.UNKNOWN
    if not doubtful:
        return _came_to(opened.evict(identity, by=by, reason=reason, wait=False), "evicted")
    written = opened.bury(identity, by=by, reason=reason, free=free)
    return _came_to(written, "evicted" if free else "evicted: its key is expired")


def _lapsed(opened: Operator, recalled: Recalled) -> State | None:
    """What becomes of it as its next request would have it; a resumable one stays as it is."""
    from semel.core.operations.requests import Applied, Lapse
    from semel.core.records import OnLapse

    record = recalled.case.record
    if record.on_lapse is OnLapse.RESUME:
        return record.state
    if recalled.case.terms is None:
        return record.state
    op = Lapse(record.identity, record.fence, recalled.case.terms.retention)
    written = opened._ask(op)
    return written.state if isinstance(written, Applied) else None


_IN_DOUBT: Final = (
    "nobody knows whether it happened; semel unknown settle decides it, --force gives it up"
)


def _came_to(written: Written | None, said: str) -> tuple[bool, str]:
    from semel.core.operations.requests import Lost

    if not isinstance(written, Lost):
        return True, said
    state = "gone" if written.record is None else written.record.state.value
    return False, f"not evicted: it is {state}"
