"""``semel keys rotate`` and ``semel keys erase``: what is done to all that is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from semel.cli.output import FAILED, on_a_guard, one_sentence, print_json, progress, say, signed
from semel.cli.targets import operator

if TYPE_CHECKING:
    from semel.core.maintenance import Erasure
    from semel.operators.rotation import Rotation


@click.command()
@on_a_guard
@signed
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rotate(
    guard: str | None, store: str | None, app: str | None, by: str, reason: str, as_json: bool
) -> None:
    """Encrypt anew, under the current key, what is stored under others or in clear.

    Safe beside traffic. Ended in the middle, it is simply run again. Exit code 1 when something
    remains that is not under the current key.
    """
    with one_sentence(), progress() as tell:

        def told(so_far: Rotation) -> None:
            tell(f"{so_far.resealed} encrypted anew, {so_far.remaining} left for later")

        done = operator(guard, store, app).rotate(by=by, reason=reason, progress=told)
    if as_json:
        print_json(_rotation(done))
    else:
        say(_rotated(done))
    if done.remaining:
        raise SystemExit(FAILED)


def _rotation(done: Rotation) -> dict[str, Any]:
    return {
        "resealed": done.resealed,
        "remaining": done.remaining,
        "unreadable": done.unreadable,
        "reason": done.reason,
    }


def _rotated(done: Rotation) -> str:
    said = f"{done.resealed} values encrypted anew, {done.remaining} remain"
    if done.unreadable:
        return f"{said}; {done.unreadable} cannot be read, the first of which {done.reason}"
    return f"{said}: run it again" if done.remaining else said


@click.command()
@on_a_guard
@click.option("--tenant", required=True, help="Whose records.")
@signed
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def erase(
    guard: str | None,
    store: str | None,
    app: str | None,
    tenant: str,
    by: str,
    reason: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase what is kept of a tenant: answers, requests, journals, keys, paths, digests.

    Retries of what was erased are refused (410) and never run again. What is unsettled is left, and
    the exit code is 1: settle it, then run this again. Reads the whole table, in small steps.
    """
    if not yes:
        click.confirm(f"Erase what is kept of the tenant {tenant!r}?", abort=True, err=True)
    with one_sentence(), progress() as tell:

        def told(so_far: Erasure) -> None:
            reached = b"" if so_far.after is None else so_far.after
            share = int.from_bytes(reached[:2].ljust(2, b"\0"), "big") * 100 // 65_536
            tell(f"{share} %: {so_far.erased} records erased")

        done = operator(guard, store, app).erase(tenant, by=by, reason=reason, progress=told)
    if as_json:
        print_json({"erased": done.erased, "left": [each.hex() for each in done.left]})
    else:
        say(f"{done.erased} records erased, {len(done.left)} unsettled ones left")
        for each in done.left:
            say(each.hex())
    if done.left:
        raise SystemExit(FAILED)
