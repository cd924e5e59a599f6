"""One record as people and programs see it: what is kept of it, never its key."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from semel.cli.output import moment
from semel.core.operations.outbox import FindEffect, Shelf
from semel.core.records import Effect
from semel.core.recovery import journal
from semel.core.request import keys
from semel.core.stored import snapshot
from semel.core.unknown.settlement import in_doubt
from semel.errors import StoreError
from semel.operators.operator import effects

if TYPE_CHECKING:
    from semel.core.operations.requests import Recalled
    from semel.core.records import Case, Record
    from semel.guard import Guard
    from semel.operators.operator import Operator

LOOK: Final = 5_000
"""Effects to look at, on each shelf, for those of one record: no index leads to them."""


def document(opened: Operator, recalled: Recalled, *, body: bool) -> dict[str, Any]:
    """All that is kept of a record, by names that stay; what was done to it, in this life of it."""
    case, record, origin = recalled.case, recalled.case.record, recalled.case.origin
    return {
        "identity": record.identity.hex(),
        "state": record.state.value,
        "lapsed": record.lapsed(recalled.now),
        **whose(case),
        "tenant": origin.tenant,
        "method": origin.method,
        "path": origin.path,
        "key": keys.mask(origin.key),
        "created_at": moment(record.created_at),
        "leased_until": moment(record.leased_until),
        "on_lapse": record.on_lapse.value,
        "expires_at": moment(record.expires_at),
        "forget_at": moment(record.forget_at),
        "retired_at": moment(record.retired_at),
        "next_at": moment(case.due_at),
        "tries": case.tries,
        "fence": f"{record.fence.hex()[:6]}...",
        "fingerprint": record.fingerprint.rpartition(".")[0],
        "resource": case.resource,
        "reason": record.reason,
        **_journal(case),
        "request_bytes": None if case.request is None else len(case.request),
        "answer": answer(record, body=body),
        "effects": [effect(each) for each in effects_of(opened._guard, record)],
        "acts": [
            {"at": moment(each.at), "verb": each.verb, "by": each.by, "reason": each.reason}
            for each in opened.audit(identity=record.identity, since=record.created_at)
        ],
    }


def whose(case: Case) -> dict[str, str | None]:
    """The application and the route of a record; None where its terms are not on record."""
    terms = case.terms
    if terms is None:
        return {"application": None, "route": None}
    return {"application": terms.application, "route": terms.route}


def answer(record: Record, *, body: bool) -> dict[str, Any] | None:
    """What is kept of the answer; its headers and body where they are asked for."""
    if record.snapshot is None:
        return None
    try:
        kept = snapshot.decode(record.snapshot)
    except StoreError as error:  # damaged, or encrypted with a key that is not at hand
        return {"unreadable": str(error)}
    told: dict[str, Any] = {
        "status": kept.status,
        "kept": _kept(kept),
        "bytes": kept.size or len(kept.body or b""),
        "schema_version": kept.schema_version,
    }
    return told | _content(kept) if body else told


def _kept(kept: snapshot.Snapshot) -> str:
    if kept.open:
        return "open receipt"
    if kept.body is None:
        return "receipt" if kept.whole else "receipt of a truncated answer"
    return "whole"


def _content(kept: snapshot.Snapshot) -> dict[str, Any]:
    """Headers, and the body as text where it is some, else in base64."""
    headers = [f"{name.decode('latin-1')}: {text.decode('latin-1')}" for name, text in kept.headers]
    if kept.body is None:
        return {"headers": headers, "body": None}
    try:
        return {"headers": headers, "body": kept.body.decode()}
    except UnicodeDecodeError:
        return {"headers": headers, "body_base64": b64encode(kept.body).decode()}


def _journal(case: Case) -> dict[str, Any]:
    """How far an operation came."""
    try:
        points = [
            {"name": point.name, "kind": point.kind.value, "done": point.done}
            for point in journal.decode(case.journal).points
        ]
        return {"in_doubt": in_doubt(case), "points": points}
    except StoreError as error:
        return {"in_doubt": None, "points": [], "unreadable": str(error)}


def effects_of(guard: Guard, record: Record) -> list[Effect]:
    """Those that wait or are dead among the first `LOOK`, and delivered ones by their names.

    There is no index from records to effects: every effect would pay for it, for the sake of an
    operator who comes once a week. Their keys are derived, so the names a guard delivers find them.
    """
    if not guard.backend.capabilities.outbox:
        return []
    store, found = guard.backend.blocking(), dict[str, Effect]()
    identity = record.identity
    for name in guard.registry.deliverers:
        op = FindEffect(keys.downstream_key(identity, record.created_at, "effect", name))
        found |= {each.key: each for each in store.perform(op).effects}
    for shelf in (Shelf.WAITING, Shelf.DEAD):
        for each in islice(effects(guard, shelf), LOOK):
            if each.identity == identity:
                found[each.key] = each
    return sorted(found.values(), key=lambda each: (each.created_at, each.key))


def shelf_of(effect: Effect) -> Shelf:
    if effect.dead_at is not None:
        return Shelf.DEAD
    return Shelf.WAITING if effect.delivered_at is None else Shelf.DELIVERED


def effect(found: Effect) -> dict[str, Any]:
    """An effect for programs; not its payload, which is the application's."""
    return {
        "key": found.key,
        "name": found.name,
        "application": found.application,
        "state": shelf_of(found).value,
        "identity": None if found.identity is None else found.identity.hex(),
        "order": found.order,
        "tries": found.tries,
        "created_at": moment(found.created_at),
        "due_at": moment(found.due_at),
        "leased_until": moment(found.leased_until),
        "delivered_at": moment(found.delivered_at),
        "dead_at": moment(found.dead_at),
        "provider_id": found.provider_id,
        "error": found.error,
        "bytes": len(found.payload),
    }


# ── for people ────────────────────────────────────────────────────────────────────────────────────


def lines(shown: dict[str, Any]) -> Iterator[str]:
    """``name: value``; what is a list or has parts, below its name."""
    for name, value in shown.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            yield f"{label}:"
            parts = cast("dict[str, Any]", value)
            yield from (f"  {line}" for line in lines(parts))
        elif isinstance(value, list) and value:
            yield f"{label}:"
            yield from (f"  {_brief(each)}" for each in value)  # pyright: ignore[reportUnknownVariableType]
        else:
            yield f"{label}: {_word(value)}"


def _brief(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    said = cast("dict[str, Any]", value)
    if "verb" in said:
        return f"{said['at']} {said['verb']} by {said['by']}: {said['reason']}"
    if "kind" in said:
        return f"{said['kind']} {said['name']}{'' if said['done'] else ': begun'}"
    tries = f", {said['tries']} tries" if said["tries"] else ""
    return f"{said['name']} {said['key']}: {said['state']}{tries}"


def _word(value: Any) -> str:
    if value is None or value == []:
        return "-"
    return {True: "yes", False: "no"}.get(value, str(value)) if type(value) is bool else str(value)
